package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
	parse  func(body io.Reader, contentType string, at *url.URL) (*page, error)
	finish func(*page) error // fills the fields that are not in the cache
}

// page returns a project's page: from memory, the cache or upstream; an old one if upstream does not respond.
func (x *Index) page(ctx context.Context, s source) (*page, error) {
	if until, ok := x.absent.get(s.key); ok && x.cfg.Now().Before(until) {
		return nil, farm.NotFoundf("The %s has no %s.", s.from.name, s.what)
	}
	old, ok := x.pages.get(s.key)
	if ok && x.fresh(old) {
		x.count.hits.Add(1)
		return old, nil
	}
	if !ok {
		var err error
		if old, err = x.lookup(ctx, s); err != nil {
			return nil, err
		}
		if old != nil && x.fresh(old) {
			x.count.hits.Add(1)
			return old, nil
		}
	}
	if until, ok := x.staleUntil.get(s.key); old != nil && ok && x.cfg.Now().Before(until) {
		x.count.hits.Add(1)
		return old, nil
	}
	return x.refresh(ctx, s, old)
}

func (x *Index) fresh(p *page) bool {
	age := x.cfg.Now().Sub(p.Fetched)
	return age >= 0 && age < x.cfg.PageAge
}

// lookup reads a page from the cache; nil if there is none.
func (x *Index) lookup(ctx context.Context, s source) (*page, error) {
	if !x.cache.use() {
		return nil, nil
	}
	return x.once(ctx, x.lookups, s.key, func(ctx context.Context) (*page, error) {
		if p, ok := x.pages.get(s.key); ok {
			return p, nil
		}
		r, size, ok := x.cache.get(ctx, s.key, 0, 0)
		if !ok {
			return nil, nil
		}
		defer r.Close()
		if size > pageLarge {
			place, err := acquire(ctx, x.bigSlots)
			if err != nil {
				return nil, s.from.unreachable(err, err)
			}
			defer place.Leave()
		}
		p, err := decode(r)
		if err == nil {
			err = s.finish(p)
		}
		if err != nil {
			x.cache.failed(ctx, "read page", err)
			return nil, nil
		}
		x.pages.put(s.key, p, p.cost())
		return p, nil
	})
}

// refresh asks upstream. If there is an old page it waits only for staleWait; the response then serves later requests.
func (x *Index) refresh(ctx context.Context, s source, old *page) (*page, error) {
	waitCtx, cancel := ctx, func() {}
	if old != nil {
		slow := farm.Errorf(farm.CodeUnavailable, "The %s is slow.", s.from.name)
		waitCtx, cancel = context.WithTimeoutCause(ctx, min(staleWait, x.cfg.Timeout), slow)
	}
	defer cancel()
	led := false
	p, err := x.once(waitCtx, x.refreshes, s.key, func(ctx context.Context) (*page, error) {
		led = true
		if p, ok := x.pages.get(s.key); ok && x.fresh(p) {
			return p, nil
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
	x.background(ctx, func(ctx context.Context) {
		defer x.keepRoom.Release(room)
		x.keeping <- struct{}{} // an older write of the page must not come after a newer one
		defer func() { <-x.keeping }()
		if newest, ok := x.pages.get(s.key); ok && newest.Fetched.After(p.Fetched) {
			return // a newer page follows
		}
		// A complete page is still stored when the index closes: the next index starts with it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		text, err := p.encode()
		if err != nil {
			x.log.ErrorContext(ctx, "page of the package index cannot be kept", "page", s.key, "error", err)
			return
		}
		if x.cache.put(ctx, s.key, bytes.NewReader(text), int64(len(text))) {
			x.added(ctx, int64(len(text)))
		}
	})
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
		return &p, nil
	}
	if resp.StatusCode != http.StatusOK {
		return nil, s.from.refused(resp.StatusCode)
	}
	var place *budget.Place
	body := &capped{r: resp.Body, grow: func() (err error) {
		place, err = acquire(ctx, x.bigSlots)
		return err
	}}
	defer func() {
		if place != nil {
			place.Leave()
		}
	}()
	p, err := s.parse(body, resp.Header.Get("Content-Type"), resp.Request.URL)
	if err == nil {
		p.ETag, p.Modified, p.Fetched = validator(resp, "ETag"), validator(resp, "Last-Modified"), now
		p.arrange()
		err = s.finish(p)
	}
	if err != nil {
		return nil, s.from.broken(fmt.Errorf("read page: %w", err), "a page of %s that cannot be read", s.what)
	}
	return p, nil
}

// validator returns a header for revalidation; none if it is unreasonably long.
func validator(resp *http.Response, name string) string {
	if value := resp.Header.Get(name); len(value) <= validatorMax {
		return value
	}
	return ""
}
