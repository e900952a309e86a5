package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func claimAndFinish(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := Execute(box.ID)
	b.accept(t, a)
	second := b.accept(t, Execute(box.ID)).Job
	b.clock.forward(1500 * time.Microsecond)
	c := b.claim(t, a.Job.Ref(), "w1")
	if c.Job.State != farm.JobRunning || c.Job.Attempt != 1 || c.Job.Worker != "w1" || c.Job.Timings.QueueMS != 1.5 || !c.Job.StartedAt.Equal(b.clock.Now()) {
		t.Errorf("claimed job = %+v", c.Job)
	}
	testbed.Diff(t, "request", a.Request, c.Request)
	testbed.Check(t, c.Sandbox != nil && c.Sandbox.State == farm.SandboxBusy && c.Sandbox.Node == "n1" && !c.Cancel, "claim = %+v", c)
	if got, err := b.Wait(t.Context(), second); err != nil || got.Position != 1 {
		t.Errorf("Position behind the running job = %+v, %v; want 1", got, err)
	}
	end := b.clock.forward(time.Second)
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: "1\n", ExecutionCount: 1}}
	f := store.Finish{
		Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted, Result: result, Timings: farm.Timings{RunMS: 3.4, UploadMS: 0.2}, LastEvent: 7,
	}
	b.forgetEnqueued(t)
	_, err := b.Finish(t.Context(), f)
	testbed.Must(t, err)
	b.enqueued(t, "the end of the head", second)
	_, err = b.Finish(t.Context(), f)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "second Finish = %v, want ErrFenced", err)
	job := b.job(t, a.Job.Ref())
	testbed.Diff(t, "result", result, job.Result)
	if job.State != farm.JobCompleted || !job.FinishedAt.Equal(end) || job.Timings != (farm.Timings{QueueMS: 1.5, RunMS: 3.4, UploadMS: 0.2}) {
		t.Errorf("finished job = %+v", job)
	}
	if got := b.sandbox(t, box); got.State != farm.SandboxReady || !got.LastUsedAt.Equal(end) {
		t.Errorf("sandbox after the job: %s, last used %v, want ready, %v", got.State, got.LastUsedAt, end)
	}
	last, err := b.LastEvent(t.Context(), a.Job.Ref())
	testbed.Check(t, err == nil && last == "8-0", "last event = %q, %v; want 8-0", last, err)
}

// repeatedEndsChangeNothing repeats calls whose answers were lost. The first one did all in one step, so the second one enqueues nothing again
// and changes no record; the callback is the caller's to enqueue, so it is named again.
func repeatedEndsChangeNothing(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := Execute(box.ID)
	a.Job.CallbackURL = "https://example.com"
	first := b.accept(t, a).Job
	background := b.accept(t, store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindCommand, SandboxID: box.ID},
		Request: &farm.Request{Command: &farm.CommandRequest{Commands: []string{"sleep 100"}, Background: true}},
	}).Job
	last := b.accept(t, Execute(box.ID)).Job
	b.claim(t, first.Ref(), "w")
	twice := func(what string, head *farm.Job, call func() error) {
		t.Helper()
		b.forgetEnqueued(t)
		err := call()
		testbed.Require(t, err == nil, "%s = %v", what, err)
		b.enqueued(t, what, head)
		before := b.dump(t)
		err = call()
		testbed.Require(t, err == nil, "%s again = %v", what, err)
		b.enqueued(t, what+" again")
		testbed.Diff(t, fmt.Sprintf("%s again changes records (-before +after)", what), before, b.dump(t))
	}
	twice("Finish", background, func() error {
		end, err := b.Finish(t.Context(), store.Finish{Ref: first.Ref(), Attempt: 1, State: farm.JobCompleted, Token: "token"})
		testbed.Check(t, err != nil || end.Callback, "the end does not name the callback")
		return err
	})
	b.claim(t, background.Ref(), "w")
	twice("LeaveFIFO", last, func() error { return b.LeaveFIFO(t.Context(), background.Ref(), 1) })
}

