package rest_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// zipped makes a zip of a tar with these names of empty directories and files.
func zipped(t *testing.T, headers ...tar.Header) (names []string, err error) {
	t.Helper()
	defer func() {
		if broken := recover(); broken != nil {
			err, _ = broken.(error) // http.ErrAbortHandler: the answer breaks off
		}
	}()
	var content bytes.Buffer
	packer := tar.NewWriter(&content)
	for _, header := range headers {
		if err := packer.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	c, _ := gin.CreateTestContext(answer)
	c.Request = httptest.NewRequest("GET", "/", nil)
	if err := rest.SendZip(c, &content); err != nil {
		return nil, err
	}
	files, err := zip.NewReader(bytes.NewReader(answer.Body.Bytes()), int64(answer.Body.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range files.File {
		names = append(names, one.Name)
	}
	return names, nil
}

func TestAZipHasNothingThatLeadsOut(t *testing.T) {
	t.Parallel()
	names, err := zipped(t, tar.Header{Name: "../up", Mode: 0o600}, tar.Header{Name: "/etc/passwd", Mode: 0o600}, tar.Header{Name: "a/../../b", Mode: 0o600},
		tar.Header{Name: `..\\up`, Mode: 0o600}, tar.Header{Name: "device", Typeflag: tar.TypeChar}, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "a"}, tar.Header{Name: "good", Mode: 0o600})
	if err != nil || strings.Join(names, " ") != "good" {
		t.Errorf("%q %v", names, err)
	}
}

func TestTheListOfAZipIsBounded(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", 200) + "/" + strings.Repeat("n", 311) // with what an entry takes, 1 KiB
	for n, ok := range map[int]bool{rest.MaxZipList>>10 - 1: true, rest.MaxZipList >> 10: true, rest.MaxZipList>>10 + 1: false} {
		headers := make([]tar.Header, n)
		for i := range headers {
			headers[i] = tar.Header{Name: name, Mode: 0o600}
		}
		if names, err := zipped(t, headers...); !ok && !errors.Is(err, http.ErrAbortHandler) || ok && (err != nil || len(names) != n) {
			t.Errorf("%d entries: %d, %v", n, len(names), err)
		}
	}
}

// A zip held nine MiB of its tenant's share for as long as its reader liked.
func TestAZipIsChargedForWhatItHolds(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20) // of which a tenant may hold 1.75 MiB without an end
	send := func(entries int) (held int64, err error) {
		defer func() {
			if broken := recover(); broken != nil {
				err, _ = broken.(error) // http.ErrAbortHandler: the answer breaks off
			}
		}()
		ctx, request := memory.With(t.Context(), "acme", 0)
		defer request.Release()
		name := strings.Repeat("n", 200) + "/" + strings.Repeat("n", 311) // with what an entry takes, 1 KiB
		var content bytes.Buffer
		packer := tar.NewWriter(&content)
		for range entries {
			if err := packer.WriteHeader(&tar.Header{Name: name, Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
		}
		end := readFunc(func([]byte) (int, error) {
			held = memory.Stats().Used
			whole, err := memory.Acquire(ctx, "acme", memory.Share()) // nobody waits for a zip
			if err != nil {
				t.Error(err)
			}
			whole.Release()
			return 0, io.EOF
		})
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		err = rest.SendZip(c, io.MultiReader(&content, end))
		return held, err
	}
	for entries, want := range map[int]int64{1: rest.GzipBytes + 64<<10, 65: rest.GzipBytes + 128<<10, 768: 1792 << 10} {
		if held, err := send(entries); err != nil || held != want {
			t.Errorf("a zip of %d entries holds %d bytes, want %d: %v", entries, held, want, err)
		}
	}
	if _, err := send(769); !errors.Is(err, http.ErrAbortHandler) {
		t.Errorf("a zip of more entries than its tenant has memory for: %v", err)
	}
	if got := memory.Stats(); got.Used != 0 || got.Waited != 0 {
		t.Errorf("at the end %+v", got)
	}
}

// Names in headers of a MiB kept the headers in memory, and the list of entries was bounded by the names only.
func TestAZipKeepsNoHeadersOfItsTar(t *testing.T) {
	t.Parallel()
	var entry bytes.Buffer
	if err := tar.NewWriter(&entry).WriteHeader(&tar.Header{Name: "é", Mode: 0o600, PAXRecords: map[string]string{"SANDFARM.x": strings.Repeat("x", 1<<20-100)}}); err != nil {
		t.Fatal(err)
	}
	const entries = 256
	readers := make([]io.Reader, 0, entries+1)
	for range entries {
		readers = append(readers, bytes.NewReader(entry.Bytes()))
	}
	var before, at runtime.MemStats
	runtime.ReadMemStats(&before)
	end := readFunc(func([]byte) (int, error) {
		runtime.GC()
		runtime.ReadMemStats(&at)
		return 0, io.EOF
	})
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	if err := rest.SendZip(c, io.MultiReader(append(readers, end)...)); err != nil {
		t.Fatal(err)
	}
	if at.HeapAlloc > before.HeapAlloc+entries<<19 { // half; other tests have some MiB
		t.Errorf("a zip of %d entries keeps %d MiB", entries, (at.HeapAlloc-before.HeapAlloc)>>20)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
