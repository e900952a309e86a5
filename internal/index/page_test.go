package index_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// again reads a text over and over.
type again struct {
	text string
	at   int
}

// Read implements io.Reader.
func (a *again) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = a.text[a.at]
		a.at = (a.at + 1) % len(a.text)
	}
	return len(p), nil
}

// filled is a page of a size whose middle is the same text over and over.
func filled(size int64, head, middle, tail string) io.Reader {
	size -= size % int64(len(middle))
	return io.MultiReader(strings.NewReader(head), io.LimitReader(&again{text: middle}, size), strings.NewReader(tail))
}

// allocated is how many bytes a call allocates in all.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const (
	pypiHead = `{"meta":{"api-version":"1.1"},"name":"x",`
	fileHead = pypiHead + `"files":[{"filename":"a.whl","url":"a.whl",`
)

func parsePyPI(t *testing.T, page io.Reader) (index.Page, error) {
	t.Helper()
	return index.ParsePyPI(page, "application/json", &url.URL{Scheme: "https", Host: "index.example", Path: "/simple/x/"})
}

func parseNPM(page io.Reader, short bool) (index.Page, error) {
	return index.ParsePackument(page, "x", &url.URL{Scheme: "https", Host: "registry.example", Path: "/"}, short)
}

// A page of 60 MiB once took up to 2 GiB: values of two or three bytes were decoded all at once. It must not run in parallel, since it
// counts what the process allocates.
func TestPagesOfManyValuesAreRefusedEarly(t *testing.T) { //nolint:paralleltest // see above
	const size = 60 << 20
	const limit = 64 << 20
	for name, c := range map[string]struct {
		head, middle, tail string
		npm                bool
	}{
		"Versions":    {head: pypiHead + `"versions":[""`, middle: `,""`, tail: `],"files":[]}`},
		"Meta":        {head: `{"meta":[1`, middle: `,1`, tail: `],"files":[]}`},
		"Unknown":     {head: pypiHead + `"more":[1`, middle: `,1`, tail: `],"files":[]}`},
		"LongName":    {head: `{"name":"`, middle: `x`, tail: `","files":[]}`},
		"LongKey":     {head: `{"`, middle: `x`, tail: `":1,"files":[]}`},
		"Blanks":      {head: `{`, middle: ` `, tail: `}`},
		"Yanked":      {head: fileHead + `"yanked":[[]`, middle: `,[]`, tail: `]}]}`},
		"Metadata":    {head: fileHead + `"core-metadata":[{}`, middle: `,{}`, tail: `]}]}`},
		"Hashes":      {head: fileHead + `"hashes":{"":""`, middle: `,"":""`, tail: `}}]}`},
		"FileFields":  {head: fileHead + `"":1`, middle: `,"":1`, tail: `}]}`},
		"Version":     {head: `{"name":"x","versions":{"1.0.0":{"":1`, middle: `,"":1`, tail: `}}}`, npm: true},
		"Dist":        {head: `{"name":"x","versions":{"1.0.0":{"dist":{"":1`, middle: `,"":1`, tail: `}}}}`, npm: true},
		"Scripts":     {head: `{"name":"x","versions":{"1.0.0":{"scripts":{"":1`, middle: `,"":1`, tail: `}}}}`, npm: true},
		"Time":        {head: `{"name":"x","time":{"":1`, middle: `,"":1`, tail: `},"versions":{}}`, npm: true},
		"UnknownNPM":  {head: `{"name":"x","more":[1`, middle: `,1`, tail: `],"versions":{}}`, npm: true},
		"LongVersion": {head: `{"name":"x","versions":{"`, middle: `1`, tail: `":{}}}`, npm: true},
	} {
		var err error
		got := allocated(func() {
			page := filled(size, c.head, c.middle, c.tail)
			if c.npm {
				_, err = parseNPM(page, true)
			} else {
				_, err = parsePyPI(t, page)
			}
		})
		t.Logf("%s: %d MiB, %v", name, got>>20, err)
		testbed.Check(t, err != nil && got <= limit, "%s: %d MiB for a page of %d MiB, %v", name, got>>20, size>>20, err)
	}
}

