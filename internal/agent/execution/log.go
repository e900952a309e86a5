package execution

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxOutputFrame bounds the payload of a frame of output.
	MaxOutputFrame = 64 << 10
	// batchBytes is about how many bytes Next returns at once.
	batchBytes = 1 << 20
	// unblockedBytes is how much an unblocked log accepts beyond its limit: what may be in the pipes, and a last message.
	unblockedBytes = 4 << 20
	// keptFrames bounds the number of frames: a frame of one byte takes far more memory than its payload.
	keptFrames = 1 << 16
)

// Log is the log of one execution. It keeps unacknowledged frames, and the final frame always. A writer blocks while it is full, so
// nothing is dropped and memory stays bounded. Any number of readers may follow it.
type Log struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced on every change
	frames     []agent.Frame
	last       uint64 // sequence number of the newest frame
	lastOutput uint64 // number of the last frame that is not empty
	read       uint64 // newest frame that a reader has seen: it must not change any more
	bytes      int
	limit      int
	open       bool          // Unblock was called
	final      chan struct{} // closed with the final frame
	ended      bool

	rolling bool // it drops the oldest frames instead of waiting for an Ack
	readers readers
	reading int       // answers that are being sent to readers
	left    time.Time // when the last one ended; zero: there was none

	stdout, stderr *streamLimit
	beyond         func() // called at the first byte beyond the limit of a stream; nil: not reported
}

// NewLog creates a log that holds at most limit bytes of unacknowledged payload, and one frame more.
func NewLog(limit int) *Log {
	l := &Log{changed: make(chan struct{}), final: make(chan struct{}), limit: limit}
	l.limitOutput(0, 0, nil)
	return l
}

// EndedLog makes the log of an execution that has ended and of which only the final frame is left.
func EndedLog(last uint64, final []byte) *Log {
	l := NewLog(0)
	l.last, l.bytes, l.ended = last, len(final), true
	l.frames = []agent.Frame{{Seq: last, Type: agent.FrameFinal, Payload: final}}
	close(l.final)
	return l
}

// limitOutput bounds each of stdout and stderr to a number of bytes, all commands together; 0: unlimited. beyond is called once when
// the first byte is dropped for it, with the log locked. It must be called before the first Append.
func (l *Log) limitOutput(bytes int64, commands int, beyond func()) {
	l.stdout = newStreamLimit(agent.FrameStdout, bytes, commands)
	l.stderr = newStreamLimit(agent.FrameStderr, bytes, commands)
	l.beyond = beyond
}

// notify wakes all waiters. The caller holds mu.
func (l *Log) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Append adds a frame with a copy of the payload. It appends output to the previous frame while no reader has seen that one. It blocks
// while the log is full, unless Unblock was called: then it drops frames far beyond the limit. Output beyond the limit of its stream
// never blocks. The end of a command first sends the end of its output.
func (l *Log) Append(kind agent.FrameType, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stream := l.stream(kind)
	if stream != nil {
		if payload = l.pass(stream, payload); len(payload) == 0 {
			return
		}
	}
	if kind == agent.FrameCommandEnd && !l.ended {
		l.endOutput()
	}
	if l.rolling {
		l.roll(kind, payload)
		return
	}
	for l.full(len(payload)) && !l.open && !l.ended {
		changed := l.changed
		l.mu.Unlock()
		<-changed
		l.mu.Lock()
	}
	if l.ended || (l.open && l.bytes > 0 && (l.bytes+len(payload) > l.limit+unblockedBytes || len(l.frames) >= 2*keptFrames)) {
		if stream != nil && stream.limit > 0 {
			stream.dropped += int64(len(payload))
		}
		return
	}
	l.add(kind, payload)
}

// full reports whether a frame with a payload of this size must wait. Readers acknowledge what they have read only when it is much
// (agent.AckBytes), so a frame waits only while the log holds as much: a large one goes beyond the limit. The caller holds mu.
func (l *Log) full(size int) bool {
	return len(l.frames) >= keptFrames || (l.bytes > 0 && l.bytes+size > l.limit && l.bytes >= l.limit*agent.AckBytes/agent.LogBytes)
}

// stream returns the limit of an output frame's stream; nil for other frames. The caller holds mu.
func (l *Log) stream(kind agent.FrameType) *streamLimit {
	switch kind {
	case agent.FrameStdout:
		return l.stdout
	case agent.FrameStderr:
		return l.stderr
	default:
		return nil
	}
}

// pass returns what of a stream's next bytes is sent now. The caller holds mu.
func (l *Log) pass(stream *streamLimit, payload []byte) []byte {
	before := stream.dropped
	payload = stream.pass(payload)
	if stream.dropped > before && l.beyond != nil {
		l.beyond()
		l.beyond = nil
	}
	return payload
}

