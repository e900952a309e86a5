package execution

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestRichResultsAreBounded(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	large := strings.Repeat("x", c.limits.MaxInlineRich+1)
	png := base64.StdEncoding.EncodeToString([]byte("\x89PNG"))
	testbed.Must(t, c.add(display(1, map[string]string{
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
		testbed.Must(t, c.add(display(seq, huge)))
	}
	if c.stored > maxRichStored || len(c.displays) > 7 || !strings.Contains(strings.Join(c.notes, "\n"), "left out") {
		t.Fatalf("%d bytes of %d displays are stored, notes %q", c.stored, len(c.displays), c.notes)
	}
	for seq := uint64(20); seq < 20+2*maxRichResults; seq++ {
		testbed.Must(t, c.add(display(seq, map[string]string{"text/plain": "z"})))
	}
	testbed.Require(t, len(c.rich) == maxRichResults, "%d results", len(c.rich))
}

// Base64 may have line breaks, indents and a newline at its end.
func TestBase64OfDisplaysIsNormalised(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	testbed.Must(t, c.add(display(1, map[string]string{"image/png": " iVBO\r\n\tRw== \n", "application/json": "{\"a\": 1}\n"})))
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
		testbed.Must(t, c.add(f))
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
		testbed.Must(t, c.add(frame(c.seq+1, agent.FrameDisplay, d)))
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
	testbed.Must(t, c.add(frame(c.seq+1, agent.FrameDisplay, agent.Display{Number: 3, Data: map[string]string{"image/svg+xml": "<svg/>", "text/html": large}})))
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
		testbed.Must(t, c.add(frame(seq, agent.FrameDisplay, agent.Display{Number: number, Data: data})))
	}
	show(1, 1, map[string]string{"text/html": large})
	show(2, 2, map[string]string{"image/png": png, "text/plain": "second"})
	show(3, 3, map[string]string{"text/html": large})
	testbed.Must(t, c.add(frame(4, agent.FrameDisplay, agent.Display{Number: 1, Data: map[string]string{"text/plain": "small"}, Result: true})))
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
			testbed.Must(t, c.add(frame(seq, agent.FrameDisplay, agent.Display{Number: 1, Data: map[string]string{"text/html": strings.Repeat("x", 200<<10)}})))
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
	testbed.Must(t, c.add(display(1, map[string]string{"text/plain": "x", "video/mp4": "AAAA", "text/html": "x", "text/vnd.x": "x"})))
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
		testbed.Must(t, c.add(display(seq, map[string]string{"text/plain": "x"})))
	}
	for i, e := range c.rich {
		testbed.Check(t, e.Display == i, "value %d has number %d", i, e.Display)
	}
}

// cleared is the order of the code to clear its output.
func cleared(seq uint64, wait bool) agent.Frame {
	d := agent.Display{Clear: agent.ClearNow}
	if wait {
		d.Clear = agent.ClearWait
	}
	return frame(seq, agent.FrameDisplay, d)
}

// named is a displayed value with a name.
func named(number int, update bool, text string) agent.Frame {
	return frame(0, agent.FrameDisplay, agent.Display{Number: number, ID: "bar", Update: update, Data: map[string]string{"text/plain": text}})
}

func errput(text string) agent.Frame {
	return agent.Frame{Type: agent.FrameStderr, Payload: []byte(text)}
}

// The result has the values after the last clear, in their last state, and all text.
func TestAClearRemovesValuesFromTheResult(t *testing.T) {
	t.Parallel()
	now, later := cleared(0, false), cleared(0, true)
	for name, c := range map[string]struct {
		frames         []agent.Frame
		stdout, stderr string
		values         []string
		events         string
	}{
		"now":              {[]agent.Frame{out(0, "a"), errput("b"), named(1, false, "1"), now}, "a", "b", nil, "a b 1 clear"},
		"text after":       {[]agent.Frame{out(0, "a"), errput("b"), now, out(0, "c"), errput("d")}, "ac", "bd", nil, "a b clear c d"},
		"value after":      {[]agent.Frame{named(1, false, "1"), now, named(2, false, "2")}, "", "", []string{"1 bar 2"}, "1 clear 2"},
		"wait":             {[]agent.Frame{out(0, "a"), named(1, false, "1"), later}, "a", "", []string{"0 bar 1"}, "a 1 clear(wait)"},
		"wait, then text":  {[]agent.Frame{out(0, "a"), named(1, false, "1"), later, errput("b")}, "a", "b", nil, "a 1 clear(wait) b"},
		"wait, then value": {[]agent.Frame{out(0, "a"), named(1, false, "1"), later, named(2, false, "2")}, "a", "", []string{"1 bar 2"}, "a 1 clear(wait) 2"},
		"update":           {[]agent.Frame{named(1, false, "1"), later, named(1, true, "2")}, "", "", []string{"0 bar 2"}, "1 clear(wait) 2(update)"},
		"update, then text": {
			[]agent.Frame{named(1, false, "1"), later, named(1, true, "2"), out(0, "a")}, "a", "", nil, "1 clear(wait) 2(update) a",
		},
		"update of a cleared value": {
			[]agent.Frame{named(1, false, "1"), now, named(1, true, "2"), named(2, false, "3"), named(2, true, "4")},
			"", "",
			[]string{"1 bar 4"},
			"1 clear 2(update) 3 4(update)",
		},
		"update of an earlier job's value": {[]agent.Frame{out(0, "a"), later, named(1, true, "2")}, "a", "", []string{"0 bar 2"}, "a clear(wait) 2(update)"},
		"half a character":                 {[]agent.Frame{out(0, "\xc3"), now, out(0, "a")}, "\uFFFDa", "", nil, "\uFFFD clear a"},
		"twice":                            {[]agent.Frame{out(0, "a"), later, later, now, out(0, "b"), now}, "ab", "", nil, "a clear(wait) clear(wait) clear b clear"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			col := collectorOf(code(), 0)
			for i, f := range append(c.frames, frame(0, agent.FrameFinal, agent.Outcome{})) {
				f.Seq = uint64(i + 1)
				testbed.Must(t, col.add(f))
			}
			r := col.result().Execute
			var values []string
			for _, v := range r.Rich {
				values = append(values, fmt.Sprintf("%d %s %s", v.Display, v.DisplayID, v.Data))
				testbed.Check(t, !v.Update, "the result says that value %d is an update", v.Display)
			}
			if diff := cmp.Diff(c.values, values); diff != "" || r.Stdout != c.stdout || r.Stderr != c.stderr {
				t.Errorf("stdout %q, stderr %q, values (-want +got):\n%s", r.Stdout, r.Stderr, diff)
			}
			got := describeEvents(col.take())
			testbed.Check(t, got == c.events, "events %q, want %q", got, c.events)
		})
	}
}

