package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// of changes the tenant of a job.
func of(tenant string, a store.Accept) store.Accept {
	a.Job.Tenant = tenant
	if a.Sandbox != nil {
		a.Sandbox.Tenant = tenant
	}
	return a
}

func depthLimit(t *testing.T, factory Factory) {
	const limit = 12
	b := setup(t, factory, func(l *farm.Limits) { l.MaxQueueDepth, l.QueueShare = limit, 4 })
	ready := b.box(t, farm.SandboxReady)
	var jobs []*farm.Job
	for i := 1; i <= limit; i++ {
		if i == limit {
			b.accept(t, of("other", Create())) // jobs of other tenants do not count
		}
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	_, err := b.Accept(t.Context(), Create())
	wantCode(t, "one more than may wait in the queue", err, farm.CodeExhausted)
	b.accept(t, Execute(jobs[0].SandboxID)) // waits for its sandbox, not in the queue
	b.accept(t, Execute(ready.ID))          // another queue
	b.accept(t, CloseJob(jobs[1].SandboxID))
	b.claim(t, jobs[0].Ref(), "w") // it runs, so it does not wait
	b.accept(t, Create())
	_, err = b.Accept(t.Context(), Create())
	wantCode(t, "one more than may wait in the queue, again", err, farm.CodeExhausted)
	_, _, err = b.Cancel(t.Context(), jobs[5].Ref(), nil)
	testbed.Must(t, err)
	b.accept(t, Create())
}

// shareOfAQueue accepts more jobs of a tenant than its queue share, and ends them in every way: each end unparks one job,
// in order.
func shareOfAQueue(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	var jobs []*farm.Job
	for range 8 {
		b.clock.forward(time.Millisecond)
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	b.enqueued(t, "accepting eight jobs", jobs[0], jobs[1])
	b.enqueued(t, "another tenant's job, which does not wait for this one's,", b.accept(t, of("other", Create())).Job)
	b.claim(t, jobs[0].Ref(), "w")
	b.enqueued(t, "a claim", jobs[2])
	attempt := b.claim(t, jobs[0].Ref(), "w").Job.Attempt
	b.enqueued(t, "a second claim of the same job")
	_, err := b.Finish(t.Context(), store.Finish{Ref: jobs[0].Ref(), Attempt: attempt, State: farm.JobCompleted})
	testbed.Must(t, err)
	b.enqueued(t, "the end of a job that ran")
	cancel := func(i int) {
		t.Helper()
		_, _, err := b.Cancel(t.Context(), jobs[i].Ref(), nil)
		testbed.Must(t, err)
	}
	cancel(1)
	b.enqueued(t, "a cancel", jobs[3])
	cancel(4)
	b.enqueued(t, "the cancel of a parked job")
	_, err = b.Force(t.Context(), jobs[2].Ref(), farm.JobFailed, nil)
	testbed.Must(t, err)
	b.enqueued(t, "a forced end", jobs[5])
	b.claim(t, jobs[3].Ref(), "w")
	b.enqueued(t, "a claim", jobs[6])
	testbed.Must(t, b.Requeue(t.Context(), jobs[3].Ref(), store.Requeue{Attempt: 1}))
	b.enqueued(t, "a requeue", jobs[3])
	// The requeued job has a slot again, as the third: the last job is unparked only after two claims.
	b.claim(t, jobs[5].Ref(), "w")
	b.enqueued(t, "the first claim after a requeue")
	b.claim(t, jobs[6].Ref(), "w")
	b.enqueued(t, "the second claim after a requeue", jobs[7])
	for _, i := range []int{3, 7} {
		b.claim(t, jobs[i].Ref(), "w")
		b.enqueued(t, "a claim with no parked job left")
	}
	keys, err := b.rdb.Keys(t.Context(), b.prefix+"{"+Tenant+"}:held:*").Result()
	testbed.Check(t, err == nil && len(keys) == 0, "left over: %v, %v", keys, err)
}

// inlineJobsKeepTheirSlots: no quota bounds how many inline jobs run, so each keeps its slot until it ends. Jobs of other kinds, tenants and nodes do
// not wait for them.
func inlineJobsKeepTheirSlots(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	box := b.box(t, farm.SandboxReady)
	var reads []*farm.Job
	for range 6 {
		b.clock.forward(time.Millisecond)
		reads = append(reads, b.accept(t, Read(box.ID)).Job)
	}
	b.forgetEnqueued(t)
	slow := b.claim(t, reads[0].Ref(), "w").Job
	b.enqueued(t, "the claim of a read")
	for what, a := range map[string]store.Accept{
		"code": Execute(box.ID), "an interrupt": Stop(farm.KindInterrupt, box.ID, ""), "a restart": Stop(farm.KindRestart, box.ID, ""), "another tenant's create": of("other", Create()),
	} {
		b.enqueued(t, what+", which does not wait for reads,", b.accept(t, a).Job)
	}
	b.finish(t, slow, farm.JobCompleted)
	b.enqueued(t, "the end of a read", reads[2])
	_, _, err := b.Cancel(t.Context(), reads[1].Ref(), nil)
	testbed.Must(t, err)
	b.enqueued(t, "the cancel of a read", reads[3])
	attempt := b.claim(t, reads[2].Ref(), "w").Job.Attempt
	testbed.Must(t, b.Requeue(t.Context(), reads[2].Ref(), store.Requeue{Attempt: attempt}))
	b.enqueued(t, "a requeue", reads[2])
	late := b.claim(t, reads[5].Ref(), "w").Job // its task was there, from before it was parked
	b.finish(t, b.claim(t, reads[2].Ref(), "w").Job, farm.JobCompleted)
	b.enqueued(t, "the end of a read while two others have slots")
	b.finish(t, late, farm.JobCompleted)
	b.enqueued(t, "the end of the read without a slot of its own", reads[4])
	b.enqueued(t, "a close", b.accept(t, CloseJob(box.ID)).Job)
}

// everyKindIsBounded accepts jobs of each kind until no more are: how many a tenant has is bounded by a limit that has a default, and so is how many
// tasks it has in the queue of a node.
func everyKindIsBounded(t *testing.T, factory Factory) {
	const quota, share, stops = 70, 3, 64 // more than a sandbox may have of interrupts and restarts
	kinds := append(farm.JobKinds(), farm.KindPackages)
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			b := setup(t, factory, func(l *farm.Limits) { l.MaxQueued, l.QueueShare = quota, share })
			box := b.box(t, farm.SandboxReady)
			b.forgetEnqueued(t)
			jobs, tasks := quota, share
			next := func(int) store.Accept { return Read(box.ID) }
			switch kind {
			case farm.KindCreate, farm.KindRun:
				next = func(int) store.Accept { return Create() }
			case farm.KindExecute, farm.KindCommand, farm.KindInstall, farm.KindHibernate, farm.KindResume:
				next, tasks = func(int) store.Accept { return Execute(box.ID) }, 1
			case farm.KindInterrupt, farm.KindRestart:
				next, jobs = func(i int) store.Accept { return Stop(kind, box.ID, fmt.Sprint(i)) }, stops
			case farm.KindClose:
				next, jobs, tasks = func(int) store.Accept { return CloseJob(box.ID) }, 1, 1
			}
			for i := range quota + 5 {
				b.clock.forward(time.Millisecond)
				a := next(i)
				a.Job.Kind = kind
				if _, err := b.Accept(t.Context(), a); err != nil && farm.CodeOf(err) != farm.CodeExhausted {
					t.Fatal(err)
				}
			}
			got := b.used(t, farm.QuotaQueued)
			testbed.Check(t, got == float64(jobs), "%v jobs are unfinished, want %d", got, jobs)
			if got, err := Enqueued(t.Context(), b.rdb, b.prefix); err != nil || len(got) != tasks {
				t.Errorf("%d tasks are in the queue, %v; want %d", len(got), err, tasks)
			}
		})
	}
}

