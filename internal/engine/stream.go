package engine

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

const (
	streamBuffer = 64 << 10 // larger than one write of the engine (32 KiB)
	stderrMax    = 4 << 10  // of stderr is kept for the error
	headerBytes  = 8        // of a frame: stream, three zeros, length
)

// The streams of the engine's framing.
const (
	frameStdin  = 0
	frameStdout = 1
	frameStderr = 2
	frameSystem = 3
)

// stream is an exec's connection: raw to stdin, framed from stdout and stderr. Read removes the framing. One reader and one writer may
// use it at once; Close may be called from anywhere.
type stream struct {
	conn net.Conn
	r    *bufio.Reader
	left uint32 // of the frame of stdout that is being read

	mu     sync.Mutex
	stderr []byte
}

// Read reads stdout.
func (s *stream) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.nextFrame(); err != nil {
			return 0, err
		}
	}
	if uint64(len(p)) > uint64(s.left) {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.left -= uint32(n) //nolint:gosec // n is at most left
	if err == io.EOF && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// nextFrame reads a header, and the payload unless it is stdout.
func (s *stream) nextFrame() error {
	var header [headerBytes]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return s.ended(err)
	}
	size := binary.BigEndian.Uint32(header[4:])
	switch header[0] {
	case frameStdin, frameStdout:
		s.left = size
		return nil
	case frameStderr, frameSystem:
		return s.keep(size)
	default:
		return fmt.Errorf("read exec stream: frame of unknown stream %d", header[0])
	}
}

// keep keeps a frame of stderr, up to stderrMax in all.
func (s *stream) keep(size uint32) error {
	s.mu.Lock()
	room := min(int64(stderrMax-len(s.stderr)), int64(size))
	s.mu.Unlock()
	text := make([]byte, room)
	if _, err := io.ReadFull(s.r, text); err != nil {
		return s.ended(err)
	}
	s.mu.Lock()
	s.stderr = append(s.stderr, text...)
	s.mu.Unlock()
	if _, err := io.CopyN(io.Discard, s.r, int64(size)-room); err != nil {
		return s.ended(err)
	}
	return nil
}

// ended adds stderr to the error that ended the stream.
func (s *stream) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stderr) == 0 {
		return err
	}
	return fmt.Errorf("exec ended (stderr: %q): %w", s.stderr, err)
}

// Write writes to stdin.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// CloseWrite ends stdin; stdout stays open.
func (s *stream) CloseWrite() error {
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.conn.Close()
}

// Close ends the stream immediately, and unblocks a waiting Read or Write.
func (s *stream) Close() error { return s.conn.Close() }
