package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sized is a create with resources.
func sized(memoryMB int, cpus float64, gpus int) store.Accept {
	a := Create()
	a.Sandbox.Spec.Resources = farm.Resources{MemoryMB: memoryMB, CPUs: cpus}
	if gpus > 0 {
		a.Sandbox.Spec.GPU = &farm.GPU{Count: gpus}
	}
	return a
}

func (b *bundle) quota(t *testing.T, name farm.QuotaName, value float64) {
	t.Helper()
	testbed.Must(t, b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{name: &value}}))
}

// used reads how much of a quota is used.
func (b *bundle) used(t *testing.T, name farm.QuotaName) float64 {
	t.Helper()
	use, _, err := b.QuotaUse(t.Context(), Tenant)
	testbed.Must(t, err)
	for _, u := range use {
		if u.Name == name {
			return u.Used
		}
	}
	t.Fatalf("QuotaUse has no %s", name)
	return 0
}

// end closes a sandbox.
func (b *bundle) end(t *testing.T, sandbox string) {
	t.Helper()
	ref := farm.Ref{Tenant: Tenant, ID: sandbox}
	b.accept(t, CloseJob(sandbox))
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: farm.SandboxClosed})
	testbed.Must(t, err)
}

// quotasBoundSandboxes fills each quota of sandboxes to one below it, to it, and beyond it, and closes a sandbox again.
func quotasBoundSandboxes(t *testing.T, factory Factory) {
	for name, sandbox := range map[farm.QuotaName]func() store.Accept{
		farm.QuotaSandboxes: func() store.Accept { return sized(64, 0.1, 0) },
		farm.QuotaMemoryMB:  func() store.Accept { return sized(100, 0.1, 0) },
		farm.QuotaCPUs:      func() store.Accept { return sized(64, 0.1, 0) },
		farm.QuotaGPUs:      func() store.Accept { return sized(64, 0.1, 2) },
	} {
		t.Run(string(name), func(t *testing.T) {
			b := setup(t, factory)
			each := map[farm.QuotaName]float64{farm.QuotaSandboxes: 1, farm.QuotaMemoryMB: 100, farm.QuotaCPUs: 0.1, farm.QuotaGPUs: 2}[name]
			b.quota(t, name, 3*each)
			for i := range 2 {
				b.accept(t, sandbox())
				got := b.used(t, name)
				testbed.Check(t, got == each*float64(i+1), "after %d sandboxes %v of %s is used", i+1, got, name)
			}
			last := b.accept(t, sandbox())
			_, err := b.Accept(t.Context(), sandbox())
			wantCode(t, "one beyond the quota", err, farm.CodeExhausted)
			e, ok := errors.AsType[*farm.Error](err)
			testbed.Require(t, ok && e.Quota != nil, "the refusal %v names no quota", err)
			testbed.Diff(t, "refusal", farm.QuotaUse{Name: name, Limit: 3 * each, Used: 3 * each}, *e.Quota, near())
			if !strings.Contains(e.Message, string(name)+" of your tenant allows "+farm.QuotaText(3*each)) {
				t.Errorf("the sentence %q does not name the quota and its value", e.Message)
			}
			b.accept(t, of("other", sandbox())) // another tenant's quota
			b.accept(t, Execute(last.Sandbox.ID))
			b.end(t, last.Sandbox.ID)
			b.accept(t, sandbox())

			b.quota(t, name, each) // below what is used: new work is refused, nothing ends
			_, err = b.Accept(t.Context(), sandbox())
			wantCode(t, "a create above a lowered quota", err, farm.CodeExhausted)
			got := b.used(t, name)
			testbed.Check(t, cmp.Diff(got, 3*each, near()) == "", "with a lowered quota %v of %s is used, want %v", got, name, 3*each)
			testbed.Must(t, b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{name: nil}}))
			b.accept(t, sandbox())
		})
	}
}

func near() cmp.Option {
	return cmp.Comparer(func(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 })
}

