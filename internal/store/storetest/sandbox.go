package storetest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// deadlines compares the index of deadlines with farm.Sandbox.Deadline after each change.
func deadlines(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ctx := t.Context()
	check := func(what string) {
		t.Helper()
		deadline := b.sandbox(t, box).Deadline()
		before := b.clock.Now()
		for _, test := range []struct {
			at  time.Time
			due bool
		}{{deadline.Add(-time.Microsecond), false}, {deadline, true}} {
			b.clock.forward(test.at.Sub(b.clock.Now()))
			refs, err := b.Due(ctx, Tenant, 10)
			if err != nil || slices.Contains(refs, box) != test.due {
				t.Errorf("%s: at the deadline %v %+v: due %v, %v; want %v", what, deadline, test.at.Sub(deadline), refs, err, test.due)
			}
		}
		b.clock.forward(before.Sub(b.clock.Now()))
	}
	check("ready, no idle limit")
	idle, ttl := 10, 1000
	_, err := b.UpdateSandbox(ctx, box, store.SandboxPatch{IdleSeconds: &idle})
	testbed.Must(t, err)
	check("idle limit")
	b.clock.forward(5 * time.Second)
	job := b.accept(t, Execute(box.ID)).Job
	check("job accepted")
	job = b.claim(t, job.Ref(), "w").Job
	check("busy")
	b.clock.forward(time.Minute)
	if refs, err := b.Due(ctx, Tenant, 10); err != nil || len(refs) != 0 {
		t.Errorf("a busy sandbox is due: %v, %v", refs, err)
	}
	b.finish(t, job, farm.JobCompleted)
	check("ready again")
	patched, err := b.UpdateSandbox(ctx, box, store.SandboxPatch{TTLSeconds: &ttl})
	if err != nil || !patched.ExpiresAt.Equal(b.clock.Now().Add(1000*time.Second)) || patched.Spec.TTLSeconds != 1000 || patched.Spec.IdleSeconds != 10 {
		t.Errorf("UpdateSandbox = %+v, %v", patched, err)
	}
	b.clock.forward(8 * time.Second)
	_, err = b.MoveSandbox(ctx, store.Move{Ref: box, Touch: true})
	testbed.Must(t, err)
	check("touched")
	b.accept(t, CloseJob(box.ID))
	b.clock.forward(10000 * time.Second)
	refs, err := b.Due(ctx, Tenant, 10)
	testbed.Check(t, err == nil && len(refs) == 0, "a closing sandbox is due: %v, %v", refs, err)
}

func patchesDoNotUndoEachOther(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	name, ttl, idle, labels := "new", 77, 88, map[string]string{"a": "b"}
	var wg sync.WaitGroup
	for _, p := range []store.SandboxPatch{{Name: &name}, {TTLSeconds: &ttl}, {IdleSeconds: &idle}, {Labels: &labels}} {
		wg.Go(func() {
			_, err := b.UpdateSandbox(t.Context(), box, p)
			testbed.Check(t, err == nil, "UpdateSandbox = %v", err)
		})
	}
	wg.Wait()
	spec := b.sandbox(t, box).Spec
	diff := cmp.Diff(labels, spec.Labels)
	testbed.Check(t, diff == "" && spec.Name == name && spec.TTLSeconds == ttl && spec.IdleSeconds == idle, "spec = %+v", spec)
}

func patchOnlyWhileItAccepts(t *testing.T, factory Factory) {
	for _, state := range farm.SandboxStates() {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := setup(t, factory)
			box := b.box(t, state)
			name := "late"
			_, err := b.UpdateSandbox(t.Context(), box, store.SandboxPatch{Name: &name})
			want := farm.CodeConflict
			if state.Accepts() {
				want = ""
			}
			wantCode(t, "patch", err, want)
		})
	}
}

