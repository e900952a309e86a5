package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// sleeper is a sandbox under gVisor, on a worker whose node can hibernate it.
type sleeper struct {
	*bundle
	w   *Worker
	box farm.Ref
}

func newSleeper(t *testing.T) *sleeper {
	t.Helper()
	b := setup(t)
	b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = 1, 4
	s := &sleeper{bundle: b, w: b.measured(3000, 4)}
	s.w.node.UseHibernates("runsc")
	s.box = s.ready("runsc")
	return s
}

// ready makes a sandbox of 2 GiB with its reservation and a container.
func (s *sleeper) ready(runtime string) farm.Ref {
	s.T.Helper()
	job, box := s.Sized(2048, 1)
	claim, err := s.Store.Claim(s.T.Context(), job, s.w.id)
	testbed.Must(s.T, err)
	if ok, err := s.w.placement.Reserve(s.T.Context(), claim); err != nil || !ok {
		s.T.Fatalf("reserve = %v, %v", ok, err)
	}
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err := s.Store.MoveSandbox(s.T.Context(), store.Move{Ref: box, To: to, Node: workertest.Node, Runtime: runtime})
		testbed.Must(s.T, err)
	}
	_, err = s.Store.Finish(s.T.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	testbed.Must(s.T, err)
	s.Fake.Put(box.ID, true)
	return box
}

// job accepts a job of the sandbox without a request.
func (s *sleeper) job(kind farm.JobKind) farm.Ref {
	s.T.Helper()
	return s.Accept(kind, s.box.ID, &farm.Request{}, nil)
}

// do has a worker do a job, and returns it.
func (s *sleeper) do(w *Worker, job farm.Ref) *farm.Job {
	s.T.Helper()
	testbed.Must(s.T, w.handle(s.T.Context(), workertest.Task(job)))
	return s.Job(job)
}

// is checks the sandbox, its container and what is reserved and stored for it.
func (s *sleeper) is(when string, state farm.SandboxState, runs, stored bool, reservedMB int, storedBytes int64) {
	s.T.Helper()
	if got := s.Sandbox(s.box).State; got != state || s.Fake.Runs(s.box.ID) != runs || s.Fake.HasCheckpoint(s.box.ID) != stored {
		s.T.Errorf("%s: it is %s, its container runs: %v, it has a checkpoint: %v", when, got, s.Fake.Runs(s.box.ID), s.Fake.HasCheckpoint(s.box.ID))
	}
	reservations, err := s.Store.Reservations(s.T.Context(), workertest.Node)
	testbed.Must(s.T, err)
	testbed.Diff(s.T, fmt.Sprintf("%s: MiB are reserved", when), reservedMB, reservations[s.box].Size.MemoryMB)
	got, err := s.Store.Stored(s.T.Context(), workertest.Tenant)
	testbed.Check(s.T, err == nil && got.Used() == storedBytes, "%s: %+v is stored, %v; want %d bytes", when, got, err, storedBytes)
}

const sleeperBytes = 2 << 30 // the sandbox's memory: it may fill it before it is frozen

func TestHibernateAndResume(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	s.is("before", farm.SandboxReady, true, false, 2048, 0)
	for range 2 { // the second time there is nothing to do
		job := s.do(s.w, s.job(farm.KindHibernate))
		testbed.Require(t, job.State == farm.JobCompleted, "hibernate: %+v, %+v", job, job.Error)
		s.is("hibernated", farm.SandboxHibernated, false, true, 0, sleeperBytes)
	}
	testbed.Must(t, s.w.reconciler.Run(t.Context()))
	s.is("compared", farm.SandboxHibernated, false, true, 0, sleeperBytes)
	for range 2 {
		job := s.do(s.w, s.job(farm.KindResume))
		testbed.Require(t, job.State == farm.JobCompleted, "resume: %+v, %+v", job, job.Error)
		s.is("resumed", farm.SandboxReady, true, false, 2048, 0)
	}
}

