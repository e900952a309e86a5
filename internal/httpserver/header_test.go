package httpserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// headerOf is a request with this many lines before its body: its own, Host and others of the shortest kind.
func headerOf(lines int, more string) string {
	return "POST / HTTP/1.1\r\nHost: test\r\n" + strings.Repeat("a:\n", lines-2-strings.Count(more, "\n")) + more
}

// A header of many short lines takes far more memory than its bytes. It ends its connection before it is complete.
func TestLinesOfAHeaderAreBounded(t *testing.T) {
	t.Parallel()
	s := limited(t, 8, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "here")
	})
	for _, before := range []int{0, 1} { // requests on the same connection
		for lines, served := range map[int]bool{httpserver.HeaderLines - 1: true, httpserver.HeaderLines: true, 7200: false} {
			c := dial(t, s)
			for range before {
				c.send("/")
				c.answer()
			}
			text := headerOf(lines, "")
			if served {
				text += "\r\n"
			}
			_, _ = io.WriteString(c.conn, text) // fails if the server has had enough
			if served {
				c.answer()
				continue
			}
			resp, err := http.ReadResponse(c.read, nil)
			if err == nil && resp.StatusCode != http.StatusBadRequest { // the rest of the header may reset the connection first
				t.Errorf("%d lines after %d requests are answered with %s", lines, before, resp.Status)
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			c.closed()
		}
	}
}

// A server that sets no limit on the bytes of headers has one.
func TestBytesOfAHeaderAreBounded(t *testing.T) {
	t.Parallel()
	s := limited(t, 8, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	for bytes, served := range map[int]bool{30 << 10: true, 40 << 10: false} {
		c := dial(t, s)
		_, _ = io.WriteString(c.conn, "GET / HTTP/1.1\r\nHost: test\r\nX: "+strings.Repeat("x", bytes)) // fails if the server has had enough
		if !served {
			_, _ = io.ReadAll(c.read)
			c.closed()
			continue
		}
		_, _ = io.WriteString(c.conn, "\r\n\r\n")
		c.answer()
	}
}

// Lines of bodies do not count, however they arrive.
func TestLinesOfBodiesAreNotThoseOfHeaders(t *testing.T) {
	t.Parallel()
	got := make(chan int64, 1)
	s := limited(t, 8, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			n = -1
		}
		got <- n
		_, _ = io.WriteString(w, "here")
	})
	c := dial(t, s)
	body := strings.Repeat("\n", 9999)
	for range 3 {
		_, _ = io.WriteString(c.conn, headerOf(httpserver.HeaderLines, "Content-Length: 9999\r\n")+"\r\n"+body)
		c.answer()
		if n := <-got; n != int64(len(body)) {
			t.Errorf("the handler read %d bytes of %d", n, len(body))
		}
		_, _ = io.WriteString(c.conn, headerOf(4, "Transfer-Encoding: chunked\r\n")+"\r\n"+strings.Repeat("1\r\n\n\r\n", 9999)+"0\r\n\r\n")
		c.answer()
		if n := <-got; n != int64(len(body)) {
			t.Errorf("the handler read %d bytes of %d in chunks", n, len(body))
		}
	}
	_, _ = io.WriteString(c.conn, headerOf(100, "")+"\r\n"+headerOf(100, "")+"\r\n") // pipelined
	for range 2 {
		c.answer()
		<-got
	}
}

// A connection that was taken over is no longer HTTP.
func TestLinesOfConnectionsThatWereTakenOverAreNotThoseOfHeaders(t *testing.T) {
	t.Parallel()
	const size = 1 << 16
	s := limited(t, 8, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if n, err := io.CopyN(io.Discard, buffered, size); err != nil {
			t.Errorf("read %d bytes: %v", n, err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")
	})
	c := dial(t, s)
	c.send("/")
	_, _ = io.WriteString(c.conn, strings.Repeat("\n", size))
	c.answer()
}