// What a page is charged with is what it takes. The page has as many small files as fit: with maps of hashes each took a KiB.
func TestMemoryOfALargePage(t *testing.T) { //nolint:paralleltest // it measures the heap
	const size = 20 << 20
	hash := `{"sha256":"` + strings.Repeat("0", 64) + `"}`
	file := `,{"filename":"a.whl","url":"a.whl","hashes":` + hash + `,"core-metadata":` + hash + `}`
	version := `,"1.0.0":{"name":"x","dist":{"tarball":"a.tgz","shasum":"` + strings.Repeat("0", 40) + `"}}`
	for name, parse := range map[string]func() (index.Page, error){
		"PyPI": func() (index.Page, error) {
			return parsePyPI(t, filled(size, pypiHead+`"files":[`+file[1:], file, `]}`))
		},
		"NPM": func() (index.Page, error) {
			return parseNPM(filled(size, `{"name":"x","versions":{`+version[1:], version, `}}`), false)
		},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		p, err := parse()
		runtime.GC()
		runtime.ReadMemStats(&after)
		live := int64(after.HeapAlloc) - int64(before.HeapAlloc) //nolint:gosec // far below MaxInt64
		t.Logf("%s: %d MiB, %d MiB charged", name, live>>20, p.Cost()>>20)
		if err != nil || len(p.Names()) < 90_000 || live > p.Cost()+mib || p.Cost() > 4*size {
			t.Errorf("%s: %d MiB for a page of %d MiB with %d files that is charged with %d MiB, %v", name, live>>20, size>>20, len(p.Names()), p.Cost()>>20, err)
		}
		// It is written for the cache piece by piece: there were three copies.
		got := allocated(func() { testbed.Must(t, p.Encode(io.Discard)) })
		testbed.Check(t, got < mib, "%s: %d bytes are allocated to write it", name, got)
	}
}

// hesitant is a cache whose writes wait.
type hesitant struct {
	*memory
	let chan struct{}
}

func (h hesitant) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	<-h.let
	return h.memory.Put(ctx, key, r, size)
}

// A page that is being put into the cache stays charged, and is there as it came when that is done.
func TestPageThatIsPutIntoTheCacheIsCharged(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/pypi/simple/x/", "/npm/x"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cache := hesitant{newMemory(), make(chan struct{})}
				u := newUnread(t, fours(), cache, budget.New(64*mib))
				all := u.let
				u.let = make(chan struct{})
				close(u.let)
				first := u.read(t.Context(), "one", path)
				users, _ := u.Users()
				used := u.Memory().Stats().Used
				testbed.Check(t, users == 1 && used >= 4*mib, "%d users of the page are left while it is put, %d bytes are charged", users, used)
				close(cache.let)
				synctest.Wait()
				testbed.Diff(t, "bytes charged afterwards", int64(0), u.Memory().Stats().Used)
				later := newUnread(t, http.NotFoundHandler(), cache, budget.New(64*mib))
				close(later.let)
				second := later.read(t.Context(), "one", path)
				testbed.Check(t, second.status == http.StatusOK && second.bytes == first.bytes && second.header.Get("ETag") == first.header.Get("ETag"),
					"from the cache: status %d, %d bytes, want %d", second.status, second.bytes, first.bytes)
				testbed.Must(t, later.Close())
				u.let = all
				u.end(t)
			})
		})
	}
}

// Pages in the cache are those of all versions: earlier ones wrote all hashes of a file, and null for no files.
func TestPagesOfTheCache(t *testing.T) {
	t.Parallel()
	old := `{"name":"x","versions":["1","\u003e2"],"files":[` +
		`{"n":"a.whl","u":"http://h/a.whl","h":{"sha1":"` + strings.Repeat("1", 40) + `","sha256":"` + hashA + `"},"s":3,"p":"\u003e=3","t":"2026-01-02T03:04:05Z","y":"no","m":{"sha256":"` + hashB + `"}},` +
		`{"n":"b.whl","u":"http://h/b.whl","y":"","m":{}},{"n":"c.whl","u":"http://h/c.whl"}],"etag":"\"1\"","fetched":"2026-01-02T03:04:05.000000006Z"}` + "\nab\x00\nc"
	first, err := index.Decode(old)
	testbed.Must(t, err)
	want := []string{"a.whl http://h/a.whl sha256=" + hashA + " sha256=" + hashB, "b.whl http://h/b.whl  true", "c.whl http://h/c.whl  "}
	testbed.Diff(t, "files", want, first.Files())
	testbed.Diff(t, "document", "ab\x00\nc", string(first.Document()))
	var one, two strings.Builder
	testbed.Must(t, first.Encode(&one))
	second, err := index.Decode(one.String())
	testbed.Must(t, err)
	testbed.Must(t, second.Encode(&two))
	testbed.Diff(t, "encoded again", one.String(), two.String())
	for _, text := range []string{`"versions":["1",">2"]`, `"s":3,"p":">=3","t":"2026-01-02T03:04:05Z","y":"no"`, `"y":"","m":{}`, `"etag":"\"1\""`, "05.000000006Z"} {
		testbed.Check(t, strings.Contains(one.String(), text), "%s is not in %s", text, one.String())
	}
	none, err := index.Decode(`{"name":"x","files":null,"fetched":"2026-01-02T03:04:05Z"}` + "\n")
	testbed.Check(t, err == nil && len(none.Names()) == 0 && none.Document() == nil, "%v, %v", none.Names(), err)
	later, err := index.Decode(`{"name":"x","more":{"a":[1]},"versions":["1"]}` + "\n")
	testbed.Check(t, err == nil && later.Document() == nil, "a page with a field of a later version: %v", err)
	for _, bad := range []string{"", "{", `{"name":"x"}`, one.String()[:200]} {
		_, err := index.Decode(bad)
		testbed.Check(t, err != nil, "%q is a page", bad)
	}
}

