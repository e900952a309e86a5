package index_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const mib = 1 << 20

// serveLarge serves a file that is larger than the space for downloads, and an index of it with a cache.
func serveLarge(t *testing.T, listed func(content []byte) string) (u *upstream, cache *memory, x *index.Index, address string, content []byte) {
	t.Helper()
	u, cache = newUpstream(t), newMemory()
	content = random(t, 80*mib)
	u.page("torch", "text/html", `<a href="/packages/torch-1.0.whl#sha256=`+listed(content)+`">torch</a>`)
	u.mux.HandleFunc("/packages/torch-1.0.whl", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
	cfg := u.config()
	cfg.Cache, cfg.SpoolMB = cache, 64
	x, root := serve(t, cfg)
	return u, cache, x, root + "/pypi/files/torch/torch-1.0.whl", content
}

func begin(t *testing.T, address string) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	testbed.Must(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(req)
	testbed.Require(t, err == nil && resp.StatusCode == http.StatusOK, "GET: %v, %v", resp, err)
	return resp.Body
}

// A file that is larger than the space for downloads is streamed into the cache while it is read.
func TestFileLargerThanTheSpool(t *testing.T) {
	t.Parallel()
	u, cache, x, address, content := serveLarge(t, sha)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			a := ask(t, http.MethodGet, address)
			testbed.Check(t, a.err == nil && a.body == string(content), "status %d, %d bytes, error %v", a.status, len(a.body), a.err)
		})
	}
	all.Wait()
	testbed.Until(t, "the file in the cache", func() bool { return len(cache.files()) == 1 })
	testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 })
	if got := get(t, address); got != string(content) || u.times("/packages/torch-1.0.whl") > 3 {
		t.Errorf("%d bytes from the cache; upstream was asked %d times", len(got), u.times("/packages/torch-1.0.whl"))
	}
}

// Windows are charged to the budget. Where it has no room, a file that fits on the disk is spooled, and a larger one waits for its turn.
func TestWindowsAreCharged(t *testing.T) {
	t.Parallel()
	for name, spoolMB := range map[string]int{"FitsOnTheDisk": 512, "IsLargerThanTheSpool": 36} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, cache := newUpstream(t), newMemory()
			contents := map[string][]byte{"a": random(t, 40*mib), "b": random(t, 41*mib), "c": random(t, 42*mib)}
			var links strings.Builder
			for file, content := range contents {
				links.WriteString(`<a href="/packages/` + file + `-1.0.whl#sha256=` + sha(content) + `">x</a>`)
				u.mux.HandleFunc("/packages/"+file+"-1.0.whl", func(w http.ResponseWriter, r *http.Request) {
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
				})
			}
			u.page("torch", "text/html", links.String())
			cfg := u.config()
			cfg.Cache, cfg.SpoolMB, cfg.Memory = cache, spoolMB, budget.New(16*mib) // less than two windows
			cfg.Timeout = 5 * time.Minute                                           // a busy machine takes its time for 120 MiB
			x, root := serve(t, cfg)
			var all sync.WaitGroup
			for file, content := range contents {
				all.Go(func() {
					if a := ask(t, http.MethodGet, root+"/pypi/files/torch/"+file+"-1.0.whl"); a.err != nil || a.body != string(content) {
						t.Errorf("%s: status %d, %d bytes, error %v: %.200s", file, a.status, len(a.body), a.err, a.body)
					}
				})
			}
			all.Wait()
			testbed.Until(t, "all files in the cache", func() bool { return len(cache.files()) == 3 })
			testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 && cfg.Memory.Stats().Used == 0 })
			waited := cfg.Memory.Stats().Waited
			spooled := waited == 0
			testbed.Check(t, spooled == (name == "FitsOnTheDisk"), "downloads waited %d times for memory", waited)
		})
	}
}

