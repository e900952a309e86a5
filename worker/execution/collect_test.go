package execution

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	return limited(r, farm.DefaultLimits(), published)
}

func limited(r *farm.Request, limits farm.Limits, published uint64) *collector {
	c := newCollector(&farm.Job{ID: "job_x"}, r, limits, published, room{})
	c.artifact = func(path, contentType string) *farm.Artifact {
		return &farm.Artifact{Path: path, Key: path, ContentType: contentType}
	}
	return c
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
	_, err := fmt.Sscanf(a+" "+b, "%d-%d %d-%d", &as, &an, &bs, &bn)
	testbed.Require(t, err == nil, "ids %q and %q: %v", a, b, err)
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

// Every byte is in exactly one event, no matter when another worker takes over.
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
				_, err := fmt.Sscanf(log[len(log)-1].ID, "%d-", &published)
				testbed.Must(t, err)
			}
			c := collectorOf(code(), published)
			dies := rng.IntN(len(frames))
			for i, f := range frames {
				testbed.Must(t, c.add(f))
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
			testbed.Must(t, c.add(f))
		}
		log = keep(t, log, c.take())
		gotOut, gotErr, gotDisplays := texts(log)
		if gotOut != stdout || gotErr != stderr || gotDisplays != displays {
			t.Fatalf("seed %d: stdout %q, want %q; stderr %q, want %q; %d displays, want %d", seed, gotOut, stdout, gotErr, stderr, gotDisplays, displays)
		}
		r := c.result().Execute
		testbed.Require(t, r.Stdout == stdout && r.Stderr == stderr && len(r.Rich) == displays, "seed %d: result %+v", seed, r)
	}
}

// Redis may have stored events although its answer was lost. They are sent again as they were: text that comes later is not added to them, or
// all of it would be there twice.
func TestEventsWithoutAnAnswerDoNotChange(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	testbed.Must(t, c.add(out(1, "first ")))
	sent := c.take()
	log := keep(t, nil, sent)
	c.unsend(sent)
	testbed.Must(t, c.add(out(2, "second ")))
	testbed.Must(t, c.add(out(3, "third")))
	log = keep(t, log, c.take())
	text, _, _ := texts(log)
	testbed.Check(t, text == "first second third", "the events say %q", text)
	testbed.Check(t, len(log) == 2, "%d events, want the first one and one for the rest", len(log))
}

func TestCommandsHaveStreamsOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := collectorOf(&farm.Request{Command: &farm.CommandRequest{Commands: []string{"a", "b", "c"}}}, 0)
	for _, f := range []agent.Frame{start(1, 0), out(2, "one"), end(3, 0, 0), start(4, 1), out(5, "two"), end(6, 1, 7), frame(7, agent.FrameFinal, agent.Outcome{ExitCode: 7})} {
		testbed.Must(t, c.add(f))
	}
	want := []farm.CommandOutcome{
		{Command: "a", Stdout: "one", DurationMS: 5}, {Command: "b", Stdout: "two", ExitCode: 7, DurationMS: 5},
	}
	testbed.Diff(t, "commands", want, c.result().Command.Commands)
}

func TestCollectorRefusesInvalidFrames(t *testing.T) {
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
		testbed.Check(t, err != nil, "%s is accepted", name)
	}
	c := collectorOf(one, 0)
	err := c.add(out(1, "of no command"))
	testbed.Check(t, err == nil && len(c.events) == 0, "output of no command: error %v, events %v", err, c.events)
	err = collectorOf(code(), 0).add(start(1, 0))
	testbed.Check(t, err != nil, "a command of an execute is accepted")
}

func TestEventsOfAStreamStopAtTheirCap(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	limits.MaxStreamEvents, limits.MaxStreamInline = 100, 40
	c := newCollector(&farm.Job{}, code(), limits, 0, room{})
	for seq := uint64(1); seq <= 20; seq++ {
		testbed.Must(t, c.add(out(seq, "0123456789")))
	}
	testbed.Must(t, c.add(frame(21, agent.FrameFinal, agent.Outcome{})))
	text, _, _ := texts(c.events)
	notes := 0
	for _, e := range c.events {
		if e.Name == farm.EventProgress && strings.Contains(e.Progress.Message, ".output/stdout.txt") {
			notes++
		}
	}
	testbed.Require(t, len(text) == 100 && notes == 1, "%d bytes and %d notes", len(text), notes)
	r := c.result().Execute
	if !r.Truncated.Stdout || r.Truncated.Stderr || !strings.Contains(r.Stdout, "[160 bytes left out here; the whole output is the artifact .output/stdout.txt]") {
		t.Fatalf("result %+v", r)
	}
}

