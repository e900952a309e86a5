package rest_test

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
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
			parts := rest.NewParts(body, "b")
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

// Between the headers of parts others run: half a second on a core for 10,000 empty parts would be in front of every other caller's work. Not parallel:
// it has the only core.
func TestOthersRunBetweenParts(t *testing.T) { //nolint:paralleltest // see above
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const n = 1000
	parts := rest.NewParts(strings.NewReader(strings.Repeat("--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\n\r\n", n)+"--b--\r\n"), "b")
	turns, done := 0, make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				turns++
				runtime.Gosched()
			}
		}
	}()
	found := 0
	for ; ; found++ {
		if _, err := parts.NextRawPart(); err != nil {
			break
		}
	}
	close(stop)
	<-done
	if found != n || turns < n/2 { // without a yield it has some 10
		t.Errorf("%d parts, and another goroutine had %d turns between them", found, turns)
	}
}
