package execution

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
			testbed.Must(t, c.add(start(next(), index)))
			for range 10 {
				testbed.Must(t, c.add(out(next(), text)))
			}
			testbed.Must(t, c.add(display(next(), map[string]string{"text/plain": text})))
			testbed.Must(t, c.add(end(next(), index, 0)))
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
	testbed.Must(t, again.restore(bytes.NewReader(data)))
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
		testbed.Must(t, c.add(frame(seq, agent.FrameDisplay, d)))
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
			for i := range p {
				if rng.IntN(3) == 0 && seed%2 == 0 {
					p[i] = 1 // counts more than a byte
				}
			}
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

// frames gives frames of one size, without end or until it fails.
type frames struct {
	size  int
	given atomic.Int64
	fails int64 // number of the frame that fails; 0: none
}

func (s *frames) NextAdmitted(admit func(int) error) (agent.Frame, error) {
	if err := admit(s.size); err != nil {
		return agent.Frame{}, err
	}
	n := s.given.Add(1)
	if n == s.fails {
		return agent.Frame{}, errors.New("the stream broke")
	}
	return agent.Frame{Seq: uint64(n), Type: agent.FrameDisplay, Payload: make([]byte, s.size)}, nil
}

func (s *frames) Close() error { return nil }

const (
	mib      = 1 << 20
	small    = 16 * mib / 8 / 2 / budget.SmallBytes // frames of 64 KiB that one tenant's share of 16 MiB has
	largest  = (16*mib - 16*mib/8) / 2              // bytes of large frames that its share has
	displays = largest / (mib * valueWeight)        // of 1 MiB
)

// Frames that wait in memory are bounded, however large they are and however many executions a tenant has.
func TestFramesReadAheadAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ size, executions, limit int }{
		"Tiny":       {1, 1, readAhead + 1},
		"Small":      {budget.SmallBytes, 1, small},
		"SmallMany":  {budget.SmallBytes, 10, small},
		"Large":      {mib, 1, displays},
		"LargeMany":  {mib, 10, displays},
		"ShareAlone": {40 * mib, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				memory := budget.New(16 * mib)
				var readers []*frameReader
				count := func() (n int) {
					synctest.Wait()
					for _, r := range readers {
						n += int(r.source.(*frames).given.Load())
					}
					return n
				}
				for range c.executions {
					readers = append(readers, newFrameReader(t.Context(), &frames{size: c.size}, memory, "acme"))
					synctest.Wait()
				}
				// Each execution can hold one frame of ordinary size without charge.
				free := 0
				if c.size <= budget.SmallBytes {
					free = c.executions
				}
				got := count()
				testbed.Check(t, got <= c.limit+free && got >= c.limit, "%d frames are read ahead, want %d", got, c.limit)
				other := newFrameReader(t.Context(), &frames{size: c.size}, memory, "rival")
				synctest.Wait()
				testbed.Check(t, len(other.frames) != 0, "another tenant's execution reads nothing")
				other.stop()
				for _, r := range readers {
					r.stop()
				}
				if got := memory.Stats(); got.Used != 0 || got.Accounts != 0 {
					t.Errorf("at the end %+v", got)
				}
			})
		})
	}
}

// An execution goes on although other executions of its tenant have used up the share: frame by frame.
func TestSmallFramesNeverWaitForOtherExecutions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New(16 * mib)
		hold, ok := memory.TryAcquire("acme", budget.SmallBytes)
		for ok {
			defer hold.Release()
			hold, ok = memory.TryAcquire("acme", budget.SmallBytes)
		}
		r := newFrameReader(t.Context(), &frames{size: budget.SmallBytes}, memory, "acme")
		for i := range 5 {
			synctest.Wait()
			got := r.source.(*frames).given.Load()
			testbed.Check(t, got == int64(i)+1, "%d frames were read, want %d", got, i+1)
			r.handled(<-r.frames)
		}
		r.stop()
	})
}

// A stream that breaks within a frame gives back what the frame was charged.
func TestBrokenFrameHoldsNoMemory(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 * mib)
	r := newFrameReader(t.Context(), &frames{size: mib, fails: 2}, memory, "acme")
	r.handled(<-r.frames)
	item := <-r.frames
	testbed.Check(t, item.err != nil, "frame 2 = %+v, want an error", item)
	r.stop()
	got := memory.Stats().Used
	testbed.Check(t, got == 0, "%d bytes are held", got)
}

// admitted is frames that look at the budget once a frame may be read.
type admitted struct {
	frames
	memory *budget.Budget
	used   int64
}

func (s *admitted) NextAdmitted(admit func(int) error) (agent.Frame, error) {
	return s.frames.NextAdmitted(func(bytes int) error {
		err := admit(bytes)
		s.used = s.memory.Stats().Used
		return err
	})
}