// Between the suspended deadline and the checkpoint, and after a resume until the deadline is sent, the worker may die: then the agent ends the
// sandbox, after a time that no hibernation takes.
func TestAnAgentThatHibernatesEndsWithoutAWorker(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	asked := make(chan url.Values, 8)
	agent := workertest.Hostile(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.URL.Path == "/v1/deadline" {
			asked <- r.URL.Query()
		}
	}))
	join(t, s.w, s.box, func() *client.Client { return agent })
	job := s.do(s.w, s.job(farm.KindHibernate))
	testbed.Require(t, job.State == farm.JobCompleted, "hibernate: %+v, %+v", job, job.Error)
	query := <-asked
	ms, err := strconv.ParseInt(query.Get("awake_ms"), 10, 64)
	left := time.Duration(ms) * time.Millisecond
	testbed.Check(t, err == nil && left > 2*checkpointTimeout && left <= time.Hour, "the agent has the deadline %v", query)
}

// The worker that resumed a sandbox may have died before it sent the deadline, which the label of the container does not tell.
func TestNextWorkerSendsDeadlinesOfWhatMayHaveHibernated(t *testing.T) {
	t.Parallel()
	for _, hibernates := range []bool{false, true} {
		s := newSleeper(t)
		s.w.node.UseHibernates()
		if hibernates {
			s.w.node.UseHibernates("runsc")
		}
		s.Fake.SetLabels(s.box.ID, map[string]string{
			engine.LabelNamespace: "test", engine.LabelSandbox: s.box.ID, engine.LabelTenant: workertest.Tenant, engine.LabelNode: workertest.Node,
			engine.LabelDeadline: strconv.FormatInt(s.Sandbox(s.box).ExpiresAt.Unix(), 10),
		})
		got := deadlinesOf(t, s.w, s.box)
		testbed.Must(t, s.w.reconciler.Run(t.Context()))
		s.w.node.Close() // the round has ended
		want := 0
		if hibernates {
			want = 1
		}
		testbed.Diff(t, fmt.Sprintf("deadlines of an agent that can hibernate: %v", hibernates), want, len(got()))
	}
}

// A sandbox that cannot hibernate runs on.
func TestHibernateThatIsRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		prepare func(*sleeper)
		code    farm.Code
		words   string
	}{
		"runc":       {func(s *sleeper) { s.box = s.ready("runc") }, farm.CodeConflict, "under runc"},
		"node":       {func(s *sleeper) { s.w.node.UseHibernates() }, farm.CodeConflict, "experimental"},
		"engine":     {func(s *sleeper) { s.Fake.BreakCheckpoints(false, 0, s.answers) }, farm.CodeUnavailable, "runs on"},
		"storage":    {func(s *sleeper) { s.quota(2047) }, farm.CodeExhausted, "max_stored_mb"},
		"background": {func(s *sleeper) { s.background() }, farm.CodeConflict, "runs in sandbox"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSleeper(t)
			if what == "runc" { // there is room for one sandbox
				s.w.placement.ReleaseCapacity(t.Context(), s.box, 0)
			}
			c.prepare(s)
			job := s.do(s.w, s.job(farm.KindHibernate))
			if job.State != farm.JobFailed || job.Error.Code != c.code || !strings.Contains(job.Error.Message, c.words) {
				t.Errorf("job %+v, %+v", job, job.Error)
			}
			s.is("afterwards", farm.SandboxReady, true, false, 2048, 0)
		})
	}
}

// quota sets how much the tenant may store.
func (s *sleeper) quota(storedMB float64) {
	s.T.Helper()
	testbed.Must(s.T, s.Store.ChangeTenant(s.T.Context(), workertest.Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{farm.QuotaStoredMB: &storedMB}}))
}

// background starts a command that has left the FIFO.
func (s *sleeper) background() {
	s.T.Helper()
	claim, err := s.Store.Claim(s.T.Context(), s.Command(s.box, "sleep 1000"), s.w.id)
	testbed.Must(s.T, err)
	testbed.Must(s.T, s.Store.LeaveFIFO(s.T.Context(), claim.Job.Ref(), claim.Job.Attempt))
}

