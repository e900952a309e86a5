package index_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	granted := func(int64) error { return nil }
	for size, want := range map[int64]struct{ charged, refused bool }{
		256<<10 - 1: {false, false}, 256 << 10: {false, false}, 256<<10 + 1: {true, false},
		64<<20 - 1: {true, false}, 64 << 20: {true, false}, 64<<20 + 1: {true, true},
	} {
		n, charged, err := index.Capped(&zeros{size}, granted)
		if (charged > 0) != want.charged || (err != nil) != want.refused || !want.refused && n != size {
			t.Errorf("%d bytes: %d were read, %d charged, error %v", size, n, charged, err)
		}
		if takes := index.ValueWeight * min(size, index.ReadWeighed); want.charged && (charged < takes-index.ValueWeight || charged > takes+index.PageStep) {
			t.Errorf("%d bytes: %d are charged", size, charged)
		}
	}
	// What is refused is not read.
	for _, steps := range []int64{0, 1} {
		left := steps
		n, charged, err := index.Capped(&zeros{8 << 20}, func(int64) error {
			if left--; left < 0 {
				return errBroken
			}
			return nil
		})
		want := int64(index.PageFree + 1)
		if steps > 0 {
			want = charged/index.ValueWeight + 1
		}
		testbed.Check(t, errors.Is(err, errBroken) && n == want && charged <= index.ValueWeight*(index.PageFree+steps)+steps*index.PageStep, "%d steps: %d bytes were read, %d charged, %v", steps, n, charged, err)
	}
}

const pypiJSON = "application/vnd.pypi.simple.v1+json"

var (
	hashA = strings.Repeat("a", 64)
	hashB = strings.Repeat("b", 64)
)

// The attributes of a page's files are served in both forms, whichever form upstream has.
func TestPagesInBothForms(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.page("from-html", "text/html; charset=utf-8", `<!DOCTYPE html><html><body>
<a href="FILES/a/x-1.0%2Blocal-py3-none-any.whl#sha256=`+strings.ToUpper(hashA)+`" data-requires-python="&gt;=3.9" data-core-metadata="sha256=`+hashB+`">x</a>
<A class="y" HREF='../../b/x-0.9.tar.gz#md5=0123' data-yanked="broken &amp; old" data-upload-time="2020-01-02T03:04:05.5Z">x</A>
<a href="/login">Log in</a><a href="javascript:x.zip">x</a><a href="ftp://h/x-0.1.zip">x</a>
<a href="/c/x-0.8.zip" data-yanked data-dist-info-metadata="true" data-upload-time="never">x</a></body></html>`)
	u.page("from-json", pypiJSON, `{"meta":{"api-version":"1.4","x":[1]},"name":"From.JSON","versions":["1.0","0.9"],"extra":{"a":[1]},"files":[
{"filename":"x-1.0+local-py3-none-any.whl","url":"FILES/a/x-1.0%2Blocal-py3-none-any.whl","hashes":{"sha256":"`+hashA+`","md5":"1"},"requires-python":">=3.9","size":123,"core-metadata":{"sha256":"`+hashB+`"}},
{"filename":"x-0.9.tar.gz","url":"../../b/x-0.9.tar.gz","hashes":{},"requires-python":null,"size":5,"yanked":"broken & old","upload-time":"2020-01-02T03:04:05.5Z","core-metadata":false},
{"filename":"../up.whl","url":"/up.whl","hashes":{}},
{"filename":"x-0.8.zip","url":"/c/x-0.8.zip","hashes":{},"size":7,"yanked":true,"data-dist-info-metadata":true}]}`)
	_, root := serve(t, u.config())
	const listed = `[
{"filename":"x-0.8.zip","url":"/pypi/files/NAME/x-0.8.zip","hashes":{},%[1]s"yanked":true,"core-metadata":true,"data-dist-info-metadata":true},
{"filename":"x-0.9.tar.gz","url":"/pypi/files/NAME/x-0.9.tar.gz","hashes":{},%[2]s"upload-time":"2020-01-02T03:04:05.5Z","yanked":"broken & old"},
{"filename":"x-1.0+local-py3-none-any.whl","url":"/pypi/files/NAME/x-1.0+local-py3-none-any.whl","hashes":{"sha256":"HASHA"},"requires-python":">=3.9",%[3]s
"core-metadata":{"sha256":"HASHB"},"data-dist-info-metadata":{"sha256":"HASHB"}}]`
	fill := strings.NewReplacer("HASHA", hashA, "HASHB", hashB).Replace
	for name, want := range map[string]string{
		"from-html": `{"meta":{"api-version":"1.0"},"name":"NAME","files":` + fmt.Sprintf(fill(listed), "", "", "") + "}",
		"from-json": `{"meta":{"api-version":"1.1"},"name":"NAME","versions":["1.0","0.9"],"files":` +
			fmt.Sprintf(fill(listed), `"size":7,`, `"size":5,`, `"size":123,`) + "}",
	} {
		a := ask(t, "GET", root+"/pypi/simple/"+name+"/", "Accept", pypiJSON+", text/html;q=0.1")
		if diff := cmp.Diff(parsed(t, strings.ReplaceAll(want, "NAME", name)), parsed(t, a.body)); diff != "" || a.header.Get("Content-Type") != pypiJSON {
			t.Errorf("%s as JSON, type %s (-want +got):\n%s", name, a.header.Get("Content-Type"), diff)
		}
		page := `<a href="/pypi/files/NAME/x-0.8.zip" data-yanked="" data-core-metadata="true" data-dist-info-metadata="true">x-0.8.zip</a><br/>
<a href="/pypi/files/NAME/x-0.9.tar.gz" data-upload-time="2020-01-02T03:04:05.5Z" data-yanked="broken &amp; old">x-0.9.tar.gz</a><br/>
<a href="/pypi/files/NAME/x-1.0+local-py3-none-any.whl#sha256=` + hashA + `" data-requires-python="&gt;=3.9" data-core-metadata="sha256=` + hashB + `" data-dist-info-metadata="sha256=` + hashB + `">x-1.0+local-py3-none-any.whl</a><br/>`
		for _, accept := range []string{"text/html", "*/*", "text/html, " + pypiJSON + ";q=0.5", pypiJSON + ";q=0", "nonsense;;"} {
			a := ask(t, "GET", root+"/pypi/simple/"+name+"/", "Accept", accept)
			if !strings.Contains(a.body, strings.ReplaceAll(page, "NAME", name)) || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
				t.Errorf("%s as HTML for %q:\n%s", name, accept, a.body)
			}
		}
	}
}

