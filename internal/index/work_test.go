package index_test

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// blocked is an upstream that does not answer requests for some paths until it is released.
type blocked struct {
	inProcess
	blocks func(path string) bool

	mu       sync.Mutex
	release  chan struct{}
	now, all int // requests that it does not answer, and how many of those there were
}

func (b *blocked) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.blocks(r.URL.Path) {
		released := b.enter()
		defer b.leave()
		select {
		case <-released:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return b.inProcess.RoundTrip(r)
}

func (b *blocked) enter() (released <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now++
	b.all++
	return b.release
}

func (b *blocked) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now--
}

// letGo answers the requests that are there.
func (b *blocked) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.release)
	b.release = make(chan struct{})
}

// counts returns how many requests are not answered, and how many of them there were in all.
func (b *blocked) counts() (now, all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now, b.all
}

// many are the files and pages of an upstream without end.
func many() http.Handler {
	mux := http.NewServeMux()
	write := func(kind, format string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, strings.ReplaceAll(format, "NAME", r.PathValue("name")))
		}
	}
	var links, versions strings.Builder
	for i := range 1000 {
		wheel, tarball := fmt.Sprintf("f%d.whl", i), fmt.Sprintf("big-1.0.%d.tgz", i)
		sum := sha512.Sum512([]byte(tarball))
		fmt.Fprintf(&links, `<a href="/packages/%s#sha256=%s">f</a>`, wheel, sha([]byte(wheel)))
		fmt.Fprintf(&versions, `,"1.0.%d":{"name":"big","version":"1.0.%d","dist":{"tarball":"http://packages.example.com/packages/%s","integrity":"sha512-%s"}}`,
			i, i, tarball, base64.StdEncoding.EncodeToString(sum[:]))
	}
	mux.HandleFunc("/simple/big/", write("text/html", links.String()))
	mux.HandleFunc("/simple/{name}/", write("text/html", `<a href="/packages/NAME-1.0.whl">x</a>`))
	mux.HandleFunc("/registry/big", write("application/json", `{"name":"big","versions":{`+strings.TrimPrefix(versions.String(), ",")+`}}`))
	mux.HandleFunc("/registry/{name}", write("application/json", `{"name":"NAME","versions":{}}`))
	mux.HandleFunc("/packages/{name}", write("application/octet-stream", "NAME"))
	return mux
}

// begun is an index whose upstream is blocked.
type begun struct {
	*index.Index
	upstream *blocked
	readers  sync.WaitGroup
	statuses sync.Map // of answers, by path
}

func newBegun(t *testing.T, blocks func(path string) bool, cache index.Cache) *begun {
	t.Helper()
	b := &begun{upstream: &blocked{inProcess: inProcess{many()}, blocks: blocks, release: make(chan struct{})}}
	b.Index = newOffline(t, b.upstream, index.Config{Cache: cache})
	return b
}

// aborted ends the panic of a handler whose caller has left.
func aborted() {
	if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // what is thrown
		panic(p)
	}
}

// read begins to read a path for a tenant.
func (b *begun) read(ctx context.Context, tenant, path string) {
	b.readers.Go(func() {
		defer aborted()
		answer := httptest.NewRecorder()
		b.For(tenant).ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody))
		b.statuses.Store(path, answer.Code)
	})
}

func isFile(path string) bool { return strings.HasPrefix(path, "/packages/") }
func isPage(path string) bool {
	return !isFile(path) && !strings.HasSuffix(strings.TrimSuffix(path, "/"), "/big")
}

// kinds are what may be read, each with the number of places of one tenant that is alone.
var kinds = map[string]struct {
	path   string
	blocks func(path string) bool
	share  int
}{
	"Files":     {"/pypi/files/big/f%d.whl", isFile, 32},
	"Tarballs":  {"/npm/big/-/big-1.0.%d.tgz", isFile, 32},
	"Pages":     {"/pypi/simple/p%d/", isPage, 16},
	"Documents": {"/npm/p%d", isPage, 16},
}

