package httpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func config(handler http.HandlerFunc) httpserver.Config {
	return httpserver.Config{
		Name: "test", Listen: "127.0.0.1:0", HTTP: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute},
		StopTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
}

func get(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	s := httpserver.New(config(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	testbed.Diff(t, "Addr before Start", "", s.Addr())
	testbed.Must(t, s.Start(t.Context()))
	if err := s.Start(t.Context()); err == nil {
		t.Error("a second Start = nil, want an error")
	}
	if got, err := get(t.Context(), s.Addr()); err != nil || got != "here" {
		t.Errorf("GET = %q, %v", got, err)
	}
	taken := config(nil)
	taken.Listen = s.Addr()
	if err := httpserver.New(taken).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "start test") {
		t.Errorf("Start at a taken address = %v, want an error that names the server", err)
	}
	s.Stop()
	s.Stop()
	if _, err := get(t.Context(), s.Addr()); err == nil {
		t.Error("GET after Stop = nil, want an error")
	}
}

// A flood of connections that send nothing lets new ones in as fast as they come: the oldest goes at once, not after its second, however many are served.
func TestTheOldestOfACrowdGoesAtOnce(t *testing.T) {
	t.Parallel()
	const now, before = time.Millisecond, 100 * time.Millisecond
	for _, c := range []struct {
		most, idle, fresh, unknown int
		since, waits               time.Duration
		want                       string
	}{
		{100, 50, 49, 0, now, now, "idle"},
		{100, 50, 50, 0, now, now, "idle"},
		{100, 49, 51, 0, now, now, "fresh"},
		{100, 40, 0, 51, now, now, "unknown"},
		{100, 50, 25, 25, now, before, "idle"},
		{100, 49, 26, 25, now, before, "unknown"},
		{100, 49, 25, 26, before, now, "fresh"},
		{100, 0, 1, 50, now, before, "unknown"},
		{100, 0, 16, 0, now, now, ""}, // the others are served
		{100, 0, 17, 0, now, now, "fresh"},
		{800, 0, 25, 25, now, before, ""},
		{800, 0, 26, 25, now, before, "unknown"},
		{20, 0, 16, 0, now, now, ""},
		{20, 0, 17, 0, now, now, "fresh"},
	} {
		got := httpserver.Crowded(c.most, c.idle, c.fresh, c.unknown, c.since, c.waits)
		testbed.Check(t, got == c.want, "%+v: %q is replaced", c, got)
	}
}

func TestWithoutAnAddressNothingListens(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Listen = ""
	s := httpserver.New(cfg)
	if err := s.Start(t.Context()); err != nil || s.Addr() != "" {
		t.Errorf("Start = %v, listens on %q", err, s.Addr())
	}
	s.Stop()
	if err := s.Start(t.Context()); err == nil {
		t.Error("Start after Stop = nil, want an error")
	}
}

// Stop waits for requests that run, or cuts them off after its time.
func TestStopEndsRequests(t *testing.T) {
	t.Parallel()
	for _, inTime := range []bool{true, false} {
		running, release := make(chan struct{}), make(chan struct{})
		cfg := config(func(w http.ResponseWriter, _ *http.Request) {
			close(running)
			<-release
			_, _ = io.WriteString(w, "done")
		})
		if !inTime {
			cfg.StopTimeout = 0
		}
		s := httpserver.New(cfg)
		testbed.Must(t, s.Start(t.Context()))
		got := make(chan string, 1)
		go func() {
			text, _ := get(t.Context(), s.Addr())
			got <- text
		}()
		<-running
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		if inTime {
			close(release)
			<-stopped
			testbed.Diff(t, "the request", "done", <-got)
			continue
		}
		<-stopped
		testbed.Diff(t, "the request", "", <-got)
		close(release)
	}
}

// caller is one connection that a test uses by itself.
type caller struct {
	t    *testing.T
	conn net.Conn
	read *bufio.Reader
}

func dial(t *testing.T, s *httpserver.Server) caller {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr())
	testbed.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // detects a hang
	return caller{t, conn, bufio.NewReader(conn)}
}

func (c caller) send(path string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, "GET "+path+" HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
		c.t.Errorf("send: %v", err)
	}
}

