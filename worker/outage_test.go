package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// handClock is a clock that a test sets.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) read() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *handClock) pass(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

// A create on a silent engine is requeued: soon if another node has room, later if none has. It is not lost, and the node
// keeps no reservation for it.
func TestCreateLeavesASilentEngine(t *testing.T) {
	t.Parallel()
	for _, kind := range []farm.JobKind{farm.KindCreate, farm.KindRun} {
		for _, other := range []bool{true, false} {
			t.Run(string(kind)+map[bool]string{true: "ToAnotherNode", false: "WaitsForItsEngine"}[other], func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.cfg.CreateTimeout, b.cfg.EngineTimeout = time.Hour, time.Minute
				w := b.measured(5000, 4)
				clock := &handClock{now: time.Now()}
				w.now = clock.read
				timeout := b.cfg.EngineTimeout
				if other {
					timeout = moveTimeout
					_, err := b.Store.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 4000, CPUs: 4})
					testbed.Must(t, err)
				}
				lost := b.Ready()
				job, box := b.Creation(kind)
				b.Fake.CloseClientConnections()
				b.Fake.Close()
				handled := b.begin(w, job)
				testbed.Until(t, "the sandbox is being started", func() bool { return b.Sandbox(box).State == farm.SandboxStarting })
				testbed.Must(t, w.notePing(t.Context(), false))
				clock.pass(timeout - time.Second)
				testbed.Must(t, w.notePing(t.Context(), false))
				b.JobIs(job, farm.JobRunning)
				clock.pass(time.Second)
				testbed.Must(t, w.notePing(t.Context(), false))
				testbed.Must(t, <-handled)
				w.background.Wait()
				got, s := b.Job(job), b.Sandbox(box)
				if got.State != farm.JobQueued || got.Queue != farm.QueueCPU || got.Attempt != 1 || got.GracefulRequeues != 1 {
					t.Errorf("job %+v", got)
				}
				testbed.Check(t, s.State == farm.SandboxQueued && s.Node == "" && s.Generation == 2 && !s.ExpiresAt.IsZero(), "sandbox %+v", s)
				message := b.Progress(job)
				testbed.Check(t, strings.Contains(message, "engine"), "the progress event says %q", message)
				reservations, err := b.Store.Reservations(t.Context(), "n1")
				_, reserved := reservations[box]
				testbed.Check(t, !reserved && err == nil, "the node still has a reservation for it (%v)", err)
				var seen dto.Metric
				if err := w.metrics.moved.Write(&seen); err != nil || seen.Counter.GetValue() != 1 {
					t.Errorf("%v creations are counted (%v)", seen.Counter.GetValue(), err)
				}
				state := b.Sandbox(lost).State
				testbed.Check(t, (state == farm.SandboxLost) != other, "the sandbox that has an owner is %s", state)
				testbed.Check(t, !w.placement.Accepts(farm.QueueCPU), "the worker would take it again at once")
				claim, err := b.Store.Claim(t.Context(), job, "wrk_other")
				testbed.Check(t, err == nil && claim.Job.Attempt == 2 && claim.Sandbox.Node == "", "Claim by another worker = %+v, %v", claim, err)
			})
		}
	}
}

// A create whose pool member is on a dead engine moves to another node, and the member leaves the pool.
func TestClaimedMemberOfADeadEngineIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(5000, "python=1")
	m := b.member(w)
	_, err := b.Store.ClaimMember(t.Context(), store.MemberClaim{Tenant: workertest.Tenant, Image: "python", Network: farm.NetworkNone, DiskMB: m.Resources.DiskMB, Nodes: []string{"n1"}})
	testbed.Must(t, err)
	box := &farm.Sandbox{ID: m.ID, Tenant: workertest.Tenant, Node: "n1", Pooled: true, Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, Resources: m.Resources, TTLSeconds: 3600}}
	job := b.Accept(farm.KindCreate, box.ID, &farm.Request{Sandbox: &box.Spec}, func(a *store.Accept) {
		a.Sandbox, a.Job.Queue = box, farm.NodeQueue("n1")
	})
	w.node.Disconnect(m.ID)
	b.Fake.CloseClientConnections()
	b.Fake.Close()
	got := b.done(w, job, farm.JobQueued)
	testbed.Check(t, got.Queue == farm.QueueCPU, "job %+v", got)
	_, err = b.Store.Member(t.Context(), m.ID)
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "the member is still in the pool: %v", err)
}

