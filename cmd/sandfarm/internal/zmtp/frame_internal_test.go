package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
)

// stream is what a peer sends, of which the last frame has size bytes.
func stream(flags byte, size int, before ...byte) reader {
	head := binary.BigEndian.AppendUint64(append(before, flags|flagLong), uint64(size)) //nolint:gosec // not negative
	return reader{bufio.NewReader(io.MultiReader(bytes.NewReader(head), io.LimitReader(zeros{}, int64(size))))}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func noCommand(string, []byte) error { return nil }

func TestMessageLimits(t *testing.T) {
	t.Parallel()
	small := bytes.Repeat([]byte{flagMore, 0}, MaxFrames-1)
	for name, c := range map[string]struct {
		from reader
		ok   bool
	}{
		"OneByteLess":       {stream(0, MaxMessageBytes-1), true},
		"AllBytes":          {stream(0, MaxMessageBytes), true},
		"OneByteMore":       {stream(0, MaxMessageBytes+1), false},
		"TwoFramesTooLong":  {stream(0, MaxMessageBytes, flagMore, 1, 'x'), false},
		"OneFrameLess":      {stream(0, 1, small[2:]...), true},
		"AllFrames":         {stream(0, 1, small...), true},
		"OneFrameMore":      {stream(0, 1, append([]byte{flagMore, 0}, small...)...), false},
		"CommandOverLimit":  {stream(flagCommand, maxCommandBytes+1), false},
		"UnknownFlags":      {reader{bufio.NewReader(bytes.NewReader([]byte{8, 0}))}, false},
		"CommandWithinMore": {reader{bufio.NewReader(bytes.NewReader([]byte{flagCommand | flagMore, 0}))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := c.from.message(noCommand); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestCommandsBetweenMessages(t *testing.T) {
	t.Parallel()
	var in bytes.Buffer
	for _, part := range append(command("PING", make([]byte, maxCommandBytes-5)), frame(nil, 0, []byte("after"))...) {
		in.Write(part)
	}
	var got string
	frames, err := reader{bufio.NewReader(&in)}.message(func(name string, _ []byte) error {
		got = name
		return nil
	})
	if err != nil || got != "PING" || len(frames) != 1 || string(frames[0]) != "after" {
		t.Errorf("command %q, frames %q: %v", got, frames, err)
	}
}

func TestReadyIsParsed(t *testing.T) {
	t.Parallel()
	_, data, err := parseCommand(ready(Router)[1])
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReady(data)
	if err != nil || got["Socket-Type"] != "ROUTER" {
		t.Errorf("%v: %v", got, err)
	}
	for n := 1; n < len(data); n++ {
		if got, err := parseReady(data[:n]); err == nil && len(got) == 2 {
			t.Errorf("%d bytes of %d are %v", n, len(data), got)
		}
	}
}

// Whatever a peer sends, reading ends, and what comes of it is within the limits.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0, 1, 'x'})
	f.Add([]byte{flagMore, 0, flagLong, 0, 0, 0, 0, 0, 0, 0, 1, 'x'})
	f.Add(append([]byte{flagCommand, 6}, "\x04PING\x00"...))
	f.Add([]byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte(strings.Repeat("\x01\x00", MaxFrames+1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := reader{bufio.NewReader(bytes.NewReader(data))}
		for {
			frames, err := in.message(func(name string, data []byte) error {
				_, _ = parseReady(data)
				if len(name)+len(data) > maxCommandBytes {
					t.Errorf("a command of %d bytes", len(data))
				}
				return nil
			})
			if err != nil {
				return
			}
			if len(frames) > MaxFrames {
				t.Errorf("%d frames", len(frames))
			}
		}
	})
}