// answers gives the sandbox an agent.
func (s *sleeper) answers() {
	s.T.Helper()
	agent := workertest.Hostile(s.T, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	join(s.T, s.w, s.box, func() *client.Client { return agent })
}

// The engine may notice the end after the checkpoint has failed.
func TestSandboxThatEndsWhileItHibernatesIsLost(t *testing.T) {
	t.Parallel()
	for _, late := range []int{0, 2} {
		s := newSleeper(t)
		s.Fake.BreakCheckpoints(true, late, func() {})
		job := s.do(s.w, s.job(farm.KindHibernate))
		testbed.Check(t, job.State == farm.JobLost && strings.Contains(job.Error.Message, "needs free memory"), "job %+v, %+v", job, job.Error)
		testbed.Check(t, !s.Fake.Has(s.box.ID), "its container is left")
		s.is("afterwards", farm.SandboxLost, false, false, 0, 0)
	}
}

// The engine packs and unpacks memory for seconds, so both take one of the turns of cold starts. While a job waits for its turn nothing has begun, and the
// worker's stop ends the wait. A tenant's resumes do not wait for its hibernations.
func TestHibernateAndResumeTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	all := placement.TurnsPerCore * runtime.NumCPU()
	take := func(n int, tenant func(string) string) (leave func()) {
		var turns []func()
		for range n {
			done, err := s.w.placement.Turn(t.Context(), tenant(farm.SandboxPrefix))
			testbed.Must(t, err)
			turns = append(turns, done)
		}
		return func() {
			for _, done := range turns {
				done()
			}
		}
	}
	own := func(string) string { return workertest.Tenant }
	hibernating := func(string) string { return placement.Hibernating(workertest.Tenant) }
	stopped, stop := context.WithCancelCause(t.Context())
	stop(node.ErrStopping)
	leave := take(all, farm.NewID) // by as many tenants
	hibernate := s.job(farm.KindHibernate)
	err := s.w.checkpoint(stopped, claimedJob(s.Claim(hibernate, s.w.id)))
	testbed.Check(t, errors.Is(err, node.ErrStopping), "checkpoint = %v", err)
	s.is("without a turn to hibernate", farm.SandboxReady, true, false, 2048, 0)
	leave()
	s.Requeue(hibernate, store.Requeue{Attempt: 1})
	for _, step := range []struct {
		job   farm.Ref
		taken func(string) string // half of all: what one can have
	}{{hibernate, own}, {s.job(farm.KindResume), hibernating}, {s.job(farm.KindHibernate), own}} {
		leave := take(all/2, step.taken)
		got := s.do(s.w, step.job)
		testbed.Require(t, got.State == farm.JobCompleted, "%s: %+v", got.Kind, got.Error)
		leave()
	}
	take(all, farm.NewID) // the jobs gave theirs back
	waiting := claimedJob(s.Claim(s.job(farm.KindResume), s.w.id))
	err = s.w.restore(stopped, waiting)
	testbed.Check(t, errors.Is(err, node.ErrStopping), "restore = %v", err)
	waiting.requestCancel()
	err = s.w.restore(t.Context(), waiting)
	testbed.Check(t, errors.Is(err, execution.ErrCanceled), "restore of a job that is cancelled = %v", err)
	s.is("without a turn to resume", farm.SandboxHibernated, false, true, 0, sleeperBytes)
}

// A cancel ends the wait for a turn, and the sandbox runs on.
func TestHibernateIsCancelledWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	for range placement.TurnsPerCore * runtime.NumCPU() {
		_, err := s.w.placement.Turn(t.Context(), farm.NewID(farm.SandboxPrefix))
		testbed.Must(t, err)
	}
	j := claimedJob(s.Claim(s.job(farm.KindHibernate), s.w.id))
	j.requestCancel()
	_, err := s.w.hibernate(t.Context(), j)
	testbed.Check(t, errors.Is(err, execution.ErrCanceled), "hibernate = %v", err)
	testbed.Check(t, s.w.failure(t.Context(), j, err).State == farm.JobCanceled, "the job is not cancelled")
	s.is("cancelled", farm.SandboxReady, true, false, 2048, 0)
}