// quotasOfNothing: with a quota of 0 there is none at all, and the pool's member of a refused create can be returned.
func quotasOfNothing(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.quota(t, farm.QuotaGPUs, 0)
	b.accept(t, sized(64, 1, 0))
	_, err := b.Accept(t.Context(), sized(64, 1, 1))
	wantCode(t, "a GPU for a tenant without any", err, farm.CodeExhausted)
	for name, value := range map[farm.QuotaName]float64{"max_cats": 1, farm.QuotaGPUs: -2, farm.QuotaRunning: 1.5, farm.QuotaCPUs: 2e9} {
		err := b.ChangeTenant(t.Context(), Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{name: &value}})
		wantCode(t, fmt.Sprintf("%s of %v", name, value), err, farm.CodeInvalid)
	}
	for _, tenant := range []string{"", "a b", "{a}", "a:b", "ä", strings.Repeat("x", 65)} {
		wantCode(t, "quotas of "+tenant, b.ChangeTenant(t.Context(), tenant, store.TenantChange{}), farm.CodeInvalid)
	}
}

// quotasHoldInARace lets 50 callers create and close sandboxes at the limit. No quota is ever exceeded, and at the end everything is given back.
func quotasHoldInARace(t *testing.T, factory Factory) {
	b := setup(t, factory)
	const sandboxes, memory, cpus = 7, 1000, 4.0
	b.quota(t, farm.QuotaSandboxes, sandboxes)
	b.quota(t, farm.QuotaMemoryMB, memory)
	b.quota(t, farm.QuotaCPUs, cpus)
	var open, mem, millicores, refused atomic.Int64
	var callers sync.WaitGroup
	for caller := range 50 {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(caller), 1))
			for range 6 {
				m, c := 50+random.IntN(300), float64(1+random.IntN(12))/10
				a := sized(m, c, 0)
				_, err := b.Accept(t.Context(), a)
				if farm.CodeOf(err) == farm.CodeExhausted {
					refused.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("Accept = %v", err)
					return
				}
				// Counted after the accept and uncounted before the end, so this is never more than what is open.
				n := open.Add(1)
				testbed.Check(t, n <= sandboxes, "%d sandboxes are open", n)
				n = mem.Add(int64(m))
				testbed.Check(t, n <= memory, "sandboxes have %d MiB", n)
				n = millicores.Add(int64(c * 1000))
				testbed.Check(t, n <= cpus*1000+1, "sandboxes have %d thousandths of a core", n)
				open.Add(-1)
				mem.Add(int64(-m))
				millicores.Add(-int64(c * 1000))
				_, _, err = b.Cancel(t.Context(), a.Job.Ref(), nil)
				testbed.Check(t, err == nil, "Cancel = %v", err)
			}
		})
	}
	callers.Wait()
	testbed.Check(t, refused.Load() != 0, "nothing was refused: the test does not reach the quotas")
	for _, name := range []farm.QuotaName{farm.QuotaSandboxes, farm.QuotaMemoryMB, farm.QuotaCPUs, farm.QuotaQueued, farm.QuotaRunning} {
		got := b.used(t, name)
		testbed.Check(t, got == 0, "at the end %v of %s is used", got, name)
	}
	drift, err := b.RepairUse(t.Context(), Tenant)
	testbed.Check(t, err == nil && len(drift) == 0, "RepairUse = %v, %v; want no drift", drift, err)
}

// quotasOfGPUsAndJobsHoldInARace lets 50 callers, four times each, take GPUs and queue jobs at the limit, without ending any: exactly as many are
// accepted as the quota allows, and each refusal names the quota and what is used.
func quotasOfGPUsAndJobsHoldInARace(t *testing.T, factory Factory) {
	for name, c := range map[farm.QuotaName]struct {
		quota, each float64
		accept      func(box string) store.Accept
	}{
		farm.QuotaGPUs:   {7, 2, func(string) store.Accept { return sized(64, 0.1, 2) }}, // a seventh GPU is left over
		farm.QuotaQueued: {9, 1, Execute},
	} {
		t.Run(string(name), func(t *testing.T) {
			b := setup(t, factory)
			box := b.box(t, farm.SandboxReady)
			b.quota(t, name, c.quota)
			var accepted, refused atomic.Int64
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					for range 4 {
						_, err := b.Accept(t.Context(), c.accept(box.ID))
						e, ok := errors.AsType[*farm.Error](err)
						switch {
						case err == nil:
							accepted.Add(1)
						case !ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.Name != name || e.Quota.Limit != c.quota || e.Quota.Used > c.quota:
							t.Errorf("Accept = %v", err)
						default:
							refused.Add(1)
						}
					}
				})
			}
			callers.Wait()
			want := int64(c.quota / c.each)
			if accepted.Load() != want || refused.Load() != 200-want {
				t.Errorf("%d are accepted and %d refused; want %d and %d", accepted.Load(), refused.Load(), want, 200-want)
			}
			got := b.used(t, name)
			testbed.Check(t, got == float64(want)*c.each, "%v of %s is used, want %v", got, name, float64(want)*c.each)
			b.noDrift(t)
		})
	}
}

