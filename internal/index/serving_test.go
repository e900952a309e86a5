package index_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
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

// large serves pages of some 14 MiB under any name.
func large(u *upstream) {
	text := fmt.Sprintf(`{"meta":{"api-version":"1.1"},"name":"x","versions":[""%s],"files":[{"filename":"a.whl","url":"a","hashes":{}}]}`,
		strings.Repeat(`,"`+strings.Repeat("x", 1<<20)+`"`, 14))
	u.mux.HandleFunc("/simple/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_, _ = io.WriteString(w, text)
	})
}

// Many callers that request large pages and do not read them cannot fill the worker's memory: two pages of a tenant go beyond its budget, further
// callers are asked to retry, small pages are still served, and callers of the same page share its memory.
func TestLargePagesThatAreNotReadAreBounded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	large(u)
	u.page("small", "text/html", `<a href="a-1.0.zip">a</a>`)
	cfg := u.config()
	const room = 112 << 20 // of one account in a budget of 256 MiB
	cfg.Timeout, cfg.Memory = 3*time.Second, budget.New(256<<20)
	free := func() int64 { return room - cfg.Memory.Stats().Used }
	x, address := serve(t, cfg)
	let := make(chan struct{})
	var held sync.WaitGroup
	hold := func(project, kind string) *slow {
		s := &slow{header: http.Header{}, begun: make(chan struct{}), let: let}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/simple/"+project+"/", nil)
		r.Header.Set("Accept", kind)
		held.Go(func() { x.ServeHTTP(s, r) })
		return s
	}
	const json = "application/vnd.pypi.simple.v1+json"
	var readers []*slow
	for range 5 { // share one reservation
		readers = append(readers, hold("shared", json))
	}
	for _, s := range readers {
		<-s.begun
	}
	left := free()
	testbed.Check(t, left >= room-30<<20, "five readers of one page leave %d MiB", left>>20)
	for i := 0; free() >= 30<<20; i++ {
		s := hold(fmt.Sprintf("p%d", i), json)
		<-s.begun
		readers = append(readers, s)
	}
	for i := range 2 {
		s := hold(fmt.Sprintf("beyond%d", i), json)
		<-s.begun
		readers = append(readers, s)
	}
	used := cfg.Memory.Stats().Used
	testbed.Check(t, used <= room, "%d MiB are charged", used>>20)
	for range 2 {
		a := ask(t, http.MethodGet, address+"/pypi/simple/other/")
		testbed.Check(t, a.status == http.StatusBadGateway && strings.Contains(a.body, "Too many large pages"), "status %d, %.100q", a.status, a.body)
		testbed.Diff(t, "bytes charged", used, cfg.Memory.Stats().Used)
	}
	got := get(t, address+"/pypi/simple/small/")
	testbed.Check(t, strings.Contains(got, "a-1.0.zip"), "a small page: %.100q", got)
	close(let)
	held.Wait()
	for i, s := range readers {
		testbed.Check(t, s.bytes >= 14<<20, "reader %d got %d bytes", i, s.bytes)
	}
	got = get(t, address+"/pypi/simple/other/", "Accept", json)
	testbed.Check(t, len(got) >= 14<<20, "afterwards there are %d bytes", len(got))
	testbed.Until(t, "all room is back", func() bool { return free() == room })
}

