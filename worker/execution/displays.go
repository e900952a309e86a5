package execution

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// largeDisplay is a value that is too large for the record, on its way to the object store.
type largeDisplay struct {
	artifact *farm.Artifact
	data     io.ReadSeeker // of artifact.Size bytes
}

func (c *collector) display(payload []byte) error {
	if c.quiet { // installers display nothing
		return nil
	}
	var d agent.Display
	if budget.Values(payload) > maxFrameValues {
		return fmt.Errorf("read display: it has more than %d values", maxFrameValues)
	}
	if err := json.Unmarshal(payload, &d); err != nil {
		return fmt.Errorf("read display: %w", err)
	}
	if d.Clear != "" {
		c.clear(d.Clear == agent.ClearWait)
		return nil
	}
	number, err := c.displayNumber(d.Number)
	if err != nil {
		return err
	}
	if number >= c.shown { // an update is no new output
		c.clearNow()
		c.shown = number + 1
	}
	value := farm.RichResult{
		Display: number, DisplayID: c.displayID(d.ID), Metadata: c.metadata(d.Metadata), Result: d.Result, Update: d.Update,
	}
	at, first := c.removeRich(number), len(c.events)
	defer func() { joinTypes(c.events[first:]) }()
	for i, mime := range slices.SortedFunc(maps.Keys(d.Data), plainTextLast) {
		if i == maxRichResults || len(c.rich) == maxRichResults { // an update of a cleared value adds nothing to rich
			c.note("More than %d results were displayed; the rest was left out.", maxRichResults)
			return nil
		}
		value.Mime = strings.ToValidUTF8(mime, "\uFFFD")
		if c.addRich(at, value, d.Data[mime]) {
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
		c.release(c.rich[end])
		end++
	}
	c.rich = slices.Delete(c.rich, at, end)
	return at
}

// release gives back the space of an entry that is removed.
func (c *collector) release(entry farm.RichResult) {
	c.giveBack(weight(entry))
	if a := entry.Artifact; a != nil {
		c.stored -= a.Size
		c.freed += farm.StoredBytes(a.Size)
		c.replaced = append(c.replaced, a.Key)
	} else {
		c.inline -= inlineSize(entry)
	}
}

// inlineSize is what a value counts for that is kept in the record: text its cost, anything else its bytes before base64.
func inlineSize(e farm.RichResult) int {
	if strings.HasPrefix(e.Mime, "text/") {
		return costOf(e.Data)
	}
	return base64.StdEncoding.DecodedLen(len(e.Data)) - strings.Count(e.Data[max(0, len(e.Data)-2):], "=")
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
	return number - 1, nil
}

// content is one MIME type of a displayed value.
type content struct {
	size   int           // in bytes
	cost   int           // in the record
	all    io.ReadSeeker // large text is not copied
	inline string        // for the record; only if the size is at most limits.MaxInlineRich
}

// contentOf reads one MIME type of a displayed value: text as it is, anything else is base64 in the record. It reports whether it can be
// read.
func (c *collector) contentOf(mime, value string) (content, bool) {
	switch {
	case len(mime) > maxMime:
		return content{}, false
	case strings.HasPrefix(mime, "text/"):
		return content{len(value), costOf(value), strings.NewReader(value), value}, true
	case textual(mime):
		return content{len(value), len(value), strings.NewReader(value), base64.StdEncoding.EncodeToString([]byte(value[:min(len(value), c.limits.MaxInlineRich)]))}, true
	}
	decoded, err := base64.StdEncoding.DecodeString(unspaced(value))
	if err != nil {
		c.note("A result of type %q was not base64 and was left out.", mime)
		return content{}, false
	}
	return content{len(decoded), len(decoded), bytes.NewReader(decoded), base64.StdEncoding.EncodeToString(decoded[:min(len(decoded), c.limits.MaxInlineRich)])}, true
}

// addRich keeps one MIME type of a displayed value, which entry describes, as entry number at; a large one in S3. An update of a value that
// was cleared is an event only. It reports whether the record has one more entry.
func (c *collector) addRich(at int, entry farm.RichResult, value string) bool {
	v, ok := c.contentOf(entry.Mime, value)
	if !ok {
		return false
	}
	cleared := entry.Display < c.cleared
	inline := entry
	inline.Data = v.inline
	switch {
	case v.size <= c.limits.MaxInlineRich && (cleared || c.inline+v.cost <= maxRichInline && c.charge(weight(inline))):
		entry = inline
		if !cleared {
			c.inline += v.cost
		}
	case cleared:
		return false
	case !c.charge(weight(entry)):
		c.note(noRoomForValues)
		return false
	case !c.addLarge(&entry, v):
		c.giveBack(weight(entry))
		return false
	}
	event := entry
	c.emitRich(&event)
	if entry.Update = false; !cleared { // of events only
		c.rich = slices.Insert(c.rich, at, entry)
	}
	return !cleared
}

// addLarge makes the artifact of an entry whose value belongs in S3, if there is room.
func (c *collector) addLarge(entry *farm.RichResult, v content) bool {
	if c.stored+int64(v.size) > maxRichStored {
		c.note("More than %d MiB of large results were displayed; the rest was left out.", maxRichStored>>20)
		return false
	}
	c.large++
	entry.Artifact = c.artifact(fmt.Sprintf("%sdisplay-%d%s", farm.OutputDir, c.large, extensionOf(entry.Mime)), entry.Mime)
	entry.Artifact.Size = int64(v.size)
	c.stored += entry.Artifact.Size
	c.displays = append(c.displays, largeDisplay{entry.Artifact, v.all})
	return true
}

// joinTypes marks the events of one displayed value, so that a reader knows when it has all types.
func joinTypes(events []farm.Event) {
	var last *farm.RichResult
	for _, e := range events {
		if e.Display == nil {
			continue
		}
		if last != nil {
			last.More = last.Display == e.Display.Display
		}
		last = e.Display
	}
	if last != nil {
		last.More = false
	}
}

// unspaced removes spaces and tabs from base64; its decoder skips line ends.
func unspaced(value string) string {
	if !strings.ContainsAny(value, " \t") {
		return value
	}
	return strings.Join(strings.Fields(value), "")
}

// emitRich queues a displayed value as an event.
func (c *collector) emitRich(entry *farm.RichResult) {
	if c.canSend(len(entry.Data) + len(entry.Metadata) + len(entry.DisplayID)) {
		c.emit(farm.Event{Name: farm.EventDisplay, Display: entry})
	}
}

// canSend reports whether the events of displayed values and of clears may have some bytes more. They have maxRichEvents; then one progress
// event says that the rest is in the result only.
func (c *collector) canSend(bytes int) bool {
	if c.richFull {
		return false
	}
	if c.richSent += bytes + eventExtra; c.richSent <= maxRichEvents {
		return true
	}
	c.richFull = true
	c.emit(farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{
		Message: fmt.Sprintf("Displayed values are longer than %d MiB with their updates: no more of them are sent as events; the result has their last state.", maxRichEvents>>20),
	}})
	return false
}

