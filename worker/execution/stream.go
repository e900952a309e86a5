package execution

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// stream keeps one output stream for the record: the whole while it is short, head and tail when it is longer than limit. Bytes go
// in; text comes out, with U+FFFD for what is not UTF-8. Use newStream to make one.
type stream struct {
	limit int   // of the cost of what is kept inline
	total int64 // bytes seen
	cost  int64 // of the bytes seen, up to those that exceeded the limit
	head  []byte
	tail  []byte // ring of the last limit/2 bytes once the head is full
	at    int    // next write position in the ring
	full  bool   // the ring has wrapped
	carry []byte // the first bytes of a rune whose rest has not arrived, for events
}

func newStream(limit int) *stream { return &stream{limit: limit} }

// controlCost is what a control character counts for that JSON writes as six bytes.
const controlCost = 3

// cost is what a byte counts for against the bounds of output and values in the record. JSON is about twice as long as a bound at most; ordinary
// text counts its bytes.
func cost(c byte) int {
	switch {
	case c >= ' ', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
		return 1
	default:
		return controlCost
	}
}

// costOf is the cost of a text.
func costOf[T ~string | ~[]byte](text T) int {
	n := 0
	for i := range len(text) {
		n += cost(text[i])
	}
	return n
}

// fitting is how many of the first bytes cost at most limit together.
func fitting(p []byte, limit int) int {
	for i, c := range p {
		if limit -= cost(c); limit < 0 {
			return i
		}
	}
	return len(p)
}

// write adds bytes. It reports whether the stream outgrew its limit with these bytes, and then gives all bytes before them.
func (s *stream) write(p []byte) (before []byte, outgrew bool) {
	was := s.truncated()
	s.total += int64(len(p))
	if !was {
		s.cost += int64(costOf(p))
	}
	switch {
	case !s.truncated():
		s.head = append(s.head, p...)
		return nil, false
	case !was:
		before = s.head
		s.split(before, p)
		return before, true
	default:
		s.ring(p)
		return nil, false
	}
}

// split makes head and tail of all bytes: those that the stream has whole, and p.
func (s *stream) split(whole, p []byte) {
	half := s.limit / 2
	s.tail, s.at, s.full = make([]byte, s.limit-half), 0, false
	n, more := fitting(whole, half), 0 // of whole and of p, what belongs to the head
	if n == len(whole) {
		more = fitting(p, half-costOf(whole))
	}
	s.head = slices.Concat(whole[:n], p[:more])
	s.ring(whole[n:])
	s.ring(p[more:])
}

// cut lowers the limit. It returns all bytes of a stream that was whole and is longer.
func (s *stream) cut(limit int) (whole []byte) {
	was := s.truncated()
	s.limit = min(s.limit, limit)
	switch {
	case !s.truncated():
		return nil
	case !was:
		whole = s.head
		s.split(whole, nil)
		return whole
	default:
		tail := s.last()
		s.split(s.head[:fitting(s.head, s.limit/2)], nil)
		s.ring(tail)
		return nil
	}
}

// last is the tail in order, as far as it costs no more than its part of the limit.
func (s *stream) last() []byte {
	tail := s.tail[:s.at]
	if s.full {
		tail = slices.Concat(s.tail[s.at:], tail)
	}
	left, from := len(s.tail), len(tail)
	for from > 0 && left >= cost(tail[from-1]) {
		from--
		left -= cost(tail[from])
	}
	return tail[from:]
}

func (s *stream) ring(p []byte) {
	if len(p) >= len(s.tail) {
		copy(s.tail, p[len(p)-len(s.tail):])
		s.at, s.full = 0, true
		return
	}
	n := copy(s.tail[s.at:], p)
	if n < len(p) {
		copy(s.tail, p[n:])
		s.full = true
	}
	next := s.at + len(p)
	if next >= len(s.tail) {
		s.full = true
		next -= len(s.tail)
	}
	s.at = next
}

// truncated reports whether text leaves something out.
func (s *stream) truncated() bool { return s.cost > int64(s.limit) }

