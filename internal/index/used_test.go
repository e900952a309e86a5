package index_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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

// A file that was stored first but is used stays; one that nobody has used since goes.
func TestTrimKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	u, cache := newUpstream(t), newMemory()
	cfg := u.config()
	cfg.Cache, cfg.CacheMB = cache, 1
	old, newer := random(t, 600_000), random(t, 400_000)
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
		put("index/file/b", 1<<20-4*one-farm.ArtifactBytes+over, 0)
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
		u := &upstream{Server: &httptest.Server{URL: "http://packages.example.com"}, mux: http.NewServeMux()}
		u.wheel("torch", "torch-1.0.whl", content)
		cfg := u.config()
		cfg.Cache, cfg.Client, cfg.Dir = stuck{newMemory()}, &http.Client{Transport: inProcess{u.mux}}, t.TempDir()
		x, err := index.New(cfg)
		testbed.Must(t, err)
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

// inProcess sends requests to a handler without a network.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	p.ServeHTTP(answer, r)
	result := answer.Result()
	result.Request = r
	return result, nil
}
