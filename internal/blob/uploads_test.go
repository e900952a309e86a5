package blob_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// gated is a source whose bytes beyond the first come when the gate opens; it says when they are asked for.
type gated struct {
	begun chan<- string
	name  string
	gate  <-chan struct{}
	once  sync.Once
	first int
	r     io.Reader
}

func (g *gated) Read(p []byte) (int, error) {
	if g.first > 0 {
		n, err := g.r.Read(p[:min(len(p), g.first)])
		g.first -= n
		return n, err
	}
	g.once.Do(func() {
		g.begun <- g.name
		<-g.gate
	})
	return g.r.Read(p)
}

// Uploads at once are bounded by memory, for each tenant by its share; the others wait, and all of them succeed.
func TestBuffersOfUploadsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, endpoint)
	cfg.Uploads = budget.New(16 << 20) // each tenant's share is less than two parts
	s := newStore(t, cfg)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	const each, size = 6, 9 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	begun, gate := make(chan string, 100), make(chan struct{})
	var group sync.WaitGroup
	for i := range 2 * each {
		tenant := fmt.Sprint("tenant", i%2)
		known := int64(size)
		if i/2%2 == 0 {
			known = -1
		}
		group.Go(func() {
			key := fmt.Sprintf("artifacts/%s/%d", tenant, i)
			info, err := s.Put(t.Context(), key, &gated{begun: begun, name: tenant, gate: gate, first: budget.SmallBytes, r: bytes.NewReader(content)}, known, blob.PutOptions{})
			if err != nil || info.Size != size {
				t.Errorf("Put = %+v, %v", info, err)
			}
		})
	}
	first := map[string]int{<-begun: 1}
	first[<-begun]++
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		stats := cfg.Uploads.Stats()
		if stats.Waited == 2*each-2 { // all others have asked
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s: %+v", stats)
		}
	}
	if len(begun) != 0 || first["tenant0"] != 1 || first["tenant1"] != 1 {
		t.Errorf("begun are %v and %d more; want one of each tenant", first, len(begun))
	}
	close(gate)
	group.Wait()
	if stats := cfg.Uploads.Stats(); stats.Used != 0 || stats.Waiting != 0 {
		t.Errorf("at the end %+v", stats)
	}
	r, _, err := s.Get(t.Context(), "artifacts/tenant1/11", 0, 0)
	testbed.Must(t, err)
	defer func() { _ = r.Close() }()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, size)
	}
}

// Some uploads that had begun and did not go on held the buffers of all: those of callers, and of the artifacts of jobs.
func TestAnUploadTakesItsBufferWhenItsBytesCome(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, endpoint)
	cfg.Uploads, cfg.Callers = budget.New(16<<20), budget.New(16<<20)
	s := newStore(t, cfg)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	const size = 9 << 20
	begun, gate := make(chan string, 100), make(chan struct{})
	var group sync.WaitGroup
	put := func(tenant string, first int) {
		group.Go(func() {
			r := &gated{begun: begun, name: tenant, gate: gate, first: first, r: bytes.NewReader(make([]byte, size))}
			if _, err := s.Put(t.Context(), "staging/"+tenant+"/1", r, size, blob.PutOptions{Caller: true}); err != nil {
				t.Errorf("Put = %v", err)
			}
		})
		<-begun
	}
	for range 20 {
		put("a", 0)
		put("b", budget.SmallBytes-1)
	}
	if used := cfg.Callers.Stats().Used; used != 0 {
		t.Errorf("%d bytes are held for uploads that did not go on", used)
	}
	put("c", budget.SmallBytes)
	put("d", budget.SmallBytes)
	if used := cfg.Callers.Stats().Used; used != 2*5<<20 { // a part of each
		t.Errorf("%d bytes are held", used)
	}
	if _, err := s.Put(t.Context(), "artifacts/a/1", bytes.NewReader(make([]byte, size)), size, blob.PutOptions{}); err != nil {
		t.Errorf("an artifact beside uploads of callers: %v", err)
	}
	close(gate)
	group.Wait()
	if used := cfg.Callers.Stats().Used; used != 0 {
		t.Errorf("at the end %d bytes are held", used)
	}
}