// text returns the stream as text: whole, or head and tail around a line that says how much is missing, and where it is.
func (s *stream) text(where string) string {
	if !s.truncated() {
		return strings.ToValidUTF8(string(s.head), "\uFFFD")
	}
	head := trimBrokenEnd(s.head)
	tail := trimBrokenStart(s.last())
	left := s.total - int64(len(head)) - int64(len(tail))
	return strings.ToValidUTF8(string(head), "\uFFFD") +
		fmt.Sprintf("\n… [%d bytes left out here; %s] …\n", left, where) +
		strings.ToValidUTF8(string(tail), "\uFFFD")
}

// live turns the next bytes into text for an event. An incomplete rune at the end waits for its rest.
func (s *stream) live(p []byte) string {
	if len(s.carry) > 0 {
		p = append(s.carry, p...)
		s.carry = nil
	}
	if whole := trimBrokenEnd(p); len(whole) < len(p) {
		s.carry = bytes.Clone(p[len(whole):])
		p = whole
	}
	return strings.ToValidUTF8(string(p), "\uFFFD")
}

// rest returns what live kept back, at the end of the stream.
func (s *stream) rest() string {
	text := strings.ToValidUTF8(string(s.carry), "\uFFFD")
	s.carry = nil
	return text
}

// trimBrokenEnd removes an incomplete rune at the end of p.
func trimBrokenEnd(p []byte) []byte {
	for back := 1; back < utf8.UTFMax && back <= len(p); back++ {
		b := p[len(p)-back]
		if utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-back:]) {
				return p[:len(p)-back]
			}
			break
		}
	}
	return p
}

// trimBrokenStart removes the rest of a rune at the start of p.
func trimBrokenStart(p []byte) []byte {
	for n := 0; n < utf8.UTFMax && n < len(p); n++ {
		if utf8.RuneStart(p[n]) {
			return p[n:]
		}
	}
	return p
}

// maxOutput is the limit of each of stdout and stderr of a job in bytes.
func maxOutput(l farm.Limits) int64 { return int64(l.MaxOutputMB) << 20 }

// cut shortens a frame of output to what the limit leaves of its stream, and counts the rest as dropped. The agent keeps to the limit
// itself, unless it is older, or began under a higher limit, or code has taken it over.
func (c *collector) cut(f agent.Frame) agent.Frame {
	s := c.sinkOf(f)
	if s == nil {
		return f
	}
	left := maxOutput(c.limits)
	for _, o := range c.outputs {
		left -= o.sink(f.Type).total
	}
	if left = max(left, 0); int64(len(f.Payload)) > left {
		s.dropped += int64(len(f.Payload)) - left
		f.Payload = f.Payload[:left]
	}
	return f
}

// sink returns the stream of a frame; nil if the frame carries no output.
func (o *output) sink(kind agent.FrameType) *sink {
	switch kind {
	case agent.FrameStdout:
		return o.stdout
	case agent.FrameStderr:
		return o.stderr
	default:
		return nil
	}
}

// maxDropped bounds the bytes that the agent says it has dropped of one stream: sums of them fit into their type.
const maxDropped = 1 << 50

// drop counts what the agent has dropped of the current streams.
func (c *collector) drop(payload []byte) error {
	var d agent.Dropped
	if err := json.Unmarshal(payload, &d); err != nil {
		return fmt.Errorf("%w: read number of dropped bytes: %w", ErrProtocol, err)
	}
	if d.Stdout < 0 || d.Stderr < 0 {
		return fmt.Errorf("%w: %d and %d bytes were dropped", ErrProtocol, d.Stdout, d.Stderr)
	}
	if len(c.outputs) > 0 {
		last := c.outputs[len(c.outputs)-1]
		last.stdout.dropped = min(last.stdout.dropped+min(d.Stdout, maxDropped), maxDropped)
		last.stderr.dropped = min(last.stderr.dropped+min(d.Stderr, maxDropped), maxDropped)
	}
	return nil
}

// truncated says of which streams the record lacks a part.
func (o *output) truncated() farm.Truncated {
	return farm.Truncated{Stdout: o.stdout.truncated(), Stderr: o.stderr.truncated()}
}

// dropped says how much of each stream is kept nowhere.
func (o *output) dropped() farm.Dropped {
	return farm.Dropped{Stdout: o.stdout.dropped, Stderr: o.stderr.dropped}
}

