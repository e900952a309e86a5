package httpserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Requests that end while they wait for bytes that are seconds ahead reserve none: callers that leave at once would keep the others of the limiter waiting for hours.
func TestWhoLeavesReservesLittle(t *testing.T) {
	t.Parallel()
	const callers, reserved = 10, 64 << 10
	left := rate.NewLimiter(1, reserved) // for hours
	left.ReserveN(time.Now(), reserved)
	left.ReserveN(time.Now(), reserved)
	var waiting, ended sync.WaitGroup
	waiting.Add(callers)
	ended.Add(callers)
	s := limited(t, callers, func(_ http.ResponseWriter, r *http.Request) {
		ctx, leave := context.WithCancel(r.Context())
		httpserver.Known(ctx, "", left)
		httpserver.Spend(ctx, 1<<20)
		go func() {
			waiting.Wait()
			time.Sleep(10 * time.Millisecond) // until all wait; one that does not yet reserves nothing either
			leave()
		}()
		waiting.Done()
		httpserver.Pay(ctx)
		ended.Done()
	})
	for range callers {
		dial(t, s).send("/")
	}
	ended.Wait()
	testbed.Check(t, -left.Tokens() <= reserved, "%.0f bytes are reserved", -left.Tokens())
}

// Who leaves has reserved its bytes where the limiter was five seconds ahead at most.
func TestBytesAreReservedFiveSecondsAhead(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[int]int{5_000_000 - 1: 100, 5_000_000: 100, 5_000_000 + 1: 0} { // microseconds
		synctest.Test(t, func(t *testing.T) {
			left := rate.NewLimiter(1e6, 64<<10)
			for reserved := -64 << 10; reserved < ahead; {
				n := min(64<<10, ahead-reserved)
				left.ReserveN(time.Now(), n)
				reserved += n
			}
			ctx, leave := context.WithCancel(t.Context())
			leave()
			httpserver.Take(ctx, nil, left, 100)
			testbed.Diff(t, fmt.Sprintf("bytes reserved %d ahead", ahead), want, -int(math.Round(left.Tokens()))-ahead)
		})
	}
}

// To parse thousands of parameters takes milliseconds, also for a caller without a key.
func TestQueriesHaveFewParameters(t *testing.T) {
	t.Parallel()
	s := limited(t, 1, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	for count, want := range map[int]string{999: "200", 1000: "200", 1001: "414"} {
		c := dial(t, s)
		c.send("/?" + strings.Repeat("a&", count-1) + "a")
		answer, _ := bufio.NewReader(c.conn).ReadString('\n')
		testbed.Check(t, strings.HasPrefix(answer, "HTTP/1.1 "+want), "%d parameters: %q, want %s", count, answer, want)
		_ = c.conn.Close()
	}
}

// What the request of a known caller reads and writes is taken from the caller's bytes, also after the connection was hijacked, until the next request.
func TestBytesOfKnownCallers(t *testing.T) {
	t.Parallel()
	const burst, moved = 1 << 20, 100 << 10
	text := strings.Repeat("x", moved)
	left := rate.NewLimiter(rate.Every(time.Hour), burst)
	began, ended := make(chan struct{}, 1), make(chan struct{})
	s := limited(t, 1, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/unknown":
			_, _ = io.WriteString(w, text)
		case "/known":
			httpserver.Known(r.Context(), "", left)
			began <- struct{}{}
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		case "/hijacked":
			httpserver.Known(r.Context(), "", left)
			conn, _, err := http.NewResponseController(w).Hijack()
			testbed.Check(t, err == nil, "hijack: %v", err)
			began <- struct{}{}
			_, _ = io.Copy(io.Discard, conn) // as a proxy does, by WriteTo and ReadFrom
			_, _ = io.Copy(conn, struct{ io.Reader }{strings.NewReader(text)})
			_ = conn.Close()
			close(ended)
		}
	})
	c := dial(t, s)
	answer := func() {
		t.Helper()
		resp, err := http.ReadResponse(c.read, nil)
		testbed.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		testbed.Must(t, err)
	}
	_, _ = fmt.Fprintf(c.conn, "POST /known HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n", moved)
	<-began
	_, _ = io.WriteString(c.conn, text)
	answer()
	c.send("/unknown")
	answer()
	c.send("/hijacked")
	<-began
	_, _ = io.WriteString(c.conn, text)
	testbed.Must(t, c.conn.(*net.TCPConn).CloseWrite())
	<-ended
	took := burst - int(left.Tokens())
	testbed.Check(t, took >= 4*moved && took < 4*moved+4<<10, "%d bytes were taken, want 4 of %d and some of headers", took, moved)
}

// The limiter's wait for what was read was part of the next read's time, which is its client's, and a context that ended soon spared it.
func TestReadersPayBeforeTheyReadOn(t *testing.T) {
	t.Parallel()
	left := rate.NewLimiter(rate.Every(time.Second), 1<<20)
	began, ended := make(chan struct{}), make(chan struct{})
	s := limited(t, 1, func(_ http.ResponseWriter, r *http.Request) {
		defer close(ended)
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Millisecond)
		defer cancel()
		httpserver.Known(ctx, "", left)
		testbed.Check(t, left.AllowN(time.Now(), 1<<20), "there is nothing left")
		close(began)
		n, err := io.ReadFull(r.Body, make([]byte, 1))
		testbed.Check(t, n == 1 && err == nil && left.Tokens() > -1, "read %d, %v; %f are left before it is paid", n, err, left.Tokens())
		httpserver.Pay(ctx)
		testbed.Check(t, left.Tokens() < 0 && ctx.Err() != nil, "%f are left, %v", left.Tokens(), ctx.Err())
	})
	c := dial(t, s)
	_, _ = fmt.Fprint(c.conn, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n")
	<-began
	_, _ = io.WriteString(c.conn, "x")
	<-ended
}

// A connection that ends does not wait for its tenant's limiter: a server that stops would wait for it.
func TestAConnectionThatEndsIsNotPaced(t *testing.T) {
	t.Parallel()
	left := rate.NewLimiter(rate.Every(time.Hour), 1<<20)
	ended := make(chan struct{})
	s := limited(t, 1, func(_ http.ResponseWriter, r *http.Request) {
		defer close(ended)
		httpserver.Known(r.Context(), "", left)
		testbed.Check(t, left.AllowN(time.Now(), 1<<20), "there is nothing left")
		httpserver.Spend(r.Context(), 1)
		paid := make(chan struct{})
		go func() {
			defer close(paid)
			httpserver.Pay(r.Context())
		}()
		for left.Tokens() >= 0 { // until it waits
			time.Sleep(time.Millisecond)
		}
		httpserver.Unpace(r.Context())
		httpserver.Unpace(r.Context())
		<-paid
		httpserver.Spend(r.Context(), 1)
		httpserver.Pay(r.Context())
	})
	dial(t, s).send("/")
	select {
	case <-ended:
	case <-time.After(time.Minute): // detects a hang
		t.Error("the connection waits for the limiter")
	}
}