// A large file with the wrong hash is not cached, and no caller gets its last byte.
func TestLargeFileWithAWrongHash(t *testing.T) {
	t.Parallel()
	_, cache, x, address, content := serveLarge(t, func([]byte) string { return hashA })
	if a := ask(t, http.MethodGet, address); a.err == nil && a.status == http.StatusOK || len(a.body) >= len(content) {
		t.Errorf("status %d, %d bytes, error %v", a.status, len(a.body), a.err)
	}
	testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 })
	kept := cache.files()
	testbed.Check(t, len(kept) == 0, "the cache has %v", kept)
	a := ask(t, http.MethodGet, address)
	testbed.Check(t, a.status == http.StatusBadGateway && strings.Contains(a.body, "refused"), "next caller: status %d, %q", a.status, a.body)
}

// A request for several ranges of a large file is answered with all of it: each range would be a read of the object store.
func TestRangesOfALargeFile(t *testing.T) {
	t.Parallel()
	_, _, _, address, content := serveLarge(t, sha)
	last := strconv.Itoa(len(content) - 100)
	a := ask(t, http.MethodGet, address, "Range", "bytes=0-99,"+last+"-")
	if a.err != nil || a.status != http.StatusOK || a.body != string(content) {
		t.Errorf("status %d, %d bytes, error %v", a.status, len(a.body), a.err)
	}
}

// A range behind the window of a file that is being downloaded was cut off before its first byte.
func TestRangeBehindTheWindow(t *testing.T) {
	t.Parallel()
	u, content, release := newUpstream(t), random(t, 40*mib), make(chan struct{})
	u.page("torch", "text/html", `<a href="/packages/torch-1.0.whl#sha256=`+sha(content)+`">torch</a>`)
	u.mux.HandleFunc("/packages/torch-1.0.whl", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:30*mib])
		<-release
		_, _ = w.Write(content[30*mib:])
	})
	cfg := u.config()
	cfg.Cache = newMemory()
	_, root := serve(t, cfg)
	address := root + "/pypi/files/torch/torch-1.0.whl"
	reader := begin(t, address)
	defer func() { _ = reader.Close() }()
	_, err := io.ReadFull(reader, make([]byte, 29*mib))
	testbed.Must(t, err)
	a := ask(t, http.MethodGet, address, "Range", "bytes=1000-1999")
	testbed.Check(t, a.err == nil && a.body == string(content[1000:2000]), "status %d, %d bytes, error %v", a.status, len(a.body), a.err)
	close(release)
	rest, err := io.ReadAll(reader)
	testbed.Check(t, err == nil && bytes.Equal(rest, content[29*mib:]), "the reader of the file got %d more bytes, error %v", len(rest), err)
}

// Stalled readers occupy a window only: other files can be downloaded, and other callers can read the same file.
func TestStalledReadersDoNotBlockDownloads(t *testing.T) {
	t.Parallel()
	u, cache, x, address, content := serveLarge(t, sha)
	slow := begin(t, address)
	defer func() { _ = slow.Close() }()
	_, err := io.ReadFull(slow, make([]byte, 1000))
	testbed.Must(t, err)
	for i := range 4 {
		name := "other" + strconv.Itoa(i)
		u.wheel(name, name+"-1.0.whl", random(t, 20*mib))
		got := get(t, strings.Replace(address, "torch/torch", name+"/"+name, 1))
		testbed.Check(t, len(got) == 20*mib, "%s: %d bytes", name, len(got))
	}
	got := get(t, address)
	testbed.Check(t, got == string(content), "the same file: %d bytes", len(got))
	testbed.Until(t, "the files in the cache", func() bool { return len(cache.files()) == 5 })
	rest, err := io.ReadAll(slow)
	if err != nil || string(rest) != string(content[1000:]) {
		t.Errorf("the slow reader got %d of %d bytes, error %v", len(rest), len(content)-1000, err)
	}
	_ = slow.Close()
	testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 })
}

