package execution

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds on what an execution may put into its record. The agent is not trusted.
const (
	maxFrameValues  = 1 << 18 // JSON values of a frame
	maxErrorName    = 256
	maxErrorLine    = 64 << 10
	maxTraceLines   = 200
	maxRichResults  = 500      // MIME entries of one execution
	maxMime         = 128      // bytes of a MIME type
	maxRichInline   = 8 << 20  // cost of all inline entries together
	maxRichStored   = 64 << 20 // bytes of all entries in the object store together
	maxRichMetadata = 4 << 10  // bytes of the metadata of one displayed value
	// maxMetadataDepth bounds the levels of metadata: decoders of clients have a limit, above which they read nothing of the answer.
	maxMetadataDepth = 32
	// maxRichEvents bounds the events of displayed values: a value may be updated any number of times, and each update is an event.
	maxRichEvents = 16 << 20
	eventExtra    = 256 // bytes that an event takes beside its text or data
	maxTraceText  = 256 << 10
	// maxTextEvents bounds the events of a stream: each takes eventExtra beside its text, which code can make a byte long.
	maxTextEvents   = 1 << 17
	eventChunkBytes = 64 << 10  // of one event of a stream
	publishBytes    = 256 << 10 // of events that are sent at once, without waiting for more
)

// collector turns the frames of one execution into its result and its events. It gets every frame in order: from the first, or in a
// takeover from the first behind a snapshot. An earlier attempt has sent the events of frames up to published. A field that follows
// from frames belongs into snapshots.
type collector struct {
	job       *farm.Job
	limits    farm.Limits
	room      room // of what is to be uploaded
	request   *farm.Request
	published uint64
	quiet     bool                                          // nothing is sent as events
	artifact  func(path, contentType string) *farm.Artifact // makes records without size and hash

	inMemory kept // of the output, until the result is made

	seq      uint64
	outputs  []*output // one for an execute, one for each started command
	rich     []farm.RichResult
	shown    int   // number of the last displayed value, from 1
	large    int   // large values so far, replaced ones included: the number in their names
	stored   int64 // bytes of large values that were not replaced
	inline   int   // cost of the values in rich
	richSent int   // bytes of the events of displayed values
	richFull bool  // no more of them are sent
	clearing bool  // the output is to be cleared when there is more of it
	apart    bool  // the next text is an event of its own; nothing waits to be sent when a snapshot is made
	cleared  int   // how many of the displayed values came before the last clear
	outcome  *agent.Outcome
	marks    []agent.CommandMark // ends of commands, by position
	notes    []string
	missing  bool  // frames were skipped
	unstored error // why an artifact is missing; the job fails with it

	sent     [2]int              // bytes of stdout and stderr that were queued as events; beyond the limit no more is
	texts    [2]int              // events of stdout and stderr that were queued; beyond maxTextEvents no more are
	skipped  []agent.ChangedFile // files that the storage of the tenant had no room for
	freed    int64               // bytes that are reserved for large values that the last frame replaced
	displays []largeDisplay      // of the last frame, to be stored
	replaced []string            // keys of large values that the last frame replaced
	events   []farm.Event        // to be sent
	tried    int                 // how many of them were sent without an answer; they may be stored, so they never change
	bytes    int                 // of events, as size counts them
	waiting  int64               // of bytes, what is charged since it cannot be sent
	numbered struct {            // the last event that was queued; a takeover sends none of its frame
		seq uint64 // its frame
		n   int    // its number in it, from 1
	}
}

func newCollector(job *farm.Job, request *farm.Request, limits farm.Limits, published uint64, room room) *collector {
	c := &collector{job: job, request: request, limits: limits, published: published, room: room}
	if request.Command == nil {
		c.outputs = []*output{c.newOutput("")}
	}
	return c
}

// close gives back what the collector has charged. It does nothing for nil.
func (c *collector) close() {
	if c == nil {
		return
	}
	c.inMemory.hold.Release()
	c.inMemory, c.waiting = kept{}, 0
	for _, o := range c.outputs {
		for _, s := range o.both() {
			s.unsent.close()
		}
	}
}

// sinkOf returns the stream of a frame; nil when the frame carries no output.
func (c *collector) sinkOf(f agent.Frame) *sink {
	if len(c.outputs) == 0 {
		return nil
	}
	return c.outputs[len(c.outputs)-1].sink(f.Type)
}

