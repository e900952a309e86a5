package jupyter

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// MaxMessageBytes bounds a message of a client, in either framing.
	MaxMessageBytes = 32 << 20
	// MaxBuffers bounds the binary buffers of a message.
	MaxBuffers = 1000
	// maxOffsets bounds the offsets of a message: those of its buffers, of five other parts, and of the end.
	maxOffsets = MaxBuffers + 6
	// maxIDBytes bounds ids that clients choose.
	maxIDBytes = 256
	// maxHeaderBytes bounds a header, which is sent back with everything that belongs to its message.
	maxHeaderBytes = 4 << 10
)

// The channels of a kernel.
const (
	channelShell   = "shell"
	channelControl = "control"
	channelIOPub   = "iopub"
	channelStdin   = "stdin"
)

// message is one message of Jupyter's protocol.
type message struct {
	channel string
	header  header
	// parent is the header of the message that this one belongs to, as it came; nil: none.
	parent   json.RawMessage
	metadata json.RawMessage // nil: {}
	content  json.RawMessage
	buffers  [][]byte
}

// header says what a message is. raw has all its fields as they came. It is no part of the message, which may be large, and outlives it.
type header struct {
	ID      string `json:"msg_id"`
	Type    string `json:"msg_type"`
	Session string `json:"session"`
	raw     json.RawMessage
}

func parseHeader(raw json.RawMessage) (header, error) {
	var h header
	switch {
	case len(raw) > maxHeaderBytes:
		return h, fmt.Errorf("its header has %d bytes; at most %d are allowed", len(raw), maxHeaderBytes)
	case json.Unmarshal(raw, &h) != nil:
		return h, errors.New("its header is not an object with texts in it")
	case h.ID == "" || h.Type == "":
		return h, errors.New("its header lacks msg_id or msg_type")
	case len(h.ID) > maxIDBytes || len(h.Type) > maxIDBytes || len(h.Session) > maxIDBytes:
		return h, fmt.Errorf("an id in its header has more than %d bytes", maxIDBytes)
	}
	h.raw = bytes.Clone(raw)
	return h, nil
}

// plain is a message in JSON. Many clients read msg_id and msg_type outside of the header.
type plain struct {
	Header   json.RawMessage   `json:"header"`
	ID       string            `json:"msg_id"`
	Type     string            `json:"msg_type"`
	Parent   json.RawMessage   `json:"parent_header"`
	Metadata json.RawMessage   `json:"metadata"`
	Content  json.RawMessage   `json:"content"`
	Buffers  []json.RawMessage `json:"buffers"`
	Channel  string            `json:"channel"`
}

// incoming is plain as clients send it: buffers may be anything.
type incoming struct {
	Header   json.RawMessage `json:"header"`
	Parent   json.RawMessage `json:"parent_header"`
	Metadata json.RawMessage `json:"metadata"`
	Content  json.RawMessage `json:"content"`
	Channel  string          `json:"channel"`
}

// decode reads one message of a client.
func decode(kind websocket.MessageType, data []byte, v1 bool) (message, error) {
	switch {
	case v1 && kind == websocket.MessageBinary:
		return decodeV1(data)
	case hasBuffers(kind, data):
		return decodeBinary(data)
	default:
		return decodeJSON(data, nil)
	}
}

// hasBuffers reports whether a message is in the format of those with buffers: a proxy of Jupyter sends binary messages as text.
func hasBuffers(kind websocket.MessageType, data []byte) bool {
	return kind == websocket.MessageBinary || !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{"))
}

// values counts the values of what is JSON in a message of a client, see budget.Values.
func values(kind websocket.MessageType, data []byte, v1 bool) (n int) {
	parts := [][]byte{data}
	switch {
	case v1 && kind == websocket.MessageBinary:
		if parts, _ = layoutV1().split(data, maxOffsets); len(parts) > 0 { // decodeV1 refuses what cannot be split
			parts = parts[1:min(5, len(parts))]
		}
	case hasBuffers(kind, data):
		if parts, _ = layoutBinary().split(data, maxOffsets); len(parts) > 0 {
			parts = parts[:1]
		}
	}
	for _, raw := range parts {
		n += budget.Values(raw)
	}
	return n
}

func decodeJSON(data []byte, buffers [][]byte) (message, error) {
	var in incoming
	if err := json.Unmarshal(data, &in); err != nil {
		return message{}, errors.New("it is not JSON of a message")
	}
	m := message{channel: in.Channel, parent: in.Parent, metadata: in.Metadata, content: in.Content, buffers: buffers}
	return m.checked(in.Header)
}

// checked completes a message with its header.
func (m message) checked(raw json.RawMessage) (message, error) {
	var err error
	if m.header, err = parseHeader(raw); err != nil {
		return m, err
	}
	switch m.channel {
	case "":
		m.channel = channelShell
	case channelShell, channelControl, channelStdin:
	default:
		return m, errors.New("its channel is none of shell, control and stdin")
	}
	if len(m.content) == 0 {
		m.content = json.RawMessage("{}")
	}
	return m, nil
}

// decodeBinary reads a message with buffers: how many parts, where each begins, the JSON, the buffers.
func decodeBinary(data []byte) (message, error) {
	parts, err := layoutBinary().split(data, maxOffsets)
	if err != nil {
		return message{}, err
	}
	return decodeJSON(parts[0], parts[1:])
}

// decodeV1 reads a message whose parts are the channel, the header, the parent, the metadata, the content, and the buffers.
func decodeV1(data []byte) (message, error) {
	parts, err := layoutV1().split(data, maxOffsets)
	if err != nil {
		return message{}, err
	}
	if len(parts) < 5 {
		return message{}, errors.New("it lacks parts")
	}
	for _, raw := range parts[1:5] {
		if !json.Valid(raw) {
			return message{}, errors.New("a part of it is not JSON")
		}
	}
	m := message{channel: string(parts[0]), parent: parts[2], metadata: parts[3], content: parts[4], buffers: parts[5:]}
	return m.checked(parts[1])
}

// encode makes the WebSocket message of a message.
func encode(m *message, v1 bool) (websocket.MessageType, []byte) {
	parent, metadata := orEmpty(m.parent), orEmpty(m.metadata)
	if v1 {
		parts := append([][]byte{[]byte(m.channel), m.header.raw, parent, metadata, m.content}, m.buffers...)
		return websocket.MessageBinary, layoutV1().join(parts)
	}
	text, _ := json.Marshal(plain{ // what it holds is JSON
		Header: m.header.raw, ID: m.header.ID, Type: m.header.Type, Parent: parent, Metadata: metadata, Content: m.content,
		Buffers: []json.RawMessage{}, Channel: m.channel,
	})
	if len(m.buffers) == 0 {
		return websocket.MessageText, text
	}
	return websocket.MessageBinary, layoutBinary().join(append([][]byte{text}, m.buffers...))
}

func orEmpty(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}

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
func (l layout) split(data []byte, limit int) ([][]byte, error) {
	if len(data) < l.size {
		return nil, errOffsets
	}
	count := l.read(data)
	if count < 1 || count > uint64(limit) || uint64(len(data))/uint64(l.size) < count+1 { //nolint:gosec // sizes are not negative
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