func (c caller) answer() {
	c.t.Helper()
	resp, err := http.ReadResponse(c.read, nil)
	testbed.Must(c.t, err)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "here" {
		c.t.Fatalf("the answer is %q, %v", body, err)
	}
}

// closed checks that the server closed the connection.
func (c caller) closed() {
	c.t.Helper()
	var timeout net.Error
	if _, err := c.read.ReadByte(); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Errorf("read = %v, want the end of the connection", err)
	}
}

func limited(t *testing.T, connections int, handler http.HandlerFunc) *httpserver.Server {
	t.Helper()
	cfg := config(handler)
	cfg.MaxConnections = connections
	s := httpserver.New(cfg)
	testbed.Must(t, s.Start(t.Context()))
	t.Cleanup(s.Stop)
	return s
}

// A connection whose requests are all there already would not give way to others.
func TestPipelinesOfStrangersEnd(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]string{"Small": "", "Large": "A: " + strings.Repeat("a", 700) + "\r\n"} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, known), func(t *testing.T) {
				t.Parallel()
				s := limited(t, 8, func(w http.ResponseWriter, r *http.Request) {
					if known {
						httpserver.Known(r.Context(), "", nil)
					}
					if r.URL.Path != "/unread" {
						_, _ = io.Copy(io.Discard, r.Body)
					}
					_, _ = io.WriteString(w, "here")
				})
				const body = "Content-Length: 2\r\n\r\nxy"
				for first, rest := range map[string]string{"POST /": "\r\n", "PUT /": body, "PUT /unread": body, "OPTIONS *": "\r\n"} {
					c := dial(t, s)
					one := first + " HTTP/1.1\r\nHost: test\r\n" + header + rest
					for range 5 { // each when the one before is answered
						if first != "PUT /unread" {
							_, _ = io.WriteString(c.conn, one)
							c.answer()
						}
					}
					_, _ = io.WriteString(c.conn, strings.Repeat(one, 5))
					c.answer()
					c.answer()
					if !known {
						c.closed()
						continue
					}
					for range 3 {
						c.answer()
					}
				}
			})
		}
	}
}

// A connection between requests does not keep a new caller out.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	s := limited(t, 1, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	idle := dial(t, s)
	idle.send("/")
	idle.answer()
	for range 3 {
		next := dial(t, s)
		next.send("/")
		next.answer()
		idle.closed()
		idle = next
	}
}

// A connection that has sent no request for a second does not keep a new caller out, but one that was just accepted has the time to send it: where all
// others had requests, the newest ones were closed.
func TestConnectionsHaveTheTimeToSendARequest(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]string{"Silent": "", "Header": "GET / HT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := limited(t, 2, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
			oldest := dial(t, s)
			_, _ = io.WriteString(oldest.conn, older)
			fresh, next := dial(t, s), dial(t, s)
			next.send("/")
			next.answer()
			oldest.closed()
			fresh.send("/")
			fresh.answer()
		})
	}
}

// A client that does not take its answer, or does not send the body that nobody reads, loses its place. One that takes it gets all of it.
func TestStalledConnectionsLoseTheirPlaces(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // more than both ends of a connection buffer
	file := filepath.Join(t.TempDir(), "file")
	testbed.Must(t, os.WriteFile(file, content, 0o600))
	cfg := config(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/memory":
			_, _ = w.Write(content)
		case "/stream":
			_, _ = io.Copy(w, io.MultiReader(bytes.NewReader(content[:5]), bytes.NewReader(content[5:])))
		case "/file":
			http.ServeFile(w, r, file)
		default:
			_, _ = io.WriteString(w, "here")
		}
	})
	whole := httpserver.New(cfg)
	cfg.HTTP, cfg.MaxConnections, cfg.StallTimeout = &http.Server{Handler: cfg.HTTP.Handler, ReadHeaderTimeout: time.Minute}, 1, 100*time.Millisecond
	s := httpserver.New(cfg)
	for _, each := range []*httpserver.Server{whole, s} {
		testbed.Must(t, each.Start(t.Context()))
		t.Cleanup(each.Stop)
	}
	for _, path := range []string{"/memory", "/stream", "/file", "/"} {
		c := dial(t, s)
		_, err := io.WriteString(c.conn, "POST "+path+" HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n")
		testbed.Must(t, err)
		next := dial(t, s) // waits for the only place
		next.send("/")
		next.answer()
		_ = next.conn.Close()
		if got, err := get(t.Context(), whole.Addr()+path); err != nil || path != "/" && got != string(content) {
			t.Errorf("%s brings %d bytes, %v", path, len(got), err)
		}
	}
}