// add takes the next frame.
func (c *collector) add(f agent.Frame) error {
	c.seq = f.Seq
	switch f.Type {
	case agent.FrameStdout, agent.FrameStderr:
		if len(f.Payload) == 0 { // what follows is not to be joined with what was before
			c.apart = true
			return nil
		}
		c.clearNow()
		if s := c.sinkOf(f); s != nil {
			c.makeRoom(s, f.Payload)
			s.write(f.Payload)
			c.emitText(s, s.live(f.Payload))
		}
	case agent.FrameDisplay:
		return c.display(f.Payload)
	case agent.FrameCommandStart:
		var mark agent.CommandMark
		if err := json.Unmarshal(f.Payload, &mark); err != nil {
			return fmt.Errorf("read start of a command: %w", err)
		}
		c.fill(mark.Index, mark.Index)
		if c.request.Command == nil || mark.Index != len(c.outputs) || mark.Index >= len(c.request.Command.Commands) {
			return fmt.Errorf("the agent began command %d out of order", mark.Index)
		}
		c.outputs = append(c.outputs, c.newOutput(commandPrefix(mark.Index)))
	case agent.FrameCommandEnd:
		var mark agent.CommandMark
		if err := json.Unmarshal(f.Payload, &mark); err != nil {
			return fmt.Errorf("read end of a command: %w", err)
		}
		c.fill(mark.Index+1, mark.Index)
		if mark.Index != len(c.marks) || mark.Index != len(c.outputs)-1 {
			return fmt.Errorf("the agent ended command %d out of order", mark.Index)
		}
		c.flushCarry()
		c.marks = append(c.marks, mark)
	case agent.FrameDropped:
		return c.drop(f.Payload)
	case agent.FrameFinal:
		outcome, err := readOutcome(f.Payload, c.limits)
		if err != nil {
			return fmt.Errorf("read outcome: %w", err)
		}
		if c.quiet { // of an install before the job's own work, none becomes an artifact
			outcome.Files = nil
		}
		c.flushCarry()
		c.outcome = outcome
	default: // a newer agent may say more
	}
	return nil
}

// skip skips the frames up to a number; they are no longer available.
func (c *collector) skip(seq uint64) {
	c.flushCarry()
	c.seq, c.missing = seq, true
	c.fill(1, 0) // what follows may be output
}

// fill adds the outputs and ends of commands whose marks were among skipped frames. Their exit codes are not known.
func (c *collector) fill(outputs, ends int) {
	if !c.missing || c.request.Command == nil || outputs > len(c.request.Command.Commands) {
		return
	}
	for len(c.outputs) < outputs {
		c.outputs = append(c.outputs, c.newOutput(commandPrefix(len(c.outputs))))
	}
	for len(c.marks) < min(ends, len(c.outputs)) {
		c.marks = append(c.marks, agent.CommandMark{Index: len(c.marks), ExitCode: -1})
	}
}

func (c *collector) flushCarry() {
	if len(c.outputs) == 0 {
		return
	}
	last := c.outputs[len(c.outputs)-1]
	c.emitText(last.stdout, last.stdout.rest())
	c.emitText(last.stderr, last.stderr.rest())
}

// emitText queues text as an event, up to limits.MaxStreamEvents and maxTextEvents for the stream of all commands together; then one progress event
// names the artifact with all that is kept: beyond limits.MaxOutputMB the middle is dropped.
func (c *collector) emitText(s *sink, text string) {
	stream := 0
	if s.name == farm.EventStderr {
		stream = 1
	}
	if text == "" || c.sent[stream] > c.limits.MaxStreamEvents {
		return
	}
	if c.sent[stream] += len(text); c.sent[stream] > c.limits.MaxStreamEvents {
		c.emitEnd(s, fmt.Sprintf("is longer than %d bytes", c.limits.MaxStreamEvents))
		return
	}
	apart := c.apart
	c.apart = false
	if n := len(c.events); !apart && n > c.tried && c.events[n-1].Name == s.name && len(c.events[n-1].Text)+len(text) <= eventChunkBytes {
		if c.seq > c.published {
			c.events[n-1].Text += text
			c.events[n-1].ID = c.nextID()
			c.bytes += len(text)
		}
		return
	}
	if c.seq > c.published {
		c.texts[stream]++
	}
	if c.texts[stream] > maxTextEvents {
		c.sent[stream] = c.limits.MaxStreamEvents + 1
		c.emitEnd(s, fmt.Sprintf("came in more than %d pieces", maxTextEvents))
		return
	}
	c.emit(farm.Event{Name: s.name, Text: text})
}

// emitEnd queues the event that no more of a stream is sent, and why.
func (c *collector) emitEnd(s *sink, why string) {
	c.emit(farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{
		Message: fmt.Sprintf("%s %s: no more of it is sent as events; what is kept of it will be the artifact %s", s.name, why, s.path),
	}})
}

