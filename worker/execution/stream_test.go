package execution

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestStreamKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 99, 100, 101, 149, 150, 151, 1000, 12345} {
		for _, step := range []int{1, 7, 50, 100, 300, 20000} {
			whole := make([]byte, size)
			for i := range whole {
				whole[i] = 'a' + byte(rand.IntN(26))
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
		workertest.Must(t, c.add(c.cut(f)))
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
		workertest.Must(t, c.add(c.cut(f)))
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
			workertest.Must(t, c.add(f))
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