// describeEvents describes events, each by a word.
func describeEvents(events []farm.Event) string {
	words := make([]string, len(events))
	for i, e := range events {
		switch {
		case e.Name == farm.EventClear && e.Wait:
			words[i] = "clear(wait)"
		case e.Name == farm.EventClear:
			words[i] = "clear"
		case e.Display != nil && e.Display.Update:
			words[i] = e.Display.Data + "(update)"
		case e.Display != nil:
			words[i] = e.Display.Data
		default:
			words[i] = e.Text
		}
	}
	return strings.Join(words, " ")
}

// An animation costs the result what its last picture costs, whether it updates one value or clears and displays again.
func TestAnAnimationCostsItsLastPicture(t *testing.T) {
	t.Parallel()
	const pictures, inline = 10_000, 2000
	limits := farm.DefaultLimits()
	limits.MaxInlineRich = inline
	for _, clears := range []bool{false, true} {
		for _, size := range []int{inline, inline + 1} {
			c := limited(code(), limits, 0)
			seq, stored, removed, events := uint64(0), 0, 0, 0
			add := func(f agent.Frame) {
				seq++
				f.Seq = seq
				testbed.Must(t, c.add(f))
				stored += len(c.displays)
				removed += len(c.replaced)
				c.displays, c.replaced, c.freed = nil, nil, 0
				for _, e := range c.take() {
					events += len(e.Name) + size0(e)
				}
			}
			text := strings.Repeat("x", size)
			for n := range pictures {
				number := 1
				if clears {
					add(cleared(0, true))
					number = n + 1
				}
				add(frame(0, agent.FrameDisplay, agent.Display{Number: number, ID: "bar", Update: n > 0 && !clears, Data: map[string]string{"text/html": text}}))
			}
			large := size > inline
			if len(c.rich) != 1 || len(c.notes) > 0 || !large && (c.inline != size || c.stored != 0) || large && (c.inline != 0 || c.stored != int64(size) || stored-removed != 1) {
				t.Errorf("clears %v, size %d: %d entries with %d bytes inline and %d stored, %d large values of which %d were removed, notes %q",
					clears, size, len(c.rich), c.inline, c.stored, stored, removed, c.notes)
			}
			testbed.Check(t, events <= maxRichEvents, "clears %v, size %d: %d bytes of events, the limit is %d", clears, size, events, maxRichEvents)
		}
	}
}