// shareIsRepaired makes jobs of many sandboxes of one tenant the heads of their FIFOs at once, then raises the share.
func shareIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 3 })
	var want []string
	var jobs []*farm.Job
	for range 9 {
		b.clock.forward(time.Millisecond)
		box := b.box(t, farm.SandboxReady)
		b.forgetEnqueued(t)
		jobs = append(jobs, b.accept(t, Execute(box.ID)).Job)
		if n := len(jobs); n <= 3 {
			b.enqueued(t, "a job within the share", jobs[n-1])
		} else {
			b.enqueued(t, "a job beyond the share")
		}
		want = append(want, jobs[len(jobs)-1].ID)
	}
	route, err := b.Route(t.Context(), farm.Ref{Tenant: Tenant, ID: want[3]})
	testbed.Check(t, err == nil && route.Parked, "Route = %+v, %v; want it parked", route, err)
	open := func(s *store.Store) []string {
		t.Helper()
		routes, _, err := s.OpenRoutes(t.Context(), Tenant, "")
		testbed.Must(t, err)
		var ids []string
		for _, r := range routes {
			ids = append(ids, r.Ref.ID)
		}
		return ids
	}
	testbed.Diff(t, "jobs that a queue should hold", want[:3], open(b.Store))
	limits := farm.DefaultLimits()
	limits.QueueShare = 7
	more := store.New(b.rdb, Tasks, store.Options{Prefix: b.prefix, Limits: limits, Now: b.clock.Now})
	defer func() { _ = more.Close() }()
	testbed.Diff(t, "jobs that a queue should hold, with a larger share", want[:7], open(more))
}