// The largest pages of the public indexes have 40 MiB. A worker with 1 GiB has 136 MiB for one that its budget has no room for.
func TestPublicPagesFitIntoAWorker(t *testing.T) {
	t.Parallel()
	const size, room = 40 << 20, 128 * mib
	hash := `{"sha256":"` + strings.Repeat("0", 64) + `"}`
	name := `some_project-1.0-cp312-cp312-manylinux_2_17_x86_64.whl`
	file := `,{"filename":"` + name + `","url":"https://index.example/packages/` + strings.Repeat("0", 60) + `/` + name + `","hashes":` + hash +
		`,"size":1,"requires-python":">=3.9","upload-time":"2026-01-02T03:04:05.000006Z","core-metadata":` + hash + `,"data-dist-info-metadata":` + hash + `}`
	version := `,"1.0.0":{"name":"x","description":"` + strings.Repeat("x", 2000) + `","dist":{"tarball":"a.tgz","shasum":"` + strings.Repeat("0", 40) + `"}}`
	pypi, err := parsePyPI(t, filled(size, pypiHead+`"files":[`+file[1:], file, `]}`))
	testbed.Must(t, err)
	_, _, err = pypi.Render("some-project")
	testbed.Must(t, err)
	npm, err := parseNPM(filled(size, `{"name":"x","versions":{`+version[1:], version, `}}`), false)
	testbed.Must(t, err)
	testbed.Check(t, pypi.Charged() <= room && npm.Charged() <= room, "%d MiB are charged for a page of PyPI, %d of npm", pypi.Charged()>>20, npm.Charged()>>20)
	testbed.Check(t, npm.Charged() >= 2*size, "%d MiB are charged for one of npm, which is twice in memory as it grows", npm.Charged()>>20)
}

func TestLimitsOfValues(t *testing.T) {
	t.Parallel()
	hashes := func(n int) string {
		return fileHead + `"hashes":{"sha1":""` + strings.Repeat(`,"":""`, n-1) + `}}]}`
	}
	versions := func(n int) string {
		return pypiHead + `"versions":[""` + strings.Repeat(`,""`, n-1) + `],"files":[]}`
	}
	name := func(n int) string {
		return `{"meta":{"api-version":"1.1"},"name":"` + strings.Repeat("x", n-2) + `","files":[]}`
	}
	version := func(n int) string {
		return `{"name":"x","versions":{"1.0.0":{"name":"x","dist":{"tarball":"a.tgz"},"files":[1` + strings.Repeat(",1", n-1) + `]}}}`
	}
	for what, c := range map[string]struct {
		limit int
		page  func(n int) string
		npm   bool
	}{
		"Hashes":   {index.ValuesMax - 4, hashes, false},
		"Versions": {index.FilesMax, versions, false},
		"Length":   {index.ValueMax, name, false},
		"Version":  {index.ValuesMax - 5, version, true},
	} {
		for _, n := range []int{c.limit - 1, c.limit, c.limit + 1} {
			var err error
			if c.npm {
				_, err = parseNPM(strings.NewReader(c.page(n)), false)
			} else {
				_, err = parsePyPI(t, strings.NewReader(c.page(n)))
			}
			if (err != nil) != (n > c.limit) || err != nil && !strings.Contains(err.Error(), "more than") {
				t.Errorf("%s: %d where %d are allowed: %v", what, n, c.limit, err)
			}
		}
	}
}

