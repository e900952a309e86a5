package execution

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestRichResultsAreBounded(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	large := strings.Repeat("x", c.limits.MaxInlineRich+1)
	png := base64.StdEncoding.EncodeToString([]byte("\x89PNG"))
	workertest.Must(t, c.add(display(1, map[string]string{
		"text/html": large, "image/png": png[:4] + "\n" + png[4:], "image/jpeg": "not base64!", "application/json": `{"a":1}`,
		strings.Repeat("m", 129): "too long a type",
	})))
	if len(c.rich) != 3 || len(c.displays) != 1 || c.rich[2].Artifact != c.displays[0].artifact || c.rich[2].Artifact.Path != ".output/display-1.html" || c.rich[2].Data != "" {
		t.Fatalf("rich %+v, displays %d", c.rich, len(c.displays))
	}
	testbed.Require(t, c.rich[1].Mime == "image/png" && c.rich[1].Data == png, "image %+v", c.rich[1])
	testbed.Require(t, len(c.notes) == 1 && strings.Contains(c.notes[0], "image/jpeg"), "notes %q", c.notes)
	events := c.take()
	for i, want := range []farm.RichResult{
		{Mime: "application/json", Data: c.rich[0].Data, More: true}, {Mime: "image/png", Data: png, More: true}, {Mime: "text/html", Artifact: c.displays[0].artifact},
	} {
		testbed.Diff(t, fmt.Sprintf("event %d", i), want, *events[i].Display)
	}
	huge := map[string]string{"text/plain": strings.Repeat("y", 10<<20)}
	for seq := uint64(2); seq < 20; seq++ {
		workertest.Must(t, c.add(display(seq, huge)))
	}
	if c.stored > maxRichStored || len(c.displays) > 7 || !strings.Contains(strings.Join(c.notes, "\n"), "left out") {
		t.Fatalf("%d bytes of %d displays are stored, notes %q", c.stored, len(c.displays), c.notes)
	}
	for seq := uint64(20); seq < 20+2*maxRichResults; seq++ {
		workertest.Must(t, c.add(display(seq, map[string]string{"text/plain": "z"})))
	}
	testbed.Require(t, len(c.rich) == maxRichResults, "%d results", len(c.rich))
}

// Base64 may have line breaks, indents and a newline at its end.
func TestBase64OfDisplaysIsNormalised(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	workertest.Must(t, c.add(display(1, map[string]string{"image/png": " iVBO\r\n\tRw== \n", "application/json": "{\"a\": 1}\n"})))
	want := []farm.RichResult{{Mime: "application/json", Data: "eyJhIjogMX0K"}, {Mime: "image/png", Data: "iVBORw=="}}
	diff := cmp.Diff(want, c.rich)
	testbed.Check(t, diff == "" && len(c.notes) == 0, "results (-want +got):\n%s\nnotes %q", diff, c.notes)
}

func TestEntriesOfADisplayedValueShareItsNumber(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	both := func(text string) map[string]string { return map[string]string{"text/html": text, "text/plain": text} }
	for _, f := range []agent.Frame{
		frame(1, agent.FrameDisplay, agent.Display{Number: 1, Data: both("a")}),
		frame(2, agent.FrameDisplay, agent.Display{Number: 2, Data: both("b")}),
		frame(3, agent.FrameDisplay, agent.Display{Number: 1, Data: both("a, updated")}),
		out(4, "a note in place of value 3"),
		frame(5, agent.FrameDisplay, agent.Display{Number: 4, Data: both("d")}),
	} {
		workertest.Must(t, c.add(f))
	}
	want := []farm.RichResult{
		{Display: 0, Mime: "text/html", Data: "a, updated"},
		{Display: 0, Mime: "text/plain", Data: "a, updated"},
		{Display: 1, Mime: "text/html", Data: "b"},
		{Display: 1, Mime: "text/plain", Data: "b"},
		{Display: 3, Mime: "text/html", Data: "d"},
		{Display: 3, Mime: "text/plain", Data: "d"},
	}
	testbed.Diff(t, "results", want, c.rich)
	numbers := []int{0, 0, 1, 1, 0, 0, 3, 3}
	events := 0
	for _, e := range c.take() {
		if e.Name == farm.EventDisplay {
			testbed.Check(t, e.Display.Display == numbers[events], "event %d: display = %d, want %d", events, e.Display.Display, numbers[events])
			events++
		}
	}
	testbed.Check(t, events == len(numbers), "%d events, want %d", events, len(numbers))
	for _, number := range []int{-1, 7} {
		if c.add(frame(6, agent.FrameDisplay, agent.Display{Number: number, Data: both("x")})) == nil {
			t.Errorf("value number %d in frame 6 is accepted", number)
		}
	}
}

