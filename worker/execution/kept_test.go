package execution

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// running is a collector of a job that runs, with these rooms.
func running(r *farm.Request, room room) *collector {
	c := newCollector(&farm.Job{ID: "job_x", Tenant: "acme"}, r, farm.DefaultLimits(), 0, room)
	c.artifact = func(path, contentType string) *farm.Artifact {
		return &farm.Artifact{Path: path, Key: path, ContentType: contentType}
	}
	return c
}

// inMemoryOf is what a collector keeps for the record, counted without its own count.
func inMemoryOf(c *collector) (n int64) {
	for _, o := range c.outputs {
		for _, s := range o.both() {
			n += int64(len(s.head) + len(s.tail))
		}
	}
	for _, r := range c.rich {
		n += weight(r)
	}
	return n
}

// Output of jobs that run was not charged before they ended: jobs that printed something and then slept held any number of bytes.
func TestOutputOfRunningJobsIsCharged(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	r := room{memory: memory, disk: budget.New(1 << 40), dir: t.TempDir()}
	commands := &farm.Request{Command: &farm.CommandRequest{Commands: make([]string, 8)}}
	text := strings.Repeat("0123456789abcdef", 64<<10/16)
	var jobs []*collector
	for range 12 {
		c := running(commands, r)
		jobs = append(jobs, c)
		seq := uint64(0)
		next := func() uint64 { seq++; return seq }
		for index := range commands.Command.Commands {
			workertest.Must(t, c.add(start(next(), index)))
			for range 10 {
				workertest.Must(t, c.add(out(next(), text)))
			}
			workertest.Must(t, c.add(display(next(), map[string]string{"text/plain": text})))
			workertest.Must(t, c.add(end(next(), index, 0)))
			c.take()
			c.displays = nil // they are stored
		}
	}
	var held, charged, spools int64
	for i, c := range jobs {
		got := inMemoryOf(c)
		testbed.Check(t, got == c.inMemory.bytes, "job %d keeps %d bytes, and counts %d", i, got, c.inMemory.bytes)
		held += inMemoryOf(c)
		charged += c.inMemory.hold.Bytes()
		for _, o := range c.outputs {
			spools += int64(cap(o.stdout.unsent.memory))
			whole := strings.Repeat(text, 10)
			short := o.stdout.text()
			head, rest, _ := strings.Cut(short, "\n…")
			_, tail, _ := strings.Cut(rest, "…\n")
			if o.stdout.truncated() && (o.stdout.unsent.len() != int64(len(whole)) || !strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) || o.stdout.limit < leastInline) ||
				!o.stdout.truncated() && short != whole {
				t.Errorf("job %d: of %d bytes the result has %d, the spool %d", i, len(whole), len(short), o.stdout.unsent.len())
			}
		}
	}
	uncharged := int64(len(jobs)) * (freeKept + 2*8*(leastInline+entryBytes))
	if held > charged+uncharged || charged+spools > memory.Stats().Used || charged == 0 {
		t.Errorf("%d bytes are kept; charged are %d for them, %d in all", held, charged, memory.Stats().Used)
	}
	last := jobs[len(jobs)-1]
	large := last.rich[len(last.rich)-1]
	testbed.Check(t, large.Artifact != nil && large.Artifact.Size == int64(len(text)), "without memory a displayed value is %+v", large)
	// another worker goes on from a snapshot of a job that had memory; now there is none
	data := encoded(t, jobs[0])
	again := running(commands, r)
	workertest.Must(t, again.restore(bytes.NewReader(data)))
	if got := inMemoryOf(again); got != again.inMemory.bytes || got > again.inMemory.hold.Bytes()+uncharged {
		t.Errorf("a restored job keeps %d bytes, counts %d and is charged %d", got, again.inMemory.bytes, again.inMemory.hold.Bytes())
	}
	for _, c := range append(jobs, again) {
		c.close()
	}
	empty(t, memory)
	empty(t, r.disk)
}

// Values that are replaced, cleared or left out give back what they took.
func TestDisplayedValuesGiveTheirMemoryBack(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	c := running(code(), room{memory: memory})
	rng := rand.New(rand.NewPCG(1, 2))
	for seq := uint64(1); seq <= 400; seq++ {
		d := agent.Display{Number: int(seq), Data: map[string]string{"text/plain": strings.Repeat("x", rng.IntN(400<<10))}}
		switch k := rng.IntN(20); {
		case k < 8 && seq > 1:
			d.Number, d.Update = 1+rng.IntN(int(seq)-1), true
		case k == 8:
			d = agent.Display{Clear: agent.ClearNow}
		case k == 9 && len(c.displays) > 0:
			c.leaveOut(c.displays[0])
			c.displays = c.displays[1:]
		}
		workertest.Must(t, c.add(frame(seq, agent.FrameDisplay, d)))
		c.take()
		if got := inMemoryOf(c); got != c.inMemory.bytes || c.inMemory.hold.Bytes() < got-freeKept || c.inMemory.hold.Bytes() > max(got-freeKept, 0)+keptStep {
			t.Fatalf("frame %d: %d bytes are kept, %d counted, %d charged", seq, got, c.inMemory.bytes, c.inMemory.hold.Bytes())
		}
	}
	c.close()
	empty(t, memory)
}

// A stream that is cut has the head and the tail that it would have if its limit had been lower from the beginning.
func TestACutStreamIsAsOneOfALowerLimit(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 3))
		limit, lower := 1+rng.IntN(200), 1+rng.IntN(200)
		s, want := newStream(limit), newStream(min(limit, lower))
		var all []byte
		for range rng.IntN(20) {
			p := fmt.Append(nil, rng.Int64(), rng.Int64(), rng.Int64())[:rng.IntN(30)]
			if rng.IntN(8) == 0 {
				was := s.truncated()
				if whole := s.cut(lower); whole != nil && !bytes.Equal(whole, all) || (whole != nil) != (s.truncated() && !was) {
					t.Fatalf("seed %d: cut returns %q of %q", seed, whole, all)
				}
			}
			s.write(p)
			want.write(p)
			all = append(all, p...)
		}
		s.cut(lower)
		if got, want := s.text("there"), want.text("there"); got != want {
			t.Fatalf("seed %d: limit %d, then %d: %q, want %q", seed, limit, lower, got, want)
		}
	}
}
