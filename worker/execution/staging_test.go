package execution

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// randomFrames are frames of an execute, or of commands, that touch every part of the collector's state.
func randomFrames(rng *rand.Rand, commands int) []agent.Frame {
	var frames []agent.Frame
	add := func(f agent.Frame) {
		f.Seq = uint64(len(frames) + 1)
		frames = append(frames, f)
	}
	some := func() {
		switch text := strings.Repeat(fmt.Sprintf("<%d é>", len(frames)), 1+rng.IntN(20)); rng.IntN(7) {
		case 0:
			add(agent.Frame{Type: agent.FrameStderr, Payload: []byte(text)[:len(text)-1-rng.IntN(3)]})
		case 1:
			add(frame(0, agent.FrameDisplay, agent.Display{
				Number: 1 + rng.IntN(min(5, len(frames)+1)), Data: map[string]string{"text/plain": text, "text/html": text}, ID: "n", Metadata: []byte(`{"a":1}`),
			}))
		case 2:
			add(cleared(0, rng.IntN(2) == 0))
		case 3:
			add(dropped(0, int64(rng.IntN(3)), int64(rng.IntN(3))))
		default:
			add(out(0, text))
		}
	}
	for i := range max(commands, 1) {
		if commands > 0 {
			add(start(0, i))
		}
		for range rng.IntN(12) {
			some()
		}
		if commands > 0 {
			add(end(0, i, i))
		}
	}
	add(frame(0, agent.FrameFinal, agent.Outcome{ExitCode: 4}))
	return frames
}

// encoded is a snapshot of a collector.
func encoded(t *testing.T, c *collector) []byte {
	t.Helper()
	open, size, err := c.snapshot()
	testbed.Must(t, err)
	data, err := io.ReadAll(open())
	testbed.Must(t, err)
	testbed.Require(t, int64(len(data)) == size, "a snapshot of %d bytes says it has %d", len(data), size)
	return data
}

// What follows from frames is in a snapshot, wherever it is taken: the collector that it restores goes on as the first one does.
func TestSnapshotHasTheWholeState(t *testing.T) {
	t.Parallel()
	same := cmp.Options{
		cmp.Exporter(func(reflect.Type) bool { return true }), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(collector{}, "artifact", "numbered"),
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		limits := farm.DefaultLimits()
		limits.MaxStreamInline, limits.MaxInlineRich, limits.MaxStreamEvents = 100, 60, 200
		request, commands := code(), rng.IntN(4)
		if commands > 0 {
			request = &farm.Request{Command: &farm.CommandRequest{Commands: make([]string, commands)}}
		}
		frames := randomFrames(rng, commands)
		cut := rng.IntN(len(frames))
		first, second := limited(request, limits, 0), limited(request, limits, 0)
		second.job = first.job
		for i, f := range frames {
			if i == cut {
				first.take()
				first.displays, first.replaced, first.freed = nil, nil, 0
				testbed.Must(t, second.restore(bytes.NewReader(encoded(t, first))))
			}
			testbed.Must(t, first.add(first.cut(f)))
			if i >= cut {
				testbed.Must(t, second.add(second.cut(f)))
			}
		}
		testbed.Diff(t, fmt.Sprintf("seed %d, snapshot before frame %d", seed, cut+1), first, second, same)
		testbed.Diff(t, fmt.Sprintf("seed %d: results", seed), first.result(), second.result(), same)
	}
}

func TestDamagedSnapshotIsAnError(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	testbed.Must(t, c.add(out(1, "hello")))
	testbed.Must(t, c.add(display(2, map[string]string{"text/plain": "shown"})))
	data := encoded(t, c)
	testbed.Must(t, collectorOf(code(), 0).restore(bytes.NewReader(data)))
	for n := range data {
		testbed.Check(t, collectorOf(code(), 0).restore(bytes.NewReader(data[:n])) != nil, "the first %d bytes of %d are a snapshot", n, len(data))
	}
	testbed.Check(t, collectorOf(code(), 0).restore(bytes.NewReader(append(data, 'x'))) != nil, "a snapshot with one more byte is one")
}