// Frames of installs are charged as those of code are: agents that code had taken over announced 4 MiB each, and nobody was charged.
func TestFramesOfInstallsAreCharged(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int64{
		budget.SmallBytes - 1: 0, budget.SmallBytes: 0, budget.SmallBytes + 1: (budget.SmallBytes + 1) * valueWeight,
		maxInstallFrame - 1: (maxInstallFrame - 1) * valueWeight, maxInstallFrame: maxInstallFrame * valueWeight, maxInstallFrame + 1: 0,
	} {
		memory := budget.New(64 * mib)
		e := &execution{job: &farm.Job{Tenant: "acme"}, collect: collectorOf(code(), 0), staged: &staging{}}
		e.collect.quiet = true
		f := &installer{x: &Runner{memory: memory, turns: budget.NewPlaces(2)}, e: e}
		source := &admitted{frames: frames{size: size}, memory: memory}
		err := f.next(t.Context(), nil, source)
		testbed.Check(t, errors.Is(err, ErrProtocol) == (size > maxInstallFrame) && (err == nil) == (size <= maxInstallFrame), "a frame of %d bytes: %v", size, err)
		testbed.Check(t, source.used == want, "a frame of %d bytes is charged %d, want %d", size, source.used, want)
		testbed.Check(t, memory.Stats().Used == 0, "after a frame of %d bytes %+v is held", size, memory.Stats())
	}
}

// What prints as fast as it can is handled for a tenant's share of the executions only: the other ones of the tenant wait, short output and that of
// other tenants does not.
func TestLongOutputTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &Runner{turns: budget.NewPlaces(4)}
		newExecution := func(tenant string) *execution {
			e := &execution{job: &farm.Job{Tenant: tenant}, collect: collectorOf(code(), 0), staged: &staging{}}
			e.collect.quiet = true
			return e
		}
		take := func(tenant string, bytes int) (taken *bool) {
			taken = new(bool)
			go func() {
				if _, err := x.take(t.Context(), newExecution(tenant), nil, out(1, strings.Repeat("y", bytes))); err != nil {
					t.Error(err)
				}
				*taken = true
			}()
			synctest.Wait()
			return taken
		}
		var ends []func()
		for range 2 {
			ends = append(ends, x.turn(t.Context(), newExecution("acme"), shortBytes+1))
		}
		waits := take("acme", shortBytes+1)
		testbed.Check(t, !*waits, "long output was handled beyond the share of its tenant")
		installed := make(chan error, 1)
		go func() {
			f := &installer{x: x, e: newExecution("acme")}
			installed <- f.take(t.Context(), nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: make([]byte, shortBytes+1)})
		}()
		synctest.Wait()
		testbed.Check(t, len(installed) == 0, "long output of an install was handled beyond the share of its tenant")
		testbed.Check(t, *take("acme", shortBytes), "short output waits for the long one of its tenant")
		testbed.Check(t, *take("rival", shortBytes+1), "output waits for that of another tenant")
		ends[0]()
		synctest.Wait()
		testbed.Check(t, *waits, "output waits although the turn of another one has ended")
		testbed.Must(t, <-installed)
		ends[0] = x.turn(t.Context(), newExecution("acme"), shortBytes+1)
		waits = take("acme", shortBytes+1)
		time.Sleep(turnTimeout) // of the bubble
		synctest.Wait()
		testbed.Check(t, *waits, "output waits for longer than %s for one that does not end", turnTimeout)
		ends[0]()
		ends[1]()
		for _, tenant := range []string{"acme", "acme", "rival"} {
			select {
			case <-x.turns.Ask(tenant).Granted():
			default:
				t.Error("at the end not all turns have ended")
			}
		}
	})
}

// Frames without a payload take turns as output does. They were handled at once, however many an agent sent.
func TestEmptyFramesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &Runner{turns: budget.NewPlaces(2)}
		ofCode := &execution{job: &farm.Job{Tenant: "acme"}, collect: collectorOf(code(), 0), staged: &staging{}}
		ofInstall := &execution{job: &farm.Job{Tenant: "acme"}, collect: collectorOf(code(), 0), staged: &staging{}}
		install := &installer{x: x, e: ofInstall}
		for name, take := range map[string]func(seq uint64) error{
			"Code":    func(seq uint64) error { _, err := x.take(t.Context(), ofCode, nil, out(seq, "")); return err },
			"Install": func(seq uint64) error { return install.take(t.Context(), nil, out(seq, "")) },
		} {
			end := x.turn(t.Context(), &execution{job: &farm.Job{Tenant: "acme"}}, shortBytes+1) // the tenant's only one
			const short = shortBytes / frameBytes
			handled := 0
			go func() {
				for seq := uint64(1); seq <= short+1; seq++ {
					if err := take(seq); err != nil {
						t.Error(err)
					}
					handled++
				}
			}()
			synctest.Wait()
			testbed.Check(t, handled == short, "%s: %d frames were handled without a turn, want %d", name, handled, short)
			end()
			synctest.Wait()
			testbed.Check(t, handled == short+1, "%s: %d frames were handled in all", name, handled)
		}
	})
}

// A panic of one execution must not take a turn from all others for good.
func TestTurnEndsWithAPanic(t *testing.T) {
	t.Parallel()
	x := &Runner{turns: budget.NewPlaces(2)} // without a store
	e := &execution{job: &farm.Job{Tenant: "acme"}, collect: collectorOf(code(), 0), taken: shortBytes + 1}
	e.collect.events = []farm.Event{{}}
	func() {
		defer func() {
			testbed.Check(t, recover() != nil, "events are published without a store")
		}()
		_ = x.publishSoon(t.Context(), e)
	}()
	select {
	case <-x.turns.Ask("acme").Granted():
	default:
		t.Error("the turn is lost")
	}
}

