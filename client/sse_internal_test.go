package client

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzFrames checks that the parser ends, and returns the same events however the bytes are split.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{"id: 1\nevent: stdout\ndata: {}\n\n", "data:a\r\ndata:b\r\n\r\n", ":\n\n", "data", "id:\x00\ndata:\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, cut := parsed(t, bytes.NewReader(stream)), parsed(t, iotest.OneByteReader(bytes.NewReader(stream)))
		if strings.Join(whole, "\x01") != strings.Join(cut, "\x01") {
			t.Errorf("in one piece %q, byte by byte %q", whole, cut)
		}
	})
}

func parsed(t *testing.T, r io.Reader) []string {
	t.Helper()
	var all []string
	for frames := newFrames(r); ; {
		got, err := frames.next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(got.id, "\n\x00") {
			t.Errorf("id %q", got.id)
		}
		all = append(all, got.id+"|"+got.name+"|"+string(got.data))
	}
}

func TestEventThatNeverEndsIsRefused(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader("data: "), io.LimitReader(letters{}, 2*maxEventBytes))
	if _, err := newFrames(endless).next(); !errors.Is(err, errEventTooLong) {
		t.Errorf("error %v, want %v", err, errEventTooLong)
	}
}

type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
