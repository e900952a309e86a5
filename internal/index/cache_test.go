package index_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// If the cache is down, everything comes from upstream, and one warning is logged.
func TestCacheDown(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 200_000)
	u.wheel("six", "six-1.0.whl", content)
	cache, log := newMemory(), &logged{}
	cache.getFunc = func(string) error { return errBroken }
	cache.putFunc = func(string) error { return errBroken }
	cfg := u.config()
	cfg.Cache, cfg.Logger = cache, log.logger()
	x, root := serve(t, cfg)
	for range 3 {
		got := get(t, root+"/pypi/files/six/six-1.0.whl")
		testbed.Check(t, got == string(content), "%d bytes", len(got))
	}
	if log.has("cache of packages does not work") != 1 || x.Stats().CacheErrors == 0 {
		t.Errorf("log %s, counters %+v", log.String(), x.Stats())
	}
	// A file that no cache has is retained for a while.
	testbed.Diff(t, "upstream was asked, times", 1, u.times("/packages/six-1.0.whl"))
}

// hanging is a cache that never answers.
type hanging struct{ *memory }

func (h hanging) Get(ctx context.Context, _ string, _, _ int64) (io.ReadCloser, int64, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

func (h hanging) Put(ctx context.Context, _ string, _ io.Reader, _ int64) error {
	return errBroken
}

func TestCacheThatHangs(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.wheel("six", "six-1.0.whl", []byte("text"))
	cfg := u.config()
	cfg.Cache, cfg.Timeout = hanging{newMemory()}, 2*time.Second
	x, root := serve(t, cfg)
	for range 5 {
		get(t, root+"/pypi/files/six/six-1.0.whl")
	}
	n := x.Stats().CacheErrors
	testbed.Check(t, n == 1, "waited for the cache %d times", n)
}

// If the cache fails in the middle of a file, or has lost it, the rest comes from upstream.
func TestCacheBreaksOff(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*memory){
		"BreaksOff": func(m *memory) {
			m.cutFunc = func(_ string, size int64) (int64, bool) { return size / 2, size > 100_000 }
		},
		"Lost": func(m *memory) { clear(m.values) },
		"Shorter": func(m *memory) {
			for key, v := range m.values {
				m.values[key] = value{v.text[:len(v.text)/3], v.modified}
			}
		},
		"Down": func(m *memory) { m.getFunc = func(string) error { return errBroken } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			content := random(t, 500_000)
			u.wheel("six", "six-1.0.whl", content)
			cache := newMemory()
			cfg := u.config()
			cfg.Cache = cache
			_, root := serve(t, cfg)
			get(t, root+"/pypi/files/six/six-1.0.whl")
			testbed.Until(t, "the file in the cache", func() bool { return len(cache.files()) == 1 })
			testbed.Until(t, "the file from the cache", func() bool {
				get(t, root+"/pypi/files/six/six-1.0.whl")
				return u.times("/packages/six-1.0.whl") == 1
			})
			cache.mu.Lock()
			spoil(cache)
			cache.mu.Unlock()
			testbed.Until(t, "the file from upstream", func() bool { // the download of before may not have ended yet
				got := get(t, root+"/pypi/files/six/six-1.0.whl")
				testbed.Check(t, got == string(content), "%d bytes", len(got))
				return u.times("/packages/six-1.0.whl") >= 2
			})
			got := get(t, root+"/pypi/files/six/six-1.0.whl", "Range", "bytes=300000-300099")
			testbed.Check(t, got == string(content[300000:300100]), "a part of %d bytes", len(got))
			n := u.times("/packages/six-1.0.whl")
			testbed.Check(t, n >= 2 && n <= 3, "upstream was asked %d times", n)
		})
	}
}

// An answer of the cache that breaks off, as a store ends that of a reader who takes nothing for long, keeps no other reader from the cache.
func TestAnAnswerThatBreaksOffRestsNothing(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.wheel("six", "six-1.0.whl", random(t, 500_000))
	cache := newMemory()
	cfg := u.config()
	cfg.Cache = cache
	x, root := serve(t, cfg)
	get(t, root+"/pypi/files/six/six-1.0.whl")
	testbed.Until(t, "the file in the cache", func() bool { return len(cache.files()) == 1 })
	cache.mu.Lock()
	cache.cutFunc = func(_ string, size int64) (int64, bool) { return size / 2, size > 100_000 }
	cache.mu.Unlock()
	testbed.Until(t, "the rest of the file from upstream", func() bool {
		get(t, root+"/pypi/files/six/six-1.0.whl")
		return u.times("/packages/six-1.0.whl") >= 2
	})
	n := x.Stats().CacheErrors
	testbed.Check(t, n == 0, "%d failures of the cache", n)
}

