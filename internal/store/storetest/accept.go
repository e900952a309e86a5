package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func acceptKeepsEverything(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	a.Job.CallbackURL = "https://example.com/done"
	a.Sandbox.Spec.Name, a.Sandbox.Spec.IdleSeconds = "mine", 60
	out := b.accept(t, a)
	testbed.Check(t, !out.Existing, "a new job existed before")
	b.enqueued(t, "a create", a.Job)
	want := *a.Job
	want.State, want.CreatedAt = farm.JobQueued, b.clock.Now()
	testbed.Diff(t, "accepted job", &want, out.Job)
	testbed.Diff(t, "stored job", &want, b.job(t, a.Job.Ref()))
	box := b.sandbox(t, farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID})
	testbed.Diff(t, "spec", a.Sandbox.Spec, box.Spec)
	if box.State != farm.SandboxQueued || !box.ExpiresAt.Equal(b.clock.Now().Add(3600e9)) || !box.LastUsedAt.Equal(b.clock.Now()) {
		t.Errorf("sandbox = %+v", box)
	}
	testbed.Diff(t, "events", []farm.Event{{ID: "0-1", Name: farm.EventState, State: farm.JobQueued}}, b.events(t, a.Job.Ref(), ""))
	second := b.accept(t, Execute(a.Sandbox.ID))
	b.enqueued(t, "a job behind the create job")
	for job, want := range map[*farm.Job]int{out.Job: 1, second.Job: 2} {
		if got, err := b.Wait(t.Context(), job); err != nil || got.Position != want {
			t.Errorf("Wait(%s) = %+v, %v; want position %d", job.Kind, got, err, want)
		}
	}
	tenants, err := b.Tenants(t.Context())
	diff := cmp.Diff([]string{Tenant}, tenants)
	testbed.Check(t, err == nil && diff == "", "Tenants = %v, %v", tenants, err)
}

func acceptAgainIsTheSame(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	first := b.accept(t, a)
	b.enqueued(t, "the first call", a.Job)
	before := b.dump(t)
	again := b.accept(t, a) // as a client does after a lost answer
	testbed.Diff(t, "the second call is answered differently", first, again)
	b.enqueued(t, "the second call")
	testbed.Diff(t, "the second call changes records", before, b.dump(t))
	n := b.rdb.LLen(t.Context(), b.prefix+"{acme}:line:"+a.Sandbox.ID).Val()
	testbed.Check(t, n == 1, "the FIFO has %d jobs, want 1", n)
}

// acceptBySandboxState tries every kind of job on a sandbox in every state.
func acceptBySandboxState(t *testing.T, factory Factory) {
	for _, state := range farm.SandboxStates() {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := setup(t, factory)
			box := b.box(t, state)
			interrupt := Read(box.ID)
			interrupt.Job.Kind = farm.KindInterrupt
			for name, a := range map[string]store.Accept{"execute": Execute(box.ID), "read": Read(box.ID), "interrupt": interrupt} {
				want := farm.CodeConflict
				if state == farm.SandboxReady || state == farm.SandboxBusy || (state.Accepts() && name == "execute") {
					want = ""
				}
				_, err := b.Accept(t.Context(), a)
				wantCode(t, name, err, want)
				_, found := b.Job(t.Context(), a.Job.Ref())
				testbed.Check(t, (found == nil) == (err == nil), "%s: accepted %v, record %v", name, err, found)
			}
			_, err := b.Accept(t.Context(), CloseJob(box.ID))
			if state.To(farm.SandboxClosing) {
				wantCode(t, "close", err, "")
				if got := b.sandbox(t, box); got.State != farm.SandboxClosing || got.Reason != "asked for" {
					t.Errorf("after close the sandbox is %s, reason %q", got.State, got.Reason)
				}
			} else {
				wantCode(t, "close", err, farm.CodeConflict)
			}
		})
	}
}

func refusalSaysWhyASandboxExpired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxClosing)
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxExpired, Reason: "It was idle."})
	testbed.Must(t, err)
	for _, a := range []store.Accept{Execute(box.ID), CloseJob(box.ID)} {
		_, err = b.Accept(t.Context(), a)
		testbed.Diff(t, fmt.Sprintf("the error of %s", a.Job.Kind), "Sandbox "+box.ID+" is expired and accepts no more work. It was idle. Create a new one.", farm.MessageOf(err))
	}
}

func closeTwiceIsOneJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	b.forgetEnqueued(t)
	first := b.accept(t, CloseJob(box.ID))
	second := b.accept(t, CloseJob(box.ID))
	if !second.Existing || second.Job.ID != first.Job.ID {
		t.Errorf("first %s, second %s existing %v", first.Job.ID, second.Job.ID, second.Existing)
	}
	b.enqueued(t, "closing a sandbox twice", first.Job)
	job := b.claim(t, first.Job.Ref(), "w").Job
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxClosed})
	testbed.Must(t, err)
	b.finish(t, job, farm.JobCompleted)
	third := b.accept(t, CloseJob(box.ID))
	testbed.Check(t, third.Existing && third.Job.ID == first.Job.ID, "closing a closed sandbox: job %s existing %v", third.Job.ID, third.Existing)
	b.enqueued(t, "closing a closed sandbox")
}

// stopsAreFew asks for one interrupt or restart after the other. No quota bounds them, so one that waits answers for all like it, and so do two
// that run; all others of a sandbox are bounded by their number.
func stopsAreFew(t *testing.T, factory Factory) {
	for _, kind := range []farm.JobKind{farm.KindInterrupt, farm.KindRestart} {
		t.Run(string(kind), func(t *testing.T) {
			b := setup(t, factory)
			box := b.box(t, farm.SandboxReady)
			made := func(what string, a store.Accept, old *farm.Job) *farm.Job {
				t.Helper()
				out := b.accept(t, a)
				if out.Existing != (old != nil) || old != nil && out.Job.ID != old.ID {
					t.Errorf("%s: job %s, existing %v; want the existing job %+v", what, out.Job.ID, out.Existing, old)
				}
				return out.Job
			}
			first := made("the first", Stop(kind, box.ID, "a"), nil)
			made("another one", Stop(kind, box.ID, "a"), first)
			made("one of another context", Stop(kind, box.ID, "b"), nil)
			made("one of all contexts", Stop(kind, box.ID, ""), nil)
			called := Stop(kind, box.ID, "a")
			called.Job.CallbackURL = "https://example.com/done"
			made("one with a callback of its own", called, nil)
			other := b.box(t, farm.SandboxReady)
			made("one of another sandbox", Stop(kind, other.ID, "a"), nil)

			running := b.claim(t, first.Ref(), "w").Job
			second := made("one while the first runs", Stop(kind, box.ID, "a"), nil)
			made("another one while the first runs", Stop(kind, box.ID, "a"), second)
			b.finish(t, b.claim(t, second.Ref(), "w").Job, farm.JobCompleted)
			third := made("one while one runs", Stop(kind, box.ID, "a"), nil)
			b.claim(t, third.Ref(), "w")
			made("one while two run", Stop(kind, box.ID, "a"), third)
			b.finish(t, running, farm.JobCompleted)
			made("one after the first", Stop(kind, box.ID, "a"), nil)

			for n := 5; n < 64; n++ {
				made("the next", Stop(kind, box.ID, fmt.Sprint(n)), nil)
			}
			_, err := b.Accept(t.Context(), Stop(kind, box.ID, "too many"))
			wantCode(t, "more than a sandbox may have", err, farm.CodeExhausted)
			made("one of another sandbox that has one", Stop(kind, other.ID, "b"), nil)
			b.accept(t, CloseJob(box.ID))
		})
	}
}

// stopsHaveTheirKeys: a call that an earlier job answered finds it by its idempotency key even after its end.
func stopsHaveTheirKeys(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	first := b.accept(t, Stop(farm.KindRestart, box.ID, "a")).Job
	a := Stop(farm.KindRestart, box.ID, "a")
	a.Idempotency = &store.Idempotency{Key: "k", Fingerprint: "f"}
	b.accept(t, a)
	b.finish(t, b.claim(t, first.Ref(), "w").Job, farm.JobCompleted)
	a.Job.ID = farm.NewID(farm.JobPrefix)
	if out := b.accept(t, a); !out.Existing || out.Job.ID != first.ID {
		t.Errorf("the repeated call gave job %s, existing %v; want %s", out.Job.ID, out.Existing, first.ID)
	}
}

func waitingLimit(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.MaxWaiting = 3 })
	box := b.box(t, farm.SandboxReady)
	first := b.accept(t, Execute(box.ID))
	b.claim(t, first.Job.Ref(), "w") // it runs, so it does not wait
	for range 3 {
		b.accept(t, Execute(box.ID))
	}
	_, err := b.Accept(t.Context(), Execute(box.ID))
	wantCode(t, "one more than may wait", err, farm.CodeExhausted)
	b.accept(t, Read(box.ID)) // it does not wait in the FIFO
}

