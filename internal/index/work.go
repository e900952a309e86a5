package index

import (
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// lingerAtOnce is how many downloads and pages continue without a reader: installers read a file in several requests, and try again after a
// timeout of their own.
const lingerAtOnce = 16

const (
	// requestRate is how many requests the sandboxes of a tenant make in a second, and requestBurst how many at once: an install of a thousand packages
	// makes some two thousand, and each takes up to half a millisecond of the worker. Further ones wait.
	requestRate, requestBurst = 200, 4000
	// pageUnit is how many bytes of a page that is sent count as one more request: writing them as HTML takes about two milliseconds. Reading them takes
	// ten to twenty. Both have a core of the tenant (see sentOffCore and onCore).
	pageUnit  = 512 << 10
	ratesKept = 10_000 // tenants whose requests are counted
)

// errAbandoned ends work without readers.
var errAbandoned = errors.New("no reader is left")

type tenantKey struct{}

// For is the Index for the sandboxes of a tenant: of all that is limited, one tenant has at most half of what others leave. Requests to the Index
// itself, and Fetch, count as those of one more tenant, whose requests have no rate.
func (x *Index) For(tenant string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests, ok := x.rates.get(tenant)
		if !ok {
			requests = rate.NewLimiter(requestRate, requestBurst)
			x.rates.put(tenant, requests, 1)
		}
		if requests.Wait(r.Context()) != nil {
			return // the sandbox has left
		}
		x.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	})
}

// weigh counts the bytes of a page for the rate of its tenant. Nobody waits for them but later requests: the page is in memory.
func (x *Index) weigh(r *http.Request, bytes int64) {
	if requests, ok := x.rates.get(tenantOf(r.Context())); ok {
		requests.ReserveN(time.Now(), int(min(bytes/pageUnit, requestBurst)))
	}
}

func tenantOf(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}

// acquire waits for a place for the tenant of ctx. The error is that of ctx.
func acquire(ctx context.Context, slots *budget.Places) (*budget.Place, error) {
	place := slots.Ask(tenantOf(ctx))
	select {
	case <-place.Granted():
		return place, nil
	case <-ctx.Done():
		place.Leave()
		return nil, context.Cause(ctx)
	}
}

// tryAcquire is acquire for callers that do not wait; nil: there is no place.
func tryAcquire(tenant string, slots *budget.Places) *budget.Place {
	place := slots.Ask(tenant)
	select {
	case <-place.Granted():
		return place
	default:
		place.Leave()
		return nil
	}
}

// work is a download, or the reading of a page, that several readers wait for. Each reader waits for a place of its own tenant, and the first that
// has one begins the work: until then there is no goroutine, and no tenant waits behind the requests of another. It ends with its last
// reader, unless there is a place to linger.
type work struct {
	begun chan struct{} // closed when it begins

	// Guarded by the Index's mutex.
	readers   int
	left      time.Time               // when the last reader left
	tenant    string                  // of the reader that began it, who has its places
	cancel    context.CancelCauseFunc // nil until it begins
	lingering *budget.Place           // while it continues without readers
	settled   bool                    // complete or failed: readers that leave do not end it
}

func newWork() work { return work{begun: make(chan struct{}), left: time.Now()} }

// enter counts a reader. The caller holds the mutex.
func (w *work) enter() {
	w.readers++
	w.stay()
}

// stay gives back the place for lingering. The caller holds the mutex.
func (w *work) stay() {
	if w.lingering != nil {
		w.lingering.Leave()
		w.lingering = nil
	}
}

// exit removes a reader. It reports whether that ended the work, which nobody may join then. The caller holds the mutex.
func (x *Index) exit(w *work) bool {
	w.readers--
	w.left = time.Now()
	if w.readers > 0 || w.settled {
		return false
	}
	if w.cancel == nil {
		return true
	}
	if w.lingering = tryAcquire(w.tenant, x.lingerSlots); w.lingering != nil {
		return false
	}
	w.cancel(errAbandoned)
	return true
}

// settle records that work is complete or has failed.
func (x *Index) settle(w *work) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.settled = true
	w.stay()
}

// await waits until work has begun. run does the work, and may give its place back early. The caller must be a reader of it. The error is that of ctx, or
// that the index is closed.
func (x *Index) await(ctx context.Context, w *work, slots *budget.Places, run func(ctx context.Context, place *budget.Place)) error {
	select {
	case <-w.begun:
		return nil
	default:
	}
	tenant := tenantOf(ctx)
	place := slots.Ask(tenant)
	select {
	case <-w.begun:
	case <-ctx.Done():
	case <-place.Granted():
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.cancel != nil {
		place.Leave()
		return nil
	}
	if ctx.Err() != nil {
		place.Leave()
		return context.Cause(ctx)
	}
	begun, end, err := x.begin(ctx)
	if err != nil {
		place.Leave()
		return err
	}
	w.tenant = tenant
	begun, w.cancel = context.WithCancelCause(begun)
	close(w.begun)
	go func() {
		defer end()
		defer place.Leave()
		defer x.settle(w)
		run(begun, place)
	}()
	return nil
}

// calls are pages that are being read, by their keys.
type calls struct {
	slots   *budget.Places
	running map[string]*call // guarded by the Index's mutex
}

func newCalls() calls {
	return calls{slots: budget.NewPlaces(pagesAtOnce), running: map[string]*call{}}
}

// call is the reading of a page.
type call struct {
	work
	done chan struct{} // closed when page and err are set
	page *page         // its user is the call, until it has no readers
	err  error
	old  *page // its user is the call, until it ends
}

// once reads a page, together with others that want the same one. The caller must drop it. read gets the old page of the first of them, if there is one.
func (x *Index) once(ctx context.Context, k calls, key string, old *page, read func(ctx context.Context, old *page) (*page, error)) (*page, error) {
	x.mu.Lock()
	c := k.running[key]
	if c == nil {
		c = &call{work: newWork(), done: make(chan struct{}), old: old}
		if old != nil {
			old.charge.users++
		}
		k.running[key] = c
	}
	c.enter()
	x.mu.Unlock()
	remove := func() {
		if k.running[key] == c {
			delete(k.running, key)
		}
	}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.exit(&c.work) {
			remove()
			if c.cancel == nil { // it never begins
				x.dropLocked(c.old)
			}
		}
		if c.readers == 0 && c.isDone() {
			x.dropLocked(c.page)
		}
	}()
	err := x.await(ctx, &c.work, k.slots, func(ctx context.Context, _ *budget.Place) {
		ctx, cancel := context.WithTimeout(ctx, pageTimeout)
		defer cancel()
		ctx, hold := x.cfg.Memory.With(ctx, tenantOf(ctx), 0) // for its core
		defer hold.Release()
		c.page, c.err = read(ctx, c.old)
		x.settle(&c.work)
		x.mu.Lock()
		defer x.mu.Unlock()
		remove()
		close(c.done)
		x.dropLocked(c.old)
		if c.readers == 0 {
			x.dropLocked(c.page)
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		if c.page != nil {
			x.enter(c.page, nil) // the call uses it, so there is room
		}
		return c.page, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// isDone reports whether done is closed.
func (c *call) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