// recordsExpire reads the times to live that ends of jobs and sandboxes set.
func recordsExpire(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job, hidden := b.accept(t, Execute(box.ID)).Job, b.accept(t, Read(box.ID)).Job
	for _, ref := range []farm.Ref{job.Ref(), hidden.Ref()} {
		for _, kind := range []string{"job:", "ev:", "req:"} {
			ttl := b.rdb.TTL(t.Context(), b.prefix+"{acme}:"+kind+ref.ID).Val()
			testbed.Check(t, ttl == -1, "%s of an open job expires in %v", kind, ttl)
		}
		b.finish(t, b.claim(t, ref, "w").Job, farm.JobCompleted)
	}
	limits := farm.DefaultLimits()
	for key, seconds := range map[string]int{
		"job:" + job.ID: limits.RetentionSeconds, "ev:" + job.ID: limits.RetentionSeconds,
		"job:" + hidden.ID: limits.HiddenSeconds, "ev:" + hidden.ID: limits.HiddenSeconds,
	} {
		want := time.Duration(seconds) * time.Second
		ttl := b.rdb.TTL(t.Context(), b.prefix+"{acme}:"+key).Val()
		testbed.Check(t, ttl <= want && ttl >= want-time.Minute, "%s expires in %v, want %v", key, ttl, want)
	}
	for _, id := range []string{job.ID, hidden.ID} {
		n := b.rdb.Exists(t.Context(), b.prefix+"{acme}:req:"+id).Val()
		testbed.Check(t, n == 0, "the request of the ended job %s is kept", id)
	}
}

func indexesForgetExpiredRecords(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for range 10 {
		job := b.accept(t, Execute(box.ID)).Job
		b.finish(t, b.claim(t, job.Ref(), "w").Job, farm.JobCompleted)
		testbed.Must(t, b.rdb.Del(t.Context(), b.prefix+"{acme}:job:"+job.ID).Err()) // imitates its expiry
	}
	n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:jobs").Val()
	testbed.Check(t, n <= 12, "the index has %d entries", n)
	jobs, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{}, store.Page{Limit: 5})
	testbed.Check(t, err == nil && len(jobs) == 1 && next == "", "Jobs = %d, next %q, %v; want the create job alone", len(jobs), next, err)
}

// finishedJobsLeaveNoOpenTrace checks that no frequently read index grows with finished jobs.
func finishedJobsLeaveNoOpenTrace(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for range 20 {
		b.finish(t, b.claim(t, b.accept(t, Execute(box.ID)).Job.Ref(), "w").Job, farm.JobCompleted)
	}
	for _, index := range []string{"open", "osj:" + box.ID} {
		n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:"+index).Val()
		testbed.Check(t, n == 0, "%s has %d entries", index, n)
	}
	n := b.rdb.LLen(t.Context(), b.prefix+"{acme}:line:"+box.ID).Val()
	testbed.Check(t, n == 0, "the FIFO has %d entries", n)
	jobs, err := b.OpenJobs(t.Context(), Tenant, 0)
	testbed.Check(t, err == nil && len(jobs) == 0, "OpenJobs = %v, %v", jobs, err)
}

// sandboxesAreRestored restores lost records, and leaves existing ones unchanged.
func sandboxesAreRestored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx, now := t.Context(), b.clock.Now()
	lost := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: Tenant, State: farm.SandboxQueued, Node: "n1", Container: "c1", CreatedAt: now.Add(-time.Hour),
		LastUsedAt: now, ExpiresAt: now.Add(time.Hour), Spec: farm.SandboxSpec{Name: "kept", Image: "python", IdleSeconds: 60},
	}
	restored, err := b.RestoreSandbox(ctx, lost)
	testbed.Require(t, err == nil && restored, "RestoreSandbox = %v, %v", restored, err)
	tenants, err := b.Tenants(ctx)
	testbed.Check(t, err == nil && len(tenants) == 1 && tenants[0] == Tenant, "Tenants = %v, %v", tenants, err)
	got := b.sandbox(t, farm.Ref{Tenant: Tenant, ID: lost.ID})
	if got.State != farm.SandboxReady || got.Node != "n1" || got.Container != "c1" || got.Spec.Name != "kept" || !got.Deadline().Equal(lost.Deadline()) {
		t.Errorf("the restored record is %+v", got)
	}
	b.accept(t, Execute(lost.ID))
	open, err := b.OpenSandboxes(ctx, Tenant)
	testbed.Check(t, err == nil && len(open) == 1, "OpenSandboxes = %v, %v", open, err)
	existing := b.box(t, farm.SandboxBusy)
	restored, err = b.RestoreSandbox(ctx, &farm.Sandbox{ID: existing.ID, Tenant: Tenant})
	testbed.Check(t, err == nil && !restored, "RestoreSandbox of an existing record = %v, %v", restored, err)
	got = b.sandbox(t, existing)
	testbed.Check(t, got.State == farm.SandboxBusy, "it is %s now", got.State)
}

