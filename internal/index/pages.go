package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	staleWait    = 5 * time.Second  // how long a request waits for a new page if there is an old one
	staleFor     = 15 * time.Second // how long the old page is then served without waiting
	validatorMax = 1 << 10
	pageTimeout  = 5 * time.Minute // a page of some dozen MiB over a slow line
)

// source is where a page comes from and how it is read.
type source struct {
	key    string // in the cache
	what   string // as in sentences: "project six"
	from   *upstream
	target *url.URL
	accept []string // tried in this order while upstream says 406
	parse  func(p *page, body io.Reader, contentType string, at *url.URL) error
	finish func(*page) error // fills the fields that are not in the cache
}

// page returns a project's page: from memory, the cache or upstream; an old one if upstream does not respond. The caller must drop it.
func (x *Index) page(ctx context.Context, s source) (*page, error) {
	if until, ok := x.absent.get(s.key); ok && x.cfg.Now().Before(until) {
		return nil, farm.NotFoundf("The %s has no %s.", s.from.name, s.what)
	}
	old, err := x.recall(ctx, s.key)
	if old == nil && err == nil {
		old, err = x.lookup(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	if old == nil {
		return x.refresh(ctx, s, nil)
	}
	if until, ok := x.staleUntil.get(s.key); x.fresh(old) || ok && x.cfg.Now().Before(until) {
		x.count.hits.Add(1)
		return old, nil
	}
	defer x.drop(old)
	return x.refresh(ctx, s, old)
}

func (x *Index) fresh(p *page) bool {
	age := x.cfg.Now().Sub(p.Fetched)
	return age >= 0 && age < x.cfg.PageAge
}

// recall returns a page from memory, which the caller must drop; nil if it is not there. While it waits for a place it holds no page.
func (x *Index) recall(ctx context.Context, key string) (*page, error) {
	p, ok := x.pages.get(key)
	if !ok || x.enter(p, nil) {
		return p, nil
	}
	place, err := x.placeBeyond(ctx)
	if err != nil {
		if ctx.Err() == nil && x.enter(p, nil) { // memory became free meanwhile
			return p, nil
		}
		return nil, err
	}
	if p, ok = x.pages.get(key); !ok {
		place.Leave()
		return nil, nil
	}
	x.enter(p, place)
	return p, nil
}

// lookup reads a page from the cache, which the caller must drop; nil if there is none.
func (x *Index) lookup(ctx context.Context, s source) (*page, error) {
	if !x.cache.use() {
		return nil, nil
	}
	return x.once(ctx, x.lookups, s.key, nil, func(ctx context.Context, _ *page) (*page, error) {
		if p, err := x.recall(ctx, s.key); p != nil || err != nil {
			return p, err
		}
		r, size, ok := x.cache.get(ctx, s.key, 0, 0)
		if !ok {
			return nil, nil
		}
		defer r.Close()
		p, refused, err := x.readPage(ctx, r, 4*pageMax, func(p *page, body io.Reader) error {
			if err := p.decode(body, size); err != nil {
				return err
			}
			return s.finish(p)
		})
		if refused != nil {
			return nil, refused
		}
		if err != nil {
			x.cache.failed(ctx, "read page", err)
			return nil, nil
		}
		x.pages.put(s.key, p, p.cost())
		return p, nil
	})
}

// refresh asks upstream. If there is an old page it waits only for staleWait; the response then serves later requests. The caller must drop what
// it returns, and the old page.
func (x *Index) refresh(ctx context.Context, s source, old *page) (*page, error) {
	waitCtx, cancel := ctx, func() {}
	if old != nil {
		slow := farm.Errorf(farm.CodeUnavailable, "The %s is slow.", s.from.name)
		waitCtx, cancel = context.WithTimeoutCause(ctx, min(staleWait, x.cfg.Timeout), slow)
	}
	defer cancel()
	led := false
	p, err := x.once(waitCtx, x.refreshes, s.key, old, func(ctx context.Context, old *page) (*page, error) {
		led = true
		if p, ok := x.pages.get(s.key); ok && x.fresh(p) {
			if p, err := x.recall(ctx, s.key); p != nil || err != nil {
				return p, err
			}
		}
		return x.fetchPage(ctx, s, old)
	})
	if err == nil {
		if !led {
			x.count.coalesced.Add(1)
		}
		return p, nil
	}
	if old == nil || ctx.Err() != nil || farm.CodeOf(err) == farm.CodeNotFound {
		return nil, err
	}
	x.staleUntil.put(s.key, x.cfg.Now().Add(staleFor), 1)
	x.warn(ctx, "package index does not respond; serving an old page", "page", s.key, "age", x.cfg.Now().Sub(old.Fetched), "error", err)
	x.enter(old, nil) // the caller uses it, so there is room
	return old, nil
}

// fetchPage requests a page from upstream, with the validators of the old one, and stores the response.
func (x *Index) fetchPage(ctx context.Context, s source, old *page) (*page, error) {
	p, err := x.ask(ctx, s, old)
	if farm.CodeOf(err) == farm.CodeNotFound {
		x.absent.put(s.key, x.cfg.Now().Add(absentFor), 1)
		x.pages.remove(s.key)
		return nil, farm.NotFoundf("The %s has no %s.", s.from.name, s.what)
	}
	if err != nil {
		return nil, err
	}
	x.pages.put(s.key, p, p.cost())
	x.keepPage(ctx, s, p)
	return p, nil
}

// keepPage puts a page into the cache in the background, unless too many are waiting for that: they stay in memory meanwhile.
func (x *Index) keepPage(ctx context.Context, s source, p *page) {
	if !x.cache.use() {
		return
	}
	room := min(max(p.cost(), keptLeast), pagesMemory)
	if !x.keepRoom.TryAcquire(room) {
		return
	}
	x.enter(p, nil) // the caller uses it, so there is room
	end := func() {
		x.keepRoom.Release(room)
		x.drop(p)
	}
	begun := x.background(ctx, func(ctx context.Context) {
		defer end()
		x.keeping <- struct{}{} // an older write of the page must not come after a newer one
		defer func() { <-x.keeping }()
		if newest, ok := x.pages.get(s.key); ok && newest.Fetched.After(p.Fetched) {
			return // a newer page follows
		}
		// A complete page is still stored when the index closes: the next index starts with it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if size, ok := x.putPage(ctx, s.key, p); ok {
			x.added(ctx, size)
		}
	})
	if !begun {
		end()
	}
}

// putPage puts a page into the cache, piece by piece, and reports its size there and whether that worked.
func (x *Index) putPage(ctx context.Context, key string, p *page) (size int64, ok bool) {
	var n length
	_ = p.encode(&n) // it cannot fail
	r, w := io.Pipe()
	var encoding sync.WaitGroup
	defer encoding.Wait()
	defer r.Close()
	encoding.Go(func() { _ = w.CloseWithError(p.encode(w)) }) // it never fails
	return int64(n), x.cache.put(ctx, key, r, int64(n))
}

// ask makes the request, and a second one if upstream does not have the first form.
func (x *Index) ask(ctx context.Context, s source, old *page) (*page, error) {
	var err error
	for _, accept := range s.accept {
		header := http.Header{"Accept": {accept}}
		if old != nil && old.ETag != "" {
			header.Set("If-None-Match", old.ETag)
		}
		if old != nil && old.Modified != "" {
			header.Set("If-Modified-Since", old.Modified)
		}
		var resp *http.Response
		if resp, err = s.from.get(ctx, s.target, header); err != nil {
			if errors.Is(err, statusError(http.StatusNotAcceptable)) {
				continue
			}
			return nil, err
		}
		return x.read(ctx, s, old, resp)
	}
	return nil, err
}

// read parses a response.
func (x *Index) read(ctx context.Context, s source, old *page, resp *http.Response) (_ *page, err error) {
	defer resp.Body.Close()
	now := x.cfg.Now()
	if resp.StatusCode == http.StatusNotModified && old != nil {
		p := *old
		p.Fetched = now
		x.enter(&p, nil) // the call uses the old page, so there is room
		return &p, nil
	}
	if resp.StatusCode != http.StatusOK {
		return nil, s.from.refused(resp.StatusCode)
	}
	p, refused, err := x.readPage(ctx, resp.Body, pageMax, func(p *page, body io.Reader) error {
		if err := s.parse(p, body, resp.Header.Get("Content-Type"), resp.Request.URL); err != nil {
			return err
		}
		p.ETag, p.Modified, p.Fetched = validator(resp, "ETag"), validator(resp, "Last-Modified"), now
		p.arrange()
		return s.finish(p)
	})
	if refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, s.from.broken(fmt.Errorf("read page: %w", err), "a page of %s that cannot be read", s.what)
	}
	return p, nil
}

