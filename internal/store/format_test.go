//go:build integration

package store_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var record = flag.String("record", "", "file that TestRecordFormat writes what the store of this program stores to")

// formatNow is the time at which the formats in testdata were recorded.
var formatNow = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// TestRecordFormat writes a record of every kind and in every state, and with -record what Redis then has.
func TestRecordFormat(t *testing.T) {
	t.Parallel()
	rdb := testbed.NewRedis(t).Client(t)
	now := formatNow
	s := store.New(rdb, storetest.NoTasks, store.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
	f := &format{t: t, Store: s}
	f.workers()
	f.sandboxes()
	f.jobs()
	f.shared()
	dump, err := storetest.ReadDump(t.Context(), rdb, "sf:")
	testbed.Must(t, err)
	if *record != "" {
		testbed.Must(t, dump.Save(*record))
	}
	again := testbed.NewRedis(t).Client(t)
	testbed.Must(t, dump.Restore(t.Context(), again))
	restored, err := storetest.ReadDump(t.Context(), again, "sf:")
	testbed.Check(t, err == nil && len(restored) == len(dump), "the restored dump has %d keys, %v; want %d", len(restored), err, len(dump))
}

// format makes the records.
type format struct {
	t *testing.T
	*store.Store
}

func (f *format) must(err error) {
	f.t.Helper()
	testbed.Must(f.t, err)
}

// create accepts the create of a sandbox, whose job is named after it.
func (f *format) create(name string, change ...func(*store.Accept)) farm.Ref {
	f.t.Helper()
	a := storetest.Create()
	a.Sandbox.ID = "sbx_" + name
	a.Sandbox.Spec.Resources = farm.Resources{MemoryMB: 512, CPUs: 0.5}
	a.Job.ID, a.Job.SandboxID = "job_create_"+name, a.Sandbox.ID
	for _, c := range change {
		c(&a)
	}
	f.accept(a)
	return a.Sandbox.Ref()
}

func (f *format) accept(a store.Accept) farm.Ref {
	f.t.Helper()
	_, err := f.Accept(f.t.Context(), a)
	f.must(err)
	return a.Job.Ref()
}

func (f *format) claim(job farm.Ref, worker string) int {
	f.t.Helper()
	c, err := f.Claim(f.t.Context(), job, worker)
	f.must(err)
	return c.Job.Attempt
}

func (f *format) move(box farm.Ref, m store.Move) {
	f.t.Helper()
	m.Ref = box
	_, err := f.MoveSandbox(f.t.Context(), m)
	f.must(err)
}

// ready makes a sandbox that is ready on a node.
func (f *format) ready(name, node string, change ...func(*store.Accept)) farm.Ref {
	f.t.Helper()
	box := f.create(name, change...)
	job := farm.Ref{Tenant: box.Tenant, ID: "job_create_" + name}
	attempt := f.claim(job, "wrk_"+node)
	f.move(box, store.Move{To: farm.SandboxStarting, Node: node})
	f.move(box, store.Move{To: farm.SandboxReady, Node: node, Container: "container-" + name, Touch: true})
	_, err := f.Finish(f.t.Context(), store.Finish{Ref: job, Attempt: attempt, State: farm.JobCompleted})
	f.must(err)
	return box
}

func (f *format) execute(box farm.Ref, id string) farm.Ref {
	a := storetest.Execute(box.ID)
	a.Job.ID, a.Job.Tenant = id, box.Tenant
	return f.accept(a)
}

func (f *format) requeue(job farm.Ref, how store.Requeue) {
	f.t.Helper()
	f.must(f.Requeue(f.t.Context(), job, how))
}

func (f *format) workers() {
	ctx := f.t.Context()
	for _, node := range []string{"n1", "n2"} {
		f.must(f.Heartbeat(ctx, farm.Worker{ID: "wrk_" + node, Node: node, Queues: []string{"cpu"}, Slots: 4}))
		_, err := f.ReportCapacity(ctx, node, farm.Capacity{MemoryMB: 8192, CPUs: 8})
		f.must(err)
	}
}

func (f *format) sandboxes() {
	ctx := f.t.Context()
	f.create("queued")

	starting := f.create("starting")
	f.claim(farm.Ref{Tenant: starting.Tenant, ID: "job_create_starting"}, "wrk_n1")
	f.move(starting, store.Move{To: farm.SandboxStarting, Node: "n1"})

	// Its creation was moved from n1 to n2, where it is ready.
	moved := f.create("moved")
	job := farm.Ref{Tenant: moved.Tenant, ID: "job_create_moved"}
	attempt := f.claim(job, "wrk_n1")
	f.move(moved, store.Move{To: farm.SandboxStarting, Node: "n1"})
	f.requeue(job, store.Requeue{Attempt: attempt, Elsewhere: true})
	attempt = f.claim(job, "wrk_n2")
	f.move(moved, store.Move{To: farm.SandboxStarting, Node: "n2", Job: job.ID, Attempt: attempt})
	f.move(moved, store.Move{To: farm.SandboxReady, Node: "n2", Container: "container-moved", Job: job.ID, Attempt: attempt})
	_, err := f.Finish(ctx, store.Finish{Ref: job, Attempt: attempt, State: farm.JobCompleted})
	f.must(err)

	// Its creation was taken away from n1 and waits for another node.
	unassigned := f.create("unassigned")
	job = farm.Ref{Tenant: unassigned.Tenant, ID: "job_create_unassigned"}
	attempt = f.claim(job, "wrk_n1")
	f.move(unassigned, store.Move{To: farm.SandboxStarting, Node: "n1"})
	f.requeue(job, store.Requeue{Attempt: attempt, Elsewhere: true})

	closing := f.ready("closing", "n1")
	c := storetest.CloseJob(closing.ID)
	c.Job.ID = "job_close"
	f.accept(c)

	closed := f.ready("closed", "n1")
	f.move(closed, store.Move{To: farm.SandboxClosing, Reason: "asked for"})
	f.move(closed, store.Move{To: farm.SandboxClosed})

	other := f.ready("other_tenant", "n2", func(a *store.Accept) { a.Job.Tenant, a.Sandbox.Tenant = "globex", "globex" })
	f.execute(other, "job_of_other_tenant")
}

func (f *format) jobs() {
	ctx := f.t.Context()
	box := f.ready("busy", "n1")
	done := f.execute(box, "job_00000000000000000000000001")
	attempt := f.claim(done, "wrk_n1")
	f.must(f.AppendEvents(ctx, done, attempt, []farm.Event{{ID: "1-0", Name: farm.EventStdout, Text: "one\n"}, {ID: "2-0", Name: farm.EventStdout, Text: "two\n"}}))
	f.must(f.AddArtifacts(ctx, attempt, []farm.Artifact{{
		ID: farm.ArtifactID(done.ID, "a.png"), Tenant: done.Tenant, SandboxID: box.ID, JobID: done.ID, Name: "a.png", Path: "a.png",
		Size: 3, CreatedAt: formatNow, ExpiresAt: formatNow.Add(24 * time.Hour), Key: "k",
	}}))
	_, err := f.Finish(ctx, store.Finish{Ref: done, Attempt: attempt, State: farm.JobCompleted, LastEvent: 2, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: "one\ntwo\n"}}})
	f.must(err)

	background := storetest.Execute(box.ID)
	background.Job.ID, background.Job.Kind, background.Request = "job_background", farm.KindCommand, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"sleep 9"}, Background: true}}
	ref := f.accept(background)
	attempt = f.claim(ref, "wrk_n1")
	f.must(f.LeaveFIFO(ctx, ref, attempt))

	running := f.execute(box, "job_running")
	attempt = f.claim(running, "wrk_n1")
	f.must(f.AppendEvents(ctx, running, attempt, []farm.Event{{ID: "1-0", Name: farm.EventStdout, Text: "half"}}))
	f.must(f.Checkpoint(ctx, running, attempt, []byte(`{"frame":1}`)))
	_, _, err = f.ReserveStored(ctx, running, attempt, 1000)
	f.must(err)
	_, _, err = f.Cancel(ctx, running, nil)
	f.must(err)
	for n := range 2 {
		f.execute(box, fmt.Sprint("job_waits_", n))
	}
	read := storetest.Read(box.ID)
	read.Job.ID = "job_read"
	f.accept(read)

	offered := f.execute(f.ready("offered", "n1"), "job_offered")
	f.requeue(offered, store.Requeue{Attempt: f.claim(offered, "wrk_n1"), Begun: true})

	callback := storetest.Execute(f.ready("callback", "n2").ID)
	callback.Job.ID, callback.Job.CallbackURL, callback.Idempotency = "job_callback", "https://example.com", &store.Idempotency{Key: "k", Fingerprint: "f"}
	callback.Packages = []string{"humanize"}
	ref = f.accept(callback)
	_, err = f.Finish(ctx, store.Finish{Ref: ref, Attempt: f.claim(ref, "wrk_n2"), State: farm.JobFailed, Error: &farm.JobError{Code: farm.CodeInternal, Message: "no"}})
	f.must(err)

	// More than the share of the queue: some are parked.
	for n := range 10 {
		f.create(fmt.Sprint("many_", n), func(a *store.Accept) { a.Job.Tenant, a.Sandbox.Tenant = "initech", "initech" })
	}
}