// A sandbox requested thousands of files and left at once: each was downloaded all the same, before what other tenants asked for, and each kept a
// goroutine until then. What has no reader is not begun, and of what has begun only some continues.
func TestWhatNobodyReadsEnds(t *testing.T) {
	t.Parallel()
	const lingers = 8 // half of lingerAtOnce
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, c.blocks, newMemory())
				for round := range 2 { // all that the first takes comes back
					ctx, leave := context.WithCancel(t.Context())
					for i := range 300 {
						b.read(ctx, "loud", fmt.Sprintf(c.path, 300*round+i))
					}
					synctest.Wait()
					if now, _ := b.upstream.counts(); now != c.share || b.Works() != 300 {
						t.Errorf("%d requests to upstream for %d readers of one tenant, want %d", now, b.Works(), c.share)
					}
					leave()
					synctest.Wait()
					if now, all := b.upstream.counts(); now != lingers || b.Works() != lingers || all != (round+1)*c.share+round {
						t.Errorf("all have left: %d requests to upstream of %d, %d works; want %d of %d", now, all, b.Works(), lingers, (round+1)*c.share+round)
					}
					path := fmt.Sprintf(c.path, 900+round)
					b.read(t.Context(), "quiet", path)
					synctest.Wait()
					now, _ := b.upstream.counts()
					testbed.Check(t, now == lingers+1, "%d requests to upstream: another tenant waits", now)
					b.upstream.letGo()
					b.readers.Wait()
					synctest.Wait()
					status, _ := b.statuses.Load(path)
					testbed.Check(t, status == http.StatusOK && b.Works() == 0, "the other tenant got %v; %d works are left", status, b.Works())
				}
				testbed.Must(t, b.Close())
			})
		})
	}
}

// One tenant has at most half of the places, and another does not wait behind its requests, not even for the same file.
func TestTenantsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBegun(t, c.blocks, newMemory())
				ctx, leave := context.WithCancel(t.Context())
				for i := range 2 * c.share {
					b.read(ctx, "loud", fmt.Sprintf(c.path, i))
					synctest.Wait()
				}
				waits := fmt.Sprintf(c.path, 2*c.share-1)
				for i, tenant := range []string{"quiet", "third"} {
					b.read(t.Context(), tenant, waits)
					synctest.Wait()
					if now, _ := b.upstream.counts(); now != c.share+1 || b.Works() != 2*c.share {
						t.Errorf("%d tenants read what the loud one waits for: %d requests to upstream for %d works", i+1, now, b.Works())
					}
				}
				leave()
				b.upstream.letGo()
				b.readers.Wait()
				status, _ := b.statuses.Load(waits)
				testbed.Check(t, status == http.StatusOK, "the others got %v", status)
				testbed.Must(t, b.Close())
			})
		})
	}
}

// full is a cache that takes nothing until it is released, and counts what it is given.
type full struct {
	*memory
	release chan struct{}

	mu    sync.Mutex
	given map[string]int // by the first two parts of the key
}

func (f *full) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	f.mu.Lock()
	f.given[strings.Join(strings.Split(key, "/")[:2], "/")]++
	f.mu.Unlock()
	select {
	case <-f.release:
	case <-ctx.Done():
		return ctx.Err()
	}
	return f.memory.Put(ctx, key, r, size)
}

// While the cache takes nothing, what one tenant reads does not pile up: neither files and pages to be stored, nor open files.
func TestWhatIsToBeStoredIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cache := &full{memory: newMemory(), release: make(chan struct{}), given: map[string]int{}}
		b := newBegun(t, func(string) bool { return false }, cache)
		for i := range 400 {
			b.read(t.Context(), "loud", fmt.Sprintf("/pypi/files/big/f%d.whl", i))
			synctest.Wait()
		}
		n := b.Works()
		testbed.Check(t, n == 32+256, "%d files are being stored or retained", n)
		for i := range 600 {
			b.read(t.Context(), "loud", fmt.Sprintf("/pypi/simple/p%d/", i))
			synctest.Wait()
		}
		close(cache.release)
		b.readers.Wait()
		synctest.Wait()
		cache.mu.Lock()
		f, p := cache.given["index/file"], cache.given["index/page"]
		testbed.Check(t, f == 32 && p >= 400 && p <= 512, "%d files and %d pages were stored", f, p)
		cache.mu.Unlock()
		testbed.Must(t, b.Close())
	})
}

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

// Requests of a tenant beyond its rate wait, and delay nobody else's: those of five sandboxes took all cores of a worker.
func TestRequestsOfATenantHaveARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, func(string) bool { return false }, nil)
		defer func() { testbed.Must(t, b.Close()) }()
		served := func(tenant string) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			answer := httptest.NewRecorder()
			b.For(tenant).ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/nothing", http.NoBody))
			return answer.Code == http.StatusNotFound
		}
		const burst, second = 4000, 200
		for n := range burst + 1 {
			testbed.Require(t, served("one") == (n < burst), "request %d of %d at once", n+1, burst)
		}
		testbed.Check(t, served("two"), "another tenant's request waits")
		time.Sleep(time.Second)
		for n := range second + 1 {
			testbed.Require(t, served("one") == (n < second), "request %d of %d a second later", n+1, second)
		}
	})
}