// laterGenerationIsRestored: of the containers of a sandbox that Redis does not know, or no longer knows, that of the last generation is adopted,
// whichever node is first. Nothing is counted twice.
func laterGenerationIsRestored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx, now := t.Context(), b.clock.Now()
	restore := func(id, node string, generation int) bool {
		t.Helper()
		restored, err := b.RestoreSandbox(ctx, &farm.Sandbox{
			ID: id, Tenant: Tenant, Node: node, Container: "on-" + node, Generation: generation, CreatedAt: now, LastUsedAt: now, ExpiresAt: now.Add(time.Hour),
			Spec: farm.SandboxSpec{Image: "python", Resources: farm.Resources{MemoryMB: 512, CPUs: 1}},
		})
		testbed.Must(t, err)
		return restored
	}
	check := func(id, node string, generation int) {
		t.Helper()
		got := b.sandbox(t, farm.Ref{Tenant: Tenant, ID: id})
		if got.State != farm.SandboxReady || got.Node != node || got.Container != "on-"+node || got.Generation != generation {
			t.Errorf("the record is %+v", got)
		}
		b.noDrift(t)
	}
	id := farm.NewID(farm.SandboxPrefix)
	testbed.Check(t, restore(id, "n1", 1) && restore(id, "n2", 2), "the later generation is not restored") // n1 was silent when the create left it
	check(id, "n2", 2)
	testbed.Check(t, !restore(id, "n1", 1) && !restore(id, "n3", 2), "an earlier generation, or another container of the same one, is restored")
	check(id, "n2", 2)
	b.onNode(t, "after the restore", "n1")
	b.onNode(t, "after the restore", "n2", farm.Ref{Tenant: Tenant, ID: id})

	starting := b.accept(t, Create()).Sandbox.Ref() // its create is known, but not that it left its node
	b.move(t, store.Move{Ref: starting, To: farm.SandboxStarting, Node: "n1"})
	testbed.Check(t, restore(starting.ID, "n3", 3), "a later generation of a sandbox that starts is not restored")
	check(starting.ID, "n3", 3)
	for _, state := range []farm.SandboxState{farm.SandboxClosing, farm.SandboxClosed} {
		b.move(t, store.Move{Ref: starting, To: state})
		testbed.Check(t, !restore(starting.ID, "n1", 4) && b.sandbox(t, starting).State == state, "a sandbox that is %s is restored", state)
	}
	b.noDrift(t)
}

// jobMayRepeatItsMove: the answer to a move may be lost. A repeated one changes nothing, and is refused for everyone but the job.
func jobMayRepeatItsMove(t *testing.T, factory Factory) {
	b := setup(t, factory)
	out := b.accept(t, Create())
	c := b.claim(t, out.Job.Ref(), "w")
	move := store.Move{Ref: out.Sandbox.Ref(), Node: "n1", Container: "c1", Generation: 1, Job: c.Job.ID, Attempt: c.Job.Attempt}
	for _, move.To = range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err := b.MoveSandbox(t.Context(), move)
		testbed.Must(t, err)
	}
	before := b.dump(t)
	again, err := b.MoveSandbox(t.Context(), move)
	testbed.Check(t, err == nil && again.State == farm.SandboxReady && again.Container == "c1", "the repeated move = %+v, %v", again, err)
	other := move
	other.Job = ""
	_, err = b.MoveSandbox(t.Context(), other)
	testbed.Check(t, errors.Is(err, store.ErrMove), "the same move by no job = %v, want ErrMove", err)
	other = move
	other.Attempt++
	_, err = b.MoveSandbox(t.Context(), other)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "the same move under another attempt = %v, want ErrFenced", err)
	other = move
	other.To = farm.SandboxStarting
	_, err = b.MoveSandbox(t.Context(), other)
	testbed.Check(t, errors.Is(err, store.ErrMove), "a move back = %v, want ErrMove", err)
	testbed.Diff(t, "the repeated moves changed records", before, b.dump(t))
}

const mib = int64(1) << 20

// hibernate moves a sandbox to hibernated.
func (b *bundle) hibernate(t *testing.T, box farm.Ref, bytes int64) error {
	t.Helper()
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxHibernated, Checkpoint: bytes})
	return err
}

