package index_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
		if err := x.Trim(t.Context()); err != nil {
			t.Error(err)
		}
		select {
		case <-done:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
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
