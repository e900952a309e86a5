package jupyter

import (
	"encoding/binary"
	"errors"
)

// subprotocol is the framing that clients may ask for: messages laid out by layoutV1. Without it messages are JSON, or binary.
const subprotocol = "v1.kernel.websocket.jupyter.org"

// errOffsets says that the offsets at the beginning of a message are wrong.
var errOffsets = errors.New("its offsets are wrong")

// layout is how a message begins: with the number of its offsets, and the offsets of its parts.
type layout struct {
	size   int // bytes of a number
	read   func([]byte) uint64
	append func([]byte, uint64) []byte
	end    bool // the last offset is the end of the last part
}

// layoutV1 is the layout of subprotocol: channel, header, parent, metadata, content, and the buffers.
func layoutV1() layout {
	return layout{8, binary.LittleEndian.Uint64, binary.LittleEndian.AppendUint64, true}
}

// layoutBinary is the layout without a subprotocol: the JSON of the message, and the buffers.
func layoutBinary() layout {
	return layout{
		4, func(b []byte) uint64 { return uint64(binary.BigEndian.Uint32(b)) },
		func(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }, false, //nolint:gosec // messages are shorter
	}
}

// split cuts a message with at most a number of offsets into its parts, at least one, which share its memory. The error is errOffsets.
func (l layout) split(data []byte, most int) ([][]byte, error) {
	if len(data) < l.size {
		return nil, errOffsets
	}
	count := l.read(data)
	if count < 1 || count > uint64(most) || uint64(len(data))/uint64(l.size) < count+1 { //nolint:gosec // sizes are not negative
		return nil, errOffsets
	}
	offsets := make([]uint64, count, count+1)
	for i := range offsets {
		offsets[i] = l.read(data[(i+1)*l.size:])
	}
	if !l.end {
		offsets = append(offsets, uint64(len(data)))
	}
	before := (count + 1) * uint64(l.size) //nolint:gosec // as above
	for _, at := range offsets {
		if at < before || at > uint64(len(data)) {
			return nil, errOffsets
		}
		before = at
	}
	if len(offsets) < 2 {
		return nil, errOffsets
	}
	parts := make([][]byte, len(offsets)-1)
	for i := range parts {
		parts[i] = data[offsets[i]:offsets[i+1]]
	}
	return parts, nil
}

// join is the reverse of split.
func (l layout) join(parts [][]byte) []byte {
	count, total := len(parts), 0
	if l.end {
		count++
	}
	for _, p := range parts {
		total += len(p)
	}
	at := (count + 1) * l.size
	out := l.append(make([]byte, 0, at+total), uint64(count)) //nolint:gosec // not negative
	for _, p := range parts {
		out = l.append(out, uint64(at)) //nolint:gosec // not negative
		at += len(p)
	}
	if l.end {
		out = l.append(out, uint64(at)) //nolint:gosec // not negative
	}
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