// Pages were whole in memory before they were charged, and waited for that as they were: 32 readers of one tenant had 32 pages in memory, whatever the
// budget. Now the budget has room for one of these pages, and two of a tenant are beyond it. What waits is charged, and refused in the end.
func TestPagesAreChargedBeforeTheyAreRead(t *testing.T) {
	t.Parallel()
	const all, sent, leaving = 32, 3, 8
	for name, path := range map[string]string{"PyPI": "/pypi/simple/%s/", "Npm": "/npm/%s"} {
		for from, cached := range map[string]bool{"Upstream": false, "Cache": true} {
			t.Run(name+from, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					cache, upstreams := newMemory(), fours()
					if cached {
						first := newUnread(t, upstreams, cache, budget.New(1<<30))
						close(first.let)
						for i := range all {
							first.read(t.Context(), "first", fmt.Sprintf(path, fmt.Sprintf("p%d", i)))
						}
						testbed.Must(t, first.Close())
						upstreams = http.NotFoundHandler()
					}
					u := newUnread(t, upstreams, cache, budget.New(16*mib)) // 7 for packages
					ctx, leave := context.WithCancel(t.Context())
					var readers []*slow
					for i := range all {
						who := t.Context()
						if i >= all-leaving {
							who = ctx
						}
						readers = append(readers, u.read(who, "loud", fmt.Sprintf(path, fmt.Sprintf("p%d", i))))
						used := u.Memory().Stats().Used
						testbed.Require(t, used >= 4*mib && used <= 7*mib, "%d readers: %d bytes are charged; status %d, %q", i+1, used, readers[i].status, readers[i].text)
					}
					leave()
					synctest.Wait()
					count := func() (ok, refused int) {
						for _, s := range readers {
							switch {
							case s.status == http.StatusOK:
								ok++
							case strings.Contains(s.text, "Too many large pages"):
								refused++
							}
						}
						return ok, refused
					}
					ok, refused := count()
					testbed.Check(t, ok == sent && refused == 0, "%d pages are sent, %d are refused before anybody has waited", ok, refused)
					time.Sleep(5 * time.Minute)
					synctest.Wait()
					ok, refused = count()
					testbed.Check(t, ok == sent && refused == all-sent-leaving, "%d pages are sent, %d are refused", ok, refused)
					_, beyond := u.Users()
					testbed.Check(t, beyond == sent-1, "%d pages are beyond the budget", beyond)
					if !cached {
						quiet := u.read(t.Context(), "quiet", fmt.Sprintf(path, "other"))
						testbed.Check(t, quiet.status == http.StatusOK, "another tenant's page: status %d", quiet.status)
						small := u.read(t.Context(), "loud", "/pypi/simple/small/")
						testbed.Check(t, strings.Contains(small.text, "api-version"), "a small page: status %d, %q", small.status, small.text)
					}
					u.end(t)
				})
			})
		}
	}
}

// Who waits for a place beyond the budget has memory that became free meanwhile, for a page that is read and for one that is in memory.
func TestMemoryThatBecameFreeIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUnread(t, fours(), newMemory(), budget.New(64*mib))
		all := u.let
		u.let = make(chan struct{})
		close(u.let)
		u.read(t.Context(), "loud", "/npm/known")
		u.let = all
		var others []*budget.Hold
		for i, size := range []int64{28, 14, 7, 3} { // of the 56 for large requests
			hold, ok := u.Memory().TryAcquire(fmt.Sprint("other", i), size*mib)
			testbed.Require(t, ok, "there is no memory for others")
			others = append(others, hold)
		}
		var readers []*slow
		for _, name := range []string{"first", "second", "known", "new"} {
			readers = append(readers, u.read(t.Context(), "loud", "/npm/"+name))
		}
		_, beyond := u.Users()
		testbed.Require(t, beyond == 2 && readers[2].status == 0 && readers[3].status == 0, "%d pages are beyond the budget, status %d and %d", beyond, readers[2].status, readers[3].status)
		for _, hold := range others {
			hold.Release()
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for i, r := range readers {
			testbed.Check(t, r.status == http.StatusOK, "reader %d: status %d, %.100q", i, r.status, r.text)
		}
		u.end(t)
	})
}

