package blob_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/embedded"
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
	return blob.Config{Endpoint: endpoint, AccessKey: accessKey, SecretKey: secretKey, Bucket: fmt.Sprintf("t%d-%s", buckets.Add(1), strings.Trim(name, "-"))}
}

func TestEmbeddedS3(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) blob.Config { return newConfig(t, endpoint) })
}
