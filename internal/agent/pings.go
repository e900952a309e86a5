package agent

import (
	"encoding/binary"
	"errors"
	"io"
	"time"
)

// maxPings is how many pings an agent may send in a second. It sends one in 30 seconds.
const maxPings = 10

// muxPingType is the type of yamux's pings.
const muxPingType = 2

var errPings = errors.New("the agent sent too many pings")

// FewPings returns a stream of yamux that breaks when the agent sends more than maxPings in a second: yamux starts a goroutine for each, and keeps it
// until the answer is written. Only one goroutine may read, as yamux does.
func FewPings(stream io.ReadWriteCloser) io.ReadWriteCloser {
	return &fewPings{ReadWriteCloser: stream, now: time.Now}
}

type fewPings struct {
	io.ReadWriteCloser
	now func() time.Time

	header [muxHeader]byte
	have   int    // bytes of the header
	data   uint32 // bytes that follow it
	pings  int    // since
	since  time.Time
}

// Read implements io.Reader.
func (p *fewPings) Read(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if p.data > 0 {
			skip := min(uint64(p.data), uint64(len(rest)))
			p.data -= uint32(skip) //nolint:gosec // at most p.data
			rest = rest[skip:]
			continue
		}
		took := copy(p.header[p.have:], rest)
		rest, p.have = rest[took:], p.have+took
		if p.have == muxHeader && !p.frame() {
			return 0, errPings
		}
	}
	return n, err
}

// frame looks at a header that is complete. It returns false at one ping too many.
func (p *fewPings) frame() bool {
	p.have = 0
	switch p.header[1] {
	case muxDataType:
		p.data = binary.BigEndian.Uint32(p.header[muxLength:])
	case muxPingType:
		if now := p.now(); now.Sub(p.since) >= time.Second {
			p.pings, p.since = 0, now
		}
		p.pings++
	}
	return p.pings <= maxPings
}