// Pages up to 256 KiB are not charged, and larger ones with what they take. An index that is given no budget has its own.
func TestSizeOfPagesThatAreCharged(t *testing.T) {
	t.Parallel()
	const free, empty = 256 << 10, 1024
	for name, more := range map[string]int{"Below": -1, "AtTheLimit": 0, "Above": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				padding := 0
				u := newUnread(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{"name":%q,"readme":%q,"versions":{}}`, strings.TrimPrefix(r.URL.Path, "/registry/"), strings.Repeat("x", padding))
				}), nil, nil)
				s := u.read(t.Context(), "one", "/npm/p0")
				testbed.Require(t, s.status == http.StatusOK, "status %d", s.status)
				padding = free - empty + more - len(s.text)
				s = u.read(t.Context(), "one", "/npm/p1")
				length := s.header.Get("Content-Length")
				testbed.Diff(t, "size of the document", fmt.Sprint(free-empty+more), length)
				want := int64(0)
				if more > 0 {
					want = free + 1
				}
				testbed.Diff(t, "bytes charged", want, u.Memory().Stats().Used)
				u.end(t)
			})
		})
	}
}

// A page that upstream confirms is charged once, together with the old one that somebody reads; a changed one is charged beside it. An old page that is
// served since upstream does not respond, or since there is no room for the new one, is given back as well.
func TestOldPagesAreChargedWithNewOnes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status, tag string // of the second answer
		memory      int64
		charged     int64 // in the end, in pages
		beyond      int
	}{
		"Confirmed":    {"304", "1", 64 * mib, 1, 0},
		"Changed":      {"200", "2", 64 * mib, 2, 0},
		"Down":         {"503", "1", 64 * mib, 1, 0},
		"ChangedNoFit": {"200", "2", 16 * mib, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pages := fours()
				second := false
				u := newUnread(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if second && c.status == "503" {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					if w.Header().Set("ETag", `"1"`); second {
						w.Header().Set("ETag", `"`+c.tag+`"`)
					}
					if r.Header.Get("If-None-Match") == w.Header().Get("ETag") {
						w.WriteHeader(http.StatusNotModified)
						return
					}
					pages.ServeHTTP(w, r)
				}), nil, budget.New(c.memory))
				first := u.read(t.Context(), "one", "/npm/x")
				one := u.Memory().Stats().Used
				testbed.Check(t, first.status == http.StatusOK && one >= 4*mib && one < 5*mib, "status %d, %d bytes are charged", first.status, one)
				second = true
				for round := range 3 {
					time.Sleep(time.Hour) // the page is old
					s := u.read(t.Context(), "one", "/npm/x")
					testbed.Check(t, s.status == http.StatusOK, "round %d: status %d, %q", round, s.status, s.text)
				}
				used := u.Memory().Stats().Used
				_, beyond := u.Users()
				testbed.Check(t, used == c.charged*one && beyond == c.beyond, "%d bytes are charged for pages of %d, %d are beyond the budget", used, one, beyond)
				u.end(t)
			})
		})
	}
}

// While a tenant has all its places beyond the budget, it gets the old page where a new one has no room.
func TestOldPageWithoutRoomForANewOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUnread(t, fours(), nil, budget.New(16*mib))
		for i := range 3 {
			s := u.read(t.Context(), "one", fmt.Sprintf("/npm/p%d", i))
			testbed.Check(t, s.status == http.StatusOK, "page %d: status %d", i, s.status)
		}
		time.Sleep(time.Hour)
		for i := range 3 { // one in the budget, and two with a place beyond it
			s := u.read(t.Context(), "one", fmt.Sprintf("/npm/p%d", i))
			time.Sleep(10 * time.Second)
			synctest.Wait()
			testbed.Check(t, s.status == http.StatusOK, "old page %d: status %d, %q", i, s.status, s.text)
		}
		u.end(t)
	})
}

// An old page is given back where the request for the new one never began.
func TestOldPageWhoseRequestDoesNotBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pages := fours()
		u := newUnread(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/registry/stuck") {
				<-r.Context().Done()
			}
			pages.ServeHTTP(w, r)
		}), nil, budget.New(64*mib))
		first := u.read(t.Context(), "one", "/npm/x")
		testbed.Check(t, first.status == http.StatusOK, "status %d", first.status)
		time.Sleep(time.Hour)
		for i := range 16 { // all requests to upstream that one tenant may have
			u.read(t.Context(), "one", fmt.Sprintf("/npm/stuck%d", i))
		}
		old := u.read(t.Context(), "one", "/npm/x")
		testbed.Check(t, old.status == 0 && u.Works() == 17, "status %d, %d works", old.status, u.Works())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		testbed.Check(t, old.status == http.StatusOK && u.Works() == 16, "the old page: status %d, %d works", old.status, u.Works())
		u.end(t)
	})
}

// What was charged for a page that cannot be read is given back.
func TestPagesThatCannotBeReadAreGivenBack(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", mib)
	for name, c := range map[string]struct{ kind, text string }{
		"JSONCut":  {pypiJSON, `{"meta":{"api-version":"1.1"},"versions":["` + long},
		"HTMLCut":  {"text/html", `<p>` + strings.Repeat(`<br/>`+long[:1000], 1000)},
		"HTMLTag":  {"text/html", `<p ` + long + long},
		"NoAPI":    {pypiJSON, `{"versions":["` + long + `"],"files":[]}`},
		"TooLarge": {"text/html", strings.Repeat(`<br/>`+long[:1000], 70_000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cache := newMemory()
				cache.values["index/page/pypi/x"] = value{text: []byte(`{"versions":["` + long)}
				u := newUnread(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", c.kind)
					_, _ = io.WriteString(w, c.text)
				}), cache, budget.New(16*mib))
				s := u.read(t.Context(), "one", "/pypi/simple/x/")
				testbed.Check(t, s.status == http.StatusBadGateway && strings.Contains(s.text, "cannot be read"), "status %d, %q", s.status, s.text)
				testbed.Diff(t, "bytes charged", int64(0), u.Memory().Stats().Used)
				u.end(t)
			})
		})
	}
}