// textual reports whether Jupyter sends this type as text although it is not text/*.
func textual(mime string) bool {
	return strings.HasSuffix(mime, "json") || mime == "e2b/chart" || mime == "e2b/data" || strings.HasSuffix(mime, "+xml") || mime == "application/javascript" || mime == "application/xml"
}

// storeDisplays uploads the large values of the last frame, and removes those that they replaced.
func (x *Runner) storeDisplays(ctx context.Context, e *execution) error {
	c := e.collect
	displays, replaced := c.displays, c.replaced
	e.storage.release(c.freed)
	c.displays, c.replaced, c.freed = nil, nil, 0
	if len(replaced) > 0 {
		err := x.retry(ctx, func(ctx context.Context) error { return x.blobs.Delete(ctx, replaced...) })
		if err != nil {
			x.log.WarnContext(ctx, "replaced display is left to the lifecycle rules", "job_id", e.job.ID, "error", err)
		}
	}
	for i, d := range displays {
		size := d.artifact.Size
		_, err := x.reserve(ctx, e, farm.StoredBytes(size))
		if errors.Is(err, errStorageFull) {
			c.leaveOut(d)
			continue
		}
		if err != nil {
			c.forget(displays[i:])
			return err
		}
		err = x.retry(ctx, func(ctx context.Context) error {
			if _, err := d.data.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("read value: %w", err)
			}
			return x.put(ctx, d.artifact, d.data, size)
		})
		if err != nil {
			c.forget(displays[i:])
			return fmt.Errorf("store %s: %w", d.artifact.Path, err)
		}
	}
	return nil
}

// leaveOut removes a value that the storage of the tenant has no room for.
func (c *collector) leaveOut(d largeDisplay) {
	c.stored -= d.artifact.Size
	for _, r := range c.rich {
		if r.Artifact == d.artifact {
			c.giveBack(weight(r))
		}
	}
	c.rich = slices.DeleteFunc(c.rich, func(r farm.RichResult) bool { return r.Artifact == d.artifact })
	c.withdraw(d)
	c.note("The storage of your tenant is full (quota max_stored_mb), so a displayed value of %d bytes was left out. Delete artifacts to make room.", d.artifact.Size)
}

// withdraw removes the event of a value that could not be stored. Events are sent after the values of their frame are stored.
func (c *collector) withdraw(d largeDisplay) {
	of := func(e farm.Event) bool { return e.Display != nil && e.Display.Artifact == d.artifact }
	i := slices.IndexFunc(c.events, of)
	if i < 0 {
		return
	}
	if i > 0 && c.events[i-1].Display != nil && !c.events[i].Display.More {
		c.events[i-1].Display.More = false // it is the last one of its value now
	}
	c.bytes -= size(c.events[i])
	c.events = slices.Delete(c.events, i, i+1)
}

// forget removes the artifacts of values that could not be stored.
func (c *collector) forget(displays []largeDisplay) {
	for _, d := range displays {
		c.withdraw(d)
	}
	for i := range c.rich {
		if slices.ContainsFunc(displays, func(d largeDisplay) bool { return d.artifact == c.rich[i].Artifact }) {
			c.rich[i].Artifact = nil
		}
	}
}
