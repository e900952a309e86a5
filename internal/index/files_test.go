package index_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// random returns bytes that cannot be compressed and do not repeat.
func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := rand.Read(b)
	testbed.Must(t, err)
	return b
}

// slowly serves a file in two halves: the second comes once release is closed.
func (u *upstream) slowly(path string, content []byte, release <-chan struct{}) {
	u.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:len(content)/2])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
			_, _ = w.Write(content[len(content)/2:])
		case <-r.Context().Done():
		}
	})
}

// Files are served whole and in parts, with validators, first from upstream and then from the cache.
func TestFilesWholeAndInParts(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 300_000)
	text := string(content)
	u.wheel("six", "six-1.0.whl", content)
	cfg := u.config()
	cache := newMemory()
	cfg.Cache = cache
	x, root := serve(t, cfg)
	address, tag := root+"/pypi/files/six/six-1.0.whl", `"sha256-`+sha(content)+`"`
	for _, when := range []string{"first", "cached"} {
		for name, c := range map[string]struct {
			headers []string
			status  int
			body    string
		}{
			"Whole":           {nil, 200, text},
			"Start":           {[]string{"Range", "bytes=0-9"}, 206, text[:10]},
			"Middle":          {[]string{"Range", "bytes=150000-250000"}, 206, text[150000:250001]},
			"ToTheEnd":        {[]string{"Range", "bytes=299990-"}, 206, text[299990:]},
			"LastBytes":       {[]string{"Range", "bytes=-5"}, 206, text[299995:]},
			"IfRangeSame":     {[]string{"Range", "bytes=1-2", "If-Range", tag}, 206, text[1:3]},
			"IfRangeOther":    {[]string{"Range", "bytes=1-2", "If-Range", `"x"`}, 200, text},
			"BehindTheEnd":    {[]string{"Range", "bytes=300000-"}, 416, ""},
			"NotModified":     {[]string{"If-None-Match", tag}, 304, ""},
			"NonsenseInRange": {[]string{"Range", "bytes=x"}, 416, ""},
			"SeveralRanges":   {[]string{"Range", "bytes=0-1,4-5"}, 200, string(content)},
		} {
			a := ask(t, "GET", address, c.headers...)
			if a.err != nil || a.status != c.status || c.body != "" && a.body != c.body {
				t.Errorf("%s, %s: status %d, %d bytes, error %v", name, when, a.status, len(a.body), a.err)
			}
		}
		a := ask(t, "HEAD", address)
		if a.status != 200 || a.body != "" || a.header.Get("Content-Length") != "300000" || a.header.Get("Accept-Ranges") != "bytes" ||
			a.header.Get("ETag") != tag || a.header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
			t.Errorf("HEAD, %s: status %d, %v", when, a.status, a.header)
		}
		testbed.Until(t, "the file in the cache", func() bool { return len(cache.files()) == 1 })
	}
	testbed.Diff(t, "upstream was asked: times for the file", 1, u.times("/packages/six-1.0.whl"))
	s := x.Stats()
	testbed.Check(t, s.UpstreamFiles == 1 && s.UpstreamRequests == 2, "counters %+v", s)
}

