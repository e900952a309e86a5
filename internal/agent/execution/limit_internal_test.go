package execution

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sent is what a reader of an ended log gets of one command, or of code.
type sent struct {
	stdout, stderr []byte
	dropped        agent.Dropped
	droppedFrames  int
}

// readSent reads an ended log: one entry for each command, or one for code.
func readSent(t *testing.T, l *Log) []sent {
	t.Helper()
	_, last, _, _ := l.State()
	all := []sent{{}}
	for from := uint64(1); from <= last; {
		frames, err := l.Next(t.Context(), from)
		testbed.Must(t, err)
		for _, f := range frames {
			now := &all[len(all)-1]
			switch f.Type {
			case agent.FrameStdout:
				now.stdout = append(now.stdout, f.Payload...)
			case agent.FrameStderr:
				now.stderr = append(now.stderr, f.Payload...)
			case agent.FrameDropped:
				now.droppedFrames++
				testbed.Must(t, json.Unmarshal(f.Payload, &now.dropped))
			case agent.FrameCommandEnd:
				all = append(all, sent{})
			default:
			}
			testbed.Require(t, len(f.Payload) <= MaxOutputFrame, "a frame of %d bytes", len(f.Payload))
			from = f.Seq + 1
		}
	}
	return all
}

// numbers are bytes whose content tells their place.
var numbers = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < 8<<20; i++ {
		fmt.Fprintf(&b, "%08d\n", i)
	}
	return b.Bytes()
})

// numbered is the first n of them, at most 8 MiB.
func numbered(n int) []byte { return numbers()[:n] }

// write appends output in frames.
func write(l *Log, kind agent.FrameType, p []byte) {
	for len(p) > 0 {
		n := min(len(p), MaxOutputFrame)
		l.Append(kind, p[:n])
		p = p[n:]
	}
}

var markerPattern = regexp.MustCompile(`\n… \[(\d+) bytes of (stdout|stderr) were dropped here\] …\n`)

func TestOutputUpToItsLimitPassesWhole(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	// The end of the output has room for the marker, so one byte over the limit without it drops nothing yet.
	for size, cut := range map[int]bool{limit - markerBytes - 1: false, limit - markerBytes: false, limit - markerBytes + 1: true} {
		l := NewLog(1 << 30)
		reached := 0
		l.limitOutput(limit, 0, func() { reached++ })
		whole := numbered(size)
		write(l, agent.FrameStdout, whole)
		write(l, agent.FrameStderr, []byte("short"))
		l.End([]byte("{}"))
		got := readSent(t, l)[0]
		if string(got.stderr) != "short" || len(got.stdout) > limit || got.dropped.Stderr != 0 {
			t.Errorf("%d bytes: stdout of %d, stderr %q, dropped %+v", size, len(got.stdout), got.stderr, got.dropped)
		}
		if cut != (got.dropped.Stdout == 1) || cut != (reached == 1) || cut == bytes.Equal(got.stdout, whole) || cut != (got.droppedFrames == 1) {
			t.Errorf("%d bytes: %d sent, dropped %+v in %d frames, told %d times", size, len(got.stdout), got.dropped, got.droppedFrames, reached)
		}
	}
}

// Whatever is written, what is sent is at most the limit, and is head, marker and tail of what was written.
func TestOutputBeyondItsLimitKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 12)) //nolint:gosec // a test
		commands := []int{0, 1, 2, 10, 256}[random.IntN(5)]
		limit := []int{1000, 100_000, 1 << 20, 8 << 20}[random.IntN(4)]
		l := NewLog(1 << 30)
		l.limitOutput(int64(limit), commands, nil)
		var written []sent
		for range max(commands, 1) {
			one := sent{stdout: numbered(random.IntN(limit / max(commands/8, 1))), stderr: numbered(random.IntN(100))}
			write(l, agent.FrameStdout, one.stdout)
			write(l, agent.FrameStderr, one.stderr)
			if commands > 0 {
				l.Append(agent.FrameCommandEnd, []byte("{}"))
			}
			written = append(written, one)
		}
		l.End([]byte("{}"))
		total := 0
		for i, got := range readSent(t, l)[:len(written)] {
			total += len(got.stdout)
			want := written[i].stdout
			if got.dropped.Stdout == 0 {
				if !bytes.Equal(got.stdout, want) {
					t.Fatalf("seed %d, command %d: %d of %d bytes sent, none counted as dropped", seed, i, len(got.stdout), len(want))
				}
				continue
			}
			head, tail := got.stdout, []byte{}
			if at := markerPattern.FindSubmatchIndex(got.stdout); at != nil {
				if reported := string(got.stdout[at[2]:at[3]]); reported != fmt.Sprint(got.dropped.Stdout) {
					t.Fatalf("seed %d, command %d: the text says %s, the frame %d", seed, i, reported, got.dropped.Stdout)
				}
				head, tail = got.stdout[:at[0]], got.stdout[at[1]:]
			}
			if !bytes.HasPrefix(want, head) || !bytes.HasSuffix(want, tail) || len(head)+len(tail)+int(got.dropped.Stdout) != len(want) {
				t.Fatalf("seed %d, command %d: head %d, tail %d, dropped %d of %d", seed, i, len(head), len(tail), got.dropped.Stdout, len(want))
			}
		}
		testbed.Require(t, total <= limit, "seed %d: %d bytes sent, limit %d", seed, total, limit)
	}
}