// Displayed values of control characters took six times their bytes in a snapshot, beside the encoder's copy of them: nobody was charged for it.
func TestSnapshotsHaveValuesAsTheyAre(t *testing.T) {
	t.Parallel()
	c, again := collectorOf(code(), 0), collectorOf(code(), 0)
	again.job = c.job
	text := strings.Repeat("\x01", c.limits.MaxInlineRich)
	const values = 10
	for seq := range uint64(values) {
		testbed.Must(t, c.add(display(seq+1, map[string]string{"text/plain": text})))
	}
	c.take()
	testbed.Require(t, len(c.rich) == values && len(c.displays) == 0, "%d values are in the result", len(c.rich))
	data := encoded(t, c)
	inText, all := int(binary.BigEndian.Uint32(data)), values*len(text)
	testbed.Check(t, inText < 2000 && len(data) == 4+inText+all, "a snapshot of %d bytes of values has %d, of which %d are JSON", all, len(data), inText)
	testbed.Must(t, again.restore(bytes.NewReader(data)))
	testbed.Diff(t, "values", c.rich, again.rich)
	testbed.Check(t, again.inline == c.inline && again.inMemory.bytes == c.inMemory.bytes, "restored values count %d and %d, want %d and %d",
		again.inline, again.inMemory.bytes, c.inline, c.inMemory.bytes)
}

// The release before wrote displayed values into the text.
func TestSnapshotsOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	snapshot := func(text string) io.Reader {
		return strings.NewReader(string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text + "hello")
	}
	const text = `{"seq":3,"outputs":[[{"limit":1048576,"total":5,"cost":5,"head":5,"tail":0,"at":0,"full":false},{"limit":1048576,"total":0,"head":0,"tail":0,"at":0,"full":false}]],` +
		`"rich":[{"display":0,"mime":"text/plain","data":"a\u0001\n"},{"display":1,"mime":"image/png","artifact":{"path":".output/display-1.png","size":7}},` +
		`{"display":2,"mime":"image/png","data":"QUFB"}],"shown":3,"large":1,"stored":7,"sent":[5,0]}`
	c := collectorOf(code(), 0)
	testbed.Must(t, c.restore(snapshot(text)))
	testbed.Require(t, len(c.rich) == 3 && c.rich[1].Artifact != nil, "values %+v", c.rich)
	testbed.Check(t, c.rich[0].Data == "a\x01\n" && c.rich[1].Data == "" && c.rich[2].Data == "QUFB" && c.inline == costOf("a\x01\n")+3 && c.outputs[0].stdout.text() == "hello",
		"values %+v, which count %d, and %q", c.rich, c.inline, c.outputs[0].stdout.text())
	for _, lengths := range []string{"0,0", "0,0,0,0", "0,0,-1", "0,0,1"} {
		damaged := strings.TrimSuffix(text, "}") + `,"values":[` + lengths + `]}`
		testbed.Check(t, collectorOf(code(), 0).restore(snapshot(damaged)) != nil, "three values with the lengths %s are read", lengths)
	}
}

// A snapshot that breaks off is read again, into the same collector.
func TestSnapshotIsReadAgain(t *testing.T) {
	t.Parallel()
	c, again := collectorOf(code(), 0), collectorOf(code(), 0)
	testbed.Must(t, c.add(display(1, map[string]string{"text/plain": "shown"})))
	testbed.Must(t, c.add(out(2, "hello")))
	data := encoded(t, c)
	for range 3 {
		testbed.Check(t, again.restore(bytes.NewReader(data[:len(data)-1])) != nil, "a snapshot without its last byte is one")
	}
	testbed.Must(t, again.restore(bytes.NewReader(data)))
	testbed.Diff(t, "bytes of values", c.inline, again.inline)
}

// What a snapshot has brought before it breaks off is given back: the first stream of a command whose second one is missing stayed charged.
func TestSnapshotThatBreaksOffHoldsNothing(t *testing.T) {
	t.Parallel()
	memory := budget.New(64 << 20)
	request := &farm.Request{Command: &farm.CommandRequest{Commands: make([]string, 1)}}
	c, again := running(request, room{}), running(request, room{memory: memory})
	text := strings.Repeat("x", c.limits.MaxStreamInline+1)
	testbed.Must(t, c.add(start(1, 0)))
	testbed.Must(t, c.add(out(2, text)))
	testbed.Must(t, c.add(agent.Frame{Seq: 3, Type: agent.FrameStderr, Payload: []byte(text)}))
	data := encoded(t, c)
	testbed.Check(t, again.restore(bytes.NewReader(data[:len(data)-1])) != nil, "a snapshot without its last byte is one")
	again.close()
	empty(t, memory)
}

