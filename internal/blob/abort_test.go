package blob_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandfarm/sandfarm/internal/blob"
)

// raw is a client for requests that a Store never sends.
func raw(t *testing.T, cfg blob.Config) minio.Core {
	t.Helper()
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		t.Fatalf("parse endpoint: %v", err)
	}
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatalf("NewCore: %v", err)
	}
	return *core
}

// Old incomplete uploads under the prefix are aborted; all other uploads are kept.
func TestAbortUploads(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, endpoint)
	s := newStore(t, cfg)
	if err := s.EnsureBucket(t.Context()); err != nil {
		t.Fatalf("EnsureBucket: %v", err)
	}
	t.Cleanup(func() { // the bucket may be used again
		if _, err := s.AbortUploads(context.WithoutCancel(t.Context()), "", time.Now().Add(time.Hour)); err != nil {
			t.Errorf("AbortUploads: %v", err)
		}
	})
	core := raw(t, cfg)
	begin := func(key string) {
		t.Helper()
		id, err := core.NewMultipartUpload(t.Context(), cfg.Bucket, key, minio.PutObjectOptions{})
		if err != nil {
			t.Fatalf("NewMultipartUpload: %v", err)
		}
		if _, err := core.PutObjectPart(t.Context(), cfg.Bucket, key, id, 1, bytes.NewReader(make([]byte, 100)), 100, minio.PutObjectPartOptions{}); err != nil {
			t.Fatalf("PutObjectPart: %v", err)
		}
	}
	open := func() (n int) {
		t.Helper()
		for u := range core.ListIncompleteUploads(t.Context(), cfg.Bucket, "", true) {
			if u.Err != nil {
				t.Fatalf("ListIncompleteUploads: %v", u.Err)
			}
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