// readPage reads a page of up to most bytes, whose memory is charged as it grows, and for one user from then on. refused is why it may not take more.
func (x *Index) readPage(ctx context.Context, from io.Reader, most int64, parse func(p *page, body io.Reader) error) (_ *page, refused, err error) {
	c := x.newCharge()
	body := &capped{r: from, max: most, charge: func(bytes int64) error {
		if refused == nil { // a parser may read on after an error
			refused = x.need(ctx, c, bytes)
		}
		return refused
	}}
	p := &page{grows: body}
	err = parse(p, &onCore{ctx: ctx, r: body})
	p.grows = nil
	budget.LeaveCore(ctx)
	if refused != nil {
		return nil, refused, nil
	}
	if err != nil {
		x.discharge(c)
		return nil, nil, err
	}
	return p, x.settlePage(ctx, p, c), nil
}

// validator returns a header for revalidation; none if it is unreasonably long.
func validator(resp *http.Response, name string) string {
	if value := resp.Header.Get(name); len(value) <= validatorMax {
		return value
	}
	return ""
}

// account is whom the process's budget counts what the index holds for: packages are the same for all tenants. It gets at most half.
const account = "packages"

// charge is what the memory budget counts for a page over pageFree, from before it is read until its last user drops it. A page that the budget has no
// room for has one of the few places beyond it instead. Who waits for such a place keeps what has been charged, and who has one waits for no memory.
// The wait ends with an error, so that an old page that has a place may wait for the place of the new one.
type charge struct {
	memory *budget.Hold
	size   int64 // what must be charged; 0 while the page is read

	// Guarded by the Index's mutex when the page has been read.
	place *budget.Place
	users int
}

