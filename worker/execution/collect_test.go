package execution

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func out(seq uint64, text string) agent.Frame {
	return agent.Frame{Seq: seq, Type: agent.FrameStdout, Payload: []byte(text)}
}

func frame(seq uint64, kind agent.FrameType, v any) agent.Frame {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return agent.Frame{Seq: seq, Type: kind, Payload: data}
}

func start(seq uint64, index int) agent.Frame {
	return frame(seq, agent.FrameCommandStart, agent.CommandMark{Index: index})
}

func end(seq uint64, index, code int) agent.Frame {
	return frame(seq, agent.FrameCommandEnd, agent.CommandMark{Index: index, ExitCode: code, DurationMS: 5})
}

func display(seq uint64, data map[string]string) agent.Frame {
	return frame(seq, agent.FrameDisplay, agent.Display{Data: data})
}

func code() *farm.Request { return &farm.Request{Execute: &farm.ExecuteRequest{Code: "1"}} }

func collectorOf(r *farm.Request, published uint64) *collector {
	return newCollector(&farm.Job{ID: "job_x"}, r, farm.DefaultLimits(), published)
}

// keep appends events as the store does: it skips an event that is not newer than the last.
func keep(t *testing.T, log, more []farm.Event) []farm.Event {
	t.Helper()
	for _, e := range more {
		if len(log) == 0 || newer(t, e.ID, log[len(log)-1].ID) {
			log = append(log, e)
		}
	}
	return log
}

func newer(t *testing.T, a, b string) bool {
	t.Helper()
	var as, an, bs, bn int
	if _, err := fmt.Sscanf(a+" "+b, "%d-%d %d-%d", &as, &an, &bs, &bn); err != nil {
		t.Fatalf("ids %q and %q: %v", a, b, err)
	}
	return as > bs || as == bs && an > bn
}

func texts(log []farm.Event) (stdout, stderr string, displays int) {
	for _, e := range log {
		switch e.Name {
		case farm.EventStdout:
			stdout += e.Text
		case farm.EventStderr:
			stderr += e.Text
		case farm.EventDisplay:
			displays++
		default:
		}
	}
	return stdout, stderr, displays
}

// Every byte is in one event, whenever another worker takes over.
func TestEventsAreSentOnceOverTakeovers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var frames []agent.Frame
		var stdout, stderr string
		displays := 0
		for seq := uint64(1); seq <= 40; seq++ {
			switch rng.IntN(5) {
			case 0:
				frames = append(frames, agent.Frame{Seq: seq, Type: agent.FrameStderr, Payload: []byte("é")[:1]}, agent.Frame{Seq: seq + 1, Type: agent.FrameStderr, Payload: []byte("é")[1:]})
				seq, stderr = seq+1, stderr+"é"
			case 1:
				frames = append(frames, display(seq, map[string]string{"text/plain": "a", "text/html": "b"}))
				displays += 2
			default:
				text := fmt.Sprintf("<%d>", seq)
				frames = append(frames, out(seq, text))
				stdout += text
			}
		}
		last := frames[len(frames)-1].Seq
		frames = append(frames, out(last+1, "\xe4"), frame(last+2, agent.FrameFinal, agent.Outcome{}))
		stdout += "\uFFFD"

		var log []farm.Event
		for range 3 { // workers one after the other, each from the first frame
			published := uint64(0)
			if len(log) > 0 {
				if _, err := fmt.Sscanf(log[len(log)-1].ID, "%d-", &published); err != nil {
					t.Fatal(err)
				}
			}
			c := collectorOf(code(), published)
			dies := rng.IntN(len(frames))
			for i, f := range frames {
				workertest.Must(t, c.add(f))
				if rng.IntN(3) == 0 {
					log = keep(t, log, c.take())
				}
				if i == dies {
					break
				}
			}
		}
		c := collectorOf(code(), 0)
		if len(log) > 0 {
			_, _ = fmt.Sscanf(log[len(log)-1].ID, "%d-", &c.published)
		}
		for _, f := range frames {
			workertest.Must(t, c.add(f))
		}
		log = keep(t, log, c.take())
		gotOut, gotErr, gotDisplays := texts(log)
		if gotOut != stdout || gotErr != stderr || gotDisplays != displays {
			t.Fatalf("seed %d: stdout %q, want %q; stderr %q, want %q; %d displays, want %d", seed, gotOut, stdout, gotErr, stderr, gotDisplays, displays)
		}
		if r := c.result().Execute; r.Stdout != stdout || r.Stderr != stderr || len(r.Rich) != displays {
			t.Fatalf("seed %d: result %+v", seed, r)
		}
	}
}

func TestCommandsHaveStreamsOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := collectorOf(&farm.Request{Command: &farm.CommandRequest{Commands: []string{"a", "b", "c"}}}, 0)
	for _, f := range []agent.Frame{start(1, 0), out(2, "one"), end(3, 0, 0), start(4, 1), out(5, "two"), end(6, 1, 7), frame(7, agent.FrameFinal, agent.Outcome{ExitCode: 7})} {
		workertest.Must(t, c.add(f))
	}
	want := []farm.CommandOutcome{
		{Command: "a", Stdout: "one", DurationMS: 5}, {Command: "b", Stdout: "two", ExitCode: 7, DurationMS: 5},
	}
	if diff := cmp.Diff(want, c.result().Command.Commands); diff != "" {
		t.Fatal(diff)
	}
}

func TestCollectorRefusesWhatNoAgentSends(t *testing.T) {
	t.Parallel()
	one := &farm.Request{Command: &farm.CommandRequest{Commands: []string{"a"}}}
	for name, frames := range map[string][]agent.Frame{
		"start out of turn":   {start(1, 1)},
		"too many commands":   {start(1, 0), start(2, 1)},
		"end before start":    {end(1, 0, 0)},
		"end twice":           {start(1, 0), end(2, 0, 0), end(3, 0, 0)},
		"end of another":      {start(1, 0), end(2, -1, 0)},
		"broken mark":         {{Seq: 1, Type: agent.FrameCommandStart, Payload: []byte("{")}},
		"broken display":      {{Seq: 1, Type: agent.FrameDisplay, Payload: []byte("[")}},
		"broken outcome":      {{Seq: 1, Type: agent.FrameFinal}},
		"start beyond all":    {start(1, 1<<30)},
		"negative start":      {start(1, -1)},
		"end with an outcome": {{Seq: 1, Type: agent.FrameCommandEnd, Payload: []byte(`{"index":"0"}`)}},
	} {
		c := collectorOf(one, 0)
		var err error
		for _, f := range frames {
			err = c.add(f)
		}
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	c := collectorOf(one, 0)
	if err := c.add(out(1, "of no command")); err != nil || len(c.events) != 0 {
		t.Errorf("output of no command: error %v, events %v", err, c.events)
	}
	if err := collectorOf(code(), 0).add(start(1, 0)); err == nil {
		t.Error("a command of an execute is taken")
	}
}

func TestRichResultsAreBounded(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	large := strings.Repeat("x", c.limits.MaxInlineRich+1)
	png := base64.StdEncoding.EncodeToString([]byte("\x89PNG"))
	workertest.Must(t, c.add(display(1, map[string]string{
		"text/html": large, "image/png": png[:4] + "\n" + png[4:], "image/jpeg": "not base64!", "application/json": `{"a":1}`,
		strings.Repeat("m", 129): "too long a type",
	})))
	if len(c.rich) != 3 || len(c.displays) != 1 || c.displays[0].path != ".output/display-1.html" || c.rich[c.displays[0].index].Data != "" {
		t.Fatalf("rich %d, displays %+v", len(c.rich), c.displays)
	}
	if c.rich[1].Mime != "image/png" || c.rich[1].Data != png {
		t.Fatalf("image %+v", c.rich[1])
	}
	if len(c.notes) != 1 || !strings.Contains(c.notes[0], "image/jpeg") {
		t.Fatalf("notes %q", c.notes)
	}
	huge := map[string]string{"text/plain": strings.Repeat("y", 10<<20)}
	for seq := uint64(2); seq < 20; seq++ {
		workertest.Must(t, c.add(display(seq, huge)))
	}
	if c.pending > maxRichPending || len(c.displays) > 7 || !strings.Contains(strings.Join(c.notes, "\n"), "left out") {
		t.Fatalf("%d bytes of %d displays wait in memory, notes %q", c.pending, len(c.displays), c.notes)
	}
	for seq := uint64(20); seq < 20+2*maxRichResults; seq++ {
		workertest.Must(t, c.add(display(seq, map[string]string{"text/plain": "z"})))
	}
	if len(c.rich) != maxRichResults {
		t.Fatalf("%d results", len(c.rich))
	}
}

// Base64 may have line breaks, indents and a newline at its end.
func TestBase64OfDisplaysIsNormalised(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	workertest.Must(t, c.add(display(1, map[string]string{"image/png": " iVBO\r\n\tRw== \n", "application/json": "{\"a\": 1}\n"})))
	want := []farm.RichResult{{Mime: "application/json", Data: "eyJhIjogMX0K"}, {Mime: "image/png", Data: "iVBORw=="}}
	if diff := cmp.Diff(want, c.rich); diff != "" || len(c.notes) > 0 {
		t.Errorf("results (-want +got):\n%s\nnotes %q", diff, c.notes)
	}
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
	if diff := cmp.Diff(want, c.rich); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	numbers := []int{0, 0, 1, 1, 0, 0, 3, 3}
	events := 0
	for _, e := range c.take() {
		if e.Name == farm.EventDisplay {
			if e.Display.Display != numbers[events] {
				t.Errorf("event %d: display = %d, want %d", events, e.Display.Display, numbers[events])
			}
			events++
		}
	}
	if events != len(numbers) {
		t.Errorf("%d events, want %d", events, len(numbers))
	}
	for _, number := range []int{-1, 7} {
		if c.add(frame(6, agent.FrameDisplay, agent.Display{Number: number, Data: both("x")})) == nil {
			t.Errorf("frame 6 has value %d, and that is taken", number)
		}
	}
}

// A value that is updated in place takes its own place, and gives back the room of the one before.
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
	show(4, 1, map[string]string{"text/plain": "small"})
	show(5, 2, map[string]string{"text/html": large, "text/plain": "still second"})
	want := []farm.RichResult{
		{Display: 0, Mime: "text/plain", Data: "small"},
		{Display: 1, Mime: "text/html"},
		{Display: 1, Mime: "text/plain", Data: "still second"},
		{Display: 2, Mime: "text/html"},
	}
	if diff := cmp.Diff(want, c.rich); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, d := range c.displays {
		if e := c.rich[d.index]; e.Mime != "text/html" || e.Data != "" {
			t.Errorf("%s belongs to %+v", d.path, e)
		}
	}
	if len(c.displays) != 2 || c.displays[0].path == c.displays[1].path || c.pending != 2*len(large) || c.inline != len("small")+len("still second") {
		t.Errorf("%d large values, %d bytes wait, %d bytes are inline", len(c.displays), c.pending, c.inline)
	}
}

