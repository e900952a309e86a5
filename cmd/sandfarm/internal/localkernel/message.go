package localkernel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/sandfarm/sandfarm/internal/jupyterwire"
)

// The channels of a kernel.
const (
	shell   = "shell"
	control = "control"
	stdin   = "stdin"
	iopub   = "iopub"
)

// delimiter stands between addresses and signature of a message over ZeroMQ.
const delimiter = "<IDS|MSG>"

// The JSON parts of a message.
const (
	partHeader = iota
	partParent
	partMetadata
	partContent
	jsonParts
)

var errMessage = errors.New("it is not a message of Jupyter")

// message is one message of Jupyter's protocol. Its parts stay as they came.
type message struct {
	channel string
	parts   [jsonParts][]byte
	buffers [][]byte
}

type header struct {
	ID   string `json:"msg_id"`
	Type string `json:"msg_type"`
}

// header reads one of the message's two headers. What cannot be read is empty.
func (m *message) header(part int) (h header) {
	_ = json.Unmarshal(m.parts[part], &h)
	return h
}

// sign is the signature of a message's parts; "" without a key.
func sign(key string, parts [jsonParts][]byte) string {
	if key == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(key))
	for _, p := range parts {
		mac.Write(p)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// fromFrames reads a message that came over ZeroMQ, and checks its signature.
func fromFrames(channel, key string, frames [][]byte) (*message, error) {
	for len(frames) > 0 && string(frames[0]) != delimiter {
		frames = frames[1:]
	}
	if len(frames) < 2+jsonParts {
		return nil, errMessage
	}
	m := &message{channel: channel, parts: [jsonParts][]byte(frames[2 : 2+jsonParts]), buffers: frames[2+jsonParts:]}
	if !hmac.Equal([]byte(sign(key, m.parts)), frames[1]) {
		return nil, errors.New("its signature is wrong")
	}
	for _, p := range m.parts {
		if !json.Valid(p) {
			return nil, errMessage
		}
	}
	if h := m.header(partHeader); h.ID == "" || h.Type == "" {
		return nil, errMessage
	}
	return m, nil
}

// frames is the message for ZeroMQ. topic goes first, if there is one.
func (m *message) frames(key, topic string) [][]byte {
	var out [][]byte
	if topic != "" {
		out = append(out, []byte(topic))
	}
	out = append(out, []byte(delimiter), []byte(sign(key, m.parts)))
	out = append(out, m.parts[:]...)
	return append(out, m.buffers...)
}

// encode is the message for the WebSocket.
func (m *message) encode() []byte {
	return jupyterwire.V1().Join(append(append([][]byte{[]byte(m.channel)}, m.parts[:]...), m.buffers...))
}

// decode is the reverse of encode.
func decode(data []byte) (*message, error) {
	parts, err := jupyterwire.V1().Split(data, len(data))
	if err != nil || len(parts) < 1+jsonParts {
		return nil, errMessage
	}
	m := &message{channel: string(parts[0]), parts: [jsonParts][]byte(parts[1 : 1+jsonParts])}
	if buffers := parts[1+jsonParts:]; len(buffers) > 0 {
		m.buffers = buffers
	}
	return m, nil
}