// A client that takes nothing of its answer for a second, or sends nothing of its body, whether somebody reads that or not, does not keep new callers
// out for as long as it may stall.
func TestCallersReplaceClientsThatAreWaitedFor(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	for name, stalled := range map[string]string{
		"Answer":     "GET /large HTTP/1.1\r\nHost: test\r\n\r\n",
		"Body":       "POST /read HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n1",
		"UnreadBody": "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := limited(t, 2, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/large":
					_, _ = w.Write(content)
					return
				case "/read":
					_, _ = io.Copy(io.Discard, r.Body)
				}
				_, _ = io.WriteString(w, "here")
			})
			for range 2 {
				_, _ = io.WriteString(dial(t, s).conn, stalled)
			}
			for range 3 {
				c := dial(t, s)
				c.send("/")
				c.answer()
				_ = c.conn.Close()
			}
		})
	}
}

// A client whose caller is known keeps its place while there is one that is not.
func TestKnownCallersKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 3)
	s := limited(t, 2, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			httpserver.Known(r.Context(), "", nil)
		}
		began <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "here")
	})
	known, unknown := dial(t, s), dial(t, s)
	_, _ = io.WriteString(known.conn, "POST /known HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n1")
	_, _ = io.WriteString(unknown.conn, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n1")
	<-began
	<-began
	c := dial(t, s)
	c.send("/")
	c.answer()
	unknown.closed()
	_, _ = io.WriteString(known.conn, "2")
	known.answer()
}

// A body that comes after its handler has returned is that of nobody: what bounded the requests of its caller has ended.
func TestUnreadBodiesAreOfNobody(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 3)
	s := limited(t, 2, func(w http.ResponseWriter, r *http.Request) {
		httpserver.Known(r.Context(), "", nil)
		began <- struct{}{}
		if r.URL.Path == "/read" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(w, "here")
	})
	read, unread := dial(t, s), dial(t, s)
	_, _ = io.WriteString(read.conn, "POST /read HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n1")
	<-began
	_, _ = io.WriteString(unread.conn, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n1")
	<-began
	c := dial(t, s)
	c.send("/")
	c.answer()
	unread.closed()
	_, _ = io.WriteString(read.conn, "2")
	read.answer()
}

// A connection with a request keeps its place: a new caller waits until it is idle, or the server ends.
func TestBusyConnectionsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	began, finish := make(chan struct{}), make(chan struct{})
	s := limited(t, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			began <- struct{}{}
			<-finish
		}
		_, _ = io.WriteString(w, "here")
	})
	busy := dial(t, s)
	busy.send("/busy")
	<-began
	next := dial(t, s)
	next.send("/busy")
	finish <- struct{}{}
	busy.answer()
	busy.closed()
	<-began
	waits := dial(t, s)
	waits.send("/")
	stopped := make(chan struct{})
	go func() { s.Stop(); close(stopped) }()
	waits.closed()
	finish <- struct{}{}
	next.answer()
	<-stopped
}

// A server without a limit of its own leaves half of the files of its process, and three quarters of its memory, to others.
func TestConnectionsLeaveFiles(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for _, c := range []struct {
		memory, files int64
		want          int
	}{
		{409 * mb, 1 << 20, 654},
		{410 * mb, 1 << 20, 656}, // about what an API with 512 MiB has, and a connection more
		{10239 * mb, 1 << 20, 16382},
		{10240 * mb, 1 << 20, 16384},
		{math.MaxInt64, math.MaxInt64, 16384},
		{math.MaxInt64, 1024, 512},
		{math.MaxInt64, 1025, 512},
		{math.MaxInt64, 1, 1},
		{0, 1024, 1},
	} {
		testbed.Diff(t, fmt.Sprintf("connections of a server with %d bytes and %d files", c.memory, c.files), c.want, httpserver.DefaultConnections(c.memory, c.files))
	}
}
