package index

import (
	"context"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// servedFree is the size up to which pages are not counted; most are smaller.
	servedFree = 256 << 10
	// servedWithin bounds the sending of such a page: all callers are on this host.
	servedWithin = time.Minute
)

// serving reserves memory for a page while it is sent to a caller that may be slow. Callers of one page share the reservation. The
// returned function releases it.
func (x *Index) serving(ctx context.Context, w http.ResponseWriter, p *page) (func(), error) {
	size := min(p.cost(), x.cfg.servedBytes())
	if size <= servedFree {
		return func() {}, nil
	}
	if !x.share(p) {
		ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
		err := x.served.Acquire(ctx, size)
		cancel()
		if err != nil {
			return nil, farm.Wrap(err, farm.CodeUnavailable, "Too many large pages are being read at the moment. Try again later.")
		}
		x.mu.Lock()
		if x.sharing[p] > 0 { // another one was faster
			x.served.Release(size)
		}
		x.sharing[p]++
		x.mu.Unlock()
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(servedWithin)) // not every writer has deadlines
	return func() {
		_ = control.SetWriteDeadline(time.Time{}) // the next request of the connection has its own deadline
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.sharing[p]--; x.sharing[p] == 0 {
			delete(x.sharing, p)
			x.served.Release(size)
		}
	}, nil
}

// share joins an existing reservation for the page; false if there is none.
func (x *Index) share(p *page) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sharing[p] == 0 {
		return false
	}
	x.sharing[p]++
	return true
}