// An unreadable page in the cache counts as missing.
func TestDamagedPageInCache(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.wheel("six", "six-1.0.whl", []byte("x"))
	for _, text := range []string{"", "x", "{}", "{\"files\":3}\n", "null\n"} {
		cache := newMemory()
		cache.values["index/page/pypi/six"] = value{[]byte(text), time.Now()}
		cfg := u.config()
		cfg.Cache = cache
		_, root := serve(t, cfg)
		got := get(t, root+"/pypi/simple/six/")
		testbed.Check(t, strings.Contains(got, "six-1.0.whl"), "%q in the cache: %q", text, got)
	}
}

func TestTrim(t *testing.T) {
	t.Parallel()
	const mib, each = 1 << 20, farm.ObjectBytes
	begun := time.Now()
	for name, c := range map[string]struct {
		sizes []int // in the order of their age, the oldest first
		want  []string
	}{
		"Empty":        {nil, nil},
		"OneBelow":     {[]int{mib - 2*each - 10, 9}, []string{"index/0", "index/1"}},
		"AtTheLimit":   {[]int{mib - 2*each - 10, 10}, []string{"index/0", "index/1"}},
		"OneAbove":     {[]int{mib - 2*each - 10, 11}, []string{"index/1"}},
		"OldestFirst":  {[]int{1, 5, mib - 2*each - 5, 5}, []string{"index/2", "index/3"}},
		"OnlyAsNeeded": {[]int{mib / 2, mib/4 - each, mib/4 - each, mib/4 - each}, []string{"index/1", "index/2", "index/3"}},
		"OneTooLarge":  {[]int{5, 2 * mib}, nil},
		"Many":         {slices.Repeat([]int{0}, 1200+mib/each), nil},
	} {
		cache := newMemory()
		cache.values["other/key"] = value{make([]byte, 3*mib), begun.Add(-time.Hour)}
		for i, size := range c.sizes {
			cache.values[fmt.Sprintf("index/%d", i)] = value{make([]byte, size), begun.Add(time.Duration(i) * time.Second)}
		}
		x, err := index.New(index.Config{Cache: cache, CacheMB: 1})
		testbed.Must(t, err)
		err = x.Trim(t.Context())
		testbed.Check(t, err == nil, "%s: %v", name, err)
		testbed.Check(t, cache.values["other/key"].text != nil, "%s: a value that is not the index's was removed", name)
		delete(cache.values, "other/key")
		if name == "Many" {
			for i := range c.sizes {
				if _, there := cache.values[fmt.Sprintf("index/%d", i)]; there != (i >= 1200) {
					t.Fatalf("%s: %d is there: %v, of %d", name, i, there, len(cache.values))
				}
			}
			continue
		}
		var left []string
		for key := range cache.values {
			left = append(left, key)
		}
		slices.Sort(left)
		testbed.Diff(t, fmt.Sprintf("%s: values left", name), c.want, left)
	}
}

// The index trims its cache once it has stored enough, and fetches removed files again.
func TestTrimsAutomatically(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	cache := newMemory()
	cfg := u.config()
	cfg.Cache, cfg.CacheMB = cache, 1
	x, root := serve(t, cfg)
	var contents [][]byte
	for i := range 5 {
		content := random(t, 400_000)
		contents = append(contents, content)
		u.wheel(fmt.Sprint("p", i), fmt.Sprintf("p%d.whl", i), content)
		get(t, fmt.Sprintf("%s/pypi/files/p%d/p%d.whl", root, i, i))
	}
	testbed.Until(t, "a trim", func() bool { return x.Stats().Trimmed > 0 })
	testbed.Must(t, x.Trim(t.Context()))
	var total int
	cache.mu.Lock()
	for _, v := range cache.values {
		total += len(v.text)
	}
	cache.mu.Unlock()
	testbed.Check(t, total <= 1<<20, "%d bytes are kept", total)
	for i, content := range contents {
		got := get(t, fmt.Sprintf("%s/pypi/files/p%d/p%d.whl", root, i, i))
		testbed.Check(t, got == string(content), "p%d: %d bytes", i, len(got))
	}
}