func parsed(t *testing.T, text string) any {
	t.Helper()
	var v any
	err := json.Unmarshal([]byte(text), &v)
	testbed.Require(t, err == nil, "%v in %s", err, text)
	return v
}

// JSON is requested first; if the index refuses, HTML is requested.
func TestUpstreamWithoutJSON(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var accepts []string
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		accepts = append(accepts, r.Header.Get("Accept"))
		if r.Header.Get("Accept") != "text/html" {
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<h1>Links for six</h1>")
	})
	_, root := serve(t, u.config())
	get(t, root+"/pypi/simple/six/")
	testbed.Check(t, len(accepts) == 2 && strings.HasPrefix(accepts[0], pypiJSON), "asked for %q", accepts)
}

func TestNamesLeadToTheNormalOne(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.page("zope-interface", "text/html", "<h1>Links for zope-interface</h1>")
	_, root := serve(t, u.config())
	for _, name := range []string{"Zope.Interface/", "zope_interface/", "zope-._-interface", "zope-interface"} {
		a := ask(t, "GET", root+"/pypi/simple/"+name)
		if a.status != http.StatusMovedPermanently || a.header.Get("Location") != "/pypi/simple/zope-interface/" {
			t.Errorf("%s: status %d to %q", name, a.status, a.header.Get("Location"))
		}
	}
	testbed.Check(t, u.all() == 0, "upstream was asked %v", u.asked)
	get(t, root+"/pypi/simple/zope-interface/")
}