// A create that is cancelled while its engine is silent ends; it does not move.
func TestCanceledStartOfASilentEngineEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	handled := b.begin(w, job)
	testbed.Until(t, "the sandbox is being started", func() bool { r := w.jobs.get(job.ID); return r != nil && r.start.Load() != nil })
	w.jobs.get(job.ID).requestCancel()
	testbed.Must(t, <-handled)
	got, s := b.Job(job), b.Sandbox(box)
	testbed.Check(t, got.State == farm.JobCanceled && s.State == farm.SandboxFailed, "job %s, sandbox %s", got.State, s.State)
}

// A worker that resumes after its create has moved to another node changes nothing.
func TestLateStartIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Hour
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	handled := b.begin(w, job)
	testbed.Until(t, "the sandbox is being started", func() bool { return b.Sandbox(box).State == farm.SandboxStarting })
	b.Requeue(job, store.Requeue{Attempt: 1, Elsewhere: true})
	ready := store.Move{Ref: box, To: farm.SandboxStarting, Node: "n1", Job: job.ID, Attempt: 1}
	if _, err := b.Store.MoveSandbox(t.Context(), ready); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a step of an attempt that left the node = %v", err)
	}
	claim := b.Claim(job, "wrk_other")
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxStarting, Node: "n2", Job: job.ID, Attempt: claim.Job.Attempt})
	testbed.Must(t, err)
	w.jobs.get(job.ID).stopStart(errEngineSilent) // the worker notices only now
	err = <-handled
	testbed.Check(t, err == nil || errors.Is(err, store.ErrFenced), "the late worker's handler: %v", err)
	if got, s := b.Job(job), b.Sandbox(box); got.State != farm.JobRunning || got.Worker != "wrk_other" || s.State != farm.SandboxStarting || s.Node != "n2" {
		t.Errorf("job %s of %s, sandbox %s on %s", got.State, got.Worker, s.State, s.Node)
	}
}

// The sandboxes of an engine that stays silent are marked as lost; an engine that answers again in time keeps them.
func TestSilentEngineLosesItsSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.measured(5000, 4)
	clock := &handClock{now: time.Now()}
	w.now = clock.read
	box := b.Ready()
	waiting := b.Command(box, "echo")
	for _, up := range []bool{false, true, false} {
		testbed.Must(t, w.notePing(t.Context(), up))
		testbed.Check(t, w.placement.Accepts(farm.QueueCPU) == up, "engine up %v, gate open %v", up, !up)
		nodes, err := b.Store.ReportCapacity(t.Context(), "other", farm.Capacity{})
		testbed.Check(t, err == nil && (nodes["n1"].Capacity.MemoryMB > 0) == up, "engine up %v, room %+v, %v", up, nodes["n1"], err)
		clock.pass(w.cfg.EngineTimeout - time.Second)
	}
	testbed.Must(t, w.notePing(t.Context(), false))
	w.background.Wait()
	b.SandboxIs(box, farm.SandboxReady)
	clock.pass(time.Second)
	testbed.Must(t, w.notePing(t.Context(), false))
	w.background.Wait()
	if s, job := b.Sandbox(box), b.Job(waiting); s.State != farm.SandboxLost || !strings.Contains(s.Reason, "does not answer") || job.State != farm.JobLost {
		t.Errorf("sandbox %s (%s), its job %s", s.State, s.Reason, job.State)
	}
}