// A million small values, or marks of use, took many times the space of the cache: their bytes are few, but the object store keeps blocks for each.
func TestSmallValuesAreTrimmedAutomatically(t *testing.T) {
	t.Parallel()
	u, cache := newUpstream(t), newMemory()
	cfg := u.config()
	cfg.Cache = cache
	const all = 1<<20/farm.ObjectBytes + 1
	path := func(i int) string { return fmt.Sprintf("/pypi/files/p%d/p%d.whl", i, i) }
	for i := range all {
		u.wheel(fmt.Sprint("p", i), fmt.Sprintf("p%d.whl", i), fmt.Append(nil, i))
	}
	read := func(mb int, until string, done func(x *index.Index) bool) {
		cfg.CacheMB = mb
		x, root := serve(t, cfg)
		testbed.Until(t, until, func() bool {
			for i := range all {
				get(t, root+path(i))
			}
			return done(x)
		})
		testbed.Must(t, x.Close())
	}
	trimmed := func(x *index.Index) bool { return x.Stats().Trimmed > 0 }
	read(1, "a trim after small files", trimmed)
	read(100, "all files in the cache", func(*index.Index) bool { return len(cache.files()) == all })
	read(1, "a trim after marks", trimmed) // of each file, which comes from the cache
}

func TestTrimThatFails(t *testing.T) {
	t.Parallel()
	x, err := index.New(index.Config{Cache: listless{newMemory()}})
	testbed.Must(t, err)
	err = x.Trim(t.Context())
	testbed.Check(t, errors.Is(err, errBroken), "error %v", err)
}

// listless is a cache that cannot be listed.
type listless struct{ *memory }

func (listless) List(context.Context, string, func(string, int64, time.Time) error) error {
	return errBroken
}

// A download without readers is completed if it is small, and aborted otherwise.
func TestReadersThatLeave(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size     int
		finished bool
	}{"Small": {64 << 20, true}, "Large": {64<<20 + 1, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			content := make([]byte, c.size)
			u.page("six", "text/html", `<a href="/six-1.0.whl#sha256=`+sha(content)+`">six</a>`)
			left := make(chan struct{})
			var cut atomic.Bool
			u.mux.HandleFunc("/six-1.0.whl", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(c.size))
				_, _ = w.Write(content[:1<<20])
				_ = http.NewResponseController(w).Flush()
				<-left
				for at := 1 << 20; at < c.size; at += 1 << 18 { // slower than the index waits for a large file
					if _, err := w.Write(content[at:min(at+1<<18, c.size)]); err != nil {
						cut.Store(true)
						return
					}
					if !c.finished {
						select {
						case <-time.After(20 * time.Millisecond):
						case <-r.Context().Done():
							cut.Store(true)
							return
						}
					}
				}
			})
			cache := newMemory()
			cfg := u.config()
			cfg.Cache = cache
			if !c.finished {
				cfg.Timeout = time.Second
			}
			x, root := serve(t, cfg)
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "GET", root+"/pypi/files/six/six-1.0.whl", nil)
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			resp, err := transport.RoundTrip(req)
			testbed.Must(t, err)
			_, err = io.ReadFull(resp.Body, make([]byte, 1000))
			testbed.Must(t, err)
			cancel()
			resp.Body.Close()
			close(left)
			if c.finished {
				testbed.Until(t, "the file in the cache", func() bool { return len(cache.files()) == 1 })
				return
			}
			testbed.Until(t, "the end of the download", cut.Load)
			if err := x.Close(); err != nil || len(cache.files()) != 0 {
				t.Errorf("kept %v, error %v", cache.files(), err)
			}
		})
	}
}

