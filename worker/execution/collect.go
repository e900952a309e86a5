package execution

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Bounds on what an execution may put into its record. The agent is not trusted.
const (
	maxErrorName   = 256
	maxErrorText   = 64 << 10
	maxTraceLines  = 200
	maxRichResults = 500      // MIME entries of one execution
	maxRichInline  = 8 << 20  // bytes of all inline entries together
	maxRichPending = 64 << 20 // bytes of all entries for the object store together, which wait in memory
	// maxRichEvents bounds the events of displayed values: a value may be updated any number of times, and each update is an event.
	maxRichEvents   = 16 << 20
	richEventExtra  = 256 // bytes that an event takes beside its data
	maxTraceText    = 256 << 10
	eventChunkBytes = 64 << 10
)

// collector turns the frames of one execution into its result and its events. It gets every frame from the first, in order, also in
// a takeover; an earlier attempt has sent the events of frames up to published.
type collector struct {
	job       *farm.Job
	limits    farm.Limits
	request   *farm.Request
	published uint64

	seq      uint64
	outputs  []*output // one for an execute, one for each started command
	rich     []farm.RichResult
	shown    int              // number of the last displayed value, from 1
	large    int              // large values so far, replaced ones included: the number in their names
	displays []pendingDisplay // too large for the record, to be uploaded
	inline   int              // bytes of rich
	richSent int              // bytes of the events of displayed values
	richFull bool             // no more of them are sent
	pending  int              // bytes of displays
	outcome  *agent.Outcome
	marks    []agent.CommandMark // ends of commands, by position
	notes    []string

	events []farm.Event // to be sent
	bytes  int          // text in events
}

// output is the pair of streams of an execute or of one command.
type output struct {
	prefix         string // of the names of its artifacts
	stdout, stderr *sink
}

// sink is a stream whose whole is an artifact when it is longer than the record takes.
type sink struct {
	*stream
	name    farm.EventName
	path    string // of the artifact
	sent    int    // bytes sent as events
	stopped bool
}

// text returns the stream for the record.
func (s *sink) text() string { return s.stream.text("the whole output is the artifact " + s.path) }

// pendingDisplay is a rich result that goes to the object store. index is its place in rich.
type pendingDisplay struct {
	index int
	path  string
	mime  string
	data  []byte
}

func newCollector(job *farm.Job, request *farm.Request, limits farm.Limits, published uint64) *collector {
	c := &collector{job: job, request: request, limits: limits, published: published}
	if request.Command == nil {
		c.outputs = []*output{c.newOutput("")}
	}
	return c
}

// outputDir begins the paths of artifacts that are not files of the workspace: whole outputs and large displays.
const outputDir = ".output/"

func (c *collector) newOutput(prefix string) *output {
	return &output{
		prefix: prefix,
		stdout: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStdout, path: outputDir + prefix + "stdout.txt"},
		stderr: &sink{stream: newStream(c.limits.MaxStreamInline), name: farm.EventStderr, path: outputDir + prefix + "stderr.txt"},
	}
}

// sinkOf returns the stream of a frame; nil when the frame carries no output.
func (c *collector) sinkOf(f agent.Frame) *sink {
	if len(c.outputs) == 0 {
		return nil
	}
	last := c.outputs[len(c.outputs)-1]
	switch f.Type {
	case agent.FrameStdout:
		return last.stdout
	case agent.FrameStderr:
		return last.stderr
	default:
		return nil
	}
}

