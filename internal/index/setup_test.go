package index_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// memory is a Cache in memory.
type memory struct {
	mu      sync.Mutex
	values  map[string]value
	puts    map[string]int
	getFunc func(key string) error                     // the error of Get; nil: none
	putFunc func(key string) error                     // the error of Put; nil: none
	cutFunc func(key string, size int64) (int64, bool) // where reading a value fails
}

type value struct {
	text     []byte
	modified time.Time
}

func newMemory() *memory { return &memory{values: map[string]value{}, puts: map[string]int{}} }

func (m *memory) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.getFunc != nil {
		if err := m.getFunc(key); err != nil {
			return nil, 0, err
		}
	}
	v, ok := m.values[key]
	if !ok {
		return nil, 0, farm.NotFoundf("there is no %s", key)
	}
	size := int64(len(v.text))
	part := v.text[offset:]
	if length > 0 {
		part = part[:min(length, int64(len(part)))]
	}
	if m.cutFunc != nil {
		if at, ok := m.cutFunc(key, size); ok && offset < at && offset+int64(len(part)) > at {
			return io.NopCloser(io.MultiReader(bytes.NewReader(part[:at-offset]), broken{})), size, nil
		}
	}
	return io.NopCloser(bytes.NewReader(part)), size, nil
}

// broken is a reader that fails.
type broken struct{}

var errBroken = errors.New("the disk is gone")

func (broken) Read([]byte) (int, error) { return 0, errBroken }

func (m *memory) Put(_ context.Context, key string, r io.Reader, size int64) error {
	text, err := io.ReadAll(r)
	if err != nil || int64(len(text)) != size {
		return fmt.Errorf("%d of %d bytes: %w", len(text), size, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.putFunc != nil {
		if err := m.putFunc(key); err != nil {
			return err
		}
	}
	m.values[key] = value{text, time.Now()}
	m.puts[key]++
	return nil
}

func (m *memory) Delete(_ context.Context, keys ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.values, key)
	}
	return nil
}

func (m *memory) List(_ context.Context, prefix string, fn func(string, int64, time.Time) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, v := range m.values {
		if strings.HasPrefix(key, prefix) {
			if err := fn(key, int64(len(v.text)), v.modified); err != nil {
				return err
			}
		}
	}
	return nil
}

// keys returns the keys of the values that are files.
func (m *memory) files() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	for key := range m.values {
		if strings.HasPrefix(key, "index/file/") {
			keys = append(keys, key)
		}
	}
	return keys
}

// upstream is an index, a registry and their files, and records the requests to them.
type upstream struct {
	*httptest.Server
	mux   *http.ServeMux
	mu    sync.Mutex
	asked map[string]int
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{mux: http.NewServeMux(), asked: map[string]int{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.asked[r.URL.EscapedPath()]++
		u.mu.Unlock()
		u.mux.ServeHTTP(w, r)
	}))
	t.Cleanup(u.Server.Close)
	return u
}

func (u *upstream) times(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[path]
}

func (u *upstream) all() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for _, times := range u.asked {
		n += times
	}
	return n
}

// page serves a page of a project.
func (u *upstream) page(project, kind, text string) {
	u.mux.HandleFunc("/simple/"+project+"/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, text)
	})
}