// Code that printed byte by byte made an event of each of millions, which take much more than their text.
func TestEventsOfAStreamAreBounded(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]struct{ texts, notes int }{
		maxTextEvents - 1: {maxTextEvents - 1, 0}, maxTextEvents: {maxTextEvents, 0}, maxTextEvents + 1: {maxTextEvents, 1}, maxTextEvents + 100: {maxTextEvents, 1},
	} {
		c := collectorOf(code(), 0)
		texts, notes := 0, 0
		for seq := range n {
			testbed.Must(t, c.add(out(uint64(seq)+1, "x")))
			for _, e := range c.take() {
				if e.Name == farm.EventProgress && strings.Contains(e.Progress.Message, ".output/stdout.txt") {
					notes++
				} else {
					texts++
				}
			}
		}
		testbed.Check(t, texts == want.texts && notes == want.notes, "%d pieces: %d events and %d notes, want %+v", n, texts, notes, want)
		testbed.Must(t, c.add(frame(uint64(n)+1, agent.FrameStderr, nil)))
		f := errput("e")
		f.Seq = uint64(n) + 2
		testbed.Must(t, c.add(f))
		testbed.Check(t, len(c.take()) == 1, "%d pieces: the other stream has no event", n)
	}
}

// The limit of a stream's events is that of all commands together.
func TestEventsOfAllCommandsStopAtOneCap(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	limits.MaxStreamEvents = 100
	request := &farm.Request{Command: &farm.CommandRequest{Commands: make([]string, 5)}}
	for _, c := range []struct{ each, sent, notes int }{{19, 95, 0}, {20, 100, 0}, {21, 84, 1}} {
		collect := newCollector(&farm.Job{}, request, limits, 0, room{})
		seq := uint64(0)
		for i := range request.Command.Commands {
			for _, f := range []agent.Frame{start(0, i), out(0, strings.Repeat("x", c.each)), frame(0, agent.FrameStderr, nil), frame(0, agent.FrameCommandEnd, agent.CommandMark{Index: i})} {
				if seq++; f.Type == agent.FrameStderr {
					f.Payload = []byte("e")
				}
				f.Seq = seq
				testbed.Must(t, collect.add(f))
			}
		}
		stdout, stderr, _ := texts(collect.events)
		notes := 0
		for _, e := range collect.events {
			if e.Name == farm.EventProgress {
				notes++
			}
		}
		if len(stdout) != c.sent || len(stderr) != 5 || notes != c.notes {
			t.Errorf("%d bytes of each command: sent are %d of stdout and %d of stderr, with %d notes; want %d, 5 and %d", c.each, len(stdout), len(stderr), notes, c.sent, c.notes)
		}
	}
}

// A command has no error in its result, so a note says that memory ended it.
func TestCommandNotesThatMemoryEndedIt(t *testing.T) {
	t.Parallel()
	c := collectorOf(&farm.Request{Command: &farm.CommandRequest{Commands: []string{"hungry"}}}, 0)
	testbed.Must(t, c.add(frame(1, agent.FrameFinal, agent.Outcome{
		ExitCode: 137, OutOfMemory: true, Error: &farm.CodeError{Name: farm.ErrorOutOfMemory, Value: "limit of 64 MiB."},
	})))
	testbed.Diff(t, "notes", []string{"limit of 64 MiB."}, c.result().Notes)
}

// A job says how many files of which folder are no artifacts, whatever its agent sends.
func TestResultNotesFilesThatAreLeftOut(t *testing.T) {
	t.Parallel()
	notes := func(left ...agent.LeftOut) []string {
		c := collectorOf(code(), 0)
		testbed.Must(t, c.add(frame(1, agent.FrameFinal, agent.Outcome{LeftOut: left})))
		return c.result().Notes
	}
	want := []string{"Files in folders of installed, derived or cached files do not become artifacts: 1204 in .venv, 2 in a\uFFFDb/__pycache__, 7 in other such folders. They are in the workspace."}
	testbed.Diff(t, "notes", want, notes(agent.LeftOut{Folder: ".venv", Files: 1204}, agent.LeftOut{Folder: "a\nb/__pycache__", Files: 2}, agent.LeftOut{Files: 7}))
	got := notes(agent.LeftOut{Folder: "x", Files: -1})
	testbed.Check(t, len(got) == 0, "of less than nothing: %q", got)
	got = notes(slices.Repeat([]agent.LeftOut{{Folder: strings.Repeat("x", 5000), Files: 1}}, 5000)...)
	testbed.Check(t, len(got) == 1 && len(got[0]) <= 2000, "%d notes of too many and too long ones", len(got))
}

