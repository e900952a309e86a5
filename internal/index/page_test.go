package index_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

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