// A cancel does not end the wait of a job that was taken over: its first attempt may have stored the sandbox, which would be taken for lost.
func TestATakenOverHibernationWaitsOn(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	for range placement.TurnsPerCore * runtime.NumCPU() {
		_, err := s.w.placement.Turn(t.Context(), farm.NewID(farm.SandboxPrefix))
		testbed.Must(t, err)
	}
	job := s.job(farm.KindHibernate)
	_, err := s.Store.Claim(t.Context(), job, "wrk_dead")
	testbed.Must(t, err)
	s.Requeue(job, store.Requeue{Attempt: 1, Begun: true, Crashed: true})
	j := claimedJob(s.Claim(job, s.w.id))
	j.requestCancel()
	ctx, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { stop(node.ErrStopping) })
	_, err = s.w.turn(ctx, j, workertest.Tenant)
	testbed.Check(t, errors.Is(err, node.ErrStopping), "turn = %v", err)
}

// A worker takes over from one that died at any step.
func TestHibernateIsTakenOver(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		kind         farm.JobKind
		runs, stored bool
		then         farm.SandboxState
		reservedMB   int
		bytes        int64
	}{
		"before the checkpoint": {farm.KindHibernate, true, false, farm.SandboxHibernated, 0, sleeperBytes},
		"after the checkpoint":  {farm.KindHibernate, false, true, farm.SandboxHibernated, 0, sleeperBytes},
		"before the resume":     {farm.KindResume, false, true, farm.SandboxReady, 2048, 0},
		"after the resume":      {farm.KindResume, true, true, farm.SandboxReady, 2048, 0},
		"after the removal":     {farm.KindResume, true, false, farm.SandboxReady, 2048, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSleeper(t)
			job := s.job(c.kind)
			_, err := s.Store.Claim(t.Context(), job, "wrk_dead")
			testbed.Must(t, err)
			_, err = s.Store.MoveSandbox(t.Context(), store.Move{Ref: s.box, To: farm.SandboxHibernated, Checkpoint: sleeperBytes})
			testbed.Must(t, err)
			s.Fake.Put(s.box.ID, c.runs)
			if c.stored {
				s.Fake.PutCheckpoint(s.box.ID)
			}
			s.Requeue(job, store.Requeue{Attempt: 1, Begun: true, Crashed: true})
			testbed.Must(t, s.w.reconciler.Run(t.Context())) // it leaves the sandbox to its job
			got := s.do(s.w, job)
			testbed.Check(t, got.State == farm.JobCompleted, "job %+v, %+v", got, got.Error)
			s.is("taken over", c.then, c.then == farm.SandboxReady, c.then == farm.SandboxHibernated, c.reservedMB, c.bytes)
		})
	}
}

// A worker that was stalled before the checkpoint, while another one hibernated the sandbox and a job resumed it, does not freeze it again: the record
// would say that it runs, so its container would be taken for lost, with its checkpoint.
func TestStalledHibernationFreezesNoResumedSandbox(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	job := s.job(farm.KindHibernate)
	stalled := claimedJob(s.Claim(job, "wrk_stalled"))
	_, err := s.Store.MoveSandbox(t.Context(), store.Move{Ref: s.box, To: farm.SandboxHibernated, Checkpoint: sleeperBytes, Job: job.ID, Attempt: 1})
	testbed.Must(t, err)
	s.Requeue(job, store.Requeue{Attempt: 1, Begun: true, Crashed: true})
	for _, next := range []farm.Ref{job, s.job(farm.KindResume)} {
		got := s.do(s.w, next)
		testbed.Require(t, got.State == farm.JobCompleted, "%s: %+v", got.Kind, got.Error)
	}
	err = s.w.checkpoint(t.Context(), stalled)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "checkpoint = %v, want ErrFenced", err)
	s.is("afterwards", farm.SandboxReady, true, false, 2048, 0)
}