// redisAway makes every command fail, as a Redis that cannot serve now, until the returned function is called. The number of commands
// grows meanwhile.
func redisAway(b *bundle) (tries *atomic.Int64, back func()) {
	tries = new(atomic.Int64)
	b.Redis.Server().SetPreHook(func(c *server.Peer, _ string, _ ...string) bool {
		tries.Add(1)
		c.WriteError("LOADING Redis is away")
		return true
	})
	return tries, func() { b.Redis.Server().SetPreHook(nil) }
}

// ending is a command that has begun, and ends when the test says so. Its file runs has a line for each time it ran.
func (b *bundle) ending(w *Worker, box farm.Ref, a *agenttest.Agent) (job farm.Ref, handled <-chan error, end func()) {
	b.T.Helper()
	job = b.Command(box, `echo x >> runs; echo began; while [ ! -e "$HOME/go" ]; do sleep 0.02; done; echo end`)
	done := make(chan error, 1)
	go func() { done <- w.handle(context.WithoutCancel(b.T.Context()), workertest.Task(job)) }()
	testbed.Until(b.T, "the command has begun", func() bool { return b.Stdout(job) == "began\n" })
	return job, done, func() {
		testbed.Must(b.T, os.WriteFile(filepath.Join(a.Home, "go"), nil, 0o600)) // outside the workspace: no artifact
		testbed.Until(b.T, "the command has ended", func() bool {
			list, err := a.Executions(b.T.Context())
			return err == nil && !slices.ContainsFunc(list, func(e agent.Execution) bool { return !e.Done })
		})
	}
}

// endedOnce checks that the command of ending ended as it did, and ran once.
func (b *bundle) endedOnce(job farm.Ref, attempt int) {
	b.T.Helper()
	got := b.Job(job)
	if got.State != farm.JobCompleted || got.Attempt != attempt {
		b.T.Fatalf("the job is %s, attempt %d, error %+v", got.State, got.Attempt, got.Error)
	}
	text := got.Result.Command.Commands[0].Stdout
	testbed.Check(b.T, text == "began\nend\n" && b.Stdout(job) == text, "the result has %q, the events %q", text, b.Stdout(job))
	a := got.Result.Artifacts
	testbed.Check(b.T, len(a) == 1 && a[0].Path == "runs" && a[0].Size == 2, "the code ran more than once, or left nothing: %+v", a)
}

// A job that ends while Redis is away is not reported before Redis is back, however long that takes, and then as it ended. It used to be
// reported as failed after Config.UploadRetry, and to run again when its task was delivered again.
func TestJobEndsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1 // any outage lasts longer
	w, box := b.worker(), b.Ready()
	job, handled, end := b.ending(w, box, b.agent(box, w))
	tries, back := redisAway(b)
	end()
	for _, n := range []int64{3, 6} {
		testbed.Until(t, "the worker tries again", func() bool { return tries.Load() >= n || len(handled) > 0 })
	}
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job))) // asynq delivers its task again
	select {
	case err := <-handled:
		t.Fatalf("the worker gave the job up: %v", err)
	default:
	}
	back()
	testbed.Must(t, <-handled)
	b.endedOnce(job, 1)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	b.endedOnce(job, 1)
}

// A worker that stops while Redis is away leaves the end of the job to the next one.
func TestWorkerStopsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1
	first, second, box := b.worker(), b.worker(), b.Ready()
	job, handled, end := b.ending(first, box, b.agent(box, first, second))
	tries, back := redisAway(b)
	end()
	testbed.Until(t, "the worker tries again", func() bool { return tries.Load() >= 3 || len(handled) > 0 })
	first.stop(node.ErrStopping)
	err := <-handled
	testbed.Check(t, err != nil, "the task of a job that is not recorded is done")
	back()
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	testbed.Must(t, second.handle(t.Context(), workertest.Task(job)))
	b.endedOnce(job, 2)
}

// lostAnswer lets a call take effect and loses the answer, once.
type lostAnswer struct {
	arg  string // the first call that has it
	lost atomic.Bool
}