// checkpointsAreStored charges checkpoints to what the tenant may store, until their sandboxes resume or end.
func checkpointsAreStored(t *testing.T, factory Factory) {
	for what, end := range map[string]func(*testing.T, *bundle, farm.Ref){
		"resumed": func(t *testing.T, b *bundle, box farm.Ref) {
			t.Helper()
			_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxBusy})
			testbed.Must(t, err)
		},
		"closed": func(t *testing.T, b *bundle, box farm.Ref) {
			t.Helper()
			b.accept(t, CloseJob(box.ID))
			b.stored(t, store.Stored{Reserved: 10 * mib}) // the checkpoint is there until the end
			b.end(t, box.ID)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t, factory)
			b.quota(t, farm.QuotaStoredMB, 10)
			box, other := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
			wantCode(t, "one byte more than the quota", b.hibernate(t, box, 10*mib+1), farm.CodeExhausted)
			b.stored(t, store.Stored{})
			wantCode(t, "as much as the quota", b.hibernate(t, box, 10*mib), "")
			b.stored(t, store.Stored{Reserved: 10 * mib})
			wantCode(t, "the smallest one more", b.hibernate(t, other, 1), farm.CodeExhausted)
			if drift, _, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || drift != (store.StoredDrift{}) {
				t.Errorf("repair: %+v, %v", drift, err)
			}
			_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, Touch: true})
			testbed.Must(t, err)
			b.stored(t, store.Stored{Reserved: 10 * mib})
			end(t, b, box)
			b.stored(t, store.Stored{})
			wantCode(t, "one byte less than the quota", b.hibernate(t, other, 10*mib-1), "")
		})
	}
}

// restoredCheckpointsAreStored charges the checkpoint of a sandbox that is restored as hibernated, once, until it resumes.
func restoredCheckpointsAreStored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: Tenant, Node: "n1", Container: "c1", CreatedAt: b.clock.Now(), ExpiresAt: b.clock.Now().Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Resources: farm.Resources{MemoryMB: 10}},
	}
	for i, state := range []farm.SandboxState{farm.SandboxHibernated, farm.SandboxHibernated, farm.SandboxReady, farm.SandboxHibernated} {
		box.State, box.Generation = state, i+1
		restored, err := b.RestoreSandbox(t.Context(), box)
		testbed.Require(t, err == nil && restored, "RestoreSandbox of generation %d = %v, %v", i+1, restored, err)
		want := store.Stored{}
		if state == farm.SandboxHibernated {
			want.Reserved = 10 * mib
		}
		b.stored(t, want)
		if drift, _, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || drift != (store.StoredDrift{}) {
			t.Errorf("repair: %+v, %v", drift, err)
		}
	}
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box.Ref(), To: farm.SandboxBusy})
	testbed.Must(t, err)
	b.stored(t, store.Stored{})
}

// hibernatedSandboxesAreNotIdle lets them live until their absolute deadline, and counts no use.
func hibernatedSandboxesAreNotIdle(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	idle := 10
	_, err := b.UpdateSandbox(t.Context(), box, store.SandboxPatch{IdleSeconds: &idle})
	testbed.Must(t, err)
	sample := func(cpu time.Duration) store.Usage {
		t.Helper()
		used, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: "c", CPU: cpu, MemoryKB: 1 << 20})
		testbed.Must(t, err)
		return used
	}
	sample(5 * time.Second)
	wantCode(t, "hibernate", b.hibernate(t, box, mib), "")
	b.clock.forward(time.Minute)
	due := func() int {
		t.Helper()
		refs, err := b.Due(t.Context(), Tenant, 10)
		testbed.Must(t, err)
		return len(refs)
	}
	if s := b.sandbox(t, box); due() != 0 || !s.Deadline().Equal(s.ExpiresAt) {
		t.Errorf("after a minute %d are due; deadline %v, expires %v", due(), s.Deadline(), s.ExpiresAt)
	}
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxReady, Touch: true})
	testbed.Must(t, err)
	b.clock.forward(2 * time.Second)
	used := sample(time.Second)
	testbed.Check(t, used.SandboxSeconds == 2 && used.CPUSeconds == 1 && used.MemoryGBSeconds <= 2.001, "two seconds after the resume: %+v", used)
	wantCode(t, "hibernate again", b.hibernate(t, box, mib), "")
	b.clock.forward(b.sandbox(t, box).ExpiresAt.Sub(b.clock.Now()))
	testbed.Diff(t, "due behind its deadline", 1, due())
}