func (x *Index) newCharge() *charge {
	nothing, _ := x.cfg.Memory.TryAcquire(account, 0)
	return &charge{memory: nothing, users: 1}
}

// need charges up to n bytes for a page that is being read, or waits for a place beyond the budget, without a core. An error ends the charge.
func (x *Index) need(ctx context.Context, c *charge, n int64) (err error) {
	fits := n <= x.beyondMax
	if c.place != nil && fits || c.grow(n) {
		return nil
	}
	if !fits {
		x.discharge(c)
		return farm.Errorf(farm.CodeTooLarge, "The page takes more than %d MiB of memory, which is all that this worker has for one.", x.beyondMax>>20)
	}
	budget.LeaveCore(ctx)
	if c.place, err = x.placeBeyond(ctx); err == nil || ctx.Err() == nil && c.grow(n) { // memory became free meanwhile
		return nil
	}
	x.discharge(c)
	return err
}

// placeBeyond waits for a place for a page that the budget has no room for.
func (x *Index) placeBeyond(ctx context.Context) (*budget.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
	defer cancel()
	place, err := acquire(ctx, x.beyond)
	if err != nil {
		return nil, farm.Wrap(err, farm.CodeUnavailable, "Too many large pages are being read at the moment. Try again later.")
	}
	return place, nil
}

// settlePage charges a page that has been read for what it takes from now on, for one user. An error ends the charge.
func (x *Index) settlePage(ctx context.Context, p *page, c *charge) error {
	p.charge = c
	if size := p.cost(); size > pageFree {
		c.size = size
	}
	c.memory.Keep(c.size)
	if c.fits() {
		return nil
	}
	return x.need(ctx, c, c.size)
}

// grow charges n bytes in all if the budget has room for them. None are of those that it keeps for small requests: a page may last for a minute.
func (c *charge) grow(n int64) bool {
	missing := n - c.memory.Bytes()
	return missing <= 0 || c.memory.Grow(max(missing, budget.SmallBytes+1))
}

// fits charges what is missing if the budget has room for it, and then leaves the place beyond it.
func (c *charge) fits() bool {
	if !c.grow(c.size) {
		return false
	}
	if c.place != nil {
		c.place.Leave()
		c.place = nil
	}
	return true
}

// enter counts a user of a page, who must drop it. place is for a page that the budget has no room for; without one, false means that there is no room.
func (x *Index) enter(p *page, place *budget.Place) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := p.charge
	if c.users == 0 && !c.fits() {
		if place == nil {
			return false
		}
		c.place, place = place, nil
	}
	c.users++
	if place != nil {
		place.Leave()
	}
	return true
}

// drop removes a user of a page.
func (x *Index) drop(p *page) { x.discharge(p.charge) }

// dropLocked is drop for callers that hold the mutex; nil is no page.
func (x *Index) dropLocked(p *page) {
	if p != nil {
		x.dischargeLocked(p.charge)
	}
}

// discharge removes a user of a charge.
func (x *Index) discharge(c *charge) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dischargeLocked(c)
}

// dischargeLocked is discharge for callers that hold the mutex.
func (x *Index) dischargeLocked(c *charge) {
	if c.users--; c.users > 0 {
		c.fits() // somebody may always read the page, and others wait for its place
		return
	}
	c.memory.Release()
	if c.place != nil {
		c.place.Leave()
		c.place = nil
	}
}
