package localkernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func example() *message {
	return &message{
		channel: shell, parts: [jsonParts][]byte{[]byte(`{"msg_id":"1","msg_type":"execute_request"}`), []byte(`{}`), []byte(`{}`), []byte(`{"code":"1"}`)},
		buffers: [][]byte{{0, 255}, {}},
	}
}

func TestMessagesKeepTheirParts(t *testing.T) {
	t.Parallel()
	m := example()
	same := cmp.AllowUnexported(message{})
	decoded, err := decode(m.encode())
	if diff := cmp.Diff(m, decoded, same); err != nil || diff != "" {
		t.Errorf("over the WebSocket: %v (-want +got):\n%s", err, diff)
	}
	got, err := fromFrames(shell, "key", append([][]byte{[]byte("address")}, m.frames("key", "")...))
	if diff := cmp.Diff(m, got, same); err != nil || diff != "" {
		t.Errorf("over ZeroMQ: %v (-want +got):\n%s", err, diff)
	}
}

// What another process of this machine sends is not run: it does not know the key.
func TestMessagesMustBeSigned(t *testing.T) {
	t.Parallel()
	good := example().frames("key", "")
	for name, frames := range map[string][][]byte{
		"Key":       example().frames("other", ""),
		"Unsigned":  example().frames("", ""),
		"Delimiter": good[1:],
		"Short":     good[:5],
		"Nothing":   nil,
	} {
		if _, err := fromFrames(shell, "key", frames); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, part := range []string{`{`, `{}`, `{"msg_id":"1"}`, `[]`} {
		m := example()
		m.parts[partHeader] = []byte(part)
		if _, err := fromFrames(shell, "key", m.frames("key", "")); err == nil {
			t.Errorf("a message with the header %s is taken", part)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(example().encode())
	f.Add([]byte(strings.Repeat("\xff", 80)))
	f.Add(make([]byte, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(m.encode())
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(message{})); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}