// emit queues an event under the frame's number, unless an earlier attempt has sent it.
func (c *collector) emit(e farm.Event) {
	if c.seq <= c.published || c.quiet {
		return
	}
	e.ID = c.nextID()
	c.events = append(c.events, e)
	c.bytes += size(e)
}

// nextID is the id of the frame's next event.
func (c *collector) nextID() string {
	if c.numbered.seq != c.seq {
		c.numbered.seq, c.numbered.n = c.seq, 0
	}
	c.numbered.n++
	return fmt.Sprintf("%d-%d", c.seq, c.numbered.n)
}

// unsend puts events back that could not be sent. Redis may have stored them all the same: sent again under the same ids, they are skipped.
func (c *collector) unsend(events []farm.Event) {
	c.tried = len(events)
	c.events = append(events, c.events...)
	for _, e := range events {
		c.bytes += size(e)
	}
}

// size is how many bytes an event takes: its text or data, and eventExtra.
func size(e farm.Event) int {
	n := eventExtra + len(e.Text)
	if e.Display != nil {
		n += len(e.Display.Data) + len(e.Display.Metadata)
	}
	return n
}

// chargeEvents charges the events that wait to be sent, beyond publishBytes, and gives back what was charged for others. It reports false, and has
// done nothing, where there is no room for more.
func (c *collector) chargeEvents() bool {
	want := int64(max(c.bytes-publishBytes, 0))
	if want > c.waiting && !c.charge(want-c.waiting) {
		return false
	}
	if want < c.waiting {
		c.giveBack(c.waiting - want)
	}
	c.waiting = want
	return true
}

const eventsDropped = "The object store did not answer, and the worker had no memory for more output that waited for it, so some is missing in the events here: the result has it."

// holdEvents charges events that the object store does not take now. Where there is no room those of output are dropped, and one says so.
func (c *collector) holdEvents() {
	if c.chargeEvents() {
		return
	}
	events, said := c.take(), false
	for _, e := range events {
		if e.Name == farm.EventProgress {
			said = said || e.Progress.Message == eventsDropped
			c.events = append(c.events, e)
			c.bytes += size(e)
		}
	}
	c.note(eventsDropped)
	if !said {
		c.emit(farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: eventsDropped}})
	}
	c.chargeEvents()
}

// take returns the queued events and empties the queue.
func (c *collector) take() []farm.Event {
	events := c.events
	c.events, c.tried, c.bytes = nil, 0, 0
	return events
}

func (c *collector) note(format string, args ...any) {
	text := strings.Map(func(r rune) rune { // one line: what code chose in it must not look like another note
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	if !slices.Contains(c.notes, text) && len(c.notes) < 100 {
		c.notes = append(c.notes, text)
	}
}

// clear takes the order of the code to clear its output: now, or when there is more output. The result then has only the values that came
// later, as in a saved notebook. Text stays in the result: stdout and stderr are a log. The events have everything, with an event at this
// place.
func (c *collector) clear(wait bool) {
	c.flushCarry()
	if c.clearing = true; !wait {
		c.clearNow()
	}
	if c.canSend(0) {
		c.emit(farm.Event{Name: farm.EventClear, Wait: wait})
	}
}

// clearNow removes the values from the result, if there is an order to do so.
func (c *collector) clearNow() {
	if !c.clearing {
		return
	}
	c.clearing, c.cleared = false, c.shown
	for _, entry := range c.rich {
		c.release(entry)
	}
	c.rich = nil
}

// displayID checks the name of a displayed value. The agent leaves out longer ones itself.
func (c *collector) displayID(id string) string {
	if len(id) > agent.MaxDisplayID {
		return ""
	}
	return strings.ToValidUTF8(id, "\uFFFD")
}

// metadata checks the metadata of a displayed value: a JSON object that every client can read.
func (c *collector) metadata(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > maxRichMetadata {
		c.note("The metadata of a displayed value was left out: it has more than %d bytes.", maxRichMetadata)
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || depth(object) > maxMetadataDepth {
		c.note("The metadata of a displayed value was left out: it is no JSON object of at most %d levels.", maxMetadataDepth)
		return nil
	}
	if len(object) == 0 {
		return nil
	}
	text, err := farm.Encode(object) // again, so it is UTF-8, and each key is there once
	if err != nil {
		panic(fmt.Sprintf("encode what was decoded: %v", err))
	}
	return text
}

// depth is how many levels of objects and arrays a value has.
func depth(value any) int {
	deepest := 0
	switch v := value.(type) {
	case map[string]any:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	case []any:
		for _, item := range v {
			deepest = max(deepest, depth(item))
		}
	default:
		return 0
	}
	return deepest + 1
}
