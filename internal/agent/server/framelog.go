package server

import (
	"context"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// outputFrameBytes is the most that a frame of output carries.
	outputFrameBytes = 64 << 10
	// batchBytes is about how much a reader is handed at once.
	batchBytes = 1 << 20
	// forcedBytes is what a log takes over its limit once its execution is being stopped: what may lie in its pipes, and a last word.
	forcedBytes = 4 << 20
	// keptFrames bounds the frames themselves: of one byte each they take far more memory than their payload.
	keptFrames = 1 << 16
)

// frameLog is the log of one execution: frames from the first unacknowledged one on. A producer blocks while limit bytes are
// unacknowledged, so nothing is dropped and memory stays flat. Any number of readers may follow it.
type frameLog struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever something changes
	frames  []agent.Frame
	last    uint64 // sequence number of the newest frame
	handed  uint64 // newest frame that a reader has seen: it may not grow any more
	bytes   int
	limit   int
	forced  bool
	final   chan struct{} // closed with the final frame
	ended   bool
}

func newFrameLog(limit int) *frameLog {
	return &frameLog{changed: make(chan struct{}), final: make(chan struct{}), limit: limit}
}

// notify wakes all who wait. The caller holds mu.
func (l *frameLog) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// append adds a frame of a copy of the payload; output joins the frame before it when no reader has seen that. It blocks while the log
// is full. In a forced log it never blocks, and drops what is far over the limit.
func (l *frameLog) append(kind agent.FrameType, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes > 0 && (l.bytes+len(payload) > l.limit || len(l.frames) >= keptFrames) && !l.forced && !l.ended {
		changed := l.changed
		l.mu.Unlock()
		<-changed
		l.mu.Lock()
	}
	if l.ended || (l.forced && l.bytes > 0 && (l.bytes+len(payload) > l.limit+forcedBytes || len(l.frames) >= 2*keptFrames)) {
		return
	}
	l.add(kind, payload)
}

func (l *frameLog) add(kind agent.FrameType, payload []byte) {
	l.bytes += len(payload)
	defer l.notify()
	if n := len(l.frames); n > 0 && (kind == agent.FrameStdout || kind == agent.FrameStderr) {
		tail := &l.frames[n-1]
		if tail.Type == kind && tail.Seq > l.handed && len(tail.Payload)+len(payload) <= outputFrameBytes {
			tail.Payload = append(tail.Payload, payload...)
			return
		}
	}
	l.last++
	l.frames = append(l.frames, agent.Frame{Seq: l.last, Type: kind, Payload: append([]byte(nil), payload...)})
}

// end adds the final frame, whatever the limit. Later frames are dropped.
func (l *frameLog) end(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.add(agent.FrameFinal, payload)
	l.ended = true
	close(l.final)
}

// force lets producers go on without room from now on.
func (l *frameLog) force() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced = true
	l.notify()
}

// ack drops frames up to and with seq.
func (l *frameLog) ack(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	drop := 0
	for drop < len(l.frames) && l.frames[drop].Seq <= seq {
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

// next waits for frames from seq on and gives some. Frames that are gone are a conflict.
func (l *frameLog) next(ctx context.Context, seq uint64) ([]agent.Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if seq < l.first() || seq == 0 {
			return nil, farm.Conflictf("Frames before %d have been acknowledged and are gone.", l.first())
		}
		if seq <= l.last {
			return l.batch(seq), nil
		}
		if l.ended {
			return nil, farm.Invalidf("The execution has ended with frame %d.", l.last)
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

// batch copies the heads of frames from seq on; their payloads do not change any more. The caller holds mu.
func (l *frameLog) batch(seq uint64) []agent.Frame {
	from := int(seq - l.first()) //nolint:gosec // both are within frames
	size, to := 0, from
	for to < len(l.frames) && (to == from || size+len(l.frames[to].Payload) <= batchBytes) {
		size += len(l.frames[to].Payload)
		to++
	}
	l.handed = max(l.handed, l.frames[to-1].Seq)
	return append([]agent.Frame(nil), l.frames[from:to]...)
}

// first is the first frame still kept, or the next one to come. The caller holds mu.
func (l *frameLog) first() uint64 {
	if len(l.frames) > 0 {
		return l.frames[0].Seq
	}
	return l.last + 1
}

// state gives the bounds of the log and the bytes in it.
func (l *frameLog) state() (first, last uint64, bytes int, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first(), l.last, l.bytes, l.ended
}