// Twenty callers of one page and one file cause one upstream request for each, and read the file while it is downloaded.
func TestTwentyCallersAreOneDownload(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{true, false} {
		t.Run(fmt.Sprintf("Cache=%v", cached), func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			content := random(t, 1<<20)
			u.page("six", "text/html", `<a href="/slow/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
			release := make(chan struct{})
			u.slowly("/slow/six-1.0.whl", content, release)
			cfg := u.config()
			if cached {
				cfg.Cache = newMemory()
			}
			x, root := serve(t, cfg)
			var wg sync.WaitGroup
			var begun atomic.Int32
			for range 20 {
				wg.Go(func() {
					transport := &http.Transport{}
					defer transport.CloseIdleConnections()
					req, _ := http.NewRequestWithContext(t.Context(), "GET", root+"/pypi/files/six/six-1.0.whl", nil)
					resp, err := transport.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					half := make([]byte, len(content)/2-1)
					if _, err := io.ReadFull(resp.Body, half); err != nil {
						t.Error(err)
					}
					begun.Add(1)
					rest, err := io.ReadAll(resp.Body)
					testbed.Check(t, err == nil && bytes.Equal(append(half, rest...), content), "%d bytes, error %v", len(half)+len(rest), err)
				})
			}
			// Every caller has the first half before upstream sends the second.
			testbed.Until(t, "all callers to have half", func() bool { return begun.Load() == 20 })
			close(release)
			wg.Wait()
			get(t, root+"/pypi/files/six/six-1.0.whl")
			p, f := u.times("/simple/six/"), u.times("/slow/six-1.0.whl")
			testbed.Check(t, p == 1 && f == 1, "upstream was asked %d times for the page and %d times for the file", p, f)
			s := x.Stats()
			testbed.Check(t, s.Coalesced >= 19, "counters %+v", s)
		})
	}
}

// A file with the wrong hash is never delivered completely; the next caller gets the reason.
func TestWrongHash(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"Small": 10, "Large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			content := random(t, size)
			u.page("six", "text/html", `<a href="/six-1.0.whl#sha256=`+hashA+`">six</a>`)
			u.mux.HandleFunc("/six-1.0.whl", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(content)
			})
			cache, log := newMemory(), &logged{}
			cfg := u.config()
			cfg.Cache, cfg.Logger = cache, log.logger()
			_, root := serve(t, cfg)
			why := "The package index gave a file six-1.0.whl whose sha256 is " + sha(content) + " and not " + hashA + ", as listed: it is refused."
			a := ask(t, "GET", root+"/pypi/files/six/six-1.0.whl")
			if a.err == nil && a.status == http.StatusOK || len(a.body) >= size && a.status == http.StatusOK {
				t.Errorf("first caller: status %d, %d of %d bytes, error %v", a.status, len(a.body), size, a.err)
			}
			for _, headers := range [][]string{nil, {"Range", "bytes=0-3"}} {
				if a := ask(t, "GET", root+"/pypi/files/six/six-1.0.whl", headers...); a.status != http.StatusBadGateway || strings.TrimSpace(a.body) != why {
					t.Errorf("next caller: status %d, %q", a.status, a.body)
				}
			}
			if len(cache.files()) != 0 || u.times("/six-1.0.whl") != 1 || log.has(sha(content)+" and not "+hashA) == 0 {
				t.Errorf("kept %v, asked %v, log %s", cache.files(), u.asked, log.String())
			}
		})
	}
}

// A request for a part of a file that is being downloaded waits for it for a limited time, and then gets the part from upstream.
func TestPartsOfAFileOnItsWay(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 1<<20)
	u.page("six", "text/html", `<a href="/slow/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
	release := make(chan struct{})
	u.slowly("/slow/six-1.0.whl", content, release)
	cfg := u.config()
	cfg.Timeout = 3 * time.Second
	_, root := serve(t, cfg)
	got := get(t, root+"/pypi/files/six/six-1.0.whl", "Range", "bytes=100-199")
	testbed.Check(t, got == string(content[100:200]), "a part that has arrived: %d bytes", len(got))
	testbed.Diff(t, "upstream was asked, times", 1, u.times("/slow/six-1.0.whl"))
	got = get(t, root+"/pypi/files/six/six-1.0.whl", "Range", "bytes=-100")
	testbed.Check(t, got == string(content[len(content)-100:]), "a part that has not arrived: %d bytes", len(got))
	testbed.Diff(t, "upstream was asked, times", 2, u.times("/slow/six-1.0.whl"))
	close(release)
}

// A broken download is resumed where it ended. One that breaks every time fails.
func TestDownloadThatBreaksOff(t *testing.T) {
	t.Parallel()
	for _, resumes := range []bool{true, false} {
		t.Run(fmt.Sprintf("Resumes=%v", resumes), func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			content := random(t, 1<<20)
			u.page("six", "text/html", `<a href="/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
			var ranges []string
			u.mux.HandleFunc("/six-1.0.whl", func(w http.ResponseWriter, r *http.Request) {
				ranges = append(ranges, r.Header.Get("Range"))
				if resumes && r.Header.Get("Range") != "" {
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
					return
				}
				w.Header().Set("Content-Length", strconv.Itoa(len(content)))
				_, _ = w.Write(content[:1<<19])
				panic(http.ErrAbortHandler)
			})
			cache := newMemory()
			cfg := u.config()
			cfg.Cache = cache
			x, root := serve(t, cfg)
			a := ask(t, "GET", root+"/pypi/files/six/six-1.0.whl")
			if resumes != (a.err == nil && a.status == http.StatusOK && a.body == string(content)) {
				t.Errorf("status %d, %d bytes, error %v", a.status, len(a.body), a.err)
			}
			testbed.Must(t, x.Close())
			if resumes != (len(cache.files()) == 1) || len(ranges) != 2 || !strings.HasPrefix(ranges[1], "bytes=") {
				t.Errorf("kept %v, ranges %q", cache.files(), ranges)
			}
		})
	}
}

// A second worker gets the files of the first from their shared cache.
func TestTwoIndexesShareACache(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 100_000)
	u.wheel("six", "six-1.0.whl", content)
	cfg := u.config()
	cfg.Cache = newMemory()
	x, root := serve(t, cfg)
	get(t, root+"/pypi/files/six/six-1.0.whl")
	testbed.Must(t, x.Close())
	y, second := serve(t, cfg)
	got := get(t, second+"/pypi/files/six/six-1.0.whl")
	testbed.Check(t, got == string(content), "%d bytes", len(got))
	s := y.Stats()
	testbed.Check(t, s.UpstreamRequests == 0 && u.all() == 2, "counters %+v, upstream %v", s, u.asked)
}

// A download is spooled in an unlinked file, so nothing is left on disk.
func TestNothingIsLeftOnDisk(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 100_000)
	u.wheel("six", "six-1.0.whl", content)
	cfg := u.config()
	cfg.Dir = t.TempDir()
	_, root := serve(t, cfg)
	get(t, root+"/pypi/files/six/six-1.0.whl")
	entries, err := os.ReadDir(cfg.Dir)
	testbed.Check(t, err == nil && len(entries) == 0, "%v, error %v", entries, err)
	cfg.Dir = "/nonexistent"
	_, root = serve(t, cfg)
	if a := ask(t, "GET", root+"/pypi/files/six/six-1.0.whl"); a.status != http.StatusBadGateway || !strings.Contains(a.body, "no room on this worker's disk") {
		t.Errorf("without a disk: status %d, %q", a.status, a.body)
	}
}

func TestFileSizes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	for name, size := range map[string]int{"a": mib - 1, "b": mib, "c": mib + 1} {
		for kind, length := range map[string]bool{"known": true, "unknown": false} {
			content := random(t, size)
			file := name + "-" + kind + ".whl"
			u.page(name+"-"+kind, "text/html", `<a href="/f/`+file+`#sha256=`+sha(content)+`">x</a>`)
			u.mux.HandleFunc("/f/"+file, func(w http.ResponseWriter, _ *http.Request) {
				if length {
					w.Header().Set("Content-Length", strconv.Itoa(size))
				}
				_, _ = w.Write(content)
			})
		}
	}
	u.page("lying", pypiJSON, `{"meta":{"api-version":"1.1"},"files":[{"filename":"x.whl","url":"/f/a-known.whl","hashes":{},"size":7}]}`)
	cfg := u.config()
	cfg.MaxFileMB = 1
	_, root := serve(t, cfg)
	for _, kind := range []string{"known", "unknown"} {
		for name, want := range map[string]int{"a": 200, "b": 200, "c": 502} {
			a := ask(t, "GET", root+"/pypi/files/"+name+"-"+kind+"/"+name+"-"+kind+".whl")
			if a.status != want || want == 502 && !strings.Contains(a.body, "more than 1 MiB") {
				t.Errorf("%s, %s: status %d, %.100q", name, kind, a.status, a.body)
			}
		}
	}
	a := ask(t, "GET", root+"/pypi/files/lying/x.whl")
	testbed.Check(t, a.status == 502 && strings.Contains(a.body, "for x.whl, which has 7"), "other size than listed: status %d, %q", a.status, a.body)
}

func TestFetch(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 1000)
	u.wheel("uv", "uv-1.0.whl", content)
	x, _ := serve(t, u.config())
	r, size, err := x.Fetch(t.Context(), "UV", "uv-1.0.whl", strings.ToUpper(sha(content)))
	testbed.Must(t, err)
	got, err := io.ReadAll(r)
	testbed.Check(t, err == nil && bytes.Equal(got, content) && size == 1000, "%d of %d bytes, error %v", len(got), size, err)
	testbed.Must(t, r.Close())
	for name, c := range map[string]struct {
		project, file, hash string
		want                farm.Code
	}{
		"OtherHash":  {"uv", "uv-1.0.whl", hashA, farm.CodeConflict},
		"NotListed":  {"uv", "uv-2.0.whl", "", farm.CodeNotFound},
		"NoProject":  {"vu", "uv-2.0.whl", "", farm.CodeNotFound},
		"BadProject": {"../uv", "uv-1.0.whl", "", farm.CodeInvalid},
		"BadFile":    {"uv", "../uv-1.0.whl", "", farm.CodeInvalid},
	} {
		_, _, err := x.Fetch(t.Context(), c.project, c.file, c.hash)
		testbed.Check(t, farm.CodeOf(err) == c.want, "%s: %v", name, err)
	}
}

// A file without hashes is served but never cached: it could be a different file the next time.
func TestFileWithoutHash(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.page("six", "text/html", `<a href="/six-1.0.whl#md5=00000000000000000000000000000000">six</a>`)
	u.mux.HandleFunc("/six-1.0.whl", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") })
	cache := newMemory()
	cfg := u.config()
	cfg.Cache = cache
	x, root := serve(t, cfg)
	a := ask(t, "GET", root+"/pypi/files/six/six-1.0.whl")
	testbed.Check(t, a.body == "text" && a.header.Get("ETag") == "" && a.header.Get("Cache-Control") == "no-store", "%q, %v", a.body, a.header)
	testbed.Must(t, x.Close())
	for key := range cache.values {
		testbed.Check(t, strings.HasPrefix(key, "index/page/"), "kept %s", key)
	}
	a = ask(t, "GET", root+"/pypi/files/six/six-1.0.whl")
	testbed.Check(t, a.status == http.StatusBadGateway && strings.Contains(a.body, "being closed"), "after Close: status %d, %q", a.status, a.body)
}

func TestDir(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := index.NewDir(t.TempDir() + "/made/later")
	_, _, err := d.Get(ctx, "index/a", 0, 0)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "missing: %v", err)
	none := func(string, int64, time.Time) error { t.Error("something is listed"); return nil }
	testbed.Must(t, d.List(ctx, "index/", none))
	for _, key := range []string{"index/a", "index/b/c", "other/d"} {
		testbed.Must(t, d.Put(ctx, key, strings.NewReader("0123456789"), 10))
	}
	err = d.Put(ctx, "index/short", strings.NewReader("0123"), 10)
	testbed.Check(t, err != nil, "half a value was kept")
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 4, "3456"}, {8, 40, "89"}} {
		r, size, err := d.Get(ctx, "index/b/c", c.offset, c.length)
		testbed.Must(t, err)
		text, err := io.ReadAll(r)
		if string(text) != c.want || size != 10 || err != nil || r.Close() != nil {
			t.Errorf("Get(%d, %d) = %q of %d, %v", c.offset, c.length, text, size, err)
		}
	}
	testbed.Must(t, d.Delete(ctx, "index/a", "index/never"))
	var keys []string
	if err := d.List(ctx, "index/", func(key string, size int64, _ time.Time) error {
		if keys = append(keys, key); size != 10 {
			t.Errorf("%s has %d bytes", key, size)
		}
		return nil
	}); err != nil || !slices.Equal(keys, []string{"index/b/c"}) {
		t.Errorf("listed %v, %v", keys, err)
	}
	for _, key := range []string{"../x", "/etc/passwd", "index/../../x"} {
		err := d.Put(ctx, key, strings.NewReader(""), 0)
		testbed.Check(t, err != nil, "%q was taken for a key", key)
	}
}