// An HTML page is written in pieces as the caller reads it; the result is the whole page.
func TestPageInHTMLIsWrittenInPieces(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var links strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&links, `<a href="a-%d.zip" data-yanked="&lt;%d&gt;">a</a>`, i, i)
	}
	u.page("a", "text/html", links.String())
	_, address := serve(t, u.config())
	a := ask(t, http.MethodGet, address+"/pypi/simple/a/")
	if a.err != nil || strings.Count(a.body, "<a ") != 5000 || !strings.Contains(a.body, `data-yanked="&lt;4999&gt;"`) || !strings.HasSuffix(a.body, "</body></html>\n") {
		t.Errorf("%d links, %v, … %q", strings.Count(a.body, "<a "), a.err, a.body[max(0, len(a.body)-100):])
	}
	again := ask(t, http.MethodGet, address+"/pypi/simple/a/", "If-None-Match", a.header.Get("ETag"))
	testbed.Check(t, again.status == http.StatusNotModified && again.body == "", "the same again: status %d, %d bytes", again.status, len(again.body))
	head := ask(t, http.MethodHead, address+"/pypi/simple/a/")
	testbed.Check(t, head.status == http.StatusOK && head.header.Get("ETag") == a.header.Get("ETag"), "its head: %d, %v", head.status, head.header)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := (index.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	for name, c := range map[string]struct {
		cfg  index.Config
		want string
	}{
		"NoScheme":     {index.Config{PyPIURL: "/simple"}, "index.pypi_url"},
		"OtherScheme":  {index.Config{NpmURL: "ftp://x/"}, "index.npm_url"},
		"NoHost":       {index.Config{PyPIURL: "http://"}, "index.pypi_url"},
		"NoURL":        {index.Config{FilesURL: "http://\x00"}, "index.files_url"},
		"SecondIsBad":  {index.Config{FilesURL: "http://x, y"}, "index.files_url"},
		"Query":        {index.Config{PyPIURL: "http://x/?a=b"}, "index.pypi_url"},
		"CacheMB":      {index.Config{CacheMB: -1}, "index.cache_mb"},
		"PageAge":      {index.Config{PageAge: -time.Second}, "index.page_age"},
		"Timeout":      {index.Config{Timeout: -time.Second}, "index.timeout"},
		"HidesSecrets": {index.Config{PyPIURL: "ftp://me:hidden@x/"}, "index.pypi_url"},
	} {
		err := c.cfg.Validate()
		testbed.Check(t, err != nil && strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "hidden"), "%s: %v", name, err)
		_, err = index.New(c.cfg)
		testbed.Check(t, err != nil, "%s: New accepts it", name)
	}
	err := index.Config{PyPIURL: "x", NpmURL: "y"}.Validate()
	if err == nil || !strings.Contains(err.Error(), "pypi_url") || !strings.Contains(err.Error(), "npm_url") {
		t.Errorf("not all problems are reported: %v", err)
	}
}

