package kernel

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// delimiter separates the addresses and the body of a Jupyter message.
const delimiter = "<IDS|MSG>"

// header is the header of a Jupyter message.
type header struct {
	ID       string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Type     string `json:"msg_type"`
	Version  string `json:"version"`
}

// message is a Jupyter message. Content and Metadata are JSON.
type message struct {
	Header   header
	Parent   header
	Metadata json.RawMessage
	Content  json.RawMessage
}

// codec signs, packs and unpacks the messages of one kernel.
type codec struct {
	key     []byte
	session string
}

func newCodec() codec {
	return codec{key: []byte(rand.Text()), session: rand.Text()}
}

// request creates a message of a type with a new id.
func (c codec) request(kind string, content, metadata any) (message, error) {
	m := message{Header: header{
		ID: rand.Text(), Session: c.session, Username: "sandbox", Type: kind, Version: "5.3",
		Date: time.Now().UTC().Format(time.RFC3339Nano),
	}}
	var err error
	if m.Content, err = json.Marshal(content); err != nil {
		return m, fmt.Errorf("encode content: %w", err)
	}
	if m.Metadata, err = json.Marshal(metadata); err != nil {
		return m, fmt.Errorf("encode metadata: %w", err)
	}
	return m, nil
}

// pack returns the frames of a message.
func (c codec) pack(m message) ([][]byte, error) {
	head, err := json.Marshal(m.Header)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	parts := [][]byte{head, []byte("{}"), m.Metadata, m.Content}
	return append([][]byte{[]byte(delimiter), c.sign(parts)}, parts...), nil
}

// unpack parses the frames of a message and checks its signature.
func (c codec) unpack(frames [][]byte) (message, error) {
	var m message
	for len(frames) > 0 && !bytes.Equal(frames[0], []byte(delimiter)) {
		frames = frames[1:]
	}
	if len(frames) < 6 {
		return m, errors.New("unpack message: too few frames")
	}
	if !hmac.Equal(frames[1], c.sign(frames[2:6])) {
		return m, errors.New("unpack message: wrong signature")
	}
	if err := json.Unmarshal(frames[2], &m.Header); err != nil {
		return m, fmt.Errorf("unpack header: %w", err)
	}
	if err := json.Unmarshal(frames[3], &m.Parent); err != nil {
		return m, fmt.Errorf("unpack parent: %w", err)
	}
	m.Metadata, m.Content = frames[4], frames[5]
	return m, nil
}

func (c codec) sign(parts [][]byte) []byte {
	mac := hmac.New(sha256.New, c.key)
	for _, part := range parts {
		mac.Write(part)
	}
	sum := mac.Sum(nil)
	out := make([]byte, hex.EncodedLen(len(sum)))
	hex.Encode(out, sum)
	return out
}
