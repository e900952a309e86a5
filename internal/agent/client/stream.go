package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/yamux"
)

const (
	// maxClosing bounds the streams that the worker has closed and the agent has not: an agent of this farm closes each at once. All connections
	// to ports may end together.
	maxClosing = 512
	// maxKept is what may remain allocated for a stream that has nothing unread.
	maxKept = 64 << 10
)

// callStreams opens the streams for calls to an agent.
type callStreams struct {
	session *yamux.Session
	closing atomic.Int64 // streams that the agent has not closed yet
}

// dial opens a stream. It is for an http.Transport.
func (s *callStreams) dial(context.Context, string, string) (net.Conn, error) {
	stream, err := s.session.OpenStream()
	if err != nil {
		return nil, err
	}
	return &callStream{Stream: stream, of: s}, nil
}

// callStream is a stream that the worker has opened. What arrives beyond its window waits in the sandbox. After Close it keeps nothing.
type callStream struct {
	*yamux.Stream
	of    *callStreams
	run   int // bytes that were read since the stream had nothing unread
	close sync.Once
	err   error
}

// Read implements net.Conn. The buffer of a stream that had much unread, which never shrinks by itself, goes when it is read.
func (s *callStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if s.run += n; n < len(p) {
		if s.run > maxKept {
			s.Shrink()
		}
		s.run = 0
	}
	return n, err
}

// Close closes the stream, and discards what the agent still sends until it closes the stream too. Too many that it does not close end the session.
func (s *callStream) Close() error {
	s.close.Do(func() {
		s.err = s.Stream.Close()
		if s.of.closing.Add(1) > maxClosing {
			_ = s.of.session.Close()
		}
		go func() {
			defer s.of.closing.Add(-1)
			part := make([]byte, 4<<10)
			for {
				if _, err := s.Stream.Read(part); err != nil {
					return
				}
				s.Shrink()
			}
		}()
	})
	return s.err
}