func claimOnlyRunnableJobs(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	first, second := b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job
	_, err := b.Claim(t.Context(), second.Ref(), "w")
	testbed.Check(t, errors.Is(err, store.ErrNotClaimable), "claim of a job that is not the head = %v, want ErrNotClaimable", err)
	testbed.Must(t, b.Heartbeat(t.Context(), farm.Worker{ID: "w1"}))
	c := b.claim(t, first.Ref(), "w1")
	_, err = b.Claim(t.Context(), first.Ref(), "w2")
	testbed.Check(t, errors.Is(err, store.ErrNotClaimable), "claim from a live worker = %v, want ErrNotClaimable", err)
	b.finish(t, c.Job, farm.JobCompleted)
	_, err = b.Claim(t.Context(), first.Ref(), "w1")
	testbed.Check(t, errors.Is(err, store.ErrNotClaimable), "claim of a final job = %v, want ErrNotClaimable", err)
}

func takeover(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	testbed.Must(t, b.Heartbeat(t.Context(), farm.Worker{ID: "w1"}))
	first := b.claim(t, ref, "w1")
	events, err := b.LastEvent(t.Context(), ref)
	testbed.Must(t, err)
	b.clock.forward(time.Minute)
	testbed.Must(t, b.RemoveWorker(t.Context(), "w1"))
	second := b.claim(t, ref, "w2")
	if second.Job.Attempt != 2 || second.Job.Worker != "w2" || !second.Job.StartedAt.Equal(first.Job.StartedAt) || second.Job.Timings != first.Job.Timings {
		t.Errorf("taken over = %+v, first = %+v", second.Job, first.Job)
	}
	testbed.Check(t, second.Job.GracefulRequeues == 0, "the death of the first worker does not count as a crash")
	if again := b.claim(t, ref, "w2"); again.Job.Attempt != 3 || again.Job.GracefulRequeues != 1 {
		t.Errorf("claim by the same worker has attempt %d, %d do not count as crashes; want 3 and 1", again.Job.Attempt, again.Job.GracefulRequeues)
	}
	last, err := b.LastEvent(t.Context(), ref)
	testbed.Check(t, err == nil && last == events, "a takeover appended an event: %q, before %q (%v)", last, events, err)
	for attempt := range 3 {
		_, err := b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: attempt, State: farm.JobCompleted})
		testbed.Check(t, errors.Is(err, store.ErrFenced), "Finish of attempt %d = %v, want ErrFenced", attempt, err)
	}
	_, err = b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 3, State: farm.JobCompleted})
	testbed.Check(t, err == nil, "Finish of the last attempt = %v", err)
}

// jobTransitions tries every state after every state, by Finish and by Force, against the table.
func jobTransitions(t *testing.T, factory Factory) {
	for _, from := range farm.JobStates() {
		for _, to := range farm.JobStates() {
			for _, how := range []string{"finish", "force"} {
				t.Run(string(from)+"/"+string(to)+"/"+how, func(t *testing.T) {
					t.Parallel()
					b := setup(t, factory)
					job := b.jobIn(t, from)
					var err error
					if how == "finish" {
						_, err = b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: job.Attempt, State: to})
					} else {
						_, err = b.Force(t.Context(), job.Ref(), to, &farm.JobError{Code: farm.CodeUnavailable, Message: "gone"})
					}
					allowed := from.To(to) && to.Final()
					if how == "finish" && from == farm.JobQueued && to == farm.JobCompleted {
						allowed = false // only a close whose sandbox has ended without it
					}
					if how == "force" && from.Final() && to.Final() {
						allowed = true // without a change
					}
					testbed.Diff(t, fmt.Sprintf("%s → %s by %s: error %v: allowed", from, to, how, err), allowed, err == nil)
					want := from
					if allowed && !from.Final() {
						want = to
					}
					got := b.job(t, job.Ref())
					testbed.Check(t, got.State == want, "job is %s, want %s", got.State, want)
				})
			}
		}
	}
}

