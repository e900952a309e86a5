package rest_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// counting counts what is read of the connections of a listener.
type counting struct {
	net.Listener
	bytes atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	return &countingConn{conn, c}, err
}

type countingConn struct {
	net.Conn
	in *counting
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.bytes.Add(int64(n))
	return n, err
}

// webSocket serves WebSockets, and connects without a library, which would not send what these tests send.
func webSocket(t *testing.T, serve func(*rest.WebSocket)) (*counting, net.Conn, *bufio.Reader) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ws, err := rest.AcceptWebSocket(w, r, nil); err == nil {
			serve(ws)
		}
	}))
	count := &counting{Listener: server.Listener}
	server.Listener = count
	server.Start()
	t.Cleanup(server.Close)
	conn, read := connect(t, count.Addr().String(), "")
	return count, conn, read
}

// connect begins a WebSocket, and sends its first frames with the request.
func connect(t *testing.T, address, frames string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // detects a hang
	_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n%s", frames)
	read := bufio.NewReader(conn)
	answer, err := http.ReadResponse(read, nil) //nolint:bodyclose // it has none
	testbed.Must(t, err)
	testbed.Require(t, answer.StatusCode == http.StatusSwitchingProtocols, "%s", answer.Status)
	return conn, read
}

// Each frame counts for 8 KiB of its tenant's bytes, beside its own: frames without any had no limit.
func TestFramesCountAsBytes(t *testing.T) {
	t.Parallel()
	const burst, frame = 64 << 20, 8 << 10
	sizes := []int{0, 1, 125, 126, 127, 0xffff, 0x10000, 0}
	left := rate.NewLimiter(rate.Every(time.Hour), burst)
	ended := make(chan struct{})
	server := httpserver.New(httpserver.Config{Name: "test", Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), HTTP: &http.Server{
		ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			httpserver.Known(r.Context(), "", left)
			ws, err := rest.AcceptWebSocket(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			for _, size := range sizes {
				ws.SetReadLimit(-1)
				_, data, err := ws.Read(r.Context(), 1<<20, time.Minute)
				testbed.Check(t, err == nil && len(data) == size, "a message of %d bytes, %v, want %d", len(data), err, size)
			}
			_ = ws.CloseNow()
		}),
	}})
	testbed.Must(t, server.Start(t.Context()))
	t.Cleanup(server.Stop)
	var all strings.Builder
	for _, size := range sizes {
		header := []byte{0x82, 0x80 | byte(min(size, 126)), 0, 0, 0, 0}
		switch {
		case size > 0xffff:
			header = append(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, uint64(size)), 0, 0, 0, 0)
		case size > 125:
			header = append(binary.BigEndian.AppendUint16([]byte{0x82, 0xfe}, uint16(size)), 0, 0, 0, 0)
		}
		all.Write(header)
		all.WriteString(strings.Repeat("x", size))
	}
	const early = 16 // come with the request: two frames, and a part of the header of the third
	conn, _ := connect(t, server.Addr(), all.String()[:early])
	for part := range slices.Chunk([]byte(all.String()[early:]), 777) {
		_, err := conn.Write(part)
		testbed.Must(t, err)
	}
	<-ended
	took, want := burst-int(left.Tokens()), len(sizes)*frame+all.Len()
	testbed.Check(t, took >= want-early && took < want+1024, "%d bytes were taken, want %d and those of the answer", took, want)
}

// A client that goes on sending after the close message is read for a little, and gets the message.
func TestWebSocketsEndWithoutReadingOn(t *testing.T) {
	t.Parallel()
	read := make(chan int64)
	var count *counting
	began := make(chan struct{})
	count, conn, from := webSocket(t, func(ws *rest.WebSocket) {
		<-began
		before := count.bytes.Load()
		_ = ws.Close(websocket.StatusInvalidFramePayloadData, "")
		read <- count.bytes.Load() - before
	})
	close(began)
	messages := []byte(strings.Repeat("\x82\x80\x00\x00\x00\x00", 1000)) // each is empty
	go func() {
		for err := error(nil); err == nil; {
			_, err = conn.Write(messages)
		}
	}()
	message := make([]byte, 4)
	_, err := io.ReadFull(from, message)
	testbed.Check(t, err == nil && string(message) == "\x88\x02\x03\xef", "the close message is %q, %v", message, err)
	if n := <-read; n != 512<<10 {
		t.Errorf("%d bytes were read after the close message", n)
	}
}

// A message of empty fragments ends: the library reads on while there is one more.
func TestEmptyFragmentsEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan error)
	_, conn, _ := webSocket(t, func(ws *rest.WebSocket) {
		_, _, err := ws.Read(t.Context(), 100, 50*time.Millisecond)
		ended <- err
	})
	_, err := conn.Write([]byte("\x02\x80\x00\x00\x00\x00")) // a message begins
	testbed.Must(t, err)
	fragments := []byte(strings.Repeat("\x00\x80\x00\x00\x00\x00", 1000))
	go func() {
		for err := error(nil); err == nil; {
			_, err = conn.Write(fragments)
		}
	}()
	if err := <-ended; err == nil {
		t.Error("a message of empty fragments was read")
	}
}

// The library answers pings while it reads: they have a rate.
func TestPingsHaveARate(t *testing.T) {
	t.Parallel()
	_, conn, read := webSocket(t, func(ws *rest.WebSocket) { _, _, _ = ws.Read(t.Context(), 1, time.Minute) })
	began := time.Now()
	for range 115 { // 15 more than at once, at 10 in a second
		_, err := conn.Write([]byte("\x89\x80\x00\x00\x00\x00"))
		testbed.Must(t, err)
	}
	_, err := io.ReadFull(read, make([]byte, 2*115)) // the pongs
	testbed.Must(t, err)
	if took := time.Since(began); took < time.Second {
		t.Errorf("115 pings took %s", took)
	}
	_ = conn.Close()
}