// A large page counts for its size, but its HEAD and other tenants' requests do not.
func TestLargePagesCountForTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listed := make([]string, 40_000)
		for i := range listed {
			listed[i] = fmt.Sprintf(`<a href="/x-%d.zip">x-%d.zip</a>`, i, i)
		}
		pages := http.NewServeMux()
		pages.Handle("/", fours())
		pages.HandleFunc("/simple/html/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, strings.Join(listed, "\n"))
		})
		u := newUnread(t, pages, nil, nil)
		for _, c := range []struct{ path, accept string }{{"/pypi/simple/p/", pypiJSON}, {"/pypi/simple/html/", "text/html"}, {"/npm/p", "application/json"}} {
			waited := func(method, tag string) (bool, *httptest.ResponseRecorder) {
				r := httptest.NewRequestWithContext(t.Context(), method, c.path, http.NoBody)
				r.Header.Set("Accept", c.accept)
				r.Header.Set("If-None-Match", tag)
				answer, began := httptest.NewRecorder(), time.Now()
				u.For(c.path+c.accept).ServeHTTP(answer, r)
				return time.Since(began) > 0, answer
			}
			const burst, left, unit = 4000, 20, 512 << 10
			tag := ""
			for range burst - left {
				wait, head := waited(http.MethodHead, "")
				testbed.Require(t, !wait && head.Body.Len() == 0, "%v: a HEAD waits, or has a body", c)
				tag = head.Header().Get("ETag")
			}
			_, known := waited(http.MethodGet, tag)
			_, whole := waited(http.MethodGet, "")
			size := whole.Body.Len()
			testbed.Require(t, known.Code == http.StatusNotModified && size > unit, "%v: status %d, then %d bytes", c, known.Code, size)
			want := left - 2 - size/unit
			for n := range want + 1 {
				wait, _ := waited(http.MethodHead, "")
				testbed.Require(t, wait == (n == want), "%v: request %d of %d after %d bytes waits: %v", c, n+1, want, size, wait)
			}
		}
		u.end(t)
	})
}

// A page that is short as it comes may need a place beyond the memory budget when it has been read. It waits for that without a core.
func TestWaitingForRoomHasNoCore(t *testing.T) {
	t.Parallel()
	var links, files []string
	for i := range 4000 {
		links = append(links, fmt.Sprintf(`<a href="/x-%d.zip"></a>`, i))
		files = append(files, fmt.Sprintf(`{"n":"x-%d.zip","u":"http://packages.example.com/x"}`, i))
	}
	for name, cached := range map[string]bool{"Upstream": false, "Cache": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				upstreams, cache := http.NewServeMux(), newMemory()
				upstreams.Handle("/", fours())
				upstreams.HandleFunc("/simple/links/", func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/html")
					_, _ = io.WriteString(w, strings.Join(links, ""))
				})
				if cached {
					text := fmt.Sprintf(`{"name":"links","files":[%s],"fetched":%q}`+"\n", strings.Join(files, ","), time.Now().Format(time.RFC3339))
					testbed.Require(t, len(text) < index.PageFree, "the page has %d bytes", len(text))
					cache.values["index/page/pypi/links"] = value{[]byte(text), time.Now()}
				}
				u := newUnread(t, upstreams, cache, budget.New(16*mib))
				all, _ := u.Memory().TryAcquire("packages", 0)
				for all.Grow(budget.SmallBytes + 1) { //nolint:revive // it takes all room
				}
				for _, project := range []string{"a", "b"} { // all places of the tenant
					u.read(t.Context(), "loud", "/pypi/simple/"+project+"/")
				}
				last := u.read(t.Context(), "loud", "/pypi/simple/links/")
				testbed.Diff(t, "status without room", 0, last.status)
				testbed.Diff(t, "free cores while a page waits for room", max(runtime.GOMAXPROCS(0), 2), freeCores(t, u.Memory()))
				all.Release()
				u.end(t)
				testbed.Diff(t, "status with room", http.StatusOK, last.status)
			})
		})
	}
}
