package index

import (
	"context"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// servedFree is the size up to which pages are given without a count; most have less.
	servedFree = 256 << 10
	// servedMax is how much memory larger pages may take that are on their way to callers.
	servedMax = 256 << 20
	// servedWithin is how long a caller may take for such a page: all callers are on this host.
	servedWithin = time.Minute
)

// serving takes room for a page while it is on its way to a caller who may be slow. Callers of one page share its room. The
// function that it gives gives the room back.
func (x *Index) serving(ctx context.Context, w http.ResponseWriter, p *page) (func(), error) {
	size := min(p.cost(), servedMax)
	if size <= servedFree {
		return func() {}, nil
	}
	if !x.share(p) {
		ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
		err := x.served.Acquire(ctx, size)
		cancel()
		if err != nil {
			return nil, farm.Wrap(err, farm.CodeUnavailable, "Too many large pages are being read at the moment for another one. Try again later.")
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
		_ = control.SetWriteDeadline(time.Time{}) // the next request of the connection is another matter
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.sharing[p]--; x.sharing[p] == 0 {
			delete(x.sharing, p)
			x.served.Release(size)
		}
	}, nil
}

// share takes part in the room that others of the page have; false when there are none.
func (x *Index) share(p *page) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sharing[p] == 0 {
		return false
	}
	x.sharing[p]++
	return true
}
