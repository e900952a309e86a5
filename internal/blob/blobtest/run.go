package blobtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
)

// mib is a mebibyte.
const mib = 1 << 20

// Run tests the service that newConfig describes. Each call of newConfig names a new bucket that does not exist yet.
func Run(t *testing.T, newConfig func(t *testing.T) blob.Config) {
	t.Helper()
	groups := []struct {
		name string
		run  func(t *testing.T, s *blob.Store)
	}{
		{"Put", testPut},
		{"PutLeavesNothingBehindWhenItFails", testPutFails},
		{"UploadInParts", testUploadInParts},
		{"UploadInPartsIsRepeatable", testUploadInPartsAgain},
		{"Get", testGet},
		{"Stat", testStat},
		{"Missing", testMissing},
		{"Keys", testKeys},
		{"Delete", testDelete},
		{"Documents", testDocuments},
		{"List", testList},
		{"Presign", testPresign},
		{"PresignLabels", testPresignLabels},
		{"PresignRefusals", testPresignRefusals},
	}
	t.Run("Bucket", func(t *testing.T) {
		t.Parallel()
		testBucket(t, newConfig(t))
	})
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			g.run(t, open(t, newConfig(t)))
		})
	}
}

// open makes a store whose bucket exists.
func open(t *testing.T, cfg blob.Config) *blob.Store {
	t.Helper()
	s, err := blob.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if err := s.EnsureBucket(t.Context()); err != nil {
		t.Fatalf("EnsureBucket: %v", err)
	}
	return s
}

// content gives n bytes that look random and are the same each time.
func content(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(data)
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// stream hides all methods of a reader except Read, like a pipe from a sandbox.
func stream(data []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(data)} }

func put(t *testing.T, s *blob.Store, key string, data []byte, opts blob.PutOptions) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, stream(data), int64(len(data)), opts); err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
}

func get(t *testing.T, s *blob.Store, key string, offset, length int64) ([]byte, blob.Info) {
	t.Helper()
	r, info, err := s.Get(t.Context(), key, offset, length)
	if err != nil {
		t.Fatalf("Get(%q, %d, %d): %v", key, offset, length, err)
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %q: %v", key, err)
	}
	return data, info
}

// same compares without printing megabytes.
func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("got %d bytes with digest %s, want %d with %s", len(got), digest(got), len(want), digest(want))
	}
}