// size0 is the number of bytes in an event that a caller made.
func size0(e farm.Event) int {
	if e.Name == farm.EventProgress {
		return 0
	}
	return size(e) - eventExtra
}

// Clears count like displayed values, so code that only clears does not fill the store with events.
func TestEventsOfClearsStopAtTheirCap(t *testing.T) {
	t.Parallel()
	const limit = maxRichEvents / eventExtra
	c := collectorOf(code(), 0)
	clears, notices := 0, 0
	for seq := uint64(1); seq <= limit+100; seq++ {
		testbed.Must(t, c.add(cleared(seq, seq%2 == 0)))
		for _, e := range c.take() {
			if e.Name == farm.EventClear {
				clears++
			} else {
				notices++
			}
		}
	}
	testbed.Check(t, clears == limit && notices == 1, "%d events of clears and %d notices, want %d and 1", clears, notices, limit)
}

func TestNamesOfDisplaysAreBounded(t *testing.T) {
	t.Parallel()
	for length, kept := range map[int]bool{agent.MaxDisplayID - 1: true, agent.MaxDisplayID: true, agent.MaxDisplayID + 1: false} {
		c := collectorOf(code(), 0)
		id := strings.Repeat("n", length)
		testbed.Must(t, c.add(frame(1, agent.FrameDisplay, agent.Display{ID: id, Data: map[string]string{"text/plain": "x"}})))
		got := c.rich[0].DisplayID
		testbed.Check(t, (got == id) == kept && (got == "") != kept, "a name of %d bytes became %q", length, got)
	}
}

func TestMetadataOfDisplaysIsChecked(t *testing.T) {
	t.Parallel()
	long := func(size int) string { return `{"k":"` + strings.Repeat("x", size-len(`{"k":""}`)) + `"}` }
	nested := func(levels int) string {
		return strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1)
	}
	for raw, want := range map[string]string{
		``:                                     "",
		`{}`:                                   "",
		`null`:                                 "",
		`{"image/png": {"width": 640}}`:        `{"image/png":{"width":640}}`,
		`{"b":"<&>","a":12345678901234567890}`: `{"a":12345678901234567890,"b":"<&>"}`,
		`{"a":1,"a":2}`:                        `{"a":2}`,
		"{\"a\":\"\xff\"}":                     `{"a":"` + "\uFFFD" + `"}`,
		`{"a":"\ud800"}`:                       `{"a":"` + "\uFFFD" + `"}`,
		long(maxRichMetadata - 1):              long(maxRichMetadata - 1),
		long(maxRichMetadata):                  long(maxRichMetadata),
		long(maxRichMetadata + 1):              "left out",
		nested(maxMetadataDepth - 1):           nested(maxMetadataDepth - 1),
		nested(maxMetadataDepth):               nested(maxMetadataDepth),
		nested(maxMetadataDepth + 1):           "left out",
		`[1]`:                                  "left out",
		`"text"`:                               "left out",
	} {
		c := collectorOf(code(), 0)
		payload := []byte(`{"number":1,"data":{"text/plain":"x","text/html":"y"}` + strings.Replace(`,"metadata":`+raw, `,"metadata":`, map[bool]string{true: "", false: `,"metadata":`}[raw == ""], 1) + `}`)
		testbed.Must(t, c.add(agent.Frame{Seq: 1, Type: agent.FrameDisplay, Payload: payload}))
		if want == "left out" {
			if len(c.notes) != 1 || !strings.Contains(c.notes[0], "metadata of a displayed value was left out") {
				t.Errorf("%.60s: notes %q", raw, c.notes)
			}
			want = ""
		} else if len(c.notes) > 0 {
			t.Errorf("%.60s: notes %q", raw, c.notes)
		}
		for _, r := range c.rich {
			testbed.Check(t, string(r.Metadata) == want, "%.60s became %s, want %.60s", raw, r.Metadata, want)
		}
		_, err := json.Marshal(c.rich)
		testbed.Check(t, err == nil, "%.60s: %v", raw, err)
	}
}

