package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Wait outlasts a restart of the API, tells of a farm that is gone, and does not repeat what will not pass.
func TestWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	const limit = maxAttempts * waitFailures
	for _, c := range []struct {
		failures, status, requests int
		ok                         bool
	}{
		{0, http.StatusServiceUnavailable, 1, true},
		{limit - 1, http.StatusServiceUnavailable, limit, true},
		{limit, http.StatusServiceUnavailable, limit, false},
		{1, http.StatusNotFound, 1, false},
	} {
		n := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if n++; n <= c.failures {
				w.WriteHeader(c.status)
			}
			_, _ = w.Write([]byte(`{"id":"job_1","state":"completed"}`))
		}))
		defer server.Close()
		f, err := New(server.URL)
		testbed.Must(t, err)
		f.pause = func(int) time.Duration { return 0 }
		job, err := f.Wait(t.Context(), "job_1")
		if ok := err == nil && job.State == "completed"; ok != c.ok || n != c.requests {
			t.Errorf("%+v: %q, %v after %d requests", c, job.State, err, n)
		}
	}
}

// FuzzFrames checks that the parser ends, and returns the same events however the bytes are split.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{"id: 1\nevent: stdout\ndata: {}\n\n", "data:a\r\ndata:b\r\n\r\n", ":\n\n", "data", "id:\x00\ndata:\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, cut := parsed(t, bytes.NewReader(stream)), parsed(t, iotest.OneByteReader(bytes.NewReader(stream)))
		if strings.Join(whole, "\x01") != strings.Join(cut, "\x01") {
			t.Errorf("in one piece %q, byte by byte %q", whole, cut)
		}
	})
}

func parsed(t *testing.T, r io.Reader) []string {
	t.Helper()
	var all []string
	for frames := newFrames(r); ; {
		got, err := frames.next()
		if errors.Is(err, io.EOF) {
			return all
		}
		testbed.Must(t, err)
		if strings.ContainsAny(got.id, "\n\x00") {
			t.Errorf("id %q", got.id)
		}
		all = append(all, got.id+"|"+got.name+"|"+string(got.data))
	}
}

func TestEventThatNeverEndsIsRefused(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader("data: "), io.LimitReader(letters{}, 2*maxEventBytes))
	if _, err := newFrames(endless).next(); !errors.Is(err, errEventTooLong) {
		t.Errorf("error %v, want %v", err, errEventTooLong)
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