// A command after one that used up the limit still shows what it printed, if that is little.
func TestCommandsAfterALongOneKeepTheirOutput(t *testing.T) {
	t.Parallel()
	l := NewLog(1 << 30)
	l.limitOutput(4<<20, 10, nil)
	for i := range 10 {
		out := []byte("short\n")
		if i%2 == 0 {
			out = numbered(5 << 20)
		}
		write(l, agent.FrameStdout, out)
		l.Append(agent.FrameCommandEnd, []byte("{}"))
	}
	l.End([]byte("{}"))
	for i, got := range readSent(t, l)[:10] {
		if i%2 == 1 && (string(got.stdout) != "short\n" || got.dropped.Stdout != 0) {
			t.Errorf("command %d: %d bytes, %+v", i, len(got.stdout), got.dropped)
		}
		testbed.Check(t, i%2 != 0 || bytes.HasSuffix(got.stdout, numbered(5 << 20)[5<<20-10_000:]), "command %d: its end is missing", i)
	}
}

// Output beyond the limit never waits for a reader.
func TestOutputBeyondItsLimitDoesNotBlock(t *testing.T) {
	t.Parallel()
	l := NewLog(2 << 20)
	l.limitOutput(1<<20, 0, nil)
	write(l, agent.FrameStdout, make([]byte, 64<<20)) // nobody reads
	l.End([]byte("{}"))
	_, _, kept, _ := l.State()
	testbed.Check(t, kept <= 1<<20+200, "the log keeps %d bytes", kept)
}

func TestExecutionStopsAtItsOutputLimit(t *testing.T) {
	t.Parallel()
	for kind, c := range map[farm.JobKind]struct {
		stop bool
		exit int // of the code
		want int
	}{
		farm.KindExecute: {true, 1, exitKilled},
		farm.KindCommand: {true, 143, 143},
		farm.KindInstall: {false, 3, 3},
	} {
		e := New("job_1", agent.Spec{Kind: kind, MaxOutput: 4000, StopAtMaxOutput: c.stop}, 1<<20, time.Now())
		e.Log.Append(agent.FrameStdout, make([]byte, 4000-markerBytes))
		testbed.Check(t, !e.IsStopped(), "%s: stopped at its limit", kind)
		e.Log.Append(agent.FrameStderr, make([]byte, 4001))
		if e.IsStopped() != c.stop {
			t.Errorf("%s: stopped %v", kind, e.IsStopped())
		}
		e.Finish(agent.Outcome{ExitCode: c.exit})
		_, last, _, _ := e.Log.State()
		frames, err := e.Log.Next(t.Context(), last)
		var out agent.Outcome
		if err != nil || json.Unmarshal(frames[len(frames)-1].Payload, &out) != nil {
			t.Fatal(err, frames)
		}
		testbed.Check(t, out.StoppedAtMaxOutput == c.stop && out.ExitCode == c.want && !out.Canceled && !out.TimedOut, "%s: %+v", kind, out)
	}
}

// What a stopped execution drops because nobody reads is counted, too.
func TestDroppedOutputOfAStoppedExecutionIsCounted(t *testing.T) {
	t.Parallel()
	l := NewLog(10)
	l.limitOutput(1<<30, 0, nil)
	l.Unblock()
	write(l, agent.FrameStdout, make([]byte, 3*unblockedBytes))
	l.End([]byte("{}"))
	got := readSent(t, l)[0]
	kept := len(markerPattern.ReplaceAll(got.stdout, nil))
	testbed.Check(t, got.dropped.Stdout != 0 && int(got.dropped.Stdout)+kept == 3*unblockedBytes, "kept %d, dropped %+v", kept, got.dropped)
}