// An execution whose events the object store does not take: frames of updates of a cleared value, which are in events only.
func heldEvents(t *testing.T, memory *budget.Budget) (x *Runner, e *execution, update func(bytes int)) {
	t.Helper()
	b := setup(t)
	b.Register("w1")
	x, _ = b.runner()
	box := b.Ready()
	job := b.Accept(farm.KindExecute, box.ID, code(), nil)
	claim := b.Claim(job, "w1")
	e = &execution{
		job: claim.Job, request: claim.Request, sandbox: claim.Sandbox, staged: &staging{},
		collect: newCollector(claim.Job, claim.Request, x.cfg.Limits, 0, room{memory: memory}),
	}
	t.Cleanup(e.collect.close)
	take := func(d agent.Display) {
		_, err := x.take(t.Context(), e, nil, frame(e.collect.seq+1, agent.FrameDisplay, d))
		testbed.Must(t, err)
	}
	take(agent.Display{Number: 1, Data: map[string]string{"text/plain": "1"}})
	take(agent.Display{Clear: agent.ClearNow})
	testbed.Must(t, x.publish(t.Context(), e))
	testbed.Must(t, x.orLater(t.Context(), e, blob.ErrNoAnswer))
	testbed.Require(t, e.late && len(e.collect.events) == 0, "late: %v, %d events wait", e.late, len(e.collect.events))
	return x, e, func(bytes int) {
		take(agent.Display{Number: 1, Update: true, Data: map[string]string{"text/plain": strings.Repeat("x", bytes-eventExtra)}})
	}
}

// Events of an execution piled up while the object store was away, charged to no budget.
func TestEventsThatWaitForTheObjectStoreAreCharged(t *testing.T) {
	t.Parallel()
	memory := budget.New(64 << 20)
	x, e, update := heldEvents(t, memory)
	c := e.collect
	update(publishBytes - 1 - eventExtra)
	testbed.Check(t, c.bytes == publishBytes-1-eventExtra && c.waiting == 0, "of %d bytes %d are charged", c.bytes, c.waiting)
	update(eventExtra + 1)
	testbed.Check(t, c.bytes == publishBytes && c.waiting == 0, "of %d bytes %d are charged", c.bytes, c.waiting)
	update(eventExtra)
	testbed.Check(t, c.waiting == eventExtra, "of %d bytes %d are charged", c.bytes, c.waiting)
	for range 10 {
		update(200 << 10)
	}
	const want = eventExtra + 10*200<<10
	testbed.Check(t, c.waiting == want && c.inMemory.bytes == want && c.inMemory.hold.Bytes() >= want-freeKept, "of %d bytes %d are charged", c.bytes, c.inMemory.hold.Bytes())
	testbed.Must(t, x.publish(t.Context(), e))
	testbed.Check(t, c.waiting == 0 && c.inMemory.bytes == 0 && len(c.events) == 0, "after they were sent %d bytes are charged", c.inMemory.bytes)
	empty(t, memory)
	last, err := x.store.LastEvent(t.Context(), e.job.Ref())
	testbed.Check(t, err == nil && last == fmt.Sprintf("%d-1", c.seq), "the last event is %s, %v", last, err)
}

// Where there is no memory for them, they are dropped once they are longer than is sent at once, and the caller is told. Later ones are sent.
func TestEventsThatHaveNoRoomAreDropped(t *testing.T) {
	t.Parallel()
	memory := budget.New(64 << 20)
	x, e, update := heldEvents(t, memory)
	c := e.collect
	var holds []*budget.Hold
	for {
		hold, ok := memory.TryAcquire(e.job.Tenant, 1<<20)
		if !ok {
			break
		}
		holds = append(holds, hold)
	}
	dropped := 0
	for range 50 {
		before := len(c.events)
		update(100 << 10)
		testbed.Check(t, c.bytes <= publishBytes+freeKept, "%d bytes wait", c.bytes)
		if len(c.events) <= before {
			dropped++
			testbed.Check(t, len(c.events) == 1 && c.events[0].Progress != nil && c.events[0].Progress.Message == eventsDropped, "%d events are left", len(c.events))
		}
	}
	testbed.Check(t, dropped > 10 && len(c.notes) == 1 && c.notes[0] == eventsDropped, "events were dropped %d times, notes %q", dropped, c.notes)
	for _, hold := range holds {
		hold.Release()
	}
	waiting := len(c.events)
	update(100 << 10)
	testbed.Must(t, x.publish(t.Context(), e))
	testbed.Check(t, waiting > 0 && len(c.events) == 0, "of %d events %d are left", waiting+1, len(c.events))
	empty(t, memory)
	last, err := x.store.LastEvent(t.Context(), e.job.Ref())
	testbed.Check(t, err == nil && last == fmt.Sprintf("%d-1", c.seq), "the last event is %s, %v", last, err)
}
