package rest_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
)

// Neither a few bytes nor a sparse file of any size is worth the time.
func TestCompressesBySize(t *testing.T) {
	t.Parallel()
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	c.Request.Header.Set("Accept-Encoding", "gzip")
	for size, want := range map[int64]bool{-1: true, 1<<10 - 1: false, 1 << 10: true, 16 << 20: true, 16<<20 + 1: false, 1 << 62: false} {
		if got := rest.Compresses(c, size); got != want {
			t.Errorf("Compresses of %d bytes = %v, want %v", size, got, want)
		}
	}
}

// A sparse file in a directory costs the caller its bytes beyond the first 16 MiB, as it would alone.
func TestOfADirectoryTheFirstBytesAreCompressed(t *testing.T) {
	t.Parallel()
	for size, stored := range map[int]int{0: 0, 16<<20 - 1: 0, 16 << 20: 0, 16<<20 + 1: 1, 20 << 20: 4 << 20} {
		answer := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(answer)
		c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		c.Request.Header.Set("Accept-Encoding", "gzip")
		if err := rest.SendTar(c, bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
		sent := answer.Body.Len()
		if sent < stored || sent > stored+128<<10 {
			t.Errorf("%d bytes are sent as %d", size, sent)
		}
		unpack, err := gzip.NewReader(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(unpack); err != nil || !bytes.Equal(got, make([]byte, size)) {
			t.Errorf("%d bytes unpack to %d: %v", size, len(got), err)
		}
	}
}

func TestOfAZipTheFirstBytesAreCompressed(t *testing.T) {
	t.Parallel()
	sizes := []int{10 << 20, 0, 7 << 20, 2 << 20}
	var content bytes.Buffer
	packer := tar.NewWriter(&content)
	for _, size := range sizes {
		if err := packer.WriteHeader(&tar.Header{Name: "f", Mode: 0o600, Size: int64(size)}); err != nil {
			t.Fatal(err)
		}
		_, _ = packer.Write(make([]byte, size))
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	c, _ := gin.CreateTestContext(answer)
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	if err := rest.SendZip(c, &content); err != nil {
		t.Fatal(err)
	}
	if sent := answer.Body.Len(); sent < 3<<20 || sent > 3<<20+128<<10 {
		t.Errorf("19 MiB are sent as %d bytes", sent)
	}
	files, err := zip.NewReader(bytes.NewReader(answer.Body.Bytes()), int64(answer.Body.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for i, one := range files.File {
		from, err := one.Open()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(from); err != nil || !bytes.Equal(got, make([]byte, sizes[i])) { // it checks the sum
			t.Errorf("entry %d unpacks to %d bytes: %v", i, len(got), err)
		}
	}
}
