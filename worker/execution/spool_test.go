package execution

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// smallRoom has room for one spool of a tenant in memory, and for one on disk.
func smallRoom(t *testing.T) room {
	t.Helper()
	return room{memory: budget.New(16 << 20), disk: budget.New(16 << 20), dir: t.TempDir()}
}

// empty checks that a budget has everything back.
func empty(t *testing.T, b *budget.Budget) {
	t.Helper()
	s := b.Stats()
	testbed.Check(t, s.Used == 0 && s.Waiting == 0 && s.Waited == 0, "a budget after the end: %+v", s)
}

// A spool is in memory, then on disk, then nowhere; its bytes stay the same.
func TestSpoolGoesFromMemoryToDisk(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := smallRoom(t)
		b := spool{room: r, tenant: "a"}
		var want []byte
		for range 60 {
			if rng.IntN(4) == 0 && len(want) > 0 {
				n := 1 + rng.IntN(len(want))
				testbed.Must(t, b.drop(int64(n)))
				want = want[n:]
			}
			p := bytes.Repeat([]byte{byte(rng.IntN(256))}, rng.IntN(600<<10))
			before := b.len()
			err := b.add(p)
			if errors.Is(err, errNoRoom) {
				if before+int64(len(p)) <= spoolStep || b.len() != before {
					t.Fatalf("seed %d: no room for %d bytes after %d", seed, len(p), before)
				}
				continue
			}
			testbed.Must(t, err)
			want = append(want, p...)
			testbed.Require(t, b.file != nil || cap(b.memory) <= spoolStep, "seed %d: %d bytes are in memory", seed, cap(b.memory))
			got, err := io.ReadAll(b.first(b.len()))
			testbed.Must(t, err)
			testbed.Require(t, bytes.Equal(got, want), "seed %d: %d bytes, want %d", seed, len(got), len(want))
		}
		b.close()
		empty(t, r.memory)
		empty(t, r.disk)
	}
}

// Where is no disk, or no budget for it, a long spool is refused.
func TestSpoolWithoutDisk(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	for _, c := range []struct {
		name string
		room room
		size int
		err  error
	}{
		{"Fits", room{memory: memory}, spoolStep, nil},
		{"NoDisk", room{memory: memory}, spoolStep + 1, errNoRoom},
		{"NoFolder", room{memory: memory, disk: budget.New(1 << 30), dir: "/does/not/exist"}, spoolStep + 1, errNoRoom},
		{"Disk", room{memory: memory, disk: budget.New(1 << 30), dir: t.TempDir()}, 3 * spoolStep, nil},
	} {
		b := spool{room: c.room, tenant: "a"}
		err := b.add(make([]byte, c.size))
		testbed.Check(t, errors.Is(err, c.err), "%s: %v, want %v", c.name, err, c.err)
		b.close()
		empty(t, memory)
	}
}

func TestNoSpoolInMemory(t *testing.T) {
	t.Parallel()
	r := newRoom(nil, "/dev/shm", 0)
	testbed.Check(t, r.disk == nil, "a folder in memory counts as disk")
	r = newRoom(nil, "/dev/shm", 32)
	testbed.Check(t, r.disk.Stats().Size == 32<<20, "a spool of 32 MiB that is set has %d bytes", r.disk.Stats().Size)
}

// Many long outputs at once take no more memory than their budget; the others are on disk, and all are stored whole.
func TestLongOutputsShareTheStagingMemory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	x.room = room{memory: budget.New(32 << 20), disk: budget.New(1 << 30), dir: t.TempDir()}
	const jobs, size = 6, 6 << 20
	text := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	es := make([]*execution, jobs)
	for i := range es {
		es[i] = b.following(x, code())
	}
	var wg sync.WaitGroup
	for _, e := range es {
		wg.Go(func() {
			for seq, off := uint64(1), 0; off < size; off += 1 << 20 {
				for _, kind := range []agent.FrameType{agent.FrameStdout, agent.FrameStderr} {
					due, err := x.absorb(t.Context(), e, agent.Frame{Seq: seq, Type: kind, Payload: text[off : off+1<<20]})
					if err != nil {
						t.Error(err)
					}
					if seq++; due {
						for _, s := range e.collect.current() {
							if err := x.sendParts(t.Context(), e, s); err != nil {
								t.Error(err)
							}
						}
					}
				}
			}
		})
	}
	wg.Wait()
	inMemory, onDisk := 0, 0
	for _, e := range es {
		for _, s := range e.collect.current() {
			if s.unsent.file != nil {
				onDisk++
			}
			inMemory += cap(s.unsent.memory)
		}
	}
	if limit := x.room.memory.Share(); int64(inMemory) > limit || onDisk == 0 {
		t.Errorf("%d bytes of spools are in memory, %d on disk; want at most %d in memory", inMemory, onDisk, limit)
	}
	for _, e := range es {
		_, err := x.absorb(t.Context(), e, frame(e.collect.seq+1, agent.FrameFinal, agent.Outcome{}))
		testbed.Must(t, err)
		artifacts, err := x.upload(t.Context(), e)
		testbed.Must(t, err)
		for _, a := range artifacts {
			got := b.content(a.Key)
			testbed.Check(t, bytes.Equal(got, text), "%s has %d bytes", a.Path, len(got))
		}
		testbed.Check(t, len(artifacts) == 2, "artifacts %+v", artifacts)
		e.collect.close()
	}
	empty(t, x.room.memory)
	empty(t, x.room.disk)
}

