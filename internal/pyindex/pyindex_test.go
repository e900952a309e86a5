package pyindex_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/pyindex"
)

// upstream is an index and a file store, and what was asked of them.
type upstream struct {
	index, files *httptest.Server
	mu           sync.Mutex
	asked        []string
}

func (u *upstream) note(r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked = append(u.asked, r.Method+" "+r.URL.EscapedPath())
}

const wheel = "0123456789"

// setup starts upstream and the server under test.
func setup(t *testing.T) (*upstream, string) {
	t.Helper()
	u := &upstream{}
	serve := func(w http.ResponseWriter, r *http.Request) {
		u.note(r)
		http.ServeContent(w, r, "x.whl", time.Time{}, strings.NewReader(wheel))
	}
	files := http.NewServeMux()
	files.HandleFunc("/packages/", serve)
	u.files = httptest.NewServer(files)
	index := http.NewServeMux()
	index.HandleFunc("/own/", serve)
	index.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		u.note(r)
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.ReplaceAll(page, "FILES", u.files.URL))
	})
	u.index = httptest.NewServer(index)
	s, err := pyindex.Serve(t.Context(), pyindex.Config{IndexURL: u.index.URL + "/simple", FilesURL: u.files.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		u.index.Close()
		u.files.Close()
	})
	return u, strings.TrimSuffix(s.URL(), "/simple/")
}

const page = `<!DOCTYPE html><html><body>
<a href="FILES/packages/a%2Bb/six-1.0-py3-none-any.whl#sha256=abc" data-dist-info-metadata="sha256=def" data-requires-python="&gt;=3">six</a><br/>
<A class="x" HREF='../../own/six-2.0.whl?x=1&amp;y=2#sha256=abc'>six</A>
<a href="https://elsewhere.example/six-3.0.whl">six</a>
<a href="FILES.evil.example/packages/six-4.0.whl">six</a>
</body></html>`

const served = `<!DOCTYPE html><html><body>
<a href="/files/packages/a%2Bb/six-1.0-py3-none-any.whl#sha256=abc" data-dist-info-metadata="sha256=def" data-requires-python="&gt;=3">six</a><br/>
<A class="x" HREF='/host/own/six-2.0.whl#sha256=abc'>six</A>
<a href="https://elsewhere.example/six-3.0.whl">six</a>
<a href="FILES.evil.example/packages/six-4.0.whl">six</a>
</body></html>`

func do(t *testing.T, method, url, ranged string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ranged != "" {
		req.Header.Set("Range", ranged)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func TestPageLeadsHere(t *testing.T) {
	t.Parallel()
	u, root := setup(t)
	status, body, header := do(t, "GET", root+"/simple/six/", "")
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
		t.Errorf("status %d, content type %q", status, header.Get("Content-Type"))
	}
	if diff := cmp.Diff(strings.ReplaceAll(served, "FILES", u.files.URL), body); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

func TestFilesAreReadThrough(t *testing.T) {
	t.Parallel()
	u, root := setup(t)
	for _, path := range []string{"/files/packages/a%2Bb/six-1.0-py3-none-any.whl", "/host/own/six-2.0.whl", "/files/packages/x.whl.metadata"} {
		if status, body, _ := do(t, "GET", root+path, ""); status != http.StatusOK || body != wheel {
			t.Errorf("%s: status %d, %q", path, status, body)
		}
	}
	if status, body, header := do(t, "GET", root+"/files/packages/six.whl", "bytes=2-4"); status != http.StatusPartialContent || body != "234" || header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("range: status %d, %q, %v", status, body, header)
	}
	if status, body, header := do(t, "HEAD", root+"/files/packages/six.whl", ""); status != http.StatusOK || body != "" || header.Get("Content-Length") != "10" {
		t.Errorf("HEAD: status %d, %q, %v", status, body, header)
	}
	want := []string{
		"GET /packages/a%2Bb/six-1.0-py3-none-any.whl", "GET /own/six-2.0.whl", "GET /packages/x.whl.metadata",
		"GET /packages/six.whl", "HEAD /packages/six.whl",
	}
	if diff := cmp.Diff(want, u.asked); diff != "" {
		t.Errorf("asked of upstream (-want +got):\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	u, root := setup(t)
	for name, c := range map[string]struct {
		method, path string
		want         int
	}{
		"Post":        {"POST", "/simple/six/", http.StatusMethodNotAllowed},
		"Delete":      {"DELETE", "/files/packages/x", http.StatusMethodNotAllowed},
		"Root":        {"GET", "/", http.StatusNotFound},
		"BadName":     {"GET", "/simple/a%2F..%2Fb/", http.StatusNotFound},
		"DotDotName":  {"GET", "/simple/%2E%2E/", http.StatusNotFound},
		"Unknown":     {"GET", "/simple/no-such/", http.StatusNotFound},
		"OtherPrefix": {"GET", "/https://elsewhere.example/x", http.StatusNotFound},
		"UpALevel":    {"GET", "/files/packages/%2E%2E/secret", http.StatusNotFound},
	} {
		status, _, _ := do(t, c.method, root+c.path, "")
		if status != c.want && status != http.StatusTemporaryRedirect && status != http.StatusMovedPermanently {
			t.Errorf("%s: status %d, want %d", name, status, c.want)
		}
	}
	for _, asked := range u.asked {
		if asked != "GET /simple/no-such/" {
			t.Errorf("upstream was asked %q", asked)
		}
	}
}

func TestIndexThatIsDown(t *testing.T) {
	t.Parallel()
	u, root := setup(t)
	u.index.Close()
	if status, _, _ := do(t, "GET", root+"/simple/six/", ""); status != http.StatusBadGateway {
		t.Errorf("status %d, want 502", status)
	}
}

// A file that breaks off upstream must not look whole.
func TestFileThatIsCutShort(t *testing.T) {
	t.Parallel()
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, wheel)
	}))
	defer files.Close()
	s, err := pyindex.Serve(t.Context(), pyindex.Config{FilesURL: files.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(s.URL(), "simple/")+"files/x.whl", nil)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return // broken off before the first byte: as good
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%d of 100 bytes came without an error", len(body))
	}
}

func TestBadAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"ftp://x/simple", "/simple", "http://", "http://\x00"} {
		if _, err := pyindex.New(pyindex.Config{IndexURL: address}); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
}
