package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// FrameHeaderBytes is the size of a frame's header: sequence number (8), type (1), length of the payload (4), big endian.
const FrameHeaderBytes = 13

// maxPlainBytes bounds the payload of output frames, far above what agents send.
const maxPlainBytes = 1 << 20

// AppendFrame appends a frame in its wire form.
func AppendFrame(b []byte, f Frame) []byte {
	b = AppendFrameHeader(b, f)
	return append(b, f.Payload...)
}

// AppendFrameHeader appends only the header; the payload must follow.
func AppendFrameHeader(b []byte, f Frame) []byte {
	b = binary.BigEndian.AppendUint64(b, f.Seq)
	b = append(b, byte(f.Type))
	return binary.BigEndian.AppendUint32(b, uint32(len(f.Payload))) //nolint:gosec // bounded by MaxFrameBytes where frames are made
}

// ReadFrame reads one frame. A payload over MaxFrameBytes or an unknown type is an error before anything is allocated; the end of
// the stream between two frames is io.EOF, and within a frame io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader) (Frame, error) { return ReadAdmittedFrame(r, nil) }

// ReadAdmittedFrame is ReadFrame that calls admit, if it is not nil, with the size of the payload before it allocates it. An error of
// admit is returned as it is; the stream cannot be read on.
func ReadAdmittedFrame(r io.Reader, admit func(bytes int) error) (Frame, error) {
	var head [FrameHeaderBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Seq: binary.BigEndian.Uint64(head[:8]), Type: FrameType(head[8])}
	size := binary.BigEndian.Uint32(head[9:])
	if limit := payloadLimit(f.Type); size > limit {
		return Frame{}, fmt.Errorf("read frame %d: payload of %d bytes is over the limit of %d", f.Seq, size, limit)
	}
	if f.Type < FrameStdout || f.Type > FrameMessage {
		return Frame{}, fmt.Errorf("read frame %d: unknown type %d", f.Seq, f.Type)
	}
	if admit != nil {
		if err := admit(int(size)); err != nil {
			return Frame{}, err
		}
	}
	f.Payload = newPayload(f.Type, int(size))
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// payloadBytes is the capacity of payloads that are used again: that of a full frame of output. Shorter ones than half of it are not.
const payloadBytes = 64 << 10

// payloads are what ReleasePayload got.
var payloads = sync.Pool{New: func() any { return new([payloadBytes]byte) }}

// newPayload makes a payload for a frame. That of long output is one that was released, if there is one: a job prints up to hundreds of
// megabytes, and each collection of them delays all other jobs of the process.
func newPayload(t FrameType, size int) []byte {
	if t != FrameStdout && t != FrameStderr || size < payloadBytes/2 || size > payloadBytes {
		return make([]byte, size)
	}
	return payloads.Get().(*[payloadBytes]byte)[:size] //nolint:errcheck // the pool holds nothing else
}

// ReleasePayload lets the payload of a frame that was read be used for another one, if it is that of long output. The payload must not be used afterwards.
// Payloads that are not released are collected as garbage.
func ReleasePayload(f Frame) {
	if (f.Type == FrameStdout || f.Type == FrameStderr) && cap(f.Payload) == payloadBytes {
		payloads.Put((*[payloadBytes]byte)(f.Payload[:payloadBytes]))
	}
}

// payloadLimit is the maximum payload of a frame of a type.
func payloadLimit(t FrameType) uint32 {
	switch t {
	case FrameStdout, FrameStderr, FrameCommandStart, FrameCommandEnd, FrameDropped:
		return maxPlainBytes
	default:
		return MaxFrameBytes
	}
}

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

// maxPings is how many pings an agent may send in a second. It sends one in 30 seconds.
const maxPings = 10

// muxPingType is the type of yamux's pings.
const muxPingType = 2

var errPings = errors.New("the agent sent too many pings")

// FewPings returns a stream of yamux that breaks when the agent sends more than maxPings in a second: yamux starts a goroutine for each, and keeps it
// until the answer is written. Only one goroutine may read, as yamux does.
func FewPings(stream io.ReadWriteCloser) io.ReadWriteCloser {
	return &fewPings{ReadWriteCloser: stream, now: time.Now}
}

type fewPings struct {
	io.ReadWriteCloser
	now func() time.Time

	header [muxHeader]byte
	have   int    // bytes of the header
	data   uint32 // bytes that follow it
	pings  int    // since
	since  time.Time
}

// Read implements io.Reader.
func (p *fewPings) Read(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if p.data > 0 {
			skip := min(uint64(p.data), uint64(len(rest)))
			p.data -= uint32(skip) //nolint:gosec // at most p.data
			rest = rest[skip:]
			continue
		}
		took := copy(p.header[p.have:], rest)
		rest, p.have = rest[took:], p.have+took
		if p.have == muxHeader && !p.frame() {
			return 0, errPings
		}
	}
	return n, err
}

// frame looks at a header that is complete. It returns false at one ping too many.
func (p *fewPings) frame() bool {
	p.have = 0
	switch p.header[1] {
	case muxDataType:
		p.data = binary.BigEndian.Uint32(p.header[muxLength:])
	case muxPingType:
		if now := p.now(); now.Sub(p.since) >= time.Second {
			p.pings, p.since = 0, now
		}
		p.pings++
	}
	return p.pings <= maxPings
}