// The record of a job of many commands stays small: once limits.MaxResultInline is used up, each stream has little of it.
func TestStreamsOfAllCommandsShareTheResult(t *testing.T) {
	t.Parallel()
	limits := farm.DefaultLimits()
	limits.MaxStreamInline, limits.MaxResultInline = 100<<10, 200<<10
	for used, want := range map[int]int{
		0: 100 << 10, 1: 100<<10 - 1, 100 << 10: 50 << 10,
		136<<10 - 2: 32<<10 + 1, 136 << 10: 32 << 10, 136<<10 + 2: 32 << 10, 200 << 10: 32 << 10,
	} {
		c := limited(&farm.Request{Command: &farm.CommandRequest{Commands: []string{"a", "b"}}}, limits, 0)
		testbed.Must(t, c.add(start(1, 0)))
		half := min(used, limits.MaxStreamInline)
		testbed.Must(t, c.add(out(2, strings.Repeat("x", half))))
		testbed.Must(t, c.add(agent.Frame{Seq: 3, Type: agent.FrameStderr, Payload: bytes.Repeat([]byte("x"), used-half)}))
		testbed.Must(t, c.add(end(4, 0, 0)))
		testbed.Must(t, c.add(start(5, 1)))
		got := c.outputs[1].stdout.limit
		testbed.Check(t, got == want && c.outputs[1].stderr.limit == want, "after %d bytes a stream has %d, want %d", used, got, want)
	}
	const commands = 256
	c := collectorOf(&farm.Request{Command: &farm.CommandRequest{Commands: make([]string, commands)}}, 0)
	seq := uint64(0)
	next := func(f agent.Frame) {
		seq++
		f.Seq = seq
		testbed.Must(t, c.add(f))
		for _, s := range c.current() {
			s.unsent.close() // as if it were stored
		}
	}
	for i := range commands {
		next(start(0, i))
		next(agent.Frame{Type: agent.FrameStdout, Payload: make([]byte, 1<<20)})
		next(agent.Frame{Type: agent.FrameStderr, Payload: make([]byte, 1<<20)})
		next(end(0, i, 0))
	}
	total := 0
	for _, o := range c.result().Command.Commands {
		total += len(o.Stdout) + len(o.Stderr)
	}
	limit := c.limits.MaxResultInline + commands*2*(minStreamInline+256)
	testbed.Check(t, total <= limit, "the result has %d bytes of output, want at most %d", total, limit)
}

// A log of short frames is acknowledged, although it has few bytes: the agent holds the code back at 65,536 frames.
func TestManyShortFramesAreAcknowledged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size, frames int
		due          bool
	}{{1, ackFrames - 1, false}, {1, ackFrames, true}, {ackBytes - 1, 1, false}, {ackBytes, 1, true}} {
		var s staging
		for range c.frames {
			s.count(agent.Frame{Payload: make([]byte, c.size)})
		}
		if s.due() != c.due {
			t.Errorf("%d frames of %d bytes are due: %v, want %v", c.frames, c.size, s.due(), c.due)
		}
	}
}

// following makes an execution whose frames the test gives.
func (b *bundle) following(x *Runner, request *farm.Request) *execution {
	b.T.Helper()
	job := b.Accept(farm.KindExecute, b.Ready().ID, request, nil)
	claim := b.Claim(job, farm.NewID("wrk_"))
	e := &execution{job: claim.Job, request: claim.Request, sandbox: claim.Sandbox}
	x.collect(e, x.cfg.Limits, 0)
	testbed.Must(b.T, x.resume(b.T.Context(), e, "", false))
	return e
}