// wheel serves a file and a page in HTML that lists it.
func (u *upstream) wheel(project, name string, content []byte) {
	u.page(project, "text/html", `<a href="/packages/`+name+`#sha256=`+sha(content)+`">`+name+`</a>`)
	u.mux.HandleFunc("/packages/"+name, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

func sha(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// config points at an upstream.
func (u *upstream) config() index.Config {
	return index.Config{PyPIURL: u.URL + "/simple", FilesURL: u.URL, NpmURL: u.URL + "/registry"}
}

// logged records the log of a test's index.
type logged struct{ testbed.Log }

func (l *logged) has(text string) int { return strings.Count(l.String(), text) }

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// serve starts an index and returns its address.
func serve(t *testing.T, cfg index.Config) (*index.Index, string) {
	t.Helper()
	transport := &http.Transport{}
	if cfg.Client == nil {
		cfg.Client = &http.Client{Transport: transport}
	}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	x, err := index.New(cfg)
	testbed.Must(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	return x, serveHandler(t, x)
}

// serveHandler serves an index until the test ends and returns its address.
func serveHandler(t *testing.T, x *index.Index) string {
	t.Helper()
	s := httptest.NewServer(x)
	t.Cleanup(func() {
		s.Close()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.URL
}

// answer is a response as the caller received it.
type answer struct {
	status int
	body   string
	header http.Header
	err    error // of reading the body
}

// ask sends a request; pairs are names and values of headers.
func ask(t *testing.T, method, address string, pairs ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	testbed.Must(t, err)
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Header.Set(pairs[i], pairs[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body), resp.Header, err}
}

// get requests something that must exist.
func get(t *testing.T, address string, pairs ...string) string {
	t.Helper()
	a := ask(t, http.MethodGet, address, pairs...)
	if a.err != nil || a.status != http.StatusOK && a.status != http.StatusPartialContent {
		t.Fatalf("GET %s: status %d, error %v, %.200q", address, a.status, a.err, a.body)
	}
	return a.body
}

// have lists the keys of a cache that begin with a prefix.
func (m *memory) have(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := []string{}
	for key := range m.values {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// age makes a value older.
func (m *memory) age(key string, by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.values[key]
	v.modified = v.modified.Add(-by)
	m.values[key] = v
}

// inProcess sends requests to a handler without a network.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	p.ServeHTTP(answer, r)
	result := answer.Result()
	result.Request = r
	return result, nil
}

// newOffline is an index without a network, so that time can be faked.
func newOffline(t *testing.T, upstreams http.RoundTripper, cfg index.Config) *index.Index {
	t.Helper()
	u := (&upstream{Server: &httptest.Server{URL: "http://packages.example.com"}}).config()
	cfg.PyPIURL, cfg.FilesURL, cfg.NpmURL = u.PyPIURL, u.FilesURL, u.NpmURL
	cfg.Client, cfg.Dir = &http.Client{Transport: upstreams}, t.TempDir()
	x, err := index.New(cfg)
	testbed.Must(t, err)
	return x
}

// slow is a caller that reads nothing of an answer until it is released.
type slow struct {
	header http.Header
	begun  chan struct{}
	once   sync.Once
	let    <-chan struct{}
	bytes  int
	status int
	text   string // the beginning
}

func (s *slow) Header() http.Header    { return s.header }
func (s *slow) WriteHeader(status int) { s.status = status }
func (s *slow) Write(p []byte) (int, error) {
	s.once.Do(func() {
		s.text = string(p[:min(len(p), 100)])
		close(s.begun)
	})
	<-s.let
	s.bytes += len(p)
	return len(p), nil
}

// unread is an index without a network whose readers take nothing until let is closed.
type unread struct {
	*index.Index
	let     chan struct{}
	readers sync.WaitGroup
}

func newUnread(t *testing.T, upstreams http.Handler, cache index.Cache, memory *budget.Budget) *unread {
	t.Helper()
	return newUnreadOf(t, upstreams, index.Config{Cache: cache, Memory: memory})
}

func newUnreadOf(t *testing.T, upstreams http.Handler, cfg index.Config) *unread {
	t.Helper()
	return &unread{Index: newOffline(t, inProcess{upstreams}, cfg), let: make(chan struct{})}
}

// read begins to read a page, and returns when nothing goes on.
func (u *unread) read(ctx context.Context, tenant, path string) *slow {
	s := &slow{header: http.Header{}, begun: make(chan struct{}), let: u.let}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	r.Header.Set("Accept", pypiJSON+", application/json")
	u.readers.Go(func() {
		defer aborted()
		u.For(tenant).ServeHTTP(s, r)
	})
	synctest.Wait()
	return s
}

// end lets the readers read, and closes the index when they have. All that was charged must be given back.
func (u *unread) end(t *testing.T) {
	t.Helper()
	close(u.let)
	u.readers.Wait()
	time.Sleep(10 * time.Minute) // what lingers ends
	synctest.Wait()
	users, beyond := u.Users()
	testbed.Check(t, users == 0 && beyond == 0, "%d users of pages and %d places beyond the budget are left", users, beyond)
	testbed.Diff(t, "bytes charged at the end", int64(0), u.Memory().Stats().Used)
	testbed.Diff(t, "works at the end", 0, u.Works())
	testbed.Diff(t, "free cores at the end", max(runtime.GOMAXPROCS(0), 2), freeCores(t, u.Memory()))
	testbed.Must(t, u.Close())
}

// freeCores returns how many cores of a process nobody has.
func freeCores(t *testing.T, memory *budget.Budget) int {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for n := 0; ; n++ {
		ctx, hold := memory.With(gone, fmt.Sprintf("tenant %d", n), 0)
		defer hold.Release()
		if budget.TakeCore(ctx, budget.SmallBytes+1) != nil {
			return n
		}
	}
}

// fours are pages of any name that take some 4 MiB in memory.
func fours() http.Handler {
	mux := http.NewServeMux()
	text := strings.Repeat("x", mib)
	mux.HandleFunc("/simple/{name}/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", pypiJSON)
		_, _ = io.WriteString(w, `{"meta":{"api-version":"1.1"},"name":"x","versions":["1`+text+`","2`+text+`"],"files":[]}`)
	})
	mux.HandleFunc("/registry/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := r.PathValue("name")
		_, _ = fmt.Fprintf(w, `{"name":%q,"versions":{`, name)
		for i := range 4 {
			_, _ = fmt.Fprintf(w, `%s"1.0.%d":{"name":%q,"version":"1.0.%d","description":%q,"dist":{"tarball":"http://packages.example.com/x.tgz"}}`, ",,,,"[:min(i, 1)], i, name, i, text)
		}
		_, _ = io.WriteString(w, `}}`)
	})
	mux.HandleFunc("/simple/small/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<a href="/x-1.0.zip">x</a>`)
	})
	return mux
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
