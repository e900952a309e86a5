package agent

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
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
