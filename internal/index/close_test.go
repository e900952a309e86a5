package index_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Close aborts running downloads, waits for them, and rejects later requests. A second Close does nothing.
func TestCloseEndsDownloads(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 1<<20)
	u.page("six", "text/html", `<a href="/slow/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	u.slowly("/slow/six-1.0.whl", content, never)
	cfg := u.config()
	cache := newMemory()
	cfg.Cache = cache
	x, _ := serve(t, cfg)
	r, size, err := x.Fetch(t.Context(), "six", "six-1.0.whl", "")
	testbed.Require(t, err == nil && size == 1<<20, "size %d, error %v", size, err)
	_, err = io.ReadFull(r, make([]byte, 1000))
	testbed.Must(t, err)
	begun := time.Now()
	for range 2 {
		testbed.Must(t, x.Close())
	}
	took := time.Since(begun)
	testbed.Check(t, took <= time.Minute, "Close took %v", took)
	n, err := io.Copy(io.Discard, r)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable && n < 1<<20-1000, "%d more bytes, error %v", n, err)
	testbed.Must(t, r.Close())
	if n := x.Spooled(); n != 0 || len(cache.files()) != 0 {
		t.Errorf("%d bytes are left, kept %v", n, cache.files())
	}
	_, _, err = x.Fetch(t.Context(), "six", "six-1.0.whl", "")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "after Close: %v", err)
}

// A caller whose context ends stops waiting; the other callers continue.
func TestCallerThatGivesUp(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 1<<20)
	u.page("six", "text/html", `<a href="/slow/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
	release := make(chan struct{})
	u.slowly("/slow/six-1.0.whl", content, release)
	x, root := serve(t, u.config())
	ctx, cancel := context.WithCancel(t.Context())
	r, _, err := x.Fetch(ctx, "six", "six-1.0.whl", "")
	testbed.Must(t, err)
	_, err = io.ReadFull(r, make([]byte, 1<<19-1))
	testbed.Must(t, err)
	cancel()
	_, err = r.Read(make([]byte, 1))
	testbed.Check(t, errors.Is(err, context.Canceled), "error %v", err)
	testbed.Must(t, r.Close())
	close(release)
	if got := get(t, root+"/pypi/files/six/six-1.0.whl"); got != string(content) || u.times("/slow/six-1.0.whl") != 1 {
		t.Errorf("%d bytes, upstream was asked %d times", len(got), u.times("/slow/six-1.0.whl"))
	}
}

// The total size of concurrent downloads stays under the larger of the two limits.
func TestSpoolsAreBounded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	for _, name := range []string{"a", "b"} {
		content := random(t, 700_000)
		u.wheel(name, name+"-1.0.whl", content)
	}
	cfg := u.config()
	cfg.CacheMB, cfg.MaxFileMB, cfg.Timeout = 1, 1, 2*time.Second
	x, root := serve(t, cfg)
	// While a caller reads the first file, there is no space for the second.
	r, size, err := x.Fetch(t.Context(), "a", "a-1.0.whl", "")
	testbed.Must(t, err)
	n, err := io.Copy(io.Discard, r)
	testbed.Check(t, err == nil && n == size, "%d of %d bytes, error %v", n, size, err)
	a := ask(t, http.MethodGet, root+"/pypi/files/b/b-1.0.whl")
	testbed.Check(t, a.err != nil || a.status != http.StatusOK, "status %d, %d bytes", a.status, len(a.body))
	n = x.Spooled()
	testbed.Check(t, n <= 1<<20, "%d bytes in spool files", n)
	// After that the first file is only retained for later requests, and gives up its space.
	testbed.Must(t, r.Close())
	testbed.Until(t, "room for the second file", func() bool {
		a := ask(t, http.MethodGet, root+"/pypi/files/b/b-1.0.whl")
		return a.err == nil && a.status == http.StatusOK
	})
}

func TestServe(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.wheel("six", "six-1.0.whl", []byte("text"))
	s, err := index.Serve(t.Context(), u.config())
	testbed.Must(t, err)
	if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") || !strings.HasSuffix(s.URL(), "/pypi/simple/") || strings.TrimSuffix(s.NpmURL(), "/npm/")+"/pypi/simple/" != s.URL() {
		t.Errorf("addresses %s and %s", s.URL(), s.NpmURL())
	}
	get(t, s.URL()+"six/")
	testbed.Check(t, s.Stats().Requests == 1, "counters %+v", s.Stats())
	testbed.Must(t, s.Close())
	_, err = index.Serve(t.Context(), index.Config{PyPIURL: "x"})
	testbed.Check(t, err != nil, "a bad address was accepted")
}