// A large value does not wait in memory, and one that was replaced does not stay in the object store.
func TestLargeDisplaysAreStoredWhenTheyArrive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	e := b.following(x, code())
	show := func(number int, size int) *farm.Artifact {
		t.Helper()
		f := frame(e.collect.seq+1, agent.FrameDisplay, agent.Display{Number: number, Data: map[string]string{"text/html": strings.Repeat("x", size)}})
		_, err := x.absorb(t.Context(), e, f)
		testbed.Must(t, err)
		testbed.Require(t, len(e.collect.displays)+len(e.collect.replaced) == 0, "values wait in memory")
		return e.collect.rich[number-1].Artifact
	}
	limit := x.cfg.Limits.MaxInlineRich
	a := show(1, limit)
	testbed.Check(t, a == nil, "a value of %d bytes is the artifact %+v", limit, a)
	first := show(2, limit+1)
	if got := b.content(first.Key); len(got) != limit+1 || first.Size != int64(limit+1) || first.SHA256 == "" {
		t.Errorf("the object has %d bytes, its record is %+v", len(got), first)
	}
	second := show(2, 3*limit)
	got := b.content(second.Key)
	testbed.Check(t, len(got) == 3*limit, "the update has %d bytes", len(got))
	if _, err := b.Blobs.Stat(t.Context(), first.Key); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("the replaced value is still there: %v", err)
	}
	_, err := x.absorb(t.Context(), e, frame(e.collect.seq+1, agent.FrameFinal, agent.Outcome{}))
	testbed.Must(t, err)
	artifacts, err := x.upload(t.Context(), e)
	testbed.Must(t, err)
	testbed.Check(t, len(artifacts) == 1 && artifacts[0].Key == second.Key, "artifacts %+v", artifacts)
}

// While the object store is down, code that shows a large value goes on. Its job fails in the end and keeps its output.
func TestDisplayThatCannotBeStoredFailsTheJobInTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1 // one try
	x, _ := b.runner()
	e := b.following(x, code())
	x.blobs = b.BrokenBlobs()
	for _, f := range []agent.Frame{
		out(1, "before "), display(2, map[string]string{"text/html": strings.Repeat("x", x.cfg.Limits.MaxInlineRich+1)}),
		out(3, "after"), frame(4, agent.FrameFinal, agent.Outcome{}),
	} {
		_, err := x.absorb(t.Context(), e, f)
		testbed.Must(t, err)
	}
	_, err := x.keep(t.Context(), e)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "keep = %v, want code %s", err, farm.CodeUnavailable)
	r := e.collect.result().Execute
	testbed.Check(t, r.Stdout == "before after" && len(r.Rich) == 1 && r.Rich[0].Artifact == nil, "result %+v", r)
}

// A stream of which the agent dropped a part is an artifact also where the result has all of the rest.
func TestShortStreamWithDroppedBytesIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	e := b.following(x, code())
	for _, f := range []agent.Frame{out(1, "head "), dropped(2, 7, 0), out(3, "tail"), frame(4, agent.FrameFinal, agent.Outcome{})} {
		_, err := x.absorb(t.Context(), e, f)
		testbed.Must(t, err)
	}
	artifacts, err := x.upload(t.Context(), e)
	testbed.Must(t, err)
	testbed.Check(t, len(artifacts) == 1 && string(b.content(artifacts[0].Key)) == "head tail", "artifacts %+v", artifacts)
}

// An upload that the object store aborted, with the parts that the agent has forgotten, fails the job instead of leaving a hole.
func TestAbortedUploadFailsTheJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	e := b.following(x, code())
	s := e.collect.outputs[0].stdout
	part := make([]byte, 1<<20)
	for seq := uint64(1); !s.partFull(); seq++ {
		_, err := x.absorb(t.Context(), e, agent.Frame{Seq: seq, Type: agent.FrameStdout, Payload: part})
		testbed.Must(t, err)
	}
	testbed.Must(t, x.sendParts(t.Context(), e, s))
	n, err := b.Blobs.AbortUploadsOf(t.Context(), x.artifact(e, s.path, outputType).Key)
	testbed.Require(t, n == 1 && err == nil && s.parts == 5<<20/blob.PartBytes, "%d uploads were aborted after %d parts: %v", n, s.parts, err)
	_, err = x.absorb(t.Context(), e, frame(e.collect.seq+1, agent.FrameFinal, agent.Outcome{}))
	testbed.Must(t, err)
	_, err = x.upload(context.WithoutCancel(t.Context()), e)
	testbed.Check(t, err != nil, "the output of a lost upload was stored")
}

func TestStreamKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 99, 100, 101, 149, 150, 151, 1000, 12345} {
		for _, step := range []int{1, 7, 50, 100, 300, 20000} {
			whole := make([]byte, size)
			for i := range whole {
				whole[i] = "abc\n\r\t\"\\<&\x7f"[rand.IntN(11)]
			}
			s := newStream(100)
			var spilled bytes.Buffer
			spilling := false
			for rest := whole; len(rest) > 0; {
				n := min(step, len(rest))
				before, outgrew := s.write(rest[:n])
				if outgrew {
					spilling = true
					spilled.Write(before)
				}
				if spilling {
					spilled.Write(rest[:n])
				}
				rest = rest[n:]
			}
			text := s.text("whole.txt")
			if size <= 100 {
				testbed.Require(t, text == string(whole) && !s.truncated() && !spilling, "size %d step %d: a short stream is kept whole", size, step)
				continue
			}
			if !s.truncated() || !bytes.Equal(spilled.Bytes(), whole) {
				t.Fatalf("size %d step %d: %d bytes spilled", size, step, spilled.Len())
			}
			if !strings.HasPrefix(text, string(whole[:50])+"\n…") || !strings.HasSuffix(text, "…\n"+string(whole[size-50:])) {
				t.Fatalf("size %d step %d: head or tail is wrong: %q", size, step, text)
			}
		}
	}
}

// A control character takes six bytes in JSON, so that the record of a MiB had six. It counts three.
func TestControlCharactersOfAStreamCountMore(t *testing.T) {
	t.Parallel()
	for text, whole := range map[string]bool{
		strings.Repeat("\x01", 33): true, strings.Repeat("\x01", 33) + "a": true, strings.Repeat("\x01", 33) + "ab": false, strings.Repeat("\x01", 34): false,
		strings.Repeat("\b", 100): true, strings.Repeat("\b", 101): false,
	} {
		s := newStream(100)
		s.write([]byte(text))
		testbed.Check(t, s.truncated() != whole && (s.text("there") == text) == whole, "%q of %d bytes is cut: %v", text[:2], len(text), s.truncated())
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 6))
		limit, total := 10+rng.IntN(1000), rng.IntN(3000)
		s := newStream(limit)
		var all, spilled []byte
		for len(all) < total {
			p := make([]byte, 1+rng.IntN(300))
			for i := range p {
				p[i] = "\x01\x01\x01a\n\x1b\xff\u2028"[rng.IntN(10)]
			}
			before, outgrew := s.write(p)
			all = append(all, p...)
			if outgrew {
				spilled = slices.Concat(before, p)
			} else if s.truncated() {
				spilled = append(spilled, p...)
			}
		}
		testbed.Check(t, !s.truncated() || bytes.Equal(spilled, all), "seed %d: %d of %d bytes are spilled", seed, len(spilled), len(all))
		const line = 60 // that says what is missing
		text := s.text("x")
		testbed.Check(t, farm.Quoted(text) <= limit*9/4+line, "seed %d: a limit of %d bytes makes %d of JSON", seed, limit, farm.Quoted(text))
		testbed.Check(t, len(s.head)+len(s.tail) <= limit, "seed %d: %d bytes are kept, %d allowed", seed, len(s.head)+len(s.tail), limit)
		if head, tail := s.head, s.last(); s.truncated() {
			cut := len(all) - len(head) - len(tail)
			testbed.Check(t, bytes.HasPrefix(all, head) && bytes.HasSuffix(all, tail) && costOf(head) <= limit/2 && costOf(head) > limit/2-controlCost && cut > 0,
				"seed %d: head of %d and tail of %d of %d bytes", seed, len(head), len(tail), len(all))
		}
	}
}

