package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

const (
	// MaxMessageBytes bounds a message of a peer, all its frames together.
	MaxMessageBytes = 64 << 20
	// MaxFrames bounds the frames of a message.
	MaxFrames = 1100
	// maxCommandBytes bounds a command.
	maxCommandBytes = 64 << 10
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

var errProtocol = errors.New("the peer does not speak ZMTP 3")

// greeting is what each end sends first: ZMTP 3.0, mechanism NULL.
func greeting() []byte {
	var g [64]byte
	g[0], g[8], g[9], g[10] = 0xff, 1, 0x7f, 3
	copy(g[12:], "NULL")
	return g[:]
}

// checkGreeting reads the greeting of a peer.
func checkGreeting(from io.Reader) error {
	var g [64]byte
	if _, err := io.ReadFull(from, g[:]); err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	if g[0] != 0xff || g[9]&1 == 0 || g[10] < 3 || !bytes.Equal(g[12:32], append([]byte("NULL"), make([]byte, 16)...)) {
		return errProtocol
	}
	return nil
}

// reader reads frames of a peer.
type reader struct{ from *bufio.Reader }

// next reads one frame. It refuses one of more than limit bytes.
func (r reader) next(limit int) (flags byte, body []byte, err error) {
	if flags, err = r.from.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong != 0 {
		var long [8]byte
		_, err = io.ReadFull(r.from, long[:])
		size = binary.BigEndian.Uint64(long[:])
	} else {
		var short byte
		short, err = r.from.ReadByte()
		size = uint64(short)
	}
	switch {
	case err != nil:
		return 0, nil, err
	case flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0:
		return 0, nil, errProtocol
	case size > uint64(max(limit, 0)) || flags&flagCommand != 0 && size > maxCommandBytes: //nolint:gosec // not negative
		return 0, nil, fmt.Errorf("a frame has %d bytes, more than are allowed", size)
	}
	// The buffer grows with what arrives, not with the size that the peer announces.
	var out bytes.Buffer
	if _, err := io.CopyN(&out, r.from, int64(size)); err != nil { //nolint:gosec // bounded above
		return 0, nil, err
	}
	return flags, out.Bytes(), nil
}

// message reads the frames of one message. A command that comes between messages is passed to command.
func (r reader) message(command func(name string, data []byte) error) ([][]byte, error) {
	var out [][]byte
	left := MaxMessageBytes
	for {
		flags, body, err := r.next(left)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			name, data, err := parseCommand(body)
			if err == nil {
				err = command(name, data)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		if left -= len(body); len(out) == MaxFrames {
			return nil, fmt.Errorf("a message has more than %d frames", MaxFrames)
		}
		out = append(out, body)
		if flags&flagMore == 0 {
			return out, nil
		}
	}
}

func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil, errProtocol
	}
	end := 1 + int(body[0])
	return string(body[1:end]), body[end:], nil
}

// parseReady reads the properties of a READY command.
func parseReady(data []byte) (map[string]string, error) {
	out := map[string]string{}
	for len(data) > 0 {
		n := 1 + int(data[0])
		if len(data) < n+4 {
			return nil, errProtocol
		}
		name := string(data[1:n])
		size := uint64(binary.BigEndian.Uint32(data[n:]))
		if data = data[n+4:]; size > uint64(len(data)) {
			return nil, errProtocol
		}
		out[name] = string(data[:size])
		data = data[size:]
	}
	return out, nil
}

// frame adds a frame to what is to be written.
func frame(out net.Buffers, flags byte, body []byte) net.Buffers {
	var head []byte
	if len(body) > 255 {
		head = binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	} else {
		head = []byte{flags, byte(len(body))}
	}
	return append(out, head, body)
}

// command is the frame of a command.
func command(name string, data []byte) net.Buffers {
	return frame(nil, flagCommand, append(append([]byte{byte(len(name))}, name...), data...))
}

// ready is the READY command of a socket of a type.
func ready(kind Kind) net.Buffers {
	var out []byte
	for _, p := range [][2]string{{"Socket-Type", string(kind)}, {"Identity", ""}} {
		out = append(append(out, byte(len(p[0]))), p[0]...)
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(p[1]))), p[1]...) //nolint:gosec // short
	}
	return command("READY", out)
}
