package rest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// taken counts what is read of a body.
type taken struct {
	io.Reader
	bytes int
}

func (r *taken) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.bytes += n
	return n, err
}

// A header of a part is held in memory, unlike its content. Package multipart allows it 10 MiB.
func TestHeadersOfPartsAreBounded(t *testing.T) {
	t.Parallel()
	const field = "Content-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n"
	for name, c := range map[string]struct {
		header string
		served bool
	}{
		"Usual":     {field + "Content-Type: text/plain\r\n", true},
		"LongName":  {"Content-Disposition: form-data; filename*=UTF-8''" + strings.Repeat("%C3", farm.MaxPathBytes) + "\r\n", true},
		"ManyLines": {field + strings.Repeat("a:\r\n", 30), true},
		"Long":      {field + "X: " + strings.Repeat("x", 9<<20) + "\r\n", false},
		"AllLines":  {field + strings.Repeat("a:\n", 9000) + "\r\n", false},
	} {
		for _, before := range []string{"", "--b\r\n" + field + "\r\n" + strings.Repeat("line\n", 20<<10) + "\r\n"} { // a part whose content is not read
			body := &taken{Reader: strings.NewReader(before + "--b\r\n" + c.header + "\r\n" + strings.Repeat("\n", 99) + "\r\n--b--\r\n")}
			parts := rest.NewParts(t.Context(), body, "b")
			if before != "" {
				if _, err := parts.NextRawPart(); err != nil {
					t.Fatalf("%s: the part before: %v", name, err)
				}
			}
			part, err := parts.NextRawPart()
			if !c.served {
				if refusal, ok := errors.AsType[*rest.Refusal](err); !ok || farm.CodeOf(refusal) != farm.CodeInvalid {
					t.Errorf("%s: %v, want a refusal", name, err)
				}
				if limit := len(before) + 32<<10; body.bytes > limit {
					t.Errorf("%s: %d bytes were read, want at most %d", name, body.bytes, limit)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got, err := io.ReadAll(part); err != nil || len(got) != 99 {
				t.Errorf("%s: the content has %d bytes, %v", name, len(got), err)
			}
			if _, err := parts.NextRawPart(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: after the last part: %v", name, err)
			}
		}
	}
}

// needy is a body that tells how many cores its tenant has left whenever more of it is read.
type needy struct {
	cores func() int
	from  io.Reader
	reads []int
}

func (n *needy) Read(b []byte) (int, error) {
	n.reads = append(n.reads, n.cores())
	return n.from.Read(b)
}

// 10,000 empty parts, and a gzip of half a GiB of zeros, take a core for long. They have one of their tenant's, but not while they wait for the caller.
func TestWorkOnABodyHasACore(t *testing.T) {
	t.Parallel()
	const part = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\n\r\n"
	var zeros bytes.Buffer
	packed := gzip.NewWriter(&zeros)
	_, _ = packed.Write(make([]byte, 10*budget.SmallBytes))
	_ = packed.Close()
	for name, c := range map[string]struct {
		body string
		size int // of all that is read
		read func(context.Context, io.Reader) (int, error)
	}{
		"Parts": {strings.Repeat(part, 5000) + "--b--\r\n", 5000 * len(part), func(ctx context.Context, body io.Reader) (int, error) {
			parts := rest.NewParts(ctx, body, "b")
			for n := 0; ; n += len(part) {
				if _, err := parts.NextRawPart(); err != nil {
					return n, err
				}
			}
		}},
		"Gzip": {zeros.String(), 10 * budget.SmallBytes, func(ctx context.Context, body io.Reader) (int, error) {
			gin, _ := gin.CreateTestContext(httptest.NewRecorder())
			gin.Request = httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
			gin.Request.Header.Set("Content-Encoding", "gzip")
			unpacked, _, err := rest.Unpacked(gin, body)
			if err != nil {
				return 0, err
			}
			n, err := io.Copy(io.Discard, unpacked)
			return int(n), err
		}},
	} {
		memory := budget.New(0)
		testbed.TakeCores(t, memory, "acme")[0]() // one is left
		free := func() int { return testbed.FreeCores(t, memory, "acme") }
		body := &needy{cores: free, from: strings.NewReader(c.body)}
		if n, err := c.read(testbed.Abandoned(t, memory, "acme"), body); n != c.size || err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %d bytes are read, want %d: %v", name, n, c.size, err)
		}
		if slices.Contains(body.reads, 0) {
			t.Errorf("%s: a core is held while more is waited for", name)
		}
		if free() != 1 {
			t.Errorf("%s: the core is not given back", name)
		}
		if n, err := c.read(testbed.WithoutCore(t, memory, "acme"), strings.NewReader(c.body)); n < budget.SmallBytes/2 || n > 2*budget.SmallBytes || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: without a core %d bytes are read, want some 64 KiB: %v", name, n, err)
		}
	}
}