// A snapshot of an older worker counts bytes.
func TestSnapshotsWithoutACost(t *testing.T) {
	t.Parallel()
	for total, cut := range map[int64]bool{100: false, 101: true} {
		s := collectorOf(code(), 0).outputs[0].stdout
		testbed.Must(t, s.restore(sinkState{Limit: 100, Total: total, Head: 50}, strings.NewReader(strings.Repeat("x", 50))))
		testbed.Check(t, s.truncated() == cut, "a stream of %d bytes is cut: %v", total, s.truncated())
	}
}

// <, > and & stay as they are in snapshots and abridged results: escaped, each takes six bytes.
func TestOutputIsNotEscapedForHTML(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	testbed.Must(t, c.add(display(1, map[string]string{"text/html": strings.Repeat("<", 10_000)})))
	size := len(encoded(t, c))
	testbed.Check(t, size < 11_000, "a snapshot of 10,000 bytes of HTML has %d", size)
	short := Abridged(&farm.Result{Execute: &farm.ExecuteResult{Stdout: strings.Repeat("<", maxAbridged)}}, NoAnswer).Execute
	testbed.Check(t, len(short.Stdout) == maxAbridged && !short.Truncated.Stdout, "an abridged result has %d bytes of %d", len(short.Stdout), maxAbridged)
}

func TestStreamNeverCutsARuneInTwo(t *testing.T) {
	t.Parallel()
	s := newStream(1 << 20)
	var live strings.Builder
	const text = "a世🎈é\n"
	for _, b := range []byte(text) {
		live.WriteString(s.live([]byte{b}))
	}
	testbed.Require(t, live.String() == text && s.rest() == "", "live text is %q", live.String())
	got := s.live([]byte("ok\xe4"))
	testbed.Require(t, got == "ok", "a broken rune came out: %q", got)
	got = s.rest()
	testbed.Require(t, got == "\uFFFD", "the rest is %q", got)
}

func dropped(seq uint64, stdout, stderr int64) agent.Frame {
	return frame(seq, agent.FrameDropped, agent.Dropped{Stdout: stdout, Stderr: stderr})
}

func TestResultSaysWhatTheAgentDropped(t *testing.T) {
	t.Parallel()
	c := collectorOf(code(), 0)
	for _, f := range []agent.Frame{out(1, "head"), dropped(2, 7, 0), out(3, "tail"), frame(4, agent.FrameFinal, agent.Outcome{ExitCode: 137, StoppedAtMaxOutput: true, Error: &farm.CodeError{Name: "KeyboardInterrupt"}})} {
		testbed.Must(t, c.add(c.cut(f)))
	}
	r := c.result()
	want := &farm.ExecuteResult{
		Stdout: "headtail", Truncated: farm.Truncated{Stdout: true}, Dropped: farm.Dropped{Stdout: 7}, ExitCode: 137,
		Error: &farm.CodeError{
			Name: farm.ErrorOutputLimit, Traceback: []string{},
			Value: `The code was stopped because stdout or stderr exceeded 100 MiB (limits.max_output_mb) and on_output_limit is "stop". ` +
				`Print less, write long output to a file, or send on_output_limit "continue".`,
		},
	}
	testbed.Diff(t, "result", want, r.Execute)
	notes := []string{"7 bytes of stdout were dropped from its middle: a job keeps 100 MiB of each stream (limits.max_output_mb). Write long output to a file."}
	if diff := cmp.Diff(notes, r.Notes); diff != "" || c.state() != farm.JobCompleted {
		t.Error(c.state(), diff)
	}
	testbed.Check(t, c.outputs[0].stdout.truncated(), "no artifact has what was kept") // then its artifact is uploaded
}

