package agent

import (
	"encoding/binary"
	"io"
	"sync"
)

// Sizes of yamux's frames: a header, whose second byte is 0 for data and whose last four bytes are the length of the data that follow.
const (
	muxHeader   = 12
	muxDataType = 0
	muxLength   = 8
	// maxJoined is how much data is copied behind its header; more is written by itself. A frame of package transport, and most pieces of output, fit:
	// where the engine's exec carries the stream, each write wakes five processes.
	maxJoined = 40 << 10
)

// joinedBuffers are for what is written together.
var joinedBuffers = sync.Pool{New: func() any { return new([muxHeader + maxJoined]byte) }}

// Joined returns a stream whose writes join the header of a yamux frame and its data: yamux writes them one after the other, which wakes the
// other side twice. Only one goroutine may write, as yamux does.
func Joined(stream io.ReadWriteCloser) io.ReadWriteCloser { return &joined{ReadWriteCloser: stream} }

type joined struct {
	io.ReadWriteCloser
	buf []byte // a header that waits for its data
}

func (j *joined) Write(b []byte) (int, error) {
	if len(j.buf) == 0 {
		if len(b) == muxHeader && b[1] == muxDataType && binary.BigEndian.Uint32(b[muxLength:]) > 0 {
			j.buf = append(j.buf, b...)
			return len(b), nil
		}
		return j.ReadWriteCloser.Write(b)
	}
	head := j.buf
	j.buf = j.buf[:0]
	if len(b) <= maxJoined {
		buf := joinedBuffers.Get().(*[muxHeader + maxJoined]byte) //nolint:errcheck // the pool holds nothing else
		defer joinedBuffers.Put(buf)
		n, err := j.ReadWriteCloser.Write(buf[:copy(buf[:], head)+copy(buf[len(head):], b)])
		return max(n-len(head), 0), err
	}
	if _, err := j.ReadWriteCloser.Write(head); err != nil {
		return 0, err
	}
	return j.ReadWriteCloser.Write(b)
}