// What fits neither into memory nor on disk is cut, and the caller is told. The job does not fail, and other tenants lose nothing.
func TestOutputWithoutRoomIsCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	x.room = room{memory: budget.New(16 << 20)}
	other := spool{room: x.room, tenant: workertest.Tenant}
	testbed.Must(t, other.add(make([]byte, 1<<20))) // the share of the tenant
	defer other.close()
	e := b.following(x, code())
	text := strings.Repeat("x", 1<<20)
	for seq := uint64(1); seq <= 12; seq++ {
		_, err := x.absorb(t.Context(), e, out(seq, text))
		testbed.Must(t, err)
	}
	data := encoded(t, e.collect)
	again := newCollector(e.job, e.request, x.cfg.Limits, 0, x.room)
	testbed.Must(t, again.restore(bytes.NewReader(data)))
	testbed.Check(t, again.outputs[0].stdout.noRoom, "a snapshot forgets that an output is cut")
	_, err := x.absorb(t.Context(), e, frame(13, agent.FrameFinal, agent.Outcome{}))
	testbed.Must(t, err)
	artifacts, err := x.upload(t.Context(), e)
	testbed.Must(t, err)
	r := e.collect.result()
	if len(artifacts) != 0 || !r.Execute.Truncated.Stdout || !strings.Contains(r.Execute.Stdout, "the worker had no room") {
		t.Errorf("artifacts %+v, truncated %+v", artifacts, r.Execute.Truncated)
	}
	notes := strings.Join(r.Notes, "\n")
	testbed.Check(t, strings.Contains(notes, "no room for more long outputs") && !strings.Contains(notes, "quota"), "notes %q", notes)
	b.nothingStaged(e.job.Ref())
	neighbour := spool{room: x.room, tenant: "neighbour"}
	err = neighbour.add(make([]byte, blob.PartBytes))
	testbed.Check(t, err == nil, "another tenant: %v", err)
	neighbour.close()
}

// Jobs that hold requests, frames, spools, results and buffers of uploads at once never wait for each other: synctest fails when all wait.
func TestBudgetsOfAJobDoNotDeadlock(t *testing.T) {
	t.Parallel()
	values := strings.Repeat("x", 16<<20)
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			memory, staging, uploads := budget.New(16<<20), budget.New(16<<20), budget.New(16<<20)
			x := &Runner{}
			r := room{memory: staging}
			for i := range 40 {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				go func() {
					tenant := string(rune('a' + rng.IntN(3)))
					ctx, hold := memory.With(t.Context(), tenant, 0)
					defer hold.Release()
					nap := func() { time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond) }
					if err := budget.Charge(ctx, rng.Int64N(24<<20)); err != nil {
						t.Error(err)
					}
					nap()
					e := &execution{job: &farm.Job{Tenant: tenant}, request: &farm.Request{Command: &farm.CommandRequest{}}, outline: true, dropped: budget.Held(ctx)}
					budget.Keep(ctx, 0) // the agent has the request
					var b spool
					b.room, b.tenant = r, tenant
					for range rng.IntN(20) {
						frame, err := memory.Acquire(ctx, tenant, rng.Int64N(8<<20))
						if err != nil {
							t.Error(err)
						}
						nap()
						_ = b.add(make([]byte, rng.IntN(1<<10))) // or it is cut
						frame.Release()
					}
					e.collect = &collector{outcome: &agent.Outcome{}, rich: []farm.RichResult{{Data: values[:rng.IntN(len(values))]}}}
					if err := x.chargeResult(ctx, e); err != nil {
						t.Error(err)
					}
					upload, err := uploads.Acquire(ctx, tenant, rng.Int64N(8<<20))
					if err != nil {
						t.Error(err)
					}
					nap()
					upload.Release()
					b.close()
				}()
			}
			synctest.Wait()
			time.Sleep(time.Hour)
			for _, b := range []*budget.Budget{memory, staging, uploads} {
				s := b.Stats()
				testbed.Diff(t, fmt.Sprintf("seed %d", seed), budget.Stats{Size: s.Size, Waited: s.Waited}, s)
			}
		})
	}
}