func (l *lostAnswer) hook(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
	err := next(cmds...)
	if err == nil && slices.Contains(cmds[0].Args(), any(l.arg)) && l.lost.CompareAndSwap(false, true) {
		return net.ErrClosed
	}
	return err
}

// The answer to the end of a job is lost, as when Redis was paused and carries out what it had received. The worker repeats the call, and
// does what follows from the end: the next job of the sandbox is enqueued. It used to take its own end for that of another worker.
func TestLostAnswerToTheEndOfAJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hook := &lostAnswer{arg: "finish"}
	tasks := queue.NewClient(redis.NewClient(&redis.Options{Addr: b.Redis.Addr()}), b.Log)
	b.deps.Store = b.StoreBehind(testbed.Hook(hook.hook))
	b.deps.Dispatch = dispatch.New(b.deps.Store, tasks, farm.DefaultLimits(), b.Log)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job, next := b.Command(box, "true"), b.Command(box, "true")
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got := b.Job(job)
	testbed.Require(t, hook.lost.Load() && got.State == farm.JobCompleted, "answer lost: %v, job %s", hook.lost.Load(), got.State)
	enqueued, err := tasks.Has(t.Context(), farm.QueueCPU, next.ID)
	testbed.Check(t, err == nil && enqueued, "the next job is enqueued: %v, %v", enqueued, err)
}

// A sandbox starts while Redis is away: its worker waits, and neither the sandbox nor its job fails for it. They used to fail at the first
// call without an answer.
func TestSandboxStartsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hook := &lostAnswer{arg: "starting"}
	b.deps.Store = b.StoreBehind(testbed.Hook(hook.hook))
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got, s := b.Job(job), b.Sandbox(box) // both fail, since the fake creates no containers
	if !hook.lost.Load() || got.Error == nil || strings.Contains(got.Error.Message, "record store") || strings.Contains(s.Reason, "record store") {
		t.Errorf("answer lost: %v, job %s, error %+v, sandbox %s, reason %q", hook.lost.Load(), got.State, got.Error, s.State, s.Reason)
	}
}

// The answer to a sandbox's move to ready is lost: the next try finds it done.
func TestLostAnswerToAMove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hook := &lostAnswer{arg: "ready"}
	b.deps.Store = b.StoreBehind(testbed.Hook(hook.hook))
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	claim := b.Claim(job, w.id)
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		s, err := w.move(t.Context(), store.Move{Ref: box, To: to, Node: w.node.ID(), Generation: 1, Job: job.ID, Attempt: claim.Job.Attempt})
		testbed.Require(t, err == nil && s.State == to, "move to %s: %v %+v", to, err, s)
	}
	testbed.Check(t, hook.lost.Load(), "no answer was lost")
}

// A result that is too long for Redis is cut where the object store is away, so that its job ends and those behind it run.
func TestLongResultWithoutAnObjectStore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1
	blobs := b.BrokenBlobs()
	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	b.deps.Blobs, b.deps.Store = blobs, store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: blobs})
	t.Cleanup(func() { _ = b.deps.Store.Close() })
	b.deps.Dispatch = dispatch.New(b.deps.Store, queue.NewClient(rdb, b.Log), farm.DefaultLimits(), b.Log)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job := b.Accept(farm.KindCommand, box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"seq 1 20000; exit 7"}}}, nil) // 109 KB
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got := b.Job(job)
	if got.State != farm.JobFailed || got.Error == nil || !strings.Contains(got.Error.Message, "object store") {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
	c := got.Result.Command.Commands
	testbed.Check(t, len(c) == 1 && c[0].ExitCode == 7 && c[0].Truncated.Stdout && len(got.Result.Notes) != 0, "result %+v", got.Result)
	b.SandboxIs(box, farm.SandboxReady)
	if err := w.handle(t.Context(), workertest.Task(job)); err != nil && !errors.Is(err, store.ErrNotClaimable) {
		t.Error(err)
	}
}