// Many callers read files, or parts of them and leave, while the cache sometimes fails and is trimmed. Every caller that reads to
// the end gets the right bytes, and no download is left over.
func TestManyCallersAndAnUnreliableCache(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	var contents [][]byte
	for i := range 8 {
		contents = append(contents, random(t, 1+rand.IntN(1<<20)))
		u.wheel(fmt.Sprint("p", i), fmt.Sprintf("p%d.whl", i), contents[i])
	}
	cache := newMemory()
	now := newClock()
	var calls atomic.Int64
	sometimes := func(string) error {
		if calls.Add(1)%17 == 0 {
			return errBroken
		}
		return nil
	}
	cache.getFunc, cache.putFunc = sometimes, sometimes
	cfg := u.config()
	cfg.Cache, cfg.CacheMB, cfg.Now, cfg.PageAge = cache, 2, now.now, time.Second
	cfg.Client = nil
	x, err := index.New(cfg)
	testbed.Must(t, err)
	root := serveHandler(t, x)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 40 {
				now.advance(100 * time.Millisecond)
				i := rand.IntN(len(contents))
				oneCaller(t, transport, fmt.Sprintf("%s/pypi/files/p%d/p%d.whl", root, i, i), contents[i])
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	for over := false; !over; {
		x.Wake()
		testbed.Must(t, x.Trim(t.Context()))
		select {
		case <-done:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	testbed.Must(t, x.Close())
	testbed.Until(t, "empty spool files", func() bool { return x.Spooled() == 0 }) // handlers whose callers left are ending
	t.Logf("%+v", x.Stats())
}

// oneCaller reads a whole file, reads a part, or leaves in the middle.
func oneCaller(t *testing.T, transport *http.Transport, address string, content []byte) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	from, leave := 0, rand.IntN(4) == 0
	if rand.IntN(2) == 0 {
		from = rand.IntN(len(content))
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if leave {
		_, _ = io.ReadFull(resp.Body, make([]byte, min(1000, len(content)-from)))
		return
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, content[from:]) {
		t.Errorf("%s from %d: status %d, %d of %d bytes, error %v: %.100q", address, from, resp.StatusCode, len(got), len(content)-from, err, got)
	}
}

// A file that was stored first but is used stays; one that nobody has used since goes.
func TestTrimKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	u, cache := newUpstream(t), newMemory()
	cfg := u.config()
	cfg.Cache, cfg.CacheMB = cache, 1
	old, newer := random(t, 450_000), random(t, 350_000)
	u.wheel("old", "old-1.0.whl", old)
	u.wheel("newer", "newer-1.0.whl", newer)
	_, first := serve(t, cfg)
	get(t, first+"/pypi/files/old/old-1.0.whl")
	get(t, first+"/pypi/files/newer/newer-1.0.whl")
	testbed.Until(t, "two files in the cache", func() bool { return len(cache.files()) == 2 })
	oldKey, newerKey := "index/file/sha256/"+sha(old), "index/file/sha256/"+sha(newer)
	cache.age(oldKey, 48*time.Hour)
	cache.age(newerKey, 24*time.Hour)
	got := cache.have("index/used/")
	testbed.Check(t, len(got) == 0, "marks of files that were just stored: %q", got)

	x, second := serve(t, cfg) // another worker, or the same one later
	for range 5 {
		get(t, second+"/pypi/files/old/old-1.0.whl")
	}
	mark := "index/used/file/sha256/" + sha(old)
	testbed.Until(t, "a mark", func() bool { return slices.Equal(cache.have("index/used/"), []string{mark}) })
	testbed.Diff(t, "the use was recorded, times", 1, cache.puts[mark])
	testbed.Must(t, cache.Put(t.Context(), "index/file/sha256/more", strings.NewReader(strings.Repeat("x", 100_000)), 100_000))
	testbed.Must(t, x.Trim(t.Context()))
	if diff := cmp.Diff([]string{oldKey, "index/file/sha256/more"}, cache.have("index/file/")); diff != "" { // a hash sorts before "more"
		t.Error(diff)
	}
}

// Marks go with their values, and those whose value is gone go too. Each counts as a value of one byte does.
func TestTrimRemovesMarks(t *testing.T) {
	t.Parallel()
	one := int(farm.StoredBytes(1))
	all := []string{"index/file/a", "index/file/b", "index/used/file/a", "index/used/file/b", "index/used/file/gone"}
	newer := []string{"index/file/b", "index/used/file/b"}
	for over, want := range map[int][]string{-1: all, 0: all, 1: newer, 2 * one: newer, 2*one + 1: {}} {
		cache := newMemory()
		put := func(key string, size int, age time.Duration) {
			testbed.Must(t, cache.Put(t.Context(), key, strings.NewReader(strings.Repeat("x", size)), int64(size)))
			cache.age(key, age)
		}
		put("index/file/a", 1, time.Hour)
		put("index/used/file/a", 1, time.Minute)
		put("index/file/b", 1<<20-4*one-farm.ObjectBytes+over, 0)
		put("index/used/file/b", 1, 0)
		put("index/used/file/gone", 1, 0)
		x, err := index.New(index.Config{Cache: cache, CacheMB: 1})
		testbed.Must(t, err)
		testbed.Must(t, x.Trim(t.Context()))
		testbed.Diff(t, fmt.Sprintf("left of %d bytes too many", over), want, cache.have(""))
		trimmed := 2 - len(want)/2
		testbed.Check(t, x.Stats().Trimmed == int64(trimmed), "%d values count as trimmed, want %d", x.Stats().Trimmed, trimmed)
	}
}