// endOutput adds what is still to be sent of a command's output, after the number of bytes that were dropped before it. That is
// little, so the log's limit does not apply. The caller holds mu.
func (l *Log) endOutput() {
	var dropped agent.Dropped
	var stdout, stderr []byte
	stdout, dropped.Stdout = l.stdout.end()
	stderr, dropped.Stderr = l.stderr.end()
	if dropped != (agent.Dropped{}) {
		if raw, err := json.Marshal(dropped); err == nil { // cannot fail: plain fields only
			l.add(agent.FrameDropped, raw)
		}
	}
	l.addOutput(agent.FrameStdout, stdout)
	l.addOutput(agent.FrameStderr, stderr)
}

// addOutput adds output in frames of a permitted size. The caller holds mu.
func (l *Log) addOutput(kind agent.FrameType, p []byte) {
	for len(p) > 0 {
		n := min(len(p), MaxOutputFrame)
		l.add(kind, p[:n])
		p = p[n:]
	}
}

func (l *Log) add(kind agent.FrameType, payload []byte) {
	l.bytes += len(payload)
	defer l.notify()
	room := len(payload)
	if n := len(l.frames); n > 0 && (kind == agent.FrameStdout || kind == agent.FrameStderr) {
		tail := &l.frames[n-1]
		if tail.Type == kind && tail.Seq > l.read && len(tail.Payload) > 0 && len(tail.Payload)+len(payload) <= MaxOutputFrame {
			tail.Payload = append(tail.Payload, payload...)
			return
		}
		if tail.Type == kind { // much output comes in small pieces: a frame probably grows as large as the one before, and so is not moved as it grows
			room = max(room, len(tail.Payload))
		}
	}
	l.last++
	l.lastOutput = l.last
	l.frames = append(l.frames, agent.Frame{Seq: l.last, Type: kind, Payload: append(make([]byte, 0, room), payload...)})
}

// Mark separates the output so far from what follows, which readers then do not join: by an empty frame of output. It returns the number of the
// last frame before it that is not empty; 0: none.
func (l *Log) Mark() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastOutput == l.last && l.lastOutput > 0 && !l.rolling && !l.ended && !l.full(0) {
		l.last++
		l.frames = append(l.frames, agent.Frame{Seq: l.last, Type: agent.FrameStdout})
		l.notify()
	}
	return l.lastOutput
}

// End adds the end of the output and the final frame, regardless of the limit. Later frames are dropped.
func (l *Log) End(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.endOutput()
	l.add(agent.FrameFinal, payload)
	l.ended = true
	close(l.final)
}

// Unblock stops Append from blocking.
func (l *Log) Unblock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = true
	l.notify()
}

// Ack drops the frames up to and including seq, but never the final one: whoever attaches later gets the outcome.
func (l *Log) Ack(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	drop := 0
	for drop < len(l.frames) && l.frames[drop].Seq <= seq && l.frames[drop].Type != agent.FrameFinal {
		l.bytes -= len(l.frames[drop].Payload)
		drop++
	}
	if drop == 0 {
		return
	}
	rest := l.frames[drop:]
	l.frames = append(make([]agent.Frame, 0, len(rest)), rest...)
	l.notify()
}

// Next waits for frames from seq on and returns at least one. CodeConflict if they have been dropped. Beyond the end it returns the final
// frame again, any number of times.
func (l *Log) Next(ctx context.Context, seq uint64) ([]agent.Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if seq < l.first() || seq == 0 {
			return nil, farm.Conflictf("Frames before %d have been acknowledged and dropped.", l.first())
		}
		if seq <= l.last {
			return l.batch(seq), nil
		}
		if l.ended {
			return l.batch(l.last), nil
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

// batch returns frames from seq on, whose payloads no longer change. The caller holds mu.
func (l *Log) batch(seq uint64) []agent.Frame { return l.batchOf(seq, batchBytes) }

// batchOf is batch with another number of bytes. The caller holds mu.
func (l *Log) batchOf(seq uint64, limit int) []agent.Frame {
	from := int(seq - l.first()) //nolint:gosec // both are within frames
	size, to := 0, from
	for to < len(l.frames) && (to == from || size+len(l.frames[to].Payload) <= limit) {
		size += len(l.frames[to].Payload)
		to++
	}
	l.read = max(l.read, l.frames[to-1].Seq)
	return append([]agent.Frame(nil), l.frames[from:to]...)
}

// first is the number of the first kept frame, or of the next frame if none is kept. The caller holds mu.
func (l *Log) first() uint64 {
	if len(l.frames) > 0 {
		return l.frames[0].Seq
	}
	return l.last + 1
}

// Final is closed when the final frame is in the log.
func (l *Log) Final() <-chan struct{} { return l.final }

// State returns the numbers of the first kept and the last frame, the number of kept bytes, and whether the final frame is in the log.
func (l *Log) State() (first, last uint64, bytes int, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first(), l.last, l.bytes, l.ended
}
