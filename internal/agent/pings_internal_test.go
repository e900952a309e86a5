package agent

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"
)

type quietConn struct{ io.Reader }

func (quietConn) Write(p []byte) (int, error) { return len(p), nil }
func (quietConn) Close() error                { return nil }

// All bytes pass, also those of data that look like pings, until the pings of a second are too many.
func TestPingsAreFew(t *testing.T) {
	t.Parallel()
	ping := []byte{0, muxPingType, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}
	data := append([]byte{0, muxDataType, 0, 0, 0, 0, 0, 1, 0, 0, 0, 240}, bytes.Repeat(ping, 20)...)
	update := []byte{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0}
	for _, c := range []struct {
		name    string
		pings   int
		after   time.Duration // between two pings
		refused bool
	}{
		{"one less", maxPings - 1, 0, false},
		{"as many", maxPings, 0, false},
		{"one more", maxPings + 1, 0, true},
		{"slowly", 10 * maxPings, 101 * time.Millisecond, false},
		{"too fast", 10 * maxPings, 90 * time.Millisecond, true},
	} {
		var sent bytes.Buffer
		for range c.pings {
			sent.Write(data)
			sent.Write(update)
			sent.Write(ping)
		}
		want := bytes.Clone(sent.Bytes())
		for how, conn := range map[string]io.Reader{"whole": bytes.NewReader(want), "bytes": iotest.OneByteReader(bytes.NewReader(want))} {
			now := time.Unix(1_800_000_000, 0)
			p := &fewPings{ReadWriteCloser: quietConn{conn}, now: func() time.Time { now = now.Add(c.after); return now }}
			got, err := io.ReadAll(p)
			if c.refused != errors.Is(err, errPings) || !c.refused && (err != nil || !bytes.Equal(got, want)) {
				t.Errorf("%s, %s: %d bytes, %v", c.name, how, len(got), err)
			}
		}
	}
}