// runningJobsAreBounded: jobs beyond max_running stay queued, and each end lets the oldest of them run. Nothing is refused.
func runningJobsAreBounded(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 4 })
	var boxes []farm.Ref
	for range 5 {
		boxes = append(boxes, b.box(t, farm.SandboxReady))
	}
	b.quota(t, farm.QuotaRunning, 2)
	b.forgetEnqueued(t)
	var jobs []*farm.Job
	for _, box := range boxes {
		b.clock.forward(time.Millisecond)
		jobs = append(jobs, b.accept(t, Execute(box.ID)).Job)
	}
	b.enqueued(t, "accepting five jobs", jobs[0], jobs[1])
	b.enqueued(t, "a read, which does not wait for jobs to end,", b.accept(t, Read(boxes[4].ID)).Job)
	b.enqueued(t, "another tenant's job, which does not wait for this one's,", b.accept(t, of("other", Create())).Job)
	b.accept(t, Execute(boxes[0].ID)) // the next job of the first sandbox, younger than the parked ones
	for i := range 2 {
		b.claim(t, jobs[i].Ref(), "w")
	}
	b.enqueued(t, "a claim, or three jobs would run,")
	_, err := b.Finish(t.Context(), store.Finish{Ref: jobs[0].Ref(), Attempt: 1, State: farm.JobCompleted})
	testbed.Must(t, err)
	b.enqueued(t, "the end of a job", jobs[2]) // the oldest parked one
	got := b.used(t, farm.QuotaRunning)
	testbed.Check(t, got == 2, "%v jobs count as running, want 2", got)

	b.quota(t, farm.QuotaRunning, 1) // below what is used: nothing is stopped, and one more end starts no job
	_, err = b.Finish(t.Context(), store.Finish{Ref: jobs[1].Ref(), Attempt: 1, State: farm.JobCompleted})
	testbed.Must(t, err)
	b.enqueued(t, "the end above a lowered quota")
	b.quota(t, farm.QuotaRunning, 3) // the sweep lets more run
	routes, _, err := b.OpenRoutes(t.Context(), Tenant, "")
	testbed.Must(t, err)
	got = b.used(t, farm.QuotaRunning)
	testbed.Check(t, got == 3 && len(routes) == 4, "after the quota is raised %v jobs may run, the sweep finds %d", got, len(routes)) // with the read
}