func positionInAQueue(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	var jobs []*farm.Job
	for i := range 20 {
		b.clock.forward(time.Millisecond)
		if i == 3 || i == 10 {
			jobs = append(jobs, b.accept(t, of("other", Create())).Job)
			continue
		}
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	// The other tenant's first job came fourth and waits only for the share of this tenant.
	for i, want := range map[int]int{0: 1, 1: 2, 2: 3, 3: 3, 4: 5, 9: 10, 10: 5, 11: 12, 19: 20} {
		if got, err := b.QueuePosition(t.Context(), jobs[i]); err != nil || got != (store.QueuePosition{Position: want, Estimate: -1}) {
			t.Errorf("job %d has position %+v, %v; want %d without an estimate", i, got, err, want)
		}
	}
	for i := range 4 { // one a second
		b.clock.forward(time.Second)
		r := store.ReserveRequest{Node: "n1", Capacity: sizeOfNode, Sandbox: box(fmt.Sprint(i)), Want: farm.Capacity{MemoryMB: 1, CPUs: 0.1}, Queue: farm.QueueCPU}
		ok, _, err := b.Reserve(t.Context(), r)
		testbed.Require(t, err == nil && ok, "Reserve = %v, %v", ok, err)
	}
	b.clock.forward(time.Second)
	if got, err := b.QueuePosition(t.Context(), jobs[9]); err != nil || got != (store.QueuePosition{Position: 10, Estimate: 10 * time.Second}) {
		t.Errorf("position = %+v, %v; want an estimate of 10 s", got, err)
	}
	running := b.claim(t, jobs[0].Ref(), "w").Job
	got, err := b.QueuePosition(t.Context(), running)
	testbed.Check(t, err == nil && got.Position == 0, "position of a running job = %+v, %v", got, err)
	got, err = b.QueuePosition(t.Context(), jobs[1])
	testbed.Check(t, err == nil && got.Position == 1, "position behind a running job = %+v, %v; want 1", got, err)
}

// parkedJobsAreCounted parks jobs of two tenants, and unparks them.
func parkedJobsAreCounted(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	ready := b.box(t, farm.SandboxReady) // in the queue of a node
	want := func(what string, want map[string]farm.WaitingJobs) {
		t.Helper()
		got, err := b.Parked(t.Context())
		testbed.Must(t, err)
		testbed.Diff(t, what, want, got)
	}
	want("nothing", map[string]farm.WaitingJobs{})
	jobs := make([]*farm.Job, 0, 5)
	var since []time.Time
	for range 5 {
		since = append(since, b.clock.forward(time.Second))
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	want("three of one tenant", map[string]farm.WaitingJobs{"cpu": {Jobs: 3, Since: since[2]}})
	for range 3 {
		b.clock.forward(time.Second)
		b.accept(t, of("other", Create()))
	}
	b.accept(t, Execute(ready.ID)) // alone in its queue
	want("one of another", map[string]farm.WaitingJobs{"cpu": {Jobs: 4, Since: since[2]}})
	b.claim(t, jobs[0].Ref(), "w") // unparks the third one
	want("one less", map[string]farm.WaitingJobs{"cpu": {Jobs: 3, Since: since[3]}})
	for _, job := range jobs[1:] {
		_, _, err := b.Cancel(t.Context(), job.Ref(), nil)
		testbed.Must(t, err)
	}
	want("the other tenant's", map[string]farm.WaitingJobs{"cpu": {Jobs: 1, Since: b.clock.Now()}})
	refs, _, err := b.Jobs(t.Context(), "other", store.JobFilter{}, store.Page{})
	testbed.Must(t, err)
	for _, job := range refs {
		_, _, err := b.Cancel(t.Context(), job.Ref(), nil)
		testbed.Must(t, err)
	}
	want("nothing again", map[string]farm.WaitingJobs{})
}

// parkedJobsCountFromTheHead: a job that waited in its sandbox's FIFO counts as parked from when it became the head.
func parkedJobsCountFromTheHead(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 1 })
	one, two := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
	running := b.claim(t, b.accept(t, Execute(one.ID)).Job.Ref(), "w").Job
	b.accept(t, Execute(one.ID)) // behind it
	b.accept(t, Execute(two.ID)) // has the queue slot
	got, err := b.Parked(t.Context())
	testbed.Check(t, err == nil && len(got) == 0, "Parked = %v, %v, while a job waits in its FIFO", got, err)
	at := b.clock.forward(time.Hour)
	b.finish(t, running, farm.JobCompleted)
	got, err = b.Parked(t.Context())
	diff := cmp.Diff(map[string]farm.WaitingJobs{"node-n1": {Jobs: 1, Since: at}}, got)
	testbed.Check(t, err == nil && diff == "", "Parked: %v (-want +got):\n%s", err, diff)
}