// When the space of spool files is needed, their slow readers continue in the cache.
func TestSpoolFilesOfSlowReadersAreReleased(t *testing.T) {
	t.Parallel()
	u, cache := newUpstream(t), newMemory()
	cfg := u.config()
	cfg.Cache, cfg.SpoolMB = cache, 64
	x, _ := serve(t, cfg)
	readers := map[string]io.ReadCloser{}
	contents := map[string][]byte{}
	for i := range 6 { // 120 MiB of files in 64 MiB of space
		name := "p" + strconv.Itoa(i)
		contents[name] = random(t, 20*mib)
		u.wheel(name, name+"-1.0.whl", contents[name])
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, _, err := x.Fetch(ctx, name, name+"-1.0.whl", "")
		testbed.Must(t, err)
		_, err = io.ReadFull(r, make([]byte, 1000))
		testbed.Must(t, err)
		readers[name] = r
		testbed.Until(t, name+" in the cache", func() bool { return len(cache.files()) == i+1 })
	}
	for name, r := range readers {
		rest, err := io.ReadAll(r)
		testbed.Check(t, err == nil && bytes.Equal(rest, contents[name][1000:]), "%s: %d bytes, error %v", name, len(rest), err)
		_ = r.Close()
	}
	testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 })
}

// A reader that comes when a large file has passed, before it is known that the cache does not have it, gets it by a new download.
func TestLargeFileThatHasPassed(t *testing.T) {
	t.Parallel()
	_, cache, x, address, content := serveLarge(t, sha)
	passed, late := make(chan struct{}), make(chan struct{})
	var once sync.Once
	cache.mu.Lock()
	cache.putFunc = func(key string) error { // it has read the whole file
		if strings.HasPrefix(key, "index/file/") {
			once.Do(func() { close(passed) })
			<-late
			return errBroken
		}
		return nil
	}
	cache.mu.Unlock()
	got := get(t, address)
	testbed.Check(t, got == string(content), "%d bytes", len(got))
	<-passed
	second := make(chan answer, 1)
	go func() { second <- ask(t, http.MethodGet, address) }()
	testbed.Until(t, "the second reader joins the download", func() bool { return x.Stats().Coalesced == 1 })
	close(late)
	a := <-second
	testbed.Check(t, a.err == nil && a.body == string(content), "the second reader: status %d, %d bytes, %v", a.status, len(a.body), a.err)
}

// If the cache fails in the middle of a large file, the download continues.
func TestLargeFileWithoutItsCache(t *testing.T) {
	t.Parallel()
	_, cache, x, address, content := serveLarge(t, sha)
	cache.mu.Lock()
	cache.putFunc = func(key string) error {
		if strings.HasPrefix(key, "index/file/") {
			return errBroken
		}
		return nil
	}
	cache.mu.Unlock()
	for range 2 { // the second time the cache is not used
		got := get(t, address)
		testbed.Check(t, got == string(content), "%d bytes", len(got))
	}
	testbed.Until(t, "all room is back", func() bool { return x.Spooled() == 0 })
	kept := cache.files()
	testbed.Check(t, len(kept) == 0, "the cache has %v", kept)
}

// offlineTorch is an index of one file without a network.
func offlineTorch(t *testing.T, content []byte, cfg index.Config) *index.Index {
	t.Helper()
	u := &upstream{mux: http.NewServeMux()}
	u.wheel("torch", "torch-1.0.whl", content)
	return newOffline(t, inProcess{u.mux}, cfg)
}

// takesOne is a caller that takes one piece of an answer, and the rest when it is released.
type takesOne struct {
	*httptest.ResponseRecorder
	let    <-chan struct{}
	pieces int
	done   chan struct{} // closed when it has the whole answer
}

func (c *takesOne) Write(p []byte) (int, error) {
	if c.pieces++; c.pieces == 2 {
		<-c.let
	}
	return c.ResponseRecorder.Write(p)
}

