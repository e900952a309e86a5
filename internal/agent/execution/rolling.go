package execution

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// readerTimeout is how long a writer waits for a reader that does not read, also for one whose worker is gone and that comes back.
	readerTimeout = 10 * time.Second
	// rollingFrames bounds the number of frames of a rolling log: the output of a program that writes single characters.
	rollingFrames = 1 << 14
)

// readers are those of a rolling log, by name.
type readers map[string]*reader

// reader is one reader of a rolling log. It stays known when it does not read, since it may come back over another connection: then what its
// last answer had may be lost on the way, so a frame counts as read when the reader asks for the next one.
type reader struct {
	from    uint64 // the first frame that it asked for last
	late    bool   // a writer has waited for it in vain; it is not waited for until it asks again
	reading int    // answers that are being sent
}

// NewRollingLog creates a log that keeps the last limit bytes. A writer waits for the readers that have begun to read, each at most ten
// seconds; what a reader missed after that is dropped.
func NewRollingLog(limit int) *Log {
	l := NewLog(limit)
	l.rolling, l.readers = true, readers{}
	return l
}

// expected is the name of a reader that has not come yet. No other one has an empty name.
const expected = ""

// Expect says that a reader comes soon: a writer waits for it, from the first frame on, as for one that has begun to read.
func (l *Log) Expect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[expected] = &reader{}
}

// roll adds a frame, and drops the oldest ones that have no place any more, each only when no reader waits for it. The caller holds mu.
func (l *Log) roll(kind agent.FrameType, payload []byte) {
	for !l.ended && l.crowded(len(payload)) {
		if !l.open && l.awaited() {
			l.awaitReaders(len(payload))
			continue
		}
		l.bytes -= len(l.frames[0].Payload)
		l.frames[0].Payload = nil
		l.frames = l.frames[1:]
	}
	if !l.ended {
		l.add(kind, payload)
	}
}

// awaitReaders waits until the readers have got the oldest frame, or until there is room, and gives up those that do not read. The caller holds mu.
func (l *Log) awaitReaders(size int) {
	timer := time.NewTimer(readerTimeout)
	defer timer.Stop()
	for !l.ended && !l.open && l.crowded(size) && l.awaited() {
		changed := l.changed
		l.mu.Unlock()
		timeout := false
		select {
		case <-changed:
		case <-timer.C:
			timeout = true
		}
		l.mu.Lock()
		if timeout {
			l.giveUp()
			return
		}
	}
}

// crowded reports whether a frame with a payload of this size has no place. The caller holds mu.
func (l *Log) crowded(size int) bool {
	return len(l.frames) >= rollingFrames || (l.bytes > 0 && l.bytes+size > l.limit)
}

// awaited reports whether a reader that is not late has not got the oldest frame. The caller holds mu.
func (l *Log) awaited() bool {
	first := l.first()
	for _, r := range l.readers {
		if !r.late && r.from <= first {
			return true
		}
	}
	return false
}

// giveUp marks the readers that were waited for as late. The caller holds mu.
func (l *Log) giveUp() {
	first := l.first()
	for _, r := range l.readers {
		if r.from <= first {
			r.late = true
		}
	}
}

// Enter says that the reader of a name asks for the frames from seq on (0: from the first that is kept), with one answer, which has answered
// when it calls done. From then on a writer waits for it. most bounds the readers; CodeExhausted if there are as many.
func (l *Log) Enter(name string, seq uint64, limit int) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, expected)
	r := l.readers[name]
	if r == nil {
		for other, r := range maps.Clone(l.readers) {
			if len(l.readers) >= limit && r.reading == 0 {
				delete(l.readers, other)
			}
		}
		if len(l.readers) >= limit {
			return nil, farm.Errorf(farm.CodeExhausted, "The process has %d readers, the most that it may have. Close one of them.", limit)
		}
		r = &reader{}
		l.readers[name] = r
	}
	if seq == 0 {
		seq = l.first()
	}
	r.from, r.late = seq, false
	r.reading++
	l.reading++
	l.notify()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		r.reading--
		l.reading--
		l.left = time.Now()
	}, nil
}

// Unread waits until nobody has read for d: no answer was being sent. False: the log has ended before.
func (l *Log) Unread(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-l.final:
			return false
		case <-timer.C:
		}
		l.mu.Lock()
		rest := d - time.Since(l.left)
		if l.reading > 0 {
			rest = d
		}
		l.mu.Unlock()
		if rest <= 0 {
			return true
		}
		timer.Reset(rest)
	}
}

// Part waits for frames from seq on (0: from the beginning) and returns at least one, and the next ones as long as they have at most
// bytes. If some before the first are dropped, a FrameDropped with the number of the last of them goes first. Beyond the end it returns
// the final frame again.
func (l *Log) Part(ctx context.Context, seq uint64, bytes int) ([]agent.Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		first := l.first()
		seq = max(seq, 1)
		var out []agent.Frame
		if seq < first {
			out = []agent.Frame{{Seq: first - 1, Type: agent.FrameDropped, Payload: []byte("{}")}}
			seq = first
		}
		switch {
		case seq <= l.last:
			return append(out, l.batchOf(seq, bytes)...), nil
		case l.ended:
			return append(out, l.batchOf(l.last, bytes)...), nil
		case len(out) > 0:
			return out, nil
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			return nil, ctx.Err()
		}
	}
}

// AnswerBytes and AnswerFrames are how much one answer to a reader may have: so little that a writer never waits for a reader that waits for
// the writer.
func (l *Log) AnswerBytes() int { return min(agent.OutputBytes, l.limit/answerPart) }

// AnswerFrames is the same for the number of frames.
func (l *Log) AnswerFrames() int { return rollingFrames / answerPart }

// answerPart is the part of a rolling log that one answer has at most, beside one frame.
const answerPart = 2

// Leave forgets a reader: no writer waits for it any more.
func (l *Log) Leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, name)
	l.notify()
}

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
