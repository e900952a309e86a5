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
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
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

// Compressing held a MiB of its tenant's share for as long as the reader liked.
func TestAnswersAreSentAsTheyAreWithoutMemoryToCompressThem(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20) // of which a tenant may hold 1.75 MiB without an end
	ctx, request := memory.With(t.Context(), "acme", 0)
	defer request.Release()
	send := func() (encoding string, body int) {
		answer := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(answer)
		c.Request = httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		c.Request.Header.Set("Accept-Encoding", "gzip")
		c.Header("Content-Type", "text/plain")
		if err := rest.SendWhole(c, bytes.NewReader(make([]byte, 1<<20)), 1<<20); err != nil {
			t.Error(err)
		}
		return answer.Header().Get("Content-Encoding"), answer.Body.Len()
	}
	if encoding, body := send(); encoding != "gzip" || body > 64<<10 {
		t.Errorf("a MiB of zeros is sent as %d bytes with the encoding %q", body, encoding)
	}
	slow := memory.Lasting("acme")
	defer slow.Release()
	if !slow.Grow(rest.GzipBytes) {
		t.Fatal("there is no memory")
	}
	if encoding, body := send(); encoding != "" || body != 1<<20 {
		t.Errorf("without memory %d bytes are sent with the encoding %q", body, encoding)
	}
	if got := memory.Stats(); got.Used != rest.GzipBytes {
		t.Errorf("at the end %+v", got)
	}
}

// Compressing 16 MiB takes 0.3 s: answers are compressed on the cores of their tenant. This one gets none before its caller leaves.
func TestAnswersAreCompressedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	testbed.TakeCores(t, memory, "acme")
	for name, c := range map[string]struct {
		send  func(*gin.Context, io.Reader) error
		sizes map[int]bool // of a file; whether all of it is sent
	}{
		"gzip": {rest.SendTar, map[int]bool{60 << 10: true, 60<<10 + 1: false, 1 << 20: false}}, // the end counts as 4 KiB
		"zip":  {rest.SendZip, map[int]bool{0: true, 28 << 10: true, 28<<10 + 1: false}},        // of two files
	} {
		for size, want := range c.sizes {
			answer := httptest.NewRecorder()
			ctx, _ := gin.CreateTestContext(answer)
			ctx.Request = httptest.NewRequestWithContext(testbed.Abandoned(t, memory, "acme"), http.MethodGet, "/", http.NoBody)
			ctx.Request.Header.Set("Accept-Encoding", "gzip")
			var content bytes.Buffer
			if name == "zip" {
				packer := tar.NewWriter(&content)
				for range 2 {
					testbed.Must(t, packer.WriteHeader(&tar.Header{Name: "f", Mode: 0o600, Size: int64(size)}))
					_, _ = packer.Write(make([]byte, size))
				}
				testbed.Must(t, packer.Close())
			} else {
				_, _ = content.Write(make([]byte, size))
			}
			sent := func() (ok bool) {
				defer func() { ok = recover() == nil && ok }() // http.ErrAbortHandler: the answer breaks off
				return c.send(ctx, &content) == nil
			}()
			testbed.Check(t, sent == want, "%s of %d bytes, without a core: sent %v", name, size, sent)
		}
	}
}