// waitingCreatesAreRead reads creates that wait, parked ones too, but those that a quota of their tenant holds back, or that are too young, or
// that a worker has begun.
func waitingCreatesAreRead(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	var ids []string
	var jobs []*farm.Job
	add := func(tenant string, count int) {
		t.Helper()
		for range count {
			b.clock.forward(time.Second)
			a := of(tenant, Create())
			a.Sandbox.Spec.Resources.MemoryMB = 100 + len(ids)
			ids, jobs = append(ids, a.Sandbox.ID), append(jobs, b.accept(t, a).Job)
		}
	}
	b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)) // in another queue
	b.quota(t, farm.QuotaRunning, 4)                     // that job counts
	add(Tenant, 5)                                       // two in the queue, one that the share parks, two that the quota holds back
	add("other", 4)                                      // two in the queue, two that the share parks
	old := b.clock.forward(time.Second)
	add("other", 1)
	read := func(what string, before time.Time, limit, more int, want ...string) {
		t.Helper()
		got, err := b.WaitingCreates(t.Context(), farm.QueueCPU, before, limit)
		testbed.Must(t, err)
		var found []string
		for _, box := range got.Sandboxes {
			found = append(found, box.ID)
			testbed.Diff(t, fmt.Sprintf("%s: the record of %s", what, box.ID), 100+slices.Index(ids, box.ID), box.Spec.Resources.MemoryMB)
		}
		slices.Sort(found)
		slices.Sort(want)
		diff := cmp.Diff(want, found)
		testbed.Check(t, diff == "" && got.More == more, "%s: %d more, want %d (-want +got):\n%s", what, got.More, more, diff)
	}
	waiting := slices.Concat(ids[:3], ids[5:9])
	read("all", old, 100, 0, slices.Clone(waiting)...)
	read("as many as may be read", old, 8, 0, slices.Clone(waiting)...)
	read("fewer", old, 6, 1, slices.Concat(ids[:3], ids[5:8])...)
	read("one", old, 1, 6, ids[0])
	read("none is old enough", old.Add(-time.Hour), 100, 0)
	b.claim(t, jobs[0].Ref(), "w")
	read("after a claim", old, 100, 0, slices.Concat(ids[1:3], ids[5:9])...)
	for _, job := range jobs[1:] {
		_, _, err := b.Cancel(t.Context(), job.Ref(), nil)
		testbed.Must(t, err)
	}
	read("after the cancels", old, 100, 0)
}

// waitingDocumentsAreFew: of waiting creates whose records are documents few are read, and the others are counted.
func waitingDocumentsAreFew(t *testing.T, factory Factory) {
	const most = 16
	b := setup(t, factory)
	b.accept(t, of("other", Create()))
	for n := 1; n <= most+1; n++ {
		wide := Create()
		wide.Sandbox.Spec.AllowHosts = strings.SplitAfter(strings.Repeat("a.example.com,", 5000), ",")
		wide.Request = &farm.Request{}
		b.accept(t, wide)
		b.accept(t, Create())
		if n < most-1 {
			continue
		}
		_, before := b.documents.Calls()
		got, err := b.WaitingCreates(t.Context(), farm.QueueCPU, b.clock.forward(time.Second), 1000)
		testbed.Must(t, err)
		_, gets := b.documents.Calls()
		want, all := min(n, most), 2*n+1
		testbed.Check(t, gets-before == want && len(got.Sandboxes) == n+1+want && got.More == all-len(got.Sandboxes),
			"of %d creates, %d of them documents, %d documents were read; %d sandboxes and %d more", all, n, gets-before, len(got.Sandboxes), got.More)
	}
}

// openSandboxesAreCounted counts what is on nodes, of all tenants.
func openSandboxesAreCounted(t *testing.T, factory Factory) {
	b := setup(t, factory)
	want := func(what string, want map[string]int) {
		t.Helper()
		got, err := b.CountOpenOn(t.Context(), "n1", "n2", "n3")
		testbed.Must(t, err)
		for _, node := range []string{"n1", "n2", "n3"} {
			testbed.Check(t, got[node] == want[node], "%s: %d on %s, want %d", what, got[node], node, want[node])
		}
	}
	want("nothing", nil)
	var first farm.Ref
	for i, on := range []string{"n1", "n1", "n2"} {
		a := Create()
		if i == 1 {
			a = of("other", a)
		}
		a.Sandbox.Node, a.Job.Queue = on, farm.NodeQueue(on)
		if b.accept(t, a); i == 0 {
			first = a.Sandbox.Ref()
		}
	}
	want("three", map[string]int{"n1": 2, "n2": 1})
	b.end(t, first.ID)
	want("one has ended", map[string]int{"n1": 1, "n2": 1})
	got, err := b.CountOpenOn(t.Context())
	testbed.Check(t, err == nil && len(got) == 0, "of no nodes: %v, %v", got, err)
}