// The pages beyond the budget have the memory that the index is given for them, all together. Each has half of it, and no less than four
// if that is enough for the largest pages.
func TestMemoryBeyondTheBudget(t *testing.T) {
	t.Parallel()
	const most = 320 * mib
	for name, c := range map[string]struct {
		pages  int64
		places int
		each   int64
	}{
		"Default":      {0, 4, most},
		"Small":        {136 * mib, 2, 68 * mib},
		"BelowThree":   {3*most - 1, 2, most},
		"Three":        {3 * most, 3, most},
		"AboveThree":   {3*most + 1, 3, most},
		"BelowTwoMost": {2*most - 2, 2, most - 1},
		"Large":        {64 * most, 4, most},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, err := index.New(index.Config{Pages: c.pages, Memory: budget.New(16 * mib), Dir: t.TempDir()})
			testbed.Must(t, err)
			defer x.Close()
			places, each := x.Beyond()
			testbed.Check(t, places == c.places && each == c.each, "%d places of %d bytes, want %d of %d", places, each, c.places, c.each)
			testbed.Check(t, c.pages == 0 || int64(places)*each <= c.pages, "%d places of %d bytes have more than %d", places, each, c.pages)
			for n, refused := range map[int64]bool{each - 1: false, each: false, each + 1: true} {
				err := x.Need(t.Context(), n)
				testbed.Check(t, (farm.CodeOf(err) == farm.CodeTooLarge) == refused && (err != nil) == refused, "%d bytes of %d: %v", n, each, err)
			}
		})
	}
}

// A page of 200 KiB whose links are relative to a long address takes many MiB: 32 of them took a gigabyte, of which nothing was charged before
// they had been read.
func TestLongLinksAreChargedAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		base   int
		status int
	}{"Short": {20, http.StatusOK}, "Long": {4000, http.StatusBadGateway}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var text strings.Builder
				fmt.Fprintf(&text, `<base href="http://packages.example.com/%s/">`, strings.Repeat("x", c.base))
				for i := range 6000 {
					fmt.Fprintf(&text, `<a href="x-%d.zip"></a>`, i)
				}
				testbed.Require(t, text.Len() < index.PageFree, "the page has %d bytes", text.Len())
				p, err := index.ParsePyPI(strings.NewReader(text.String()), "text/html", &url.URL{Scheme: "http", Host: "packages.example.com", Path: "/simple/x/"})
				testbed.Check(t, err == nil && p.Charged() >= p.Cost(), "%d bytes are charged while it is read, and then %d, %v", p.Charged(), p.Cost(), err)
				u := newUnreadOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/html")
					_, _ = io.WriteString(w, text.String())
				}), index.Config{Memory: budget.New(16 * mib), Pages: 16 * mib})
				s := u.read(t.Context(), "one", "/pypi/simple/x/")
				testbed.Check(t, s.status == c.status, "status %d, %q", s.status, s.text)
				testbed.Check(t, c.status == http.StatusOK || strings.Contains(s.text, "more than 8 MiB of memory"), "%q", s.text)
				u.end(t)
			})
		})
	}
}