// Metadata of a file is verified with its own hash, and is served only if the page lists it.
func TestMetadata(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	text := []byte("Metadata-Version: 2.1\nName: six\n")
	u.page("six", "text/html", `<a href="/f/good.whl#sha256=`+hashA+`" data-core-metadata="sha256=`+sha(text)+`">x</a>
<a href="/f/bad.whl" data-core-metadata="sha256=`+hashB+`">x</a><a href="/f/none.whl">x</a><a href="/f/any.whl#sha256=`+hashA+`" data-core-metadata="true">x</a>`)
	u.mux.HandleFunc("/f/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })
	_, root := serve(t, u.config())
	for _, name := range []string{"good", "any"} {
		testbed.Diff(t, name, string(text), get(t, root+"/pypi/files/six/"+name+".whl.metadata"))
	}
	a := ask(t, "GET", root+"/pypi/files/six/bad.whl.metadata")
	testbed.Check(t, a.err != nil || a.status != http.StatusOK, "metadata with a wrong hash: status %d, %q", a.status, a.body)
	a = ask(t, "GET", root+"/pypi/files/six/none.whl.metadata")
	testbed.Check(t, a.status == http.StatusNotFound && u.times("/f/none.whl.metadata") == 0, "metadata that is not listed: status %d", a.status)
}

// Links may lead to the index's own host and to the configured hosts.
func TestLinksToOtherHosts(t *testing.T) {
	t.Parallel()
	u, files, evil := newUpstream(t), newUpstream(t), newUpstream(t)
	for _, s := range []*upstream{u, files, evil} {
		s.mux.HandleFunc("/f/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	}
	sum := sha([]byte("secret"))
	for i, s := range []*upstream{u, files, evil} {
		at := s.URL
		s.mux.HandleFunc("/away/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, evil.URL+"/f/x.whl", http.StatusFound)
		})
		u.page(fmt.Sprintf("p%d", i), "text/html", `<a href="`+at+`/f/x.whl#sha256=`+sum+`">x</a>`)
	}
	u.page("redirected", "text/html", `<a href="/away/x.whl#sha256=`+sum+`">x</a>`)
	u.mux.HandleFunc("/simple/inside/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/simple/p0/", http.StatusFound)
	})
	u.mux.HandleFunc("/simple/outside/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, evil.URL+"/simple/p0/", http.StatusFound)
	})
	u.mux.HandleFunc("/simple/circle/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/simple/circle/", http.StatusFound)
	})
	cfg := u.config()
	cfg.FilesURL = "http://files.example, " + files.URL
	_, root := serve(t, cfg)
	for name, c := range map[string]struct {
		path   string
		status int
		text   string
	}{
		"OwnHost":        {"/pypi/files/p0/x.whl", 200, "secret"},
		"HostBeside":     {"/pypi/files/p1/x.whl", 200, "secret"},
		"OtherHost":      {"/pypi/files/p2/x.whl", 502, "The package index leads to " + evil.URL + ", which is not one of the hosts"},
		"FileRedirected": {"/pypi/files/redirected/x.whl", 502, "The package index leads to " + evil.URL},
		"PageInside":     {"/pypi/simple/inside/", 200, "/pypi/files/inside/x.whl"},
		"PageOutside":    {"/pypi/simple/outside/", 502, "The package index leads to " + evil.URL},
		"PageInACircle":  {"/pypi/simple/circle/", 502, "redirects in a loop"},
	} {
		a := ask(t, "GET", root+c.path)
		testbed.Check(t, a.status == c.status && strings.Contains(a.body, c.text), "%s: status %d, %q", name, a.status, a.body)
	}
	testbed.Check(t, evil.all() == 0, "the other host was asked %v", evil.asked)
}

// A response that is not a page is rejected with an error every time, and never cached.
func TestGarbage(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var kind, text atomic.Value
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind.Load().(string))
		_, _ = io.WriteString(w, text.Load().(string))
	})
	cfg := u.config()
	cache := newMemory()
	cfg.Cache = cache
	x, root := serve(t, cfg)
	for name, c := range map[string][2]string{
		"Empty":        {"text/html", ""},
		"Portal":       {"text/html", `<html><title>Log in</title><a href="/login">Log in</a></html>`},
		"Binary":       {"application/octet-stream", "\x00\x01"},
		"NoType":       {";;;", "x"},
		"CutJSON":      {pypiJSON, `{"meta":{"api-version":"1.0"},"files":[{"filename":"x`},
		"OtherJSON":    {pypiJSON, `{"error":"x"}`},
		"NoFiles":      {pypiJSON, `{"meta":{"api-version":"1.0"}}`},
		"Version2":     {pypiJSON, `{"meta":{"api-version":"2.0"},"files":[]}`},
		"Version2HTML": {"text/html", `<meta name="pypi:repository-version" content="2.0"><a href="/x.whl">x</a>`},
		"TwoDocuments": {pypiJSON, `{"meta":{"api-version":"1.0"},"files":[]}{}`},
		"List":         {pypiJSON, `[1,2]`},
	} {
		kind.Store(c[0])
		text.Store(c[1])
		a := ask(t, "GET", root+"/pypi/simple/six/")
		if a.status != http.StatusBadGateway || a.body != "The package index gave a page of project six that cannot be read.\n" {
			t.Errorf("%s: status %d, %q", name, a.status, a.body)
		}
	}
	kind.Store("text/html")
	text.Store(`<h1>Links for six</h1>`)
	get(t, root+"/pypi/simple/six/")
	testbed.Must(t, x.Close())
	testbed.Check(t, cache.puts["index/page/pypi/six"] == 1, "kept %v", cache.puts)
}