// jobIn makes a job in a state.
func (b *bundle) jobIn(t *testing.T, state farm.JobState) *farm.Job {
	t.Helper()
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	if state == farm.JobQueued {
		return job
	}
	job = b.claim(t, job.Ref(), "w").Job
	if state != farm.JobRunning {
		b.finish(t, job, state)
	}
	return b.job(t, job.Ref())
}

func sandboxTransitions(t *testing.T, factory Factory) {
	for _, from := range farm.SandboxStates() {
		for _, to := range farm.SandboxStates() {
			t.Run(string(from)+"/"+string(to), func(t *testing.T) {
				t.Parallel()
				b := setup(t, factory)
				ref := b.box(t, from)
				box, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: to, Reason: "because", Container: "c1"})
				if !from.To(to) {
					if !errors.Is(err, store.ErrMove) || farm.CodeOf(err) != farm.CodeConflict {
						t.Errorf("move = %v, want ErrMove with a conflict", err)
					}
					got := b.sandbox(t, ref)
					testbed.Check(t, got.State == from && got.Reason == "", "a refused move left %s, reason %q", got.State, got.Reason)
					return
				}
				testbed.Must(t, err)
				if box.State != to || box.Reason != "because" || box.Container != "c1" || box.ClosedAt.IsZero() == to.Final() {
					t.Errorf("sandbox = %+v", box)
				}
				ttl := b.rdb.TTL(t.Context(), b.prefix+"{acme}:sbx:"+ref.ID).Val()
				testbed.Check(t, (ttl > 0) == to.Final(), "record expires in %v", ttl)
			})
		}
	}
}