// noteDropped tells the caller how much was dropped of all outputs together.
func (c *collector) noteDropped() {
	var all farm.Dropped
	for _, o := range c.outputs {
		all.Stdout += o.stdout.dropped
		all.Stderr += o.stderr.dropped
	}
	c.noteDroppedOf("stdout", all.Stdout)
	c.noteDroppedOf("stderr", all.Stderr)
}

func (c *collector) noteDroppedOf(name string, bytes int64) {
	if bytes > 0 {
		c.note("%d bytes of %s were dropped from its middle: a job keeps %d MiB of each stream (limits.max_output_mb). Write long output to a file.", bytes, name, c.limits.MaxOutputMB)
	}
}

// outputLimitSentence says why code or commands were stopped; what begins the sentence.
func outputLimitSentence(what string, l farm.Limits) string {
	return fmt.Sprintf("%s stopped because stdout or stderr exceeded %d MiB (limits.max_output_mb) and on_output_limit is \"stop\". "+
		"Print less, write long output to a file, or send on_output_limit \"continue\".", what, l.MaxOutputMB)
}

const (
	// readAhead is how many frames of an execution may wait in memory, if the worker has memory for them.
	readAhead = 32
	// valueWeight is how often a displayed value is in memory while it is handled: as it came, decoded, and on its way to the object store.
	valueWeight = 3
)

// frameReader reads frames ahead while earlier ones are handled. What it holds is charged to the worker's memory budget. A frame of
// ordinary size is read ahead only if there is memory for it; otherwise it is read once all earlier ones are handled, so a busy
// worker does not delay anyone's short output. A larger one waits for its turn.
type frameReader struct {
	frames chan frameItem
	cancel context.CancelFunc
	source frameSource
	done   chan struct{}

	memory  *budget.Budget
	tenant  string
	next    *budget.Hold  // of the frame that is being read
	ahead   atomic.Int64  // frames that are not handled yet
	drained chan struct{} // has a value when ahead may have become 0
}

// frameSource gives the frames of an execution. It calls admit with the size of each payload before it allocates it.
type frameSource interface {
	NextAdmitted(admit func(bytes int) error) (agent.Frame, error)
	Close() error
}

type frameItem struct {
	frame agent.Frame
	err   error
	hold  *budget.Hold
}

func newFrameReader(ctx context.Context, source frameSource, memory *budget.Budget, tenant string) *frameReader {
	ctx, cancel := context.WithCancel(ctx)
	r := &frameReader{
		frames: make(chan frameItem, readAhead), cancel: cancel, source: source, done: make(chan struct{}),
		memory: memory, tenant: tenant, drained: make(chan struct{}, 1),
	}
	go r.run(ctx)
	return r
}

func (r *frameReader) run(ctx context.Context) {
	defer close(r.done)
	defer close(r.frames)
	for {
		f, err := r.source.NextAdmitted(func(bytes int) error { return r.admit(ctx, int64(bytes)) })
		item := frameItem{frame: f, err: err, hold: r.next}
		r.next = nil
		if err != nil {
			item.hold.Release()
		}
		r.ahead.Add(1)
		select {
		case r.frames <- item:
		case <-ctx.Done():
			item.hold.Release()
			return
		}
		if err != nil || f.Type == agent.FrameFinal {
			return
		}
	}
}

// admit waits until a payload may be read.
func (r *frameReader) admit(ctx context.Context, bytes int64) (err error) {
	if bytes > budget.SmallBytes {
		r.next, err = r.memory.Acquire(ctx, r.tenant, bytes*valueWeight)
		return err
	}
	var ok bool
	if r.next, ok = r.memory.TryAcquire(r.tenant, bytes); ok {
		return nil
	}
	for r.ahead.Load() > 0 {
		select {
		case <-r.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// handled gives back the memory of a frame.
func (r *frameReader) handled(item frameItem) {
	item.hold.Release()
	if r.ahead.Add(-1) > 0 {
		return
	}
	select {
	case r.drained <- struct{}{}:
	default:
	}
}

func (r *frameReader) stop() {
	r.cancel()
	_ = r.source.Close()
	<-r.done
	for item := range r.frames {
		item.hold.Release()
	}
}