// An update of a cleared value adds nothing to the result, so that the bound on the result's values does not end its frame: 65,000 types held a
// core for minutes.
func TestTypesOfOneFrameAreBounded(t *testing.T) {
	t.Parallel()
	for _, types := range []int{maxRichResults - 1, maxRichResults, maxRichResults + 1, 65_000} {
		c := collectorOf(code(), 0)
		testbed.Must(t, c.add(display(1, map[string]string{"text/plain": "1"})))
		testbed.Must(t, c.add(cleared(2, false)))
		c.take()
		d := agent.Display{Number: 1, Update: true, Data: map[string]string{}}
		for i := range types {
			d.Data[fmt.Sprintf("text/%d", i)] = ""
		}
		testbed.Must(t, c.add(frame(3, agent.FrameDisplay, d)))
		events := c.take()
		testbed.Check(t, len(events) == min(types, maxRichResults) && len(c.rich) == 0, "%d types: %d events, %d values in the result", types, len(events), len(c.rich))
		for i, e := range events {
			testbed.Check(t, e.ID == fmt.Sprintf("3-%d", i+1) && e.Display.More == (i < len(events)-1), "%d types: event %d is %s, more: %v", types, i, e.ID, e.Display.More)
		}
		noted := len(c.notes) > 0
		testbed.Check(t, noted == (types > maxRichResults), "%d types: notes %q", types, c.notes)
	}
}

// Events without data take memory, too; those that go with the commit are bounded by their text.
func TestEmptyEventsCount(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	seq := uint64(0)
	for c.bytes < publishBytes {
		seq++
		f := errput("x")
		if seq%2 == 0 {
			f = out(0, "x")
		}
		f.Seq = seq
		testbed.Must(t, c.add(f))
	}
	testbed.Check(t, len(c.events) == publishBytes/(eventExtra+1)+1, "%d events of a byte are sent at once", len(c.events))
	for bytes, want := range map[int]bool{store.EndEventBytes - 1: true, store.EndEventBytes: true, store.EndEventBytes + 1: false} {
		c := collectorOf(code(), 0)
		c.outcome = &agent.Outcome{}
		testbed.Must(t, c.add(out(1, strings.Repeat("x", bytes-1))))
		f := errput("x")
		f.Seq = 2
		testbed.Must(t, c.add(f))
		e := &execution{job: &farm.Job{Attempt: 1}, sandbox: &farm.Sandbox{}, collect: c}
		testbed.Check(t, e.endsSoon() == want, "%d bytes go with the commit: %v", bytes, e.endsSoon())
	}
}

// Values of control characters count as streams do: those of the result had 48 MiB as JSON.
func TestControlCharactersOfValuesCountMore(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	const size = maxRichInline / 96 // counts a thirty-second
	text := strings.Repeat("\x01", size)
	for seq := range uint64(32) {
		testbed.Must(t, c.add(display(seq+1, map[string]string{"text/plain": text})))
	}
	last := maxRichInline - 32*costOf(text)
	testbed.Must(t, c.add(display(33, map[string]string{"text/plain": strings.Repeat("x", last-1)})))
	testbed.Must(t, c.add(display(34, map[string]string{"text/plain": "\n"})))
	testbed.Require(t, len(c.displays) == 0 && c.inline == maxRichInline, "%d values are artifacts; those of the result count %d", len(c.displays), c.inline)
	testbed.Must(t, c.add(display(35, map[string]string{"text/plain": "x"})))
	testbed.Check(t, len(c.displays) == 1, "a value is in the result beyond %d bytes", maxRichInline)
	testbed.Must(t, c.add(cleared(36, false)))
	testbed.Check(t, c.inline == 0, "without values the result counts %d bytes of them", c.inline)
}