// Code chooses the names of its files, which a note of the farm has as a few printable bytes.
func TestNamesInNotesArePrintable(t *testing.T) {
	t.Parallel()
	hidden := "a\u202eb\u200bc\U000e0041d\n"
	shown := "a\uFFFDb\uFFFDc\uFFFDd\uFFFD"
	testbed.Diff(t, "the first files", shown, firstOf([]string{hidden}))
	c := collectorOf(code(), 0)
	testbed.Must(t, c.add(frame(1, agent.FrameFinal, agent.Outcome{LeftOut: []agent.LeftOut{{Folder: hidden, Files: 1}}})))
	if notes := c.result().Notes; len(notes) != 1 || !strings.Contains(notes[0], " 1 in "+shown+".") {
		t.Errorf("files left out: %q", notes)
	}
	for n, cut := range map[int]bool{maxNoted - 1: false, maxNoted: false, maxNoted + 1: true} {
		name := strings.Repeat("é", n/2) + strings.Repeat("x", n%2)
		got := noted(name, maxNoted)
		testbed.Check(t, len(got) <= maxNoted && (got != name) == cut && strings.HasSuffix(got, " …") == cut && utf8.ValidString(got), "%d bytes: %q", n, got)
	}
}

func TestResultHoldsNotesAndClipsErrors(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	trace := make([]string, 1000)
	for i := range trace {
		trace[i] = fmt.Sprint(i, strings.Repeat("t", 10_000))
	}
	testbed.Must(t, c.add(frame(1, agent.FrameFinal, agent.Outcome{
		ExitCode: 1, FreshProcess: true, Skipped: -4,
		Error: &farm.CodeError{Name: strings.Repeat("N", 1000), Value: strings.Repeat("V", farm.MaxErrorValueBytes+1), Traceback: trace},
	})))
	r := c.result()
	testbed.Require(t, len(r.Notes) == 1 && strings.Contains(r.Notes[0], "no kernel for the language"), "notes %q", r.Notes)
	run := collectorOf(code(), 0)
	run.job.Kind = farm.KindRun
	testbed.Must(t, run.add(frame(1, agent.FrameFinal, agent.Outcome{FreshProcess: true})))
	notes := run.result().Notes
	testbed.Check(t, len(notes) == 0, "notes of a run: %q", notes)
	e := r.Execute.Error
	size := 0
	for _, line := range e.Traceback {
		size += len(line)
	}
	if r.ArtifactsSkipped != 0 || len(e.Name) > maxErrorName+8 || len(e.Value) != farm.MaxErrorValueBytes+len(" …") || len(e.Traceback) != maxTraceLines || size > maxTraceText+8*maxTraceLines {
		t.Fatalf("skipped %d, name %d, value %d, trace %d lines and %d bytes", r.ArtifactsSkipped, len(e.Name), len(e.Value), len(e.Traceback), size)
	}
	for _, s := range []struct {
		outcome agent.Outcome
		want    farm.JobState
	}{
		{agent.Outcome{}, farm.JobCompleted}, {agent.Outcome{TimedOut: true, Canceled: true}, farm.JobTimedOut}, {agent.Outcome{Canceled: true}, farm.JobCanceled},
	} {
		c.outcome = &s.outcome
		got := c.state()
		testbed.Check(t, got == s.want, "outcome %+v makes %s", s.outcome, got)
	}
}

// An empty frame of output separates texts that would be one event: something that is no output of the job belongs between them.
func TestEmptyFramesSeparateEvents(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	for _, f := range []agent.Frame{out(1, "a"), out(2, "b"), out(3, ""), out(4, "c")} {
		testbed.Must(t, c.add(f))
	}
	var got []string
	for _, e := range c.take() {
		got = append(got, e.ID+" "+e.Text)
	}
	testbed.Diff(t, "events", []string{"2-1 ab", "4-1 c"}, got)
}

// A note is one line, whatever code has chosen of it.
func TestANoteIsOneLine(t *testing.T) {
	t.Parallel()
	c := &collector{}
	c.note("A result of type %s", "a\nnote: b\r\u2028c\x1b[0m")
	testbed.Diff(t, "notes", []string{"A result of type a note: b  c [0m"}, c.notes)
}