// An upload that waited for a buffer waited for ever.
func TestAnUploadOfACallerWaitsForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(t, endpoint)
		cfg.Callers = budget.New(16 << 20)
		s := newStore(t, cfg)
		held, _ := cfg.Callers.TryAcquire("a", cfg.Callers.Share())
		defer held.Release()
		began := time.Now()
		_, err := s.Put(t.Context(), "staging/a/1", bytes.NewReader(make([]byte, 1<<20)), 1<<20, blob.PutOptions{Caller: true})
		if farm.CodeOf(err) != farm.CodeExhausted || time.Since(began) != 30*time.Second { // by the clock of the bubble
			t.Errorf("Put = %v after %s", err, time.Since(began))
		}
	})
}

// A document that is read for a request is charged to it, before it is in memory.
func TestDocumentIsChargedToItsRequest(t *testing.T) {
	t.Parallel()
	s := newStore(t, newConfig(t, endpoint))
	testbed.Must(t, s.EnsureBucket(t.Context()))
	document := bytes.Repeat([]byte("x"), 1<<20)
	testbed.Must(t, s.PutDocument(t.Context(), "records/acme/job_1/result", document))
	memory := budget.New(16 << 20)
	ctx, hold := memory.With(t.Context(), "acme", time.Millisecond)
	if got, err := s.GetDocument(ctx, "records/acme/job_1/result"); err != nil || !bytes.Equal(got, document) {
		t.Fatalf("GetDocument = %d bytes, %v", len(got), err)
	}
	if hold.Bytes() != 6<<20 {
		t.Errorf("%d bytes are charged, want 6 MiB", hold.Bytes())
	}
	second, other := memory.With(t.Context(), "acme", time.Millisecond)
	if _, err := s.GetDocument(second, "records/acme/job_1/result"); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("GetDocument without memory = %v", err)
	}
	hold.Release()
	if _, err := s.GetDocument(second, "records/acme/job_1/result"); err != nil {
		t.Errorf("GetDocument after a release = %v", err)
	}
	other.Release()
	if got := memory.Stats(); got.Used != 0 || got.Waiting != 0 {
		t.Errorf("at the end %+v", got)
	}
}

// raw is a client for requests that a Store never sends.
func raw(t *testing.T, cfg blob.Config) minio.Core {
	t.Helper()
	u, err := url.Parse(cfg.Endpoint)
	testbed.Must(t, err)
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Region: "us-east-1"})
	testbed.Must(t, err)
	return *core
}

// Old incomplete uploads under the prefix are aborted; all other uploads are kept.
func TestAbortUploads(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, endpoint)
	s := newStore(t, cfg)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	t.Cleanup(func() { // the bucket may be used again
		if _, err := s.AbortUploads(context.WithoutCancel(t.Context()), "", time.Now().Add(time.Hour)); err != nil {
			t.Errorf("AbortUploads: %v", err)
		}
	})
	core := raw(t, cfg)
	begin := func(key string) {
		t.Helper()
		id, err := core.NewMultipartUpload(t.Context(), cfg.Bucket, key, minio.PutObjectOptions{})
		testbed.Must(t, err)
		_, err = core.PutObjectPart(t.Context(), cfg.Bucket, key, id, 1, bytes.NewReader(make([]byte, 100)), 100, minio.PutObjectPartOptions{})
		testbed.Must(t, err)
	}
	open := func() (n int) {
		t.Helper()
		for u := range core.ListIncompleteUploads(t.Context(), cfg.Bucket, "", true) {
			testbed.Must(t, u.Err)
			n++
		}
		return n
	}
	const many = 30
	for i := range many {
		begin(fmt.Sprintf("artifacts/a/%d", i/2)) // two of each key
	}
	begin("other/a")
	for _, c := range []struct {
		before        time.Time
		aborted, left int
	}{
		{time.Now().Add(-time.Hour), 0, many + 1},
		{time.Now().Add(time.Hour), many, 1},
		{time.Now().Add(time.Hour), 0, 1},
	} {
		n, err := s.AbortUploads(t.Context(), "artifacts/", c.before)
		if left := open(); err != nil || n != c.aborted || left != c.left {
			t.Errorf("AbortUploads(%s) = %d, %v, and %d are left; want %d and %d", time.Until(c.before), n, err, left, c.aborted, c.left)
		}
	}
}
