package blob_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	accessKey = "blob-test"
	secretKey = "blob-test-secret"
)

// endpoint is the embedded S3 service that all tests share.
var endpoint string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "blob-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s3, err := embedded.StartS3(context.Background(), embedded.S3Config{
		Dir: dir, Listen: "127.0.0.1:0", AccessKey: accessKey, SecretKey: secretKey, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	endpoint = s3.Endpoint()
	code := m.Run()
	if err := s3.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

var buckets atomic.Int64

// newConfig names a bucket that only one run of one test uses.
func newConfig(t testing.TB, endpoint string) blob.Config {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(t.Name()))
	if len(name) > 50 {
		name = name[len(name)-50:]
	}
	return blob.Config{
		Endpoint: endpoint, AccessKey: accessKey, SecretKey: secretKey, Bucket: fmt.Sprintf("t%d-%s", buckets.Add(1), strings.Trim(name, "-")), Tokens: tokens("farm"),
	}
}

func TestEmbeddedS3(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) blob.Config { return newConfig(t, endpoint) })
}

const benchSize = 100 << 20

// BenchmarkPut compares an upload of 100 MiB from a stream with the S3 client used directly, with its defaults.
func BenchmarkPut(b *testing.B) { benchmarkPut(b, endpoint) }

func benchmarkPut(b *testing.B, endpoint string) {
	b.Helper()
	cfg := newConfig(b, endpoint)
	s, err := blob.New(cfg)
	testbed.Must(b, err)
	testbed.Must(b, s.EnsureBucket(b.Context()))
	u, err := url.Parse(endpoint)
	testbed.Must(b, err)
	direct, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Region: "us-east-1",
	})
	testbed.Must(b, err)
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

// most is what is hashed at once.
const limit = 64 << 10

// pieces notes the longest Write of a hash, or Read of a source.
type pieces struct {
	hash.Hash
	r       io.Reader
	longest int
}

func (p *pieces) Write(data []byte) (int, error) {
	p.longest = max(p.longest, len(data))
	return p.Hash.Write(data)
}

func (p *pieces) Read(data []byte) (int, error) {
	p.longest = max(p.longest, len(data))
	return p.r.Read(data)
}

// A hash cannot be interrupted, so long data is hashed in pieces: in one, it would hold up the collector, and with it all requests.
func TestLongDataIsHashedInPieces(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("0123456789abcdef"), 9<<16)
	want := sha256.Sum256(data)
	sum := &pieces{Hash: sha256.New()}
	if err := blob.Hash(sum, bytes.NewReader(data)); err != nil || sum.longest > limit || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d bytes are hashed at once to %x, %v", sum.longest, sum.Sum(nil), err)
	}
	s := newStore(t, newConfig(t, endpoint))
	testbed.Must(t, s.EnsureBucket(t.Context()))
	for _, size := range []int64{1 << 20, int64(len(data)), -1} {
		source := &pieces{r: bytes.NewReader(data)}
		info, err := s.Put(t.Context(), "pieces", source, min(size, int64(len(data))), blob.PutOptions{})
		if err != nil || source.longest > limit || size != 1<<20 && info.SHA256 != hex.EncodeToString(want[:]) {
			t.Errorf("a source of %d bytes is read %d at a time: %+v, %v", size, source.longest, info, err)
		}
	}
}
