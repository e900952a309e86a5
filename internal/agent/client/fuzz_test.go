package client_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
)

// An agent may send anything on the stream, in place of yamux's control frames too: calls end, and so does the session.
func FuzzSession(f *testing.F) {
	window := []byte{0, 1, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0}
	ping := []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7}
	goAway := []byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	data := append([]byte{0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 4}, "HTTP"...)
	for _, seed := range [][]byte{nil, window, ping, goAway, data, append(append([]byte{}, window...), data...), {0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff}, {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		local, remote := net.Pipe()
		c, err := client.New(local, client.Options{Egress: http.NotFoundHandler(), Proxy: len(in)%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() { _, _ = io.Copy(io.Discard, remote) }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			_, err := c.Info(ctx)
			answered <- err
		}()
		_ = remote.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, _ = remote.Write(in)
		_ = remote.Close()
		if err := <-answered; err == nil {
			t.Error("garbage answered a call")
		}
		select {
		case <-c.Done():
		case <-ctx.Done():
			t.Error("the session did not end")
		}
	})
}

// An agent may answer with anything. Frames are read in order or not at all, and a broken answer is an error.
func FuzzAnswer(f *testing.F) {
	frames := agent.AppendFrame(nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: []byte("x")})
	frames = agent.AppendFrame(frames, agent.Frame{Seq: 2, Type: agent.FrameFinal, Payload: []byte(`{}`)})
	for _, seed := range []string{
		"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n" + string(frames),
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "HTTP/1.1 404 Not Found\r\nContent-Length: 38\r\n\r\n{\"code\":\"not_found\",\"message\":\"gone\"}",
		"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		local, remote := net.Pipe()
		c, err := client.New(local, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		config := yamux.DefaultConfig()
		config.LogOutput = nil
		config.Logger = discard{}
		session, err := yamux.Server(remote, config)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = c.Close()
			_ = session.Close()
		}()
		go func() {
			for {
				stream, err := session.AcceptStream()
				if err != nil {
					return
				}
				go func() {
					_, _ = stream.Write(in)
					_ = stream.Close()
					_, _ = io.Copy(io.Discard, stream)
				}()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		got, err := c.Frames(ctx, "job", 1)
		if err != nil {
			return
		}
		defer func() { _ = got.Close() }()
		for due := uint64(1); ; due++ {
			frame, err := got.NextAdmitted(func(bytes int) error {
				if bytes > 1<<16 {
					return io.ErrShortBuffer
				}
				return nil
			})
			if err != nil {
				if ctx.Err() != nil {
					t.Error("the answer did not end")
				}
				return
			}
			if frame.Seq != due {
				t.Fatalf("frame %d where %d was due", frame.Seq, due)
			}
		}
	})
}
