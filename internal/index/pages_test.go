package index_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// clock is a clock that a test sets.
type clock struct{ nanoseconds atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.nanoseconds.Store(time.Now().UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.nanoseconds.Load()) }
func (c *clock) advance(d time.Duration) { c.nanoseconds.Add(int64(d)) }

// A page is served from the cache for PageAge, and then revalidated with upstream's validators.
func TestPagesAreRevalidated(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var mu sync.Mutex
	var statuses []string
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		w.Header().Set("Content-Type", "text/html")
		if r.Header.Get("If-None-Match") == `"v1"` && r.Header.Get("If-Modified-Since") != "" {
			statuses = append(statuses, "not modified")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		statuses = append(statuses, "page")
		_, _ = io.WriteString(w, `<a href="/six-1.0.zip">six</a>`)
	})
	c := newClock()
	cfg := u.config()
	cfg.Cache, cfg.Now, cfg.PageAge = newMemory(), c.now, time.Minute
	x, root := serve(t, cfg)
	first := get(t, root+"/pypi/simple/six/")
	c.advance(time.Minute - 1)
	get(t, root+"/pypi/simple/six/")
	c.advance(1)
	for range 2 {
		testbed.Diff(t, "the page changed", first, get(t, root+"/pypi/simple/six/"))
	}
	testbed.Must(t, x.Close()) // the page is in the cache now
	// Another worker with an empty memory has the page, and its validators, from the cache.
	_, second := serve(t, cfg)
	testbed.Diff(t, "the page changed", first, get(t, second+"/pypi/simple/six/"))
	c.advance(time.Minute)
	get(t, second+"/pypi/simple/six/")
	testbed.Diff(t, "upstream", []string{"page", "not modified", "not modified"}, statuses)
}

// Callers can revalidate the page that they have.
func TestPagesHaveValidators(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.wheel("six", "six-1.0.zip", []byte("x"))
	u.mux.HandleFunc("/registry/left", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"name":"left","versions":{}}`)
	})
	_, root := serve(t, u.config())
	tags := map[string]bool{}
	for _, c := range [][2]string{{"/pypi/simple/six/", "text/html"}, {"/pypi/simple/six/", pypiJSON}, {"/npm/left", "application/json"}} {
		a := ask(t, "GET", root+c[0], "Accept", c[1])
		tags[a.header.Get("ETag")] = true
		b := ask(t, "GET", root+c[0], "Accept", c[1], "If-None-Match", a.header.Get("ETag"))
		if a.status != http.StatusOK || b.status != http.StatusNotModified || b.body != "" || a.header.Get("Vary") != "Accept" {
			t.Errorf("%v: status %d, then %d", c, a.status, b.status)
		}
		head := ask(t, "HEAD", root+c[0], "Accept", c[1])
		testbed.Check(t, head.header.Get("Content-Length") == a.header.Get("Content-Length") && head.body == "", "%v: HEAD gives %v", c, head.header)
	}
	testbed.Check(t, len(tags) == 3, "validators %v", tags)
}

// While upstream is down the old page is served, and upstream is left alone for a moment.
func TestUpstreamDown(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var down atomic.Bool
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<a href="/six-1.0.zip">six</a>`)
	})
	c, log := newClock(), &logged{}
	cfg := u.config()
	cfg.Now, cfg.PageAge, cfg.Logger = c.now, time.Minute, log.logger()
	_, root := serve(t, cfg)
	down.Store(true)
	if a := ask(t, "GET", root+"/pypi/simple/six/"); a.status != http.StatusBadGateway || a.body != "The package index answers 503 (Service Unavailable).\n" {
		t.Errorf("status %d, %q", a.status, a.body)
	}
	down.Store(false)
	page := get(t, root+"/pypi/simple/six/")
	down.Store(true)
	c.advance(time.Hour)
	asked := u.all()
	for range 3 {
		testbed.Diff(t, "page", page, get(t, root+"/pypi/simple/six/"))
	}
	if u.all() != asked+1 || log.has("serving an old page") != 1 {
		t.Errorf("upstream was asked %d times, %d warnings", u.all()-asked, log.has("serving an old page"))
	}
	down.Store(false)
	c.advance(time.Minute)
	get(t, root+"/pypi/simple/six/")
	testbed.Check(t, u.all() == asked+2, "upstream was asked %d times", u.all()-asked)
	u.Server.Close()
	a := ask(t, "GET", root+"/pypi/simple/other/")
	testbed.Check(t, a.status == http.StatusGatewayTimeout && a.body == "The package index does not answer.\n", "status %d, %q", a.status, a.body)
}