// The largest pages of the public indexes can be read: some ten thousand files or versions.
func TestLargePagesAreRead(t *testing.T) {
	t.Parallel()
	const many = 50_000
	var pypi, npm strings.Builder
	pypi.WriteString(pypiHead + `"versions":["0"`)
	for i := range many {
		fmt.Fprintf(&pypi, `,"1.%d"`, i)
	}
	pypi.WriteString(`],"files":[`)
	npm.WriteString(`{"name":"x","readme":"` + strings.Repeat("r", 1<<20) + `","versions":{`)
	for i := range many {
		if i > 0 {
			pypi.WriteString(",")
			npm.WriteString(",")
		}
		fmt.Fprintf(&pypi, `{"filename":"x-1.%d.whl","url":"x-1.%d.whl","hashes":{"sha256":"%064d"},"requires-python":">=3.9","size":123456,`+
			`"upload-time":"2026-01-02T03:04:05.000006Z","yanked":false,"core-metadata":{"sha256":"%064d"}}`, i, i, i, i)
		fmt.Fprintf(&npm, `"1.0.%d":{"name":"x","version":"1.0.%d","dist":{"tarball":"https://registry.example/x/-/x-1.0.%d.tgz","shasum":"%040d"},"dependencies":{"a":"1","b":"2"}}`, i, i, i, i)
	}
	pypi.WriteString(`]}`)
	npm.WriteString(`}}`)
	if p, err := parsePyPI(t, strings.NewReader(pypi.String())); err != nil || len(p.Names()) != many {
		t.Errorf("%d files of a page of %d MiB, %v", len(p.Names()), pypi.Len()>>20, err)
	}
	for _, short := range []bool{true, false} {
		if p, err := parseNPM(strings.NewReader(npm.String()), short); err != nil || len(p.Names()) != many {
			t.Errorf("%d versions of a document of %d MiB, %v", len(p.Names()), npm.Len()>>20, err)
		}
	}
}

// HEAD requests of a few sandboxes for large pages that memory does not keep took all cores of a worker, a request of the rate each. Reading a page has
// one of its tenant's cores; small pages, and those in memory, wait for none.
func TestReadingOfLargePagesHasACore(t *testing.T) {
	t.Parallel()
	sized := func(head, tail string, size int) string {
		return head + strings.Repeat(" ", size-len(head)-len(tail)) + tail
	}
	sizes := map[string]int{"below": index.CoreFree - 1, "at": index.CoreFree, "above": index.CoreFree + 1, "other": 5 * index.CoreFree, "more": 5 * index.CoreFree}
	upstreams := http.NewServeMux()
	upstreams.HandleFunc("/simple/{name}/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", pypiJSON)
		_, _ = io.WriteString(w, sized(`{"meta":{"api-version":"1.1"},"name":"x","files":[]`, "}", sizes[r.PathValue("name")]))
	})
	upstreams.HandleFunc("/registry/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := r.PathValue("name")
		_, _ = io.WriteString(w, sized(fmt.Sprintf(`{"name":%q,"versions":{}`, name), "}", sizes[name]))
	})
	for name, path := range map[string]string{"PyPI": "/pypi/simple/%s/", "Npm": "/npm/%s", "File": "/pypi/files/%s/none.whl"} {
		for from, cached := range map[string]bool{"Upstream": false, "Cache": true} {
			t.Run(name+from, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					cache, kind := newMemory(), "pypi"
					if name == "Npm" {
						kind = "npm/full"
					}
					for project, size := range sizes {
						if cached {
							head := fmt.Sprintf(`{"name":%q,"files":[],"fetched":%q`, project, time.Now().Format(time.RFC3339))
							cache.values["index/page/"+kind+"/"+project] = value{[]byte(sized(head, "}\n", size)), time.Now()}
						}
					}
					u := newUnread(t, upstreams, cache, budget.New(16*mib))
					ask := func(ctx context.Context, tenant, project string) int { // 0: no answer yet
						answer, done := httptest.NewRecorder(), make(chan struct{})
						u.readers.Go(func() {
							defer aborted()
							r := httptest.NewRequestWithContext(ctx, http.MethodHead, fmt.Sprintf(path, project), http.NoBody)
							u.For(tenant).ServeHTTP(answer, r)
							close(done)
						})
						synctest.Wait()
						select {
						case <-done:
							return answer.Code
						default:
							return 0
						}
					}
					want := http.StatusOK
					if name == "File" {
						want = http.StatusNotFound
					}
					cores := testbed.TakeCores(t, u.Memory(), "loud")
					for _, project := range []string{"below", "at"} {
						testbed.Diff(t, "status of a page "+project+" the size that needs no core", want, ask(t.Context(), "loud", project))
					}
					leaving, leave := context.WithCancel(t.Context())
					testbed.Diff(t, "status of a page above it, without a core", 0, ask(leaving, "loud", "above"))
					testbed.Diff(t, "status for another tenant", want, ask(t.Context(), "quiet", "other"))
					testbed.Diff(t, "status of a page in memory", want, ask(t.Context(), "loud", "other"))
					testbed.Diff(t, "status of one more page", 0, ask(t.Context(), "loud", "more"))
					leave()
					cores.Leave()
					u.readers.Wait()
					testbed.Diff(t, "status with a core", want, ask(t.Context(), "loud", "above"))
					testbed.Diff(t, "status of one more page with a core", want, ask(t.Context(), "loud", "more"))
					u.end(t)
				})
			})
		}
	}
}

