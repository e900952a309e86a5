package execution

import (
	"fmt"

	"github.com/sandfarm/sandfarm/internal/agent"
)

const (
	// tailBytes is how much of a stream's limit is kept for the end of the stream; a quarter of the limit if that is less.
	tailBytes = 1 << 20
	// markerBytes is what the line that stands for dropped output may take.
	markerBytes = 128
)

// streamLimit bounds how much of stdout or stderr leaves the sandbox, all commands of an execution together. What exceeds it is
// dropped from the middle: the head of the stream passes, then only the last bytes of each command are kept, and sent when the
// command ends.
type streamLimit struct {
	kind     agent.FrameType
	limit    int64 // 0: unlimited
	head     int64 // bytes that may still pass
	tail     int64 // bytes left for the ends of commands
	commands int64 // that have not ended; 1 for code
	ring     ring  // the end of the current command
	dropped  int64 // bytes of the current command
}

func newStreamLimit(kind agent.FrameType, limit int64, commands int) *streamLimit {
	s := &streamLimit{kind: kind, limit: limit, commands: int64(max(commands, 1))}
	s.tail = min(tailBytes, limit/4)
	s.head = limit - s.tail
	return s
}

// pass returns what of the next bytes is sent now. It keeps the rest as the end of the stream, and counts what that displaces.
func (s *streamLimit) pass(p []byte) []byte {
	if s.limit == 0 {
		return p
	}
	n := min(int64(len(p)), s.head)
	s.head -= n
	if rest := p[n:]; len(rest) > 0 {
		s.dropped += s.ring.write(rest, int(max(s.share()-markerBytes, 0)))
	}
	return p[:n]
}

// share is what the end of the current command may take, with the marker.
func (s *streamLimit) share() int64 { return s.tail / max(s.commands, 1) }

// end returns what is still to be sent of the current command, and how many of its bytes were dropped before that. The next
// command begins.
func (s *streamLimit) end() (rest []byte, dropped int64) {
	rest, dropped = s.ring.take(), s.dropped
	if dropped > 0 && s.share() >= markerBytes {
		rest = append(s.marker(), rest...)
	}
	s.tail = max(s.tail-int64(len(rest)), 0)
	s.commands--
	s.dropped = 0
	return rest, dropped
}

func (s *streamLimit) marker() []byte {
	name := "stdout"
	if s.kind == agent.FrameStderr {
		name = "stderr"
	}
	return fmt.Appendf(nil, "\n… [%d bytes of %s were dropped here] …\n", s.dropped, name)
}

// ring keeps the last bytes written to it. The zero value is empty.
type ring struct {
	data []byte
	at   int // where the oldest byte is, once data has its full size
}

// write adds bytes and keeps the last size of all. It returns how many were dropped. size is the same until take.
func (r *ring) write(p []byte, size int) (dropped int64) {
	if n := min(size-len(r.data), len(p)); n > 0 {
		r.data = append(r.data, p[:n]...)
		p = p[n:]
	}
	dropped = int64(len(p))
	if size == 0 {
		return dropped
	}
	if over := len(p) - size; over > 0 {
		p = p[over:]
	}
	for len(p) > 0 {
		n := copy(r.data[r.at:], p)
		r.at = (r.at + n) % size
		p = p[n:]
	}
	return dropped
}

// take returns the bytes in order and empties the ring.
func (r *ring) take() []byte {
	out := append(append(make([]byte, 0, len(r.data)), r.data[r.at:]...), r.data[:r.at]...)
	*r = ring{}
	return out
}