// Updates of one value do not fill the record's bounds, so their events have a bound of their own: the store is not trimmed. A worker that
// takes over stops at the same one.
func TestEventsOfUpdatesStopAtTheirCap(t *testing.T) {
	t.Parallel()
	const updates = 500
	for _, published := range []uint64{0, updates - 1} {
		c := collectorOf(code(), published)
		sent, told := 0, 0
		for seq := uint64(1); seq <= updates; seq++ {
			workertest.Must(t, c.add(frame(seq, agent.FrameDisplay, agent.Display{Number: 1, Data: map[string]string{"text/html": strings.Repeat("x", 200<<10)}})))
			for _, e := range c.take() {
				if sent += size(e); e.Name == farm.EventProgress {
					told++
				}
			}
		}
		if published == 0 && (sent > maxRichEvents || sent < maxRichEvents/2 || told != 1) {
			t.Errorf("%d bytes were sent and %d events tell that no more are; want about %d and 1", sent, told, maxRichEvents)
		}
		if published > 0 && (sent != 0 || told != 0) {
			t.Errorf("after a takeover %d bytes and %d events were sent", sent, told)
		}
		if len(c.rich) != 1 {
			t.Errorf("the result has %d entries, want the last state of the one value", len(c.rich))
		}
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
	if diff := cmp.Diff([]string{"text/html", "text/vnd.x", "video/mp4", "text/plain"}, mimes); diff != "" {
		t.Errorf("formats (-want +got):\n%s", diff)
	}
}

// An agent from before the numbers displays each value once.
func TestDisplaysWithoutNumbersAreNumbered(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	for seq := uint64(1); seq <= 3; seq++ {
		workertest.Must(t, c.add(display(seq, map[string]string{"text/plain": "x"})))
	}
	for i, e := range c.rich {
		if e.Display != i {
			t.Errorf("value %d has number %d", i, e.Display)
		}
	}
}

func TestEventsOfAStreamStopAtTheirCap(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	limits.MaxStreamEvents, limits.MaxStreamInline = 100, 40
	c := newCollector(&farm.Job{}, code(), limits, 0)
	for seq := uint64(1); seq <= 20; seq++ {
		workertest.Must(t, c.add(out(seq, "0123456789")))
	}
	workertest.Must(t, c.add(frame(21, agent.FrameFinal, agent.Outcome{})))
	text, _, _ := texts(c.events)
	notes := 0
	for _, e := range c.events {
		if e.Name == farm.EventProgress && strings.Contains(e.Progress.Message, ".output/stdout.txt") {
			notes++
		}
	}
	if len(text) != 100 || notes != 1 {
		t.Fatalf("%d bytes and %d notes", len(text), notes)
	}
	r := c.result().Execute
	if !r.Truncated.Stdout || r.Truncated.Stderr || !strings.Contains(r.Stdout, "[160 bytes left out here; the whole output is the artifact .output/stdout.txt]") {
		t.Fatalf("result %+v", r)
	}
}

func TestResultHoldsNotesAndClipsErrors(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	trace := make([]string, 1000)
	for i := range trace {
		trace[i] = fmt.Sprint(i, strings.Repeat("t", 10_000))
	}
	workertest.Must(t, c.add(frame(1, agent.FrameFinal, agent.Outcome{
		ExitCode: 1, FreshProcess: true, Skipped: -4,
		Error: &farm.CodeError{Name: strings.Repeat("N", 1000), Value: strings.Repeat("V", 1<<20), Traceback: trace},
	})))
	r := c.result()
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no Jupyter kernel") {
		t.Fatalf("notes %q", r.Notes)
	}
	e := r.Execute.Error
	size := 0
	for _, line := range e.Traceback {
		size += len(line)
	}
	if r.ArtifactsSkipped != 0 || len(e.Name) > maxErrorName+8 || len(e.Value) > maxErrorText+8 || len(e.Traceback) != maxTraceLines || size > maxTraceText+8*maxTraceLines {
		t.Fatalf("skipped %d, name %d, value %d, trace %d lines and %d bytes", r.ArtifactsSkipped, len(e.Name), len(e.Value), len(e.Traceback), size)
	}
	for _, s := range []struct {
		outcome agent.Outcome
		want    farm.JobState
	}{
		{agent.Outcome{}, farm.JobCompleted}, {agent.Outcome{TimedOut: true, Canceled: true}, farm.JobTimedOut}, {agent.Outcome{Canceled: true}, farm.JobCanceled},
	} {
		c.outcome = &s.outcome
		if got := c.state(); got != s.want {
			t.Errorf("outcome %+v makes %s", s.outcome, got)
		}
	}
}