// add takes the next frame.
func (c *collector) add(f agent.Frame) error {
	c.seq = f.Seq
	switch f.Type {
	case agent.FrameStdout, agent.FrameStderr:
		if s := c.sinkOf(f); s != nil {
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
		if c.request.Command == nil || mark.Index != len(c.outputs) || mark.Index >= len(c.request.Command.Commands) {
			return fmt.Errorf("the agent began command %d out of order", mark.Index)
		}
		c.outputs = append(c.outputs, c.newOutput(fmt.Sprintf("%d-", mark.Index+1)))
	case agent.FrameCommandEnd:
		var mark agent.CommandMark
		if err := json.Unmarshal(f.Payload, &mark); err != nil {
			return fmt.Errorf("read end of a command: %w", err)
		}
		if mark.Index != len(c.marks) || mark.Index != len(c.outputs)-1 {
			return fmt.Errorf("the agent ended command %d out of order", mark.Index)
		}
		c.flushCarry()
		c.marks = append(c.marks, mark)
	case agent.FrameFinal:
		outcome, err := readOutcome(f.Payload)
		if err != nil {
			return fmt.Errorf("read outcome: %w", err)
		}
		c.flushCarry()
		c.outcome = outcome
	default: // a newer agent may say more
	}
	return nil
}

func (c *collector) flushCarry() {
	if len(c.outputs) == 0 {
		return
	}
	last := c.outputs[len(c.outputs)-1]
	c.emitText(last.stdout, last.stdout.rest())
	c.emitText(last.stderr, last.stderr.rest())
}

// emitText queues text as an event, up to limits.MaxStreamEvents; then one progress event names the artifact with the whole.
func (c *collector) emitText(s *sink, text string) {
	if text == "" || s.stopped {
		return
	}
	if s.sent+len(text) > c.limits.MaxStreamEvents {
		s.stopped = true
		c.emit(farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{
			Message: fmt.Sprintf("%s is longer than %d bytes: no more of it is sent as events; the whole will be the artifact %s", s.name, c.limits.MaxStreamEvents, s.path),
		}})
		return
	}
	s.sent += len(text)
	if n := len(c.events); n > 0 && c.events[n-1].Name == s.name && len(c.events[n-1].Text)+len(text) <= eventChunkBytes {
		if c.seq > c.published {
			c.events[n-1].Text += text
			c.events[n-1].ID = fmt.Sprintf("%d-1", c.seq)
			c.bytes += len(text)
		}
		return
	}
	c.emit(farm.Event{Name: s.name, Text: text})
}

// emit queues an event under the frame's number, unless an earlier attempt has sent it.
func (c *collector) emit(e farm.Event) {
	if c.seq <= c.published {
		return
	}
	n := 1
	for i := len(c.events) - 1; i >= 0 && strings.HasPrefix(c.events[i].ID, fmt.Sprintf("%d-", c.seq)); i-- {
		n++
	}
	e.ID = fmt.Sprintf("%d-%d", c.seq, n)
	c.events = append(c.events, e)
	c.bytes += size(e)
}

// unsend puts events back that could not be sent.
func (c *collector) unsend(events []farm.Event) {
	c.events = append(events, c.events...)
	for _, e := range events {
		c.bytes += size(e)
	}
}

// size is how many bytes of text and data an event has.
func size(e farm.Event) int {
	n := len(e.Text)
	if e.Display != nil {
		n += len(e.Display.Data)
	}
	return n
}

// take returns the queued events and empties the queue.
func (c *collector) take() []farm.Event {
	events := c.events
	c.events, c.bytes = nil, 0
	return events
}

func (c *collector) display(payload []byte) error {
	var d agent.Display
	if agent.Values(payload) > maxFrameValues {
		return fmt.Errorf("read display: it has more than %d values", maxFrameValues)
	}
	if err := json.Unmarshal(payload, &d); err != nil {
		return fmt.Errorf("read display: %w", err)
	}
	number, err := c.displayNumber(d.Number)
	if err != nil {
		return err
	}
	at := c.removeRich(number)
	for _, mime := range slices.SortedFunc(maps.Keys(d.Data), plainTextLast) {
		if len(c.rich) == maxRichResults {
			c.note("More than %d results were displayed; the rest was left out.", maxRichResults)
			return nil
		}
		if c.addRich(at, number, strings.ToValidUTF8(mime, "\uFFFD"), d.Data[mime]) {
			at++
		}
	}
	return nil
}

// removeRich removes the entries of a displayed value that is about to be updated, and returns their place: the end if
// the value is new.
func (c *collector) removeRich(display int) int {
	ofValue := func(e farm.RichResult) bool { return e.Display == display }
	at := slices.IndexFunc(c.rich, ofValue)
	if at < 0 {
		return len(c.rich)
	}
	end := at
	for end < len(c.rich) && ofValue(c.rich[end]) {
		c.inline -= inlineSize(c.rich[end])
		end++
	}
	c.displays = slices.DeleteFunc(c.displays, func(d pendingDisplay) bool {
		old := d.index >= at && d.index < end
		if old {
			c.pending -= len(d.data)
		}
		return old
	})
	c.rich = slices.Delete(c.rich, at, end)
	c.shiftDisplays(at, at-end)
	return at
}