// What an agent says of changed files decides what is reserved and uploaded: a size that no file has made a reservation negative, and two files
// of one path have one object but one size in the record.
func TestFilesOfAnOutcomeAreChecked(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	file := func(path string, size int64) agent.ChangedFile { return agent.ChangedFile{Path: path, Size: size} }
	many := func(n, length int) (files []agent.ChangedFile) {
		for i := range n {
			files = append(files, file(fmt.Sprintf("%0*d", length, i), 1))
		}
		return files
	}
	deep := strings.Repeat(strings.Repeat("d", 249)+"/", 12)
	long := func(n int) []agent.ChangedFile {
		files := many(n, 100)
		for i := range files {
			files[i].Path = deep + files[i].Path
		}
		return files
	}
	controls := func(n int) []agent.ChangedFile { // of 58 bytes, which are 308 in JSON
		files := many(n, 8)
		for i := range files {
			files[i].Path += strings.Repeat("\x01", 50)
		}
		return files
	}
	fit, controlsFit := agent.MaxPathsBytes/len(long(1)[0].Path), agent.MaxPathsBytes/(6*50+8)
	for name, c := range map[string]struct {
		files         []agent.ChangedFile
		kept, skipped int // kept < 0: ErrProtocol
	}{
		"AsLargeAsAllowed": {[]agent.ChangedFile{file("a", limits.MaxArtifactBytes-1), file("b", limits.MaxArtifactBytes)}, 2, 0},
		"TooLarge":         {[]agent.ChangedFile{file("a", limits.MaxArtifactBytes+1), file("b", 1)}, 1, 1},
		"Overflow":         {[]agent.ChangedFile{file("a", math.MaxInt64)}, 0, 1},
		"Negative":         {[]agent.ChangedFile{file("a", -1)}, -1, 0},
		"Twice":            {[]agent.ChangedFile{file("a", 1), file("b", 1), file("a", 5<<30)}, -1, 0},
		"OtherForm":        {[]agent.ChangedFile{file("a", 1), file("./a", 1)}, -1, 0},
		"Outside":          {[]agent.ChangedFile{file("../a", 1)}, -1, 0},
		"Workspace":        {[]agent.ChangedFile{file(".", 1)}, -1, 0},
		"OfOutputs":        {[]agent.ChangedFile{file(".output/stdout.txt", 5<<30), file("a/.output/b", 1)}, 1, 1},
		"AsManyAsAllowed":  {many(limits.MaxArtifacts-1, 8), limits.MaxArtifacts - 1, 0},
		"AllThatAre":       {many(limits.MaxArtifacts, 8), limits.MaxArtifacts, 0},
		"TooMany":          {many(limits.MaxArtifacts+1, 8), limits.MaxArtifacts, 1},
		"PathsThatFit":     {long(fit), fit, 0},
		"PathsTooLong":     {long(fit + 1), fit, 1},
		"ControlsThatFit":  {controls(controlsFit), controlsFit, 0},
		"ControlsTooLong":  {controls(controlsFit + 1), controlsFit, 1},
	} {
		col := collectorOf(code(), 0)
		err := col.add(frame(1, agent.FrameFinal, agent.Outcome{Files: c.files, Skipped: 7}))
		if c.kept < 0 {
			testbed.Check(t, errors.Is(err, ErrProtocol), "%s: %v", name, err)
			continue
		}
		if err != nil || len(col.outcome.Files) != c.kept || col.outcome.Skipped != 7+c.skipped {
			t.Errorf("%s: %d files, %d skipped, %v; want %d, %d", name, len(col.outcome.Files), col.outcome.Skipped, err, c.kept, 7+c.skipped)
		}
	}
}

// An outcome stays in memory until its files are uploaded, which an agent can delay, and the memory of its frame is free for others by then.
func TestAnOutcomeIsCutWhenItIsRead(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 16<<20)
	for name, o := range map[string]agent.Outcome{
		"ErrorValue": {Error: &farm.CodeError{Name: "E", Value: long}},
		"ErrorName":  {Error: &farm.CodeError{Name: long}},
		"Traceback":  {Error: &farm.CodeError{Traceback: slices.Repeat([]string{long[:1<<10]}, 10_000)}},
		"Notes":      {Notes: slices.Repeat([]string{long[:1<<10]}, 10_000)},
		"Note":       {Notes: []string{long}},
		"Packages":   {Install: slices.Repeat([]farm.PackageOutcome{{Name: "p", Message: long[:1<<10]}}, 10_000)},
		"Package":    {Install: []farm.PackageOutcome{{Name: long[:1<<20], Requested: long[:1<<20], Version: long[:1<<20], Message: long[:1<<20], Why: long[:1<<20]}}},
		"LeftOut":    {LeftOut: slices.Repeat([]agent.LeftOut{{Folder: long[:1<<10], Files: 1}}, 10_000)},
		"Folder":     {LeftOut: []agent.LeftOut{{Folder: long, Files: 1}}},
	} {
		col := collectorOf(code(), 0)
		testbed.Must(t, col.add(frame(1, agent.FrameFinal, o)))
		kept, err := json.Marshal(col.outcome)
		testbed.Must(t, err)
		cells := cap(col.outcome.Notes) + cap(col.outcome.Install) + cap(col.outcome.LeftOut)
		if len(kept) > farm.MaxErrorValueBytes+1<<10 || cells > 1000 {
			t.Errorf("%s: %d bytes and room for %d values stay in memory", name, len(kept), cells)
		}
	}
}