// A long error, and a long report of packages, is charged as soon as the frame with it no longer is, and no second time with the result.
func TestReportsOfTheAgentAreCharged(t *testing.T) {
	t.Parallel()
	const most = budget.SmallBytes / resultWeight                                                            // that is not charged
	lines := func(n int) []string { return []string{strings.Repeat("\x01", n/6), strings.Repeat("x", n%6)} } // of n bytes as JSON
	packages := func(n int) (list []farm.PackageOutcome) {
		for n > 0 {
			list = append(list, farm.PackageOutcome{Message: strings.Repeat("x", min(n, maxPackageNote))})
			n -= maxPackageNote
		}
		return list
	}
	for name, report := range map[string]func(e *execution, o *agent.Outcome, n int){
		"Value":     func(_ *execution, o *agent.Outcome, n int) { o.Error = &farm.CodeError{Value: strings.Repeat("x", n)} },
		"Traceback": func(_ *execution, o *agent.Outcome, n int) { o.Error = &farm.CodeError{Traceback: lines(n)} },
		"Install":   func(_ *execution, o *agent.Outcome, n int) { o.Install = packages(n) },
		"Notes":     func(_ *execution, o *agent.Outcome, n int) { o.Notes = lines(n) },
		"Before":    func(e *execution, _ *agent.Outcome, n int) { e.installs = []*Installed{{packages: packages(n)}} },
	} {
		for n, want := range map[int]int64{most - 1: 0, most: 0, most + 1: (most + 1) * resultWeight} {
			ctx, hold := budget.New(16<<20).With(t.Context(), "acme", 0)
			e := &execution{job: &farm.Job{Tenant: "acme"}, request: &farm.Request{}, collect: collectorOf(code(), 0)}
			e.collect.outcome = &agent.Outcome{}
			report(e, e.collect.outcome, n)
			x := &Runner{}
			testbed.Must(t, x.chargeArtifacts(ctx, e))
			testbed.Check(t, hold.Bytes() == want, "%s of %d bytes: %d bytes are charged, want %d", name, n, hold.Bytes(), want)
			testbed.Must(t, x.chargeResult(ctx, e))
			testbed.Check(t, hold.Bytes() == want, "%s of %d bytes: with the result %d bytes are charged, want %d", name, n, hold.Bytes(), want)
			hold.Release()
		}
	}
}

// The memory of a result is waited for while nothing else is held, and a short result is not charged.
func TestResultIsCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New(16 << 20)
		ctx, hold := memory.With(t.Context(), "a", 0)
		defer hold.Release()
		e := &execution{request: &farm.Request{Execute: &farm.ExecuteRequest{}}, collect: &collector{rich: []farm.RichResult{{Data: strings.Repeat("x", budget.SmallBytes/resultWeight)}}, outcome: &agent.Outcome{}}}
		testbed.Must(t, budget.Charge(ctx, 1<<20))
		testbed.Must(t, (&Runner{}).chargeResult(ctx, e))
		testbed.Check(t, hold.Bytes() == 1<<20, "%d bytes are held with a short result", hold.Bytes())
		first, err := memory.Acquire(ctx, "a", memory.Share()-1<<20)
		testbed.Must(t, err)
		e.collect.rich[0].Data, e.charged = strings.Repeat("\x01", 1<<20/6)+"xxxx", false // 1 MiB of JSON
		done := make(chan error)
		go func() { done <- (&Runner{}).chargeResult(ctx, e) }()
		synctest.Wait()
		s := memory.Stats()
		testbed.Check(t, s.Waiting == 3<<20 && s.Used == first.Bytes(), "while it waits: %+v", s)
		first.Release()
		testbed.Must(t, <-done)
		testbed.Check(t, hold.Bytes() == 3<<20, "%d bytes are held for the result", hold.Bytes())
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		hold.Release()
		block, err := memory.Acquire(t.Context(), "a", memory.Share())
		testbed.Must(t, err)
		defer block.Release()
		e.charged = false
		err = (&Runner{}).chargeResult(canceled, e)
		testbed.Check(t, errors.Is(err, context.Canceled), "a result of a worker that stops: %v", err)
	})
}
