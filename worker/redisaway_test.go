package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
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
		workertest.Must(b.T, os.WriteFile(filepath.Join(a.Home, "go"), nil, 0o600)) // outside the workspace: no artifact
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
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job))) // asynq delivers its task again
	select {
	case err := <-handled:
		t.Fatalf("the worker gave the job up: %v", err)
	default:
	}
	back()
	workertest.Must(t, <-handled)
	b.endedOnce(job, 1)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	workertest.Must(t, second.handle(t.Context(), workertest.Task(job)))
	b.endedOnce(job, 2)
}

// lostAnswer lets a call take effect and loses the answer, once.
type lostAnswer struct {
	arg  string // the first call that has it
	lost atomic.Bool
}

func (l *lostAnswer) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (l *lostAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && slices.Contains(cmd.Args(), any(l.arg)) && l.lost.CompareAndSwap(false, true) {
			err = net.ErrClosed
			cmd.SetErr(err)
		}
		return err
	}
}

func (l *lostAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The answer to the end of a job is lost, as when Redis was paused and carries out what it had received. The worker repeats the call, and
// does what follows from the end: the next job of the sandbox is enqueued. It used to take its own end for that of another worker.
func TestLostAnswerToTheEndOfAJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hook := &lostAnswer{arg: "finish"}
	tasks := queue.NewClient(redis.NewClient(&redis.Options{Addr: b.Redis.Addr()}), b.Log)
	b.deps.Store = b.StoreBehind(hook)
	b.deps.Dispatch = dispatch.New(b.deps.Store, tasks, farm.DefaultLimits(), b.Log)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job, next := b.Command(box, "true"), b.Command(box, "true")
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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
	b.deps.Store = b.StoreBehind(hook)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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
	b.deps.Store = b.StoreBehind(hook)
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
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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