// Readers learn from the events alone which types a value has, also if one of them could not be stored.
func TestEventsSayWhenAValueIsComplete(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	large := strings.Repeat("x", c.limits.MaxInlineRich+1)
	type sentDisplay struct {
		Number             int
		Mime               string
		More, Result, Link bool
	}
	read := func() (list []sentDisplay) {
		for _, e := range c.take() {
			list = append(list, sentDisplay{e.Display.Display, e.Display.Mime, e.Display.More, e.Display.Result, e.Display.Artifact != nil})
		}
		return list
	}
	for _, d := range []agent.Display{
		{Number: 1, Data: map[string]string{"text/html": "a", "text/plain": "a"}},
		{Number: 1, Data: map[string]string{"text/html": "b", "text/plain": "b"}, Update: true},
		{Number: 2, Data: map[string]string{"text/html": large, "text/plain": "c"}, Result: true},
	} {
		workertest.Must(t, c.add(frame(c.seq+1, agent.FrameDisplay, d)))
	}
	want := []sentDisplay{
		{0, "text/html", true, false, false},
		{0, "text/plain", false, false, false},
		{0, "text/html", true, false, false},
		{0, "text/plain", false, false, false},
		{1, "text/html", true, true, true},
		{1, "text/plain", false, true, false},
	}
	testbed.Diff(t, "events", want, read())
	c.displays = nil
	workertest.Must(t, c.add(frame(c.seq+1, agent.FrameDisplay, agent.Display{Number: 3, Data: map[string]string{"image/svg+xml": "<svg/>", "text/html": large}})))
	c.leaveOut(c.displays[0])
	testbed.Diff(t, "events of a value of which one type was left out", []sentDisplay{{2, "image/svg+xml", false, false, false}}, read())
}

// An update of a value replaces the earlier value, and releases its bytes.
func TestUpdatedDisplaysReplaceTheirFormerState(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	large := strings.Repeat("x", c.limits.MaxInlineRich+1)
	png := base64.StdEncoding.EncodeToString([]byte("\x89PNG!"))
	show := func(seq uint64, number int, data map[string]string) {
		t.Helper()
		workertest.Must(t, c.add(frame(seq, agent.FrameDisplay, agent.Display{Number: number, Data: data})))
	}
	show(1, 1, map[string]string{"text/html": large})
	show(2, 2, map[string]string{"image/png": png, "text/plain": "second"})
	show(3, 3, map[string]string{"text/html": large})
	workertest.Must(t, c.add(frame(4, agent.FrameDisplay, agent.Display{Number: 1, Data: map[string]string{"text/plain": "small"}, Result: true})))
	show(5, 2, map[string]string{"text/html": large, "text/plain": "still second"})
	want := []farm.RichResult{
		{Display: 0, Mime: "text/plain", Data: "small", Result: true},
		{Display: 1, Mime: "text/html"},
		{Display: 1, Mime: "text/plain", Data: "still second"},
		{Display: 2, Mime: "text/html"},
	}
	testbed.Diff(t, "results", want, c.rich, cmpopts.IgnoreFields(farm.RichResult{}, "Artifact"))
	for i, path := range map[int]string{1: ".output/display-3.html", 3: ".output/display-2.html"} {
		a := c.rich[i].Artifact
		testbed.Check(t, a != nil && a.Path == path && a.Size == int64(len(large)), "entry %d has the artifact %+v, want %s", i, a, path)
	}
	if diff := cmp.Diff([]string{".output/display-1.html"}, c.replaced); diff != "" || c.stored != 2*int64(len(large)) || c.inline != len("small")+len("still second") {
		t.Errorf("%d bytes are stored, %d bytes are inline, replaced (-want +got):\n%s", c.stored, c.inline, diff)
	}
}

// Updates of one value do not fill the record's bounds, so their events have a bound of their own: the store is not trimmed. A worker that
// takes over stops at the same one.
func TestEventsOfUpdatesStopAtTheirCap(t *testing.T) {
	t.Parallel()
	const updates = 500
	for _, published := range []uint64{0, updates - 1} {
		c := collectorOf(code(), published)
		sent, notices := 0, 0
		for seq := uint64(1); seq <= updates; seq++ {
			workertest.Must(t, c.add(frame(seq, agent.FrameDisplay, agent.Display{Number: 1, Data: map[string]string{"text/html": strings.Repeat("x", 200<<10)}})))
			for _, e := range c.take() {
				if sent += size(e); e.Name == farm.EventProgress {
					notices++
				}
			}
		}
		if published == 0 && (sent > maxRichEvents || sent < maxRichEvents/2 || notices != 1) {
			t.Errorf("%d bytes were sent and %d events tell that no more are; want about %d and 1", sent, notices, maxRichEvents)
		}
		testbed.Check(t, published <= 0 || sent == 0 && notices == 0, "after a takeover %d bytes and %d events were sent", sent, notices)
		testbed.Check(t, len(c.rich) == 1, "the result has %d entries, want the last state of the one value", len(c.rich))
	}
}

// Readers of the event stream rely on it: a value is complete with its plain text.
func TestPlainTextIsTheLastFormatOfAValue(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	workertest.Must(t, c.add(display(1, map[string]string{"text/plain": "x", "video/mp4": "AAAA", "text/html": "x", "text/vnd.x": "x"})))
	var mimes []string
	for _, e := range c.rich {
		mimes = append(mimes, e.Mime)
	}
	testbed.Diff(t, "formats", []string{"text/html", "text/vnd.x", "video/mp4", "text/plain"}, mimes)
}

// An agent that is too old to number its values displays each value once.
func TestDisplaysWithoutNumbersAreNumbered(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	for seq := uint64(1); seq <= 3; seq++ {
		workertest.Must(t, c.add(display(seq, map[string]string{"text/plain": "x"})))
	}
	for i, e := range c.rich {
		testbed.Check(t, e.Display == i, "value %d has number %d", i, e.Display)
	}
}