func TestEachCommandSaysWhatWasDropped(t *testing.T) {
	t.Parallel()
	c := collectorOf(&farm.Request{Command: &farm.CommandRequest{Commands: []string{"a", "b", "c"}, StopAtOutputLimit: true}}, 0)
	for _, f := range []agent.Frame{
		start(1, 0), dropped(2, 5, 6), out(3, "tail"), end(4, 0, 0), start(5, 1), out(6, "whole"), end(7, 1, 0), start(8, 2), dropped(9, 1, 0), end(10, 2, 143),
		frame(11, agent.FrameFinal, agent.Outcome{ExitCode: 143, StoppedAtMaxOutput: true}),
	} {
		testbed.Must(t, c.add(c.cut(f)))
	}
	r := c.result()
	var got []farm.Dropped
	for _, one := range r.Command.Commands {
		got = append(got, one.Dropped)
	}
	testbed.Diff(t, "dropped bytes", []farm.Dropped{{Stdout: 5, Stderr: 6}, {}, {Stdout: 1}}, got)
	for i, begin := range []string{"The commands were stopped because", "6 bytes of stdout were dropped", "6 bytes of stderr were dropped"} {
		testbed.Check(t, i < len(r.Notes) && strings.HasPrefix(r.Notes[i], begin), "notes %q", r.Notes)
	}
}

// An agent that code has taken over may send more than it was told to: no more is kept than the limit, all commands together.
func TestOutputBeyondTheLimitIsCutHereToo(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, size := range []int{limit - 1, limit, limit + 1, 3 * limit} {
		request := &farm.Request{Command: &farm.CommandRequest{Commands: []string{"a", "b"}}}
		l := farm.DefaultLimits()
		l.MaxOutputMB = 1
		c := newCollector(&farm.Job{ID: "job_x"}, request, l, 0, room{})
		seq, kept := uint64(0), 0
		give := func(f agent.Frame) {
			seq++
			f.Seq = seq
			if f = c.cut(f); f.Type == agent.FrameStdout {
				kept += len(f.Payload)
			}
			testbed.Must(t, c.add(f))
		}
		for i, part := range []int{size / 2, size - size/2} {
			give(start(0, i))
			for part > 0 {
				n := min(part, 64<<10)
				give(out(0, strings.Repeat("x", n)))
				part -= n
			}
			give(frame(0, agent.FrameCommandEnd, agent.CommandMark{Index: i}))
		}
		gone := int64(0)
		for _, one := range c.result().Command.Commands {
			gone += one.Dropped.Stdout
		}
		testbed.Check(t, kept == min(size, limit) && gone == int64(max(size-limit, 0)), "%d bytes: %d kept, %d dropped", size, kept, gone)
	}
}

// The number of dropped bytes is the agent's word: two large ones had a negative sum.
func TestSumsOfDroppedBytesAreBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, second, want int64 }{
		{maxDropped - 2, 1, maxDropped - 1},
		{maxDropped - 1, 1, maxDropped},
		{maxDropped, 1, maxDropped},
		{math.MaxInt64, math.MaxInt64, maxDropped},
	} {
		col := collectorOf(code(), 0)
		for i, n := range []int64{c.first, c.second} {
			testbed.Must(t, col.add(dropped(uint64(i)+1, n, n)))
		}
		testbed.Must(t, col.add(frame(3, agent.FrameFinal, agent.Outcome{})))
		got := col.result().Execute.Dropped
		testbed.Check(t, got == farm.Dropped{Stdout: c.want, Stderr: c.want}, "%d and %d: %+v, want %d", c.first, c.second, got, c.want)
	}
}

func TestAWrongNumberOfDroppedBytesBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"{", `{"stdout":-1}`, `{"stderr":-1}`, `{"stdout":1e30}`} {
		err := collectorOf(code(), 0).add(agent.Frame{Seq: 1, Type: agent.FrameDropped, Payload: []byte(payload)})
		testbed.Check(t, errors.Is(err, ErrProtocol), "%s: %v", payload, err)
	}
}

func TestSpecCarriesTheOutputLimit(t *testing.T) {
	t.Parallel()
	x := &Runner{cfg: Config{Limits: farm.DefaultLimits()}}
	for _, stop := range []bool{false, true} {
		for _, r := range []*farm.Request{
			{Execute: &farm.ExecuteRequest{Code: "1", StopAtOutputLimit: stop}},
			{Command: &farm.CommandRequest{Commands: []string{"a"}, StopAtOutputLimit: stop}},
		} {
			s := x.spec(&execution{job: &farm.Job{}, request: r})
			if s.MaxOutput != 100<<20 || s.StopAtMaxOutput != stop {
				t.Error(fmt.Sprintf("%+v", s), stop)
			}
		}
	}
}