// A hanging upstream costs a request Timeout, and no time if there is an old page that was requested just before.
func TestUpstreamSlow(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var slow atomic.Bool
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<a href="/six-1.0.zip">six</a>`)
		if slow.Load() {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	})
	u.mux.HandleFunc("/simple/silent/", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	c := newClock()
	cfg := u.config()
	cfg.Now, cfg.PageAge, cfg.Timeout = c.now, time.Minute, 2*time.Second
	_, root := serve(t, cfg)
	page := get(t, root+"/pypi/simple/six/")
	slow.Store(true)
	c.advance(time.Hour)
	for range 2 {
		testbed.Diff(t, "page", page, get(t, root+"/pypi/simple/six/"))
	}
	testbed.Diff(t, "upstream was asked, times", 2, u.times("/simple/six/"))
	a := ask(t, "GET", root+"/pypi/simple/silent/")
	if a.status != http.StatusGatewayTimeout || a.body != "The package index did not answer within 2s.\n" {
		t.Errorf("status %d, %q", a.status, a.body)
	}
}

// A project that upstream does not have is not requested again for a minute.
func TestAbsentProject(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	c := newClock()
	cfg := u.config()
	cache := newMemory()
	cfg.Now, cfg.Cache = c.now, cache
	x, root := serve(t, cfg)
	for range 3 {
		a := ask(t, "GET", root+"/pypi/simple/no-such/")
		if a.status != http.StatusNotFound || a.body != "The package index has no project no-such.\n" {
			t.Errorf("status %d, %q", a.status, a.body)
		}
	}
	testbed.Diff(t, "upstream was asked: times in the first minute", 1, u.all())
	c.advance(time.Minute)
	u.wheel("no-such", "x-1.0.zip", []byte("x"))
	get(t, root+"/pypi/simple/no-such/")
	testbed.Must(t, x.Close())
	testbed.Check(t, cache.puts["index/page/pypi/no-such"] == 1 && len(cache.puts) == 1, "kept %v", cache.puts)
}

// A page that is too large is rejected before it fills the memory.
func TestPageTooLarge(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mux.HandleFunc("/simple/big/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<a href="/six-1.0.zip">six</a>`)
		spaces := strings.Repeat("<br/>                           ", 1<<15)
		for range 65 {
			if _, err := io.WriteString(w, spaces); err != nil {
				return
			}
		}
	})
	x, root := serve(t, u.config())
	a := ask(t, "GET", root+"/pypi/simple/big/")
	if a.status != http.StatusBadGateway || x.Stats().UpstreamBytes > 64<<20+1 {
		t.Errorf("status %d after %d bytes", a.status, x.Stats().UpstreamBytes)
	}
}

// zeros is a page of so many bytes.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	z.left -= n
	return int(n), nil
}

func TestSizesOfPages(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]struct{ large, refused bool }{
		8<<20 - 1: {false, false}, 8 << 20: {false, false}, 8<<20 + 1: {true, false},
		64<<20 - 1: {true, false}, 64 << 20: {true, false}, 64<<20 + 1: {true, true},
	} {
		n, large, err := index.Capped(&zeros{size})
		if large != want.large || (err != nil) != want.refused || !want.refused && n != size {
			t.Errorf("%d bytes: %d were read, large %v, error %v", size, n, large, err)
		}
	}
}
