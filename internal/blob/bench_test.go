package blob_test

import (
	"bytes"
	"io"
	"net/url"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandfarm/sandfarm/internal/blob"
)

const benchSize = 100 << 20

// BenchmarkPut compares an upload of 100 MiB from a stream with the S3 client used directly, with its defaults.
func BenchmarkPut(b *testing.B) { benchmarkPut(b, endpoint) }

func benchmarkPut(b *testing.B, endpoint string) {
	b.Helper()
	cfg := newConfig(b, endpoint)
	s, err := blob.New(cfg)
	if err != nil {
		b.Fatalf("New: %v", err)
	}
	if err := s.EnsureBucket(b.Context()); err != nil {
		b.Fatalf("EnsureBucket: %v", err)
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		b.Fatalf("parse endpoint: %v", err)
	}
	direct, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Region: "us-east-1",
	})
	if err != nil {
		b.Fatalf("make client: %v", err)
	}
	data := make([]byte, benchSize)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	stream := func() io.Reader { return struct{ io.Reader }{bytes.NewReader(data)} }
	b.Run("direct", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := direct.PutObject(b.Context(), cfg.Bucket, "direct", stream(), benchSize, minio.PutObjectOptions{}); err != nil {
				b.Fatalf("PutObject: %v", err)
			}
		}
	})
	b.Run("directFile", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := direct.PutObject(b.Context(), cfg.Bucket, "file", bytes.NewReader(data), benchSize, minio.PutObjectOptions{}); err != nil {
				b.Fatalf("PutObject: %v", err)
			}
		}
	})
	b.Run("store", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Put(b.Context(), "store", stream(), benchSize, blob.PutOptions{}); err != nil {
				b.Fatalf("Put: %v", err)
			}
		}
	})
	b.Run("storeUnknownSize", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Put(b.Context(), "unknown", stream(), -1, blob.PutOptions{}); err != nil {
				b.Fatalf("Put: %v", err)
			}
		}
	})
}