// sent is an answer that calls write before each part of it.
type sent struct {
	*httptest.ResponseRecorder
	write func()
}

func (s sent) Write(p []byte) (int, error) {
	s.write()
	return s.ResponseRecorder.Write(p)
}

// Pages in memory were written as HTML without a core of their tenant. Small ones wait for none, and whoever waits for the reader has none.
func TestWritingOfLargePagesHasACore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstreams := http.NewServeMux()
		for name, files := range map[string]int{"small": 200, "large": 5000} {
			upstreams.HandleFunc("/simple/"+name+"/", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				for i := range files {
					_, _ = fmt.Fprintf(w, `<a href="/x-%d.zip">x</a>`, i)
				}
			})
		}
		u := newUnread(t, upstreams, nil, budget.New(16*mib))
		ask := func(tenant, project string, write func()) *httptest.ResponseRecorder {
			answer := httptest.NewRecorder()
			u.readers.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/simple/"+project+"/", http.NoBody)
				u.For(tenant).ServeHTTP(sent{answer, write}, r)
			})
			synctest.Wait()
			return answer
		}
		parts := 0
		whole := ask("loud", "large", func() {
			parts++
			testbed.Diff(t, "free cores while a part is sent", max(runtime.GOMAXPROCS(0), 2), freeCores(t, u.Memory()))
		}).Body.Len()
		testbed.Require(t, parts > 5, "the page is sent in %d parts", parts)
		small := ask("loud", "small", func() {}).Body.Len()

		cores := testbed.TakeCores(t, u.Memory(), "loud")
		waits := ask("loud", "large", func() {})
		testbed.Check(t, waits.Body.Len() > 0 && waits.Body.Len() < 2*budget.SmallBytes, "%d bytes of %d are sent without a core", waits.Body.Len(), whole)
		testbed.Diff(t, "bytes of a small page without a core", small, ask("loud", "small", func() {}).Body.Len())
		testbed.Diff(t, "bytes for another tenant", whole, ask("quiet", "large", func() {}).Body.Len())
		cores.Leave()
		synctest.Wait()
		testbed.Diff(t, "bytes with a core", whole, waits.Body.Len())
		u.end(t)
	})
}

// parts is an upstream that sends part of a page, and the rest when it is released.
type parts struct {
	part, rest string
	release    chan struct{}
}

func (p parts) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, p.part)
		<-p.release
		_, err := io.WriteString(w, p.rest)
		_ = w.CloseWithError(err)
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {pypiJSON}}, Body: body, Request: r}, nil
}

// Whoever waits for the rest of a page has no core meanwhile.
func TestWaitingForAPageHasNoCore(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]string{"Read": `]}`, "Garbage": `}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				half := parts{`{"meta":{"api-version":"1.1"},"name":"x","files":[` + strings.Repeat(" ", 2*index.CoreFree), rest, release}
				u := &unread{Index: newOffline(t, half, index.Config{Memory: budget.New(16 * mib)}), let: make(chan struct{})}
				for _, project := range []string{"a", "b"} {
					u.read(t.Context(), project, "/pypi/simple/"+project+"/")
				}
				testbed.Diff(t, "free cores while two tenants wait", max(runtime.GOMAXPROCS(0), 2), freeCores(t, u.Memory()))
				close(release)
				synctest.Wait()
				u.end(t)
			})
		})
	}
}