// One tenant read ranges of a large file that another downloaded, each further ahead, and took nothing: the download waited for one after the
// other. Time is faked: no timeout depends on the machine.
func TestRangesOfATenantStopAnotherForALimitedTime(t *testing.T) {
	t.Parallel()
	content := random(t, 40*mib)
	synctest.Test(t, func(t *testing.T) {
		x := offlineTorch(t, content, index.Config{Cache: newMemory()})
		var readers sync.WaitGroup
		read := func(tenant string, header http.Header, let <-chan struct{}) *takesOne {
			c := &takesOne{ResponseRecorder: httptest.NewRecorder(), let: let, done: make(chan struct{})}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/files/torch/torch-1.0.whl", http.NoBody)
			r.Header = header
			readers.Go(func() {
				defer close(c.done)
				x.For(tenant).ServeHTTP(c, r)
			})
			synctest.Wait()
			return c
		}
		begun, let, never := time.Now(), make(chan struct{}), make(chan struct{})
		quiet := read("quiet", nil, let)
		var loud []*takesOne
		for i := range 8 {
			from := (i + 1) * mib
			loud = append(loud, read("loud", http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, from+mib-1)}}, never))
		}
		close(let)
		<-quiet.done
		took := time.Since(begun)
		testbed.Check(t, took <= 6*time.Second, "a tenant waited for another one's requests for %v", took)
		close(never)
		readers.Wait()
		testbed.Check(t, bytes.Equal(quiet.Body.Bytes(), content), "the quiet tenant got %d bytes", quiet.Body.Len())
		for i, c := range loud {
			from := (i + 1) * mib
			testbed.Check(t, bytes.Equal(c.Body.Bytes(), content[from:from+mib]), "range %d: %d bytes", i, c.Body.Len())
		}
		testbed.Must(t, x.Close())
	})
}

// endless is a cache that hangs while it takes a file, from so many bytes before its end on.
type endless struct {
	*memory
	before int64
}

func (e endless) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	if !strings.HasPrefix(key, "index/file/") {
		return e.memory.Put(ctx, key, r, size)
	}
	if _, err := io.CopyN(io.Discard, r, size-e.before); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A cache that hung at the end of a large file held its window until the index was closed.
func TestCacheThatDoesNotEndALargeFile(t *testing.T) {
	t.Parallel()
	content := random(t, 40*mib)
	for name, before := range map[string]int64{"LastByte": 1, "End": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := index.Config{Cache: endless{newMemory(), before}, Timeout: time.Minute, Memory: budget.New(64 * mib)}
				x := offlineTorch(t, content, cfg)
				a := httptest.NewRecorder()
				x.ServeHTTP(a, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/files/torch/torch-1.0.whl", http.NoBody))
				testbed.Check(t, bytes.Equal(a.Body.Bytes(), content), "status %d, %d bytes", a.Code, a.Body.Len())
				for waited, left := range []int64{8 * mib, 0} {
					synctest.Wait()
					used := cfg.Memory.Stats().Used
					testbed.Check(t, x.Spooled() == left && used == left, "wait %d: %d bytes of space and %d of memory are held", waited, x.Spooled(), used)
					time.Sleep(4 * cfg.Timeout)
				}
				testbed.Must(t, x.Close())
			})
		})
	}
}

// stuck is a cache that takes no byte of large values.
type stuck struct{ *memory }

func (s stuck) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	if size < 1<<20 {
		return s.memory.Put(ctx, key, r, size)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// An object store that hangs does not hold up the download of a large file. Time is faked, so that no timeout depends on the machine.
func TestLargeFileWhileTheCacheHangs(t *testing.T) {
	t.Parallel()
	content := random(t, 40*mib)
	synctest.Test(t, func(t *testing.T) {
		x := offlineTorch(t, content, index.Config{Cache: stuck{newMemory()}})
		answer := httptest.NewRecorder()
		x.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pypi/files/torch/torch-1.0.whl", http.NoBody))
		if answer.Code != http.StatusOK || !bytes.Equal(answer.Body.Bytes(), content) {
			t.Errorf("status %d, %d bytes", answer.Code, answer.Body.Len())
		}
		n := x.Stats().CacheErrors
		testbed.Check(t, n == 1, "%d errors of the cache", n)
		testbed.Must(t, x.Close())
	})
}