// fifoKeepsOrder runs 500 jobs of many callers through one sandbox: never two at once, in the order of the FIFO.
func fifoKeepsOrder(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	b.forgetEnqueued(t)
	const callers, each = 10, 50
	var accepting sync.WaitGroup
	for caller := range callers {
		accepting.Go(func() {
			for range each {
				a := Execute(box.ID)
				a.Job.TimeoutSeconds = caller + 1 // identifies the caller
				if _, err := b.Accept(t.Context(), a); err != nil {
					t.Errorf("Accept = %v", err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	var ran []string
	atOnce := 0
	var working sync.WaitGroup
	deadline := time.Now().Add(5 * timeout) // of 1500 calls
	work := func(ref farm.Ref) {
		c, err := b.Claim(t.Context(), ref, "w")
		if err != nil {
			t.Errorf("Claim = %v", err)
			return
		}
		mu.Lock()
		if atOnce++; atOnce > 1 {
			t.Errorf("%d jobs run at once", atOnce)
		}
		ran = append(ran, ref.ID)
		mu.Unlock()
		mu.Lock()
		atOnce--
		mu.Unlock()
		_, err = b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: c.Job.Attempt, State: farm.JobCompleted})
		testbed.Check(t, err == nil, "Finish = %v", err)
	}
	for range 4 {
		working.Go(func() {
			for {
				mu.Lock()
				done := len(ran) == callers*each
				mu.Unlock()
				if done || time.Now().After(deadline) || t.Failed() {
					return
				}
				if entry, err := b.rdb.LPop(t.Context(), "enqueued:"+b.prefix+"{"+Tenant+"}:").Result(); err == nil {
					work(enqueuedRef(entry))
				} else {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	accepting.Wait()
	working.Wait()
	testbed.Must(t, b.waitHeadless(t, box))
	testbed.Require(t, len(ran) == callers*each, "%d jobs ran, want %d", len(ran), callers*each)
	var accepted []string
	for page := ""; ; {
		jobs, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: box.ID, Kinds: []farm.JobKind{farm.KindExecute}}, store.Page{Limit: 100, Cursor: page})
		testbed.Must(t, err)
		for _, job := range jobs {
			accepted = append([]string{job.ID}, accepted...)
		}
		if page = next; next == "" {
			break
		}
	}
	testbed.Diff(t, "jobs did not run in the order they were accepted", accepted, ran)
}

// waitHeadless waits until the sandbox's FIFO is empty.
func (b *bundle) waitHeadless(t *testing.T, box farm.Ref) error {
	t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		head, err := b.FIFOHead(t.Context(), box)
		if err != nil || head == "" {
			return err
		}
	}
	return errors.New("the FIFO did not become empty")
}

// everyWriteIsFenced makes each write of a worker under an attempt that another worker has taken over, and after the job has ended: the write
// is refused, and no key changes.
func everyWriteIsFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ctx, ref := t.Context(), b.accept(t, Execute(box.ID)).Job.Ref()
	b.claim(t, ref, "w")
	last := b.claim(t, ref, "w").Job // the job is claimed again: attempt 1 is over
	large := strings.Repeat("x", store.InlineBytes)
	writes := map[string]func(attempt int) error{
		"Finish": func(attempt int) error {
			_, err := b.Finish(ctx, store.Finish{Ref: ref, Attempt: attempt, State: farm.JobCompleted, Events: []farm.Event{stdout("9-1", "late")}})
			return err
		},
		"Requeue": func(attempt int) error { return b.Requeue(t.Context(), ref, store.Requeue{Attempt: attempt}) },
		"Requeue, begun": func(attempt int) error {
			return b.Requeue(t.Context(), ref, store.Requeue{Attempt: attempt, Begun: true})
		},
		"LeaveFIFO":     func(attempt int) error { return b.LeaveFIFO(ctx, ref, attempt) },
		"Checkpoint":    func(attempt int) error { return b.Checkpoint(ctx, ref, attempt, []byte("late")) },
		"ReserveStored": func(attempt int) error { _, _, err := b.ReserveStored(ctx, ref, attempt, 1); return err },
		"MoveSandbox": func(attempt int) error {
			_, err := b.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxClosing, Job: ref.ID, Attempt: attempt})
			return err
		},
		"AppendEvents": func(attempt int) error {
			return b.AppendEvents(ctx, ref, attempt, []farm.Event{{ID: "9-1", Name: farm.EventStdout, Text: "late"}})
		},
		"AppendEvents, long": func(attempt int) error {
			return b.AppendEvents(ctx, ref, attempt, []farm.Event{{ID: "9-1", Name: farm.EventStdout, Text: large}})
		},
		"AddArtifacts": func(attempt int) error {
			return b.AddArtifacts(ctx, attempt, []farm.Artifact{b.file(ref, "late", 1)})
		},
		"AddArtifacts, many": func(attempt int) error {
			var many []farm.Artifact
			for i := range 100 {
				many = append(many, b.file(ref, strings.Repeat("x", 500)+string(rune('0'+i)), 1))
			}
			return b.AddArtifacts(ctx, attempt, many)
		},
	}
	check := func(when string, attempt int, ended bool) {
		t.Helper()
		before, documents := b.dump(t), b.documents.Keys()
		for name, write := range writes {
			// Events behind the end of a job are dropped without an error.
			if err := write(attempt); !errors.Is(err, store.ErrFenced) && (!ended || err != nil || !strings.HasPrefix(name, "AppendEvents")) {
				t.Errorf("%s, %s under attempt %d = %v, want ErrFenced", when, name, attempt, err)
			}
			testbed.Diff(t, fmt.Sprintf("%s, %s under attempt %d changed", when, name, attempt), before, b.dump(t))
			testbed.Diff(t, fmt.Sprintf("%s, %s under attempt %d left documents", when, name, attempt), documents, b.documents.Keys())
		}
	}
	check("taken over", last.Attempt-1, false)
	check("of the future", last.Attempt+1, false)
	b.finish(t, last, farm.JobCompleted)
	check("ended", last.Attempt-1, true)
	delete(writes, "Finish") // under the last attempt it is a retry after a lost answer
	check("ended", last.Attempt, true)
}

// dump reads all keys of a test.
func (b *bundle) dump(t *testing.T) map[string]any {
	t.Helper()
	ctx, out := t.Context(), map[string]any{}
	keys, err := b.rdb.Keys(ctx, b.prefix+"*").Result()
	testbed.Must(t, err)
	for _, key := range keys {
		var value any
		switch kind := b.rdb.Type(ctx, key).Val(); kind {
		case "string":
			value, err = b.rdb.Get(ctx, key).Result()
		case "hash":
			value, err = b.rdb.HGetAll(ctx, key).Result()
		case "list":
			value, err = b.rdb.LRange(ctx, key, 0, -1).Result()
		case "set":
			value, err = b.rdb.SMembersMap(ctx, key).Result()
		case "zset":
			value, err = b.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "stream":
			value, err = b.rdb.XRange(ctx, key, "-", "+").Result()
		default:
			t.Fatalf("key %s is a %q", key, kind)
		}
		testbed.Must(t, err)
		out[strings.TrimPrefix(key, b.prefix)] = value
	}
	return out
}

// waitOfAJob asks what a job waits for behind the jobs of its sandbox, without a slot of its queue share, and beyond max_running.
func waitOfAJob(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	check := func(what string, job *farm.Job, want store.Wait) {
		t.Helper()
		got, err := b.Wait(t.Context(), job)
		want.Share = 2
		if want == (store.Wait{Share: 2}) {
			want = store.Wait{}
		}
		diff := cmp.Diff(want, got)
		testbed.Check(t, err == nil && diff == "", "%s: error %v (-want +got):\n%s", what, err, diff)
	}
	var creates []*farm.Job
	for range 3 {
		b.clock.forward(time.Millisecond)
		creates = append(creates, b.accept(t, Create()).Job)
	}
	create := store.Wait{Position: 1, Slots: 2, Running: 2, MaxRunning: -1, Queue: farm.QueueCPU, SandboxState: farm.SandboxQueued}
	check("a create with a slot", creates[0], create)
	parked := create
	parked.Parked = true
	check("a create without a slot", creates[2], parked)
	second, third := b.accept(t, Execute(creates[0].SandboxID)).Job, b.accept(t, Execute(creates[0].SandboxID)).Job
	behind := create
	behind.Position, behind.Before, behind.Slots, behind.Head, behind.HeadKind, behind.HeadState = 2, 1, 0, creates[0].ID, farm.KindCreate, farm.JobQueued
	check("behind a create", second, behind)
	running := b.claim(t, creates[0].Ref(), "w").Job
	check("a running job", running, store.Wait{})
	behind.HeadState, behind.Running = farm.JobRunning, 3
	behind.Position, behind.Before = 2, 2
	check("behind a create that runs", third, behind)

	box := b.box(t, farm.SandboxReady)
	b.quota(t, farm.QuotaRunning, 3)
	last := b.accept(t, Execute(box.ID)).Job
	check("beyond max_running", last, store.Wait{
		Position: 1, Parked: true, Running: 3, MaxRunning: 3, Queue: farm.NodeQueue("n1"), Node: "n1", SandboxState: farm.SandboxReady,
	})
	check("a read, which does not wait in the FIFO", b.accept(t, Read(box.ID)).Job, store.Wait{
		Position: 1, Slots: 1, Running: 3, MaxRunning: 3, Queue: farm.NodeQueue("n1"), Node: "n1", SandboxState: farm.SandboxReady,
	})
	for more, want := range []store.Wait{{Position: store.MaxPlace, Before: store.MaxPlace - 1}, {Position: store.MaxPlace + 1, Before: store.MaxPlace}, {Position: store.MaxPlace + 1, Before: store.MaxPlace}} {
		first := make([]any, store.MaxPlace-1) // before the job in its FIFO
		if more > 0 {
			first = first[:1]
		}
		for i := range first {
			first[i] = farm.NewID(farm.JobPrefix)
		}
		testbed.Must(t, b.rdb.LPush(t.Context(), b.prefix+"{acme}:line:"+box.ID, first...).Err())
		got, err := b.Wait(t.Context(), last)
		testbed.Check(t, err == nil && got.Position == want.Position && got.Before == want.Before, "behind %d jobs: %+v, %v", store.MaxPlace-1+more, got, err)
	}
}
