package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// answers are those of a farm to a client, by the time since the test began.
type answers func(at time.Duration) (*http.Response, error)

func (a answers) client(t *testing.T) *Client {
	t.Helper()
	begun := time.Now()
	c, err := New("http://farm", WithHTTPClient(&http.Client{Transport: roundTripper(func() (*http.Response, error) { return a(time.Since(begun)) })}))
	testbed.Must(t, err)
	return c
}

type roundTripper func() (*http.Response, error)

func (r roundTripper) RoundTrip(*http.Request) (*http.Response, error) { return r() }

func answer(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// Who waits for a job or follows it outlasts a restart of the farm, tells of a farm that is gone, and does not repeat what will not pass.
func TestAWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	refused := func() (*http.Response, error) { return nil, errors.New("connection refused") }
	for name, test := range map[string]struct {
		down   time.Duration
		answer func() (*http.Response, error) // while it is down
		ok     bool
		least  time.Duration // that the wait takes
	}{
		"Up":           {0, refused, true, 0},
		"Refused":      {55 * time.Second, refused, true, 55 * time.Second},
		"Unavailable":  {55 * time.Second, func() (*http.Response, error) { return answer(http.StatusServiceUnavailable, ""), nil }, true, 55 * time.Second},
		"TooLong":      {time.Hour, refused, false, time.Minute},
		"WillNotPass":  {55 * time.Second, func() (*http.Response, error) { return answer(http.StatusNotFound, ""), nil }, false, 0},
		"DialTimesOut": {55 * time.Second, func() (*http.Response, error) { return nil, context.DeadlineExceeded }, true, 55 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, body := range map[string]string{"Wait": `{"id":"job_1","state":"completed"}`, "Events": "id: 1-1\nevent: state\ndata: {\"state\":\"completed\"}\n\n"} {
				synctest.Test(t, func(t *testing.T) {
					c := answers(func(at time.Duration) (*http.Response, error) {
						if at < test.down {
							return test.answer()
						}
						return answer(http.StatusOK, body), nil
					}).client(t)
					begun := time.Now()
					var err error
					if what == "Wait" {
						_, err = c.Wait(t.Context(), "job_1")
					} else {
						for _, err = range c.Events(t.Context(), "job_1", "") {
						}
					}
					if took := time.Since(begun); (err == nil) != test.ok || took < test.least || took > test.least+10*time.Second {
						t.Errorf("%s: %v after %s", what, err, took)
					}
				})
			}
		})
	}
}

// A job that prints nothing for hours is followed through each outage, whatever the time since the one before.
func TestAStreamThatStoodForgetsTheOutageBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := answers(func(at time.Duration) (*http.Response, error) {
			switch {
			case at%time.Hour < 50*time.Second: // down
				return nil, errors.New("connection refused")
			case at < 5*time.Hour: // no event, until it is down again
				r := answer(http.StatusOK, "")
				r.Body = io.NopCloser(beats{until: time.Now().Add(time.Hour - at%time.Hour)})
				return r, nil
			}
			return answer(http.StatusOK, "id: 1-1\nevent: state\ndata: {\"state\":\"completed\"}\n\n"), nil
		}).client(t)
		for _, err := range c.Events(t.Context(), "job_1", "") {
			testbed.Must(t, err)
		}
	})
}

// beats are heartbeats until a time.
type beats struct{ until time.Time }

func (b beats) Read(p []byte) (int, error) {
	if !time.Now().Before(b.until) {
		return 0, io.ErrUnexpectedEOF
	}
	time.Sleep(15 * time.Second)
	return copy(p, ":\n\n"), nil
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