// What no job settles is left to the reconciler.
func TestReconcileHibernated(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		prepare func(*sleeper)
		then    farm.SandboxState
		bytes   int64
	}{
		"stored": {func(s *sleeper) {
			s.Fake.Put(s.box.ID, false)
			s.Fake.PutCheckpoint(s.box.ID)
		}, farm.SandboxHibernated, sleeperBytes},
		"never stored": {func(*sleeper) {}, farm.SandboxReady, 0},
		"resumed":      {func(s *sleeper) { s.Fake.PutCheckpoint(s.box.ID) }, farm.SandboxReady, 0},
		"gone":         {func(s *sleeper) { s.Fake.Forget(s.box.ID) }, farm.SandboxLost, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSleeper(t)
			_, err := s.Store.MoveSandbox(t.Context(), store.Move{Ref: s.box, To: farm.SandboxHibernated, Checkpoint: sleeperBytes})
			testbed.Must(t, err)
			c.prepare(s)
			testbed.Must(t, s.w.reconciler.Run(t.Context()))
			reserved := map[farm.SandboxState]int{farm.SandboxReady: 2048}[c.then]
			if c.then == farm.SandboxHibernated { // the reservation may be one that a resume has just made
				reserved = 2048
			}
			s.is("compared", c.then, c.then == farm.SandboxReady, c.then == farm.SandboxHibernated, reserved, c.bytes)
			s.w.now = workertest.In(time.Hour)
			testbed.Must(t, s.w.reconciler.Run(t.Context()))
			s.is("later", c.then, c.then == farm.SandboxReady, c.then == farm.SandboxHibernated, map[farm.SandboxState]int{farm.SandboxReady: 2048}[c.then], c.bytes)
		})
	}
}

// While the node is full a resume waits, and nothing else is in its way.
func TestResumeWithoutRoomWaits(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	s.do(s.w, s.job(farm.KindHibernate))
	other := s.ready("runsc")
	job := s.job(farm.KindResume)
	got := s.do(s.w, job)
	testbed.Check(t, got.State == farm.JobQueued && got.Attempt-got.GracefulRequeues == 0, "without room: %+v", got)
	s.is("without room", farm.SandboxHibernated, false, true, 0, sleeperBytes)
	s.w.placement.ReleaseCapacity(t.Context(), other, 0)
	got = s.do(s.w, job)
	testbed.Check(t, got.State == farm.JobCompleted, "with room: %+v, %+v", got, got.Error)
	s.is("with room", farm.SandboxReady, true, false, 2048, 0)
}

// A sandbox whose checkpoint is gone is lost when it is needed.
func TestResumeWithoutCheckpoint(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	s.do(s.w, s.job(farm.KindHibernate))
	s.Fake.Forget(s.box.ID)
	got := s.do(s.w, s.Command(s.box, "true"))
	testbed.Check(t, got.State == farm.JobLost, "job %+v, %+v", got, got.Error)
	s.is("afterwards", farm.SandboxLost, false, true, 0, 0)
}

// A read in the sandbox does not wait in its FIFO, so it is refused; a close removes everything.
func TestCloseWhileHibernated(t *testing.T) {
	t.Parallel()
	s := newSleeper(t)
	s.do(s.w, s.job(farm.KindHibernate))
	_, err := s.Store.Accept(t.Context(), store.Accept{Job: &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: workertest.Tenant, Kind: farm.KindInterrupt, SandboxID: s.box.ID, Inline: true}})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict && strings.Contains(farm.MessageOf(err), "/resume"), "interrupt: %v", err)
	got := s.do(s.w, s.CloseJob(s.box))
	testbed.Check(t, got.State == farm.JobCompleted, "close: %+v", got)
	testbed.Check(t, !s.Fake.Has(s.box.ID), "its container is left")
	s.is("closed", farm.SandboxClosed, false, false, 0, 0)
}

// A Redis that lost its data gets the record of a hibernated sandbox back.
func TestHibernatedSandboxIsRestored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	box, dead := b.contained(w), b.contained(w)
	b.Fake.Put(box.ID, false)
	b.Fake.Put(dead.ID, false)
	b.Fake.PutCheckpoint(box.ID)
	b.Redis.FlushAll()
	testbed.Must(t, w.reconciler.Run(t.Context()))
	got := b.Sandbox(box)
	testbed.Check(t, got.State == farm.SandboxHibernated && got.Node == workertest.Node, "restored as %+v", got)
	testbed.Check(t, b.Fake.HasCheckpoint(box.ID) && !b.Fake.Has(dead.ID), "its checkpoint is gone, or a container that ended is left")
}
