package index

import (
	"context"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// servedFree is the size up to which pages are not counted; most are smaller.
	servedFree = 256 << 10
	// servedWithin bounds the sending of such a page: all callers are on this host.
	servedWithin = time.Minute
)

// account is whom the process's budget counts what the index holds for: packages are the same for all tenants. It gets at most half.
const account = "packages"

// shared is a large page that is being sent to some callers.
type shared struct {
	callers int
	memory  *budget.Hold
}

// serving reserves memory for a page while it is sent to a caller that may be slow. Callers of one page share the reservation. The
// returned function releases it. A page that is larger than half of the budget is sent alone.
func (x *Index) serving(ctx context.Context, w http.ResponseWriter, p *page) (func(), error) {
	size := p.cost()
	if size <= servedFree {
		return func() {}, nil
	}
	if !x.share(p, nil) {
		ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
		memory, err := x.cfg.Memory.Acquire(ctx, account, size)
		cancel()
		if err != nil {
			return nil, farm.Wrap(err, farm.CodeUnavailable, "Too many large pages are being read at the moment. Try again later.")
		}
		if x.share(p, memory) { // another one was faster
			memory.Release()
		}
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(servedWithin)) // not every writer has deadlines
	return func() {
		_ = control.SetWriteDeadline(time.Time{}) // the next request of the connection has its own deadline
		x.mu.Lock()
		defer x.mu.Unlock()
		s := x.sharing[p]
		if s.callers--; s.callers == 0 {
			delete(x.sharing, p)
			s.memory.Release()
		}
	}, nil
}

// share joins an existing reservation for the page; false if there is none. Then memory, if it is not nil, becomes the reservation.
func (x *Index) share(p *page, memory *budget.Hold) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.sharing[p]
	switch {
	case ok:
		s.callers++
	case memory != nil:
		x.sharing[p] = &shared{callers: 1, memory: memory}
	}
	return ok
}