func queuedLimit(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.MaxQueued = 3 })
	box := b.box(t, farm.SandboxReady)
	var jobs []*farm.Job
	for range 3 {
		jobs = append(jobs, b.accept(t, Execute(box.ID)).Job)
	}
	_, err := b.Accept(t.Context(), Create())
	wantCode(t, "one more than may be open", err, farm.CodeExhausted)
	b.finish(t, b.claim(t, jobs[0].Ref(), "w").Job, farm.JobCompleted)
	b.accept(t, Create())
	b.accept(t, CloseJob(box.ID)) // jobs that end something are always accepted
}

func idempotencyKey(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	a.Idempotency = &store.Idempotency{Key: "k", Fingerprint: "f"}
	first := b.accept(t, a)
	again := Create()
	again.Idempotency = a.Idempotency
	second := b.accept(t, again)
	if !second.Existing || second.Job.ID != first.Job.ID || second.Sandbox == nil || second.Sandbox.ID != a.Sandbox.ID {
		t.Errorf("second call gave %+v", second)
	}
	if _, err := b.Sandbox(t.Context(), farm.Ref{Tenant: Tenant, ID: again.Sandbox.ID}); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("the second call created a sandbox: %v", err)
	}
	other := Create()
	other.Idempotency = &store.Idempotency{Key: "k", Fingerprint: "g"}
	_, err := b.Accept(t.Context(), other)
	wantCode(t, "same key, another request", err, farm.CodeConflict)
	foreign := Create()
	foreign.Job.Tenant, foreign.Sandbox.Tenant, foreign.Idempotency = "other", "other", a.Idempotency
	out := b.accept(t, foreign)
	testbed.Check(t, !out.Existing, "another tenant's key was found")
}

func idempotencyRace(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	const callers = 50
	ids, fresh := make([]string, callers), make([]bool, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			a := Execute(box.ID)
			a.Idempotency = &store.Idempotency{Key: "one", Fingerprint: "f"}
			out, err := b.Accept(t.Context(), a)
			if err != nil {
				t.Errorf("Accept = %v", err)
				return
			}
			ids[i], fresh[i] = out.Job.ID, !out.Existing
		})
	}
	wg.Wait()
	made := 0
	for i := range callers {
		testbed.Diff(t, fmt.Sprintf("job of caller %d", i), ids[0], ids[i])
		if fresh[i] {
			made++
		}
	}
	testbed.Diff(t, "callers made a job", 1, made)
	n := b.rdb.LLen(t.Context(), b.prefix+"{acme}:line:"+box.ID).Val()
	testbed.Check(t, n == 1, "the FIFO has %d jobs, want 1", n)
}

func foreignIDsFindNothing(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	ctx, jobRef, boxRef := t.Context(), farm.Ref{Tenant: "other", ID: job.ID}, farm.Ref{Tenant: "other", ID: box.ID}
	intruder := Execute(box.ID)
	intruder.Job.Tenant = "other"
	for name, call := range map[string]func() error{
		"Job":           func() error { _, err := b.Job(ctx, jobRef); return err },
		"Claim":         func() error { _, err := b.Claim(ctx, jobRef, "w"); return err },
		"Finish":        func() error { _, err := b.Finish(ctx, store.Finish{Ref: jobRef, State: farm.JobFailed}); return err },
		"Force":         func() error { _, err := b.Force(ctx, jobRef, farm.JobLost, nil); return err },
		"Cancel":        func() error { _, _, err := b.Cancel(ctx, jobRef, nil); return err },
		"LeaveFIFO":     func() error { return b.LeaveFIFO(ctx, jobRef, 1) },
		"Checkpoint":    func() error { return b.Checkpoint(ctx, jobRef, 1, nil) },
		"AppendEvents":  func() error { return b.AppendEvents(ctx, jobRef, 0, []farm.Event{{Name: farm.EventStdout}}) },
		"Route":         func() error { _, err := b.Route(ctx, jobRef); return err },
		"Sandbox":       func() error { _, err := b.Sandbox(ctx, boxRef); return err },
		"UpdateSandbox": func() error { _, err := b.UpdateSandbox(ctx, boxRef, store.SandboxPatch{}); return err },
		"MoveSandbox":   func() error { _, err := b.MoveSandbox(ctx, store.Move{Ref: boxRef, To: farm.SandboxBusy}); return err },
		"Accept":        func() error { _, err := b.Accept(ctx, intruder); return err },
		"Artifact":      func() error { _, err := b.Artifact(ctx, jobRef); return err },
	} {
		wantCode(t, name, call(), farm.CodeNotFound)
	}
	got := b.job(t, job.Ref())
	testbed.Check(t, got.State == farm.JobQueued, "the job is %s after calls by another tenant", got.State)
}