func (f *format) shared() {
	ctx := f.t.Context()
	box := farm.Ref{Tenant: storetest.Tenant, ID: "sbx_busy"}
	_, _, err := f.Reserve(ctx, store.ReserveRequest{Node: "n1", Capacity: farm.Capacity{MemoryMB: 8192, CPUs: 8}, Sandbox: box, Want: farm.Capacity{MemoryMB: 512, CPUs: 0.5}})
	f.must(err)
	_, err = f.OpenGPUs(ctx, "n1")
	f.must(err)
	_, gpus, err := f.LeaseGPUs(ctx, store.GPURequest{Node: "n1", Sandbox: box, Generation: 1, Worker: "wrk_n1", Count: 1, Devices: []string{"GPU-0", "GPU-1"}})
	f.must(err)
	f.must(f.StartGPUs(ctx, "n1", box, 1, gpus.Of(box.ID)))
	_, _, err = f.LeaseGPUs(ctx, store.GPURequest{Node: "n1", Sandbox: farm.Ref{Tenant: storetest.Tenant, ID: "sbx_starting"}, Generation: 1, Worker: "wrk_n1", Count: 1, Devices: []string{"GPU-0", "GPU-1"}})
	f.must(err)
	for _, name := range []string{"claimed", "idle", "starting"} {
		m := store.Member{ID: "sbx_pool_" + name, Node: "n1", Image: "python", Network: farm.NetworkNone, Version: "v", Worker: "wrk_n1"}
		f.must(f.BeginMember(ctx, m))
		if name == "starting" {
			break
		}
		m.Container = "container-pool-" + name
		f.must(f.MemberReady(ctx, m))
	}
	_, err = f.ClaimMember(ctx, store.MemberClaim{Tenant: "acme", Image: "python", Network: farm.NetworkNone, Nodes: []string{"n1"}})
	f.must(err)
	f.must(f.CreateKey(ctx, store.KeySum{1}, farm.Key{ID: "key_1", Tenant: "acme", Name: "laptop", Scopes: []farm.Scope{"admin"}, CreatedAt: formatNow}))
	f.must(f.AppendAudit(ctx, []farm.AuditEntry{{ID: "aud_1", At: formatNow, Tenant: "acme", Route: "POST /v1/sandboxes", Status: 202}}))
	limit := 10.0
	f.must(f.ChangeTenant(ctx, "acme", store.TenantChange{Quotas: map[farm.QuotaName]*float64{farm.QuotaSandboxes: &limit}}))
	_, err = f.AddUsage(ctx, store.Sample{Sandbox: box, Container: "container-busy", CPU: time.Second, MemoryKB: 1024})
	f.must(err)
	f.must(f.AddStored(ctx, "acme"))
}