// canceledJobsLetOthersRun: a job with a slot that is canceled before it ran lets one parked job run, not two.
func canceledJobsLetOthersRun(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	b.quota(t, farm.QuotaRunning, 2)
	var jobs []*farm.Job
	for range 5 {
		b.clock.forward(time.Millisecond)
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	b.forgetEnqueued(t)
	_, _, err := b.Cancel(t.Context(), jobs[0].Ref(), nil)
	testbed.Must(t, err)
	b.enqueued(t, "a cancel", jobs[2])
	got := b.used(t, farm.QuotaRunning)
	testbed.Check(t, got == 2, "%v jobs count as running, want 2", got)
	testbed.Must(t, b.requeueAndCheck(t, jobs[1].Ref()))
}

// requeueAndCheck requeues a job; it counts as running all the time, since it keeps its slot.
func (b *bundle) requeueAndCheck(t *testing.T, ref farm.Ref) error {
	t.Helper()
	b.claim(t, ref, "w")
	if err := b.Requeue(t.Context(), ref, store.Requeue{Attempt: 1}); err != nil {
		return err
	}
	if got := b.used(t, farm.QuotaRunning); got != 2 {
		return fmt.Errorf("after a requeue %v jobs count as running, want 2", got)
	}
	return nil
}

// noDrift checks that what is counted for the quotas, and the index of sandboxes by node, agree with the records.
func (b *bundle) noDrift(t *testing.T) {
	t.Helper()
	drift, err := b.RepairUse(t.Context(), Tenant)
	testbed.Check(t, err == nil && len(drift) == 0, "RepairUse of right counts = %v, %v", drift, err)
}

// endedRunFreesItsPlace: the sandbox of a run is closed some seconds after the run has ended, when the end is durable. Meanwhile it does not count
// as a sandbox, but what its container has does, and it stays in the index of its node.
func endedRunFreesItsPlace(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.quota(t, farm.QuotaSandboxes, 1)
	b.quota(t, farm.QuotaMemoryMB, 300)
	run := func() store.Accept {
		a := sized(100, 0.5, 1)
		a.Job.Kind, a.Sandbox.OneShot = farm.KindRun, true
		return a
	}
	used := func(when string, sandboxes, runs float64) {
		t.Helper()
		got := []float64{b.used(t, farm.QuotaSandboxes), b.used(t, farm.QuotaMemoryMB), b.used(t, farm.QuotaCPUs), b.used(t, farm.QuotaGPUs)}
		testbed.Diff(t, when+" sandboxes, memory, cores and GPUs are used", []float64{sandboxes, 100 * runs, 0.5 * runs, runs}, got)
	}
	var ended []farm.Ref
	for n := range 3 {
		out := b.accept(t, run())
		job, box := out.Job.Ref(), out.Sandbox.Ref()
		b.claim(t, job, "w")
		for _, state := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady, farm.SandboxClosing} {
			_, err := b.Accept(t.Context(), run())
			testbed.Require(t, err != nil, "a second run is accepted before the first has ended")
			b.move(t, store.Move{Ref: box, To: state, Node: "n1"})
			b.noDrift(t)
		}
		_, err := b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted})
		testbed.Must(t, err)
		ended = append(ended, box)
		b.noDrift(t)
		b.onNode(t, "after the end", "n1", ended...)
		used("after the end of a run", 0, float64(n+1))
	}
	_, err := b.Accept(t.Context(), run())
	testbed.Check(t, farm.CodeOf(err) == farm.CodeExhausted, "a run beside three whose containers are there: %v", err)
	for i, box := range ended {
		b.move(t, store.Move{Ref: box, To: farm.SandboxClosed, Removed: true})
		b.onNode(t, "closed", "n1", ended[i+1:]...)
		used("after the end of a sandbox", 0, float64(2-i))
		b.noDrift(t)
	}
}

// driftIsRepaired changes the counts behind the quotas, as a bug or an older version could have, and finds each again.
func driftIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx, prefix := t.Context(), b.prefix+"{"+Tenant+"}:"
	kept := b.accept(t, sized(100, 0.5, 1))
	b.claim(t, kept.Job.Ref(), "w")
	if drift, err := b.RepairUse(ctx, Tenant); err != nil || len(drift) > 0 {
		t.Fatalf("RepairUse of right counts = %v, %v", drift, err)
	}
	pipe := b.rdb.Pipeline()
	pipe.HSet(ctx, prefix+"use", "mem", 5000, "gpus", 0)
	pipe.HIncrBy(ctx, prefix+"use", "mcpu", 1500)
	pipe.HDel(ctx, prefix+"sbx:"+kept.Sandbox.ID, "charge") // as of a farm from before the quotas
	pipe.SAdd(ctx, prefix+"act", "job_gone")
	pipe.ZAdd(ctx, prefix+"openboxes", redisZ(1, "sbx_gone"))
	_, err := pipe.Exec(ctx)
	testbed.Must(t, err)
	drift, err := b.RepairUse(ctx, Tenant)
	testbed.Must(t, err)
	want := store.Drift{"sandboxes": 1, "memory_mb": 4900, "cpus": 1.5, "gpus": -1, "running": 1}
	testbed.Diff(t, "drift", want, drift)
	for name, want := range map[farm.QuotaName]float64{farm.QuotaSandboxes: 1, farm.QuotaMemoryMB: 100, farm.QuotaCPUs: 0.5, farm.QuotaGPUs: 1, farm.QuotaRunning: 1} {
		got := b.used(t, name)
		testbed.Check(t, got == want, "after the repair %v of %s is used, want %v", got, name, want)
	}
	_, err = b.MoveSandbox(ctx, store.Move{Ref: farm.Ref{Tenant: Tenant, ID: kept.Sandbox.ID}, To: farm.SandboxFailed})
	testbed.Must(t, err)
	got := b.used(t, farm.QuotaMemoryMB)
	testbed.Check(t, got == 0, "after the end of the repaired sandbox %v MiB are used", got)
}