// inlineSize is the size in bytes of a value that is kept in the record, before base64.
func inlineSize(e farm.RichResult) int {
	if strings.HasPrefix(e.Mime, "text/") {
		return len(e.Data)
	}
	return base64.StdEncoding.DecodedLen(len(e.Data)) - strings.Count(e.Data[max(0, len(e.Data)-2):], "=")
}

// shiftDisplays keeps the places of pending displays right after entries were added or removed at a place in rich.
func (c *collector) shiftDisplays(at, by int) {
	for i := range c.displays {
		if c.displays[i].index >= at {
			c.displays[i].index += by
		}
	}
}

// insertRich puts an entry into rich.
func (c *collector) insertRich(at int, entry farm.RichResult) {
	c.rich = slices.Insert(c.rich, at, entry)
	c.shiftDisplays(at, 1)
}

// plainTextLast orders MIME types by name, with text/plain after all others: readers of the event stream take it as the end of a
// value.
func plainTextLast(a, b string) int {
	const plain = "text/plain"
	switch {
	case a == b:
		return 0
	case a == plain:
		return 1
	case b == plain:
		return -1
	default:
		return strings.Compare(a, b)
	}
}

// displayNumber returns the number of a displayed value, from 0. The agent counts from 1; one that is too old to number its
// values sends 0.
func (c *collector) displayNumber(number int) (int, error) {
	if number == 0 {
		number = c.shown + 1
	}
	if number < 0 || uint64(number) > c.seq { // each value has had a frame, or the note that replaced it
		return 0, fmt.Errorf("read display: frame %d cannot have value number %d", c.seq, number)
	}
	c.shown = max(c.shown, number)
	return number - 1, nil
}

// addRich keeps one MIME type of a displayed value as entry number at: text as it is, anything else base64, large ones in S3.
// It reports whether there was room for it.
func (c *collector) addRich(at, display int, mime, value string) bool {
	if len(mime) > 128 {
		return false
	}
	raw := []byte(value)
	text := strings.HasPrefix(mime, "text/")
	if !text && !textual(mime) {
		decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(value), ""))
		if err != nil {
			c.note("A result of type %s was not base64 and was left out.", mime)
			return false
		}
		raw = decoded
	}
	entry := farm.RichResult{Display: display, Mime: mime}
	if len(raw) > c.limits.MaxInlineRich || c.inline+len(raw) > maxRichInline {
		if c.pending+len(raw) > maxRichPending {
			c.note("More than %d MiB of large results were displayed; the rest was left out.", maxRichPending>>20)
			return false
		}
		c.pending += len(raw)
		c.large++
		c.insertRich(at, entry)
		c.displays = append(c.displays, pendingDisplay{
			index: at, mime: mime, data: raw,
			path: fmt.Sprintf("%sdisplay-%d%s", outputDir, c.large, extensionOf(mime)),
		})
		return true
	}
	c.inline += len(raw)
	entry.Data = string(raw)
	if !text {
		entry.Data = base64.StdEncoding.EncodeToString(raw)
	}
	c.insertRich(at, entry)
	c.emitRich(&entry)
	return true
}

// emitRich queues a displayed value as an event, up to maxRichEvents; then one progress event says that the rest is in the result only.
func (c *collector) emitRich(entry *farm.RichResult) {
	if c.richFull {
		return
	}
	if c.richSent += len(entry.Data) + richEventExtra; c.richSent > maxRichEvents {
		c.richFull = true
		c.emit(farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{
			Message: fmt.Sprintf("Displayed values are longer than %d MiB with their updates: no more of them are sent as events; the result has their last state.", maxRichEvents>>20),
		}})
		return
	}
	c.emit(farm.Event{Name: farm.EventDisplay, Display: entry})
}

// textual reports whether Jupyter sends this type as text although it is not text/*.
func textual(mime string) bool {
	return strings.HasSuffix(mime, "json") || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

func (c *collector) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(c.notes, text) && len(c.notes) < 100 {
		c.notes = append(c.notes, text)
	}
}
