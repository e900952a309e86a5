package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestCloseCancelsRunningAndWaitingJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	b.watchCancels(w)
	background := b.Accept(farm.KindCommand, box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"echo began; exec sleep 60"}, Background: true}}, nil)
	handled := b.begin(w, background)
	testbed.Until(t, "the command has begun", func() bool { return b.Stdout(background) == "began\n" })
	waiting := b.Command(box, "echo never")
	closing := b.CloseJob(box)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(closing)))
	workertest.Must(t, <-handled)
	if got := b.Job(background); got.State != farm.JobCanceled || got.Result == nil || got.Result.Command.Commands[0].Stdout != "began\n" {
		t.Errorf("the running job is %s, result %+v", got.State, got.Result)
	}
	b.JobIs(waiting, farm.JobCanceled)
	for _, job := range []farm.Ref{background, waiting} {
		if got := b.Job(job); got.Error == nil || got.Error.Code != farm.CodeConflict || got.Error.Message != execution.ClosedMessage {
			t.Errorf("the caller of a job whose sandbox was closed gets %+v", got.Error)
		}
	}
	b.JobIs(closing, farm.JobCompleted)
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxClosed && !b.Fake.Has(box.ID), "sandbox is %s, container exists: %v", s.State, b.Fake.Has(box.ID))
}

// A create job that fails during a close must not end the close job: the sandbox used to stay closing.
func TestFailedCreateLeavesTheCloseJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	claim := b.Claim(job, w.id)
	b.Move(box, farm.SandboxStarting)
	b.Fake.Put(box.ID, true)
	closing := b.CloseJob(box)
	r := claimedJob(claim)
	if err := w.abandon(t.Context(), r, workertest.ErrTest); !errors.Is(err, execution.ErrCanceled) {
		t.Errorf("abandoning gave %v", err)
	}
	testbed.Check(t, !b.Fake.Has(box.ID), "the container still exists")
	b.JobIs(closing, farm.JobQueued)
	_, err := w.finish(t.Context(), r, execution.Outcome{State: farm.JobCanceled})
	workertest.Must(t, err)
	if got, s := b.done(w, closing, farm.JobCompleted), b.Sandbox(box); s.State != farm.SandboxClosed {
		t.Errorf("close job %s, sandbox %s", got.State, s.State)
	}
}

func TestFailedCreateEndsWaitingJobsWithAReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	waiting := b.Command(box, "true")
	got := b.done(w, job, farm.JobFailed)
	testbed.Require(t, got.Error != nil, "job %s, error %+v", got.State, got.Error)
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxFailed && s.Reason != "", "sandbox %s, reason %q", s.State, s.Reason)
	if got := b.Job(waiting); got.State != farm.JobCanceled || !strings.Contains(got.Error.Message, "did not become ready") {
		t.Errorf("the waiting job is %s: %+v", got.State, got.Error)
	}
}

// If the container of a closing sandbox is removed while jobs run in it, they are cancelled, not lost.
func TestJobOfAClosingSandboxIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	job := b.Command(box, "true")
	claim := b.Claim(job, w.id)
	closing := b.CloseJob(box)
	v := w.failure(t.Context(), claimedJob(claim), node.ErrGone)
	testbed.Check(t, v.State == farm.JobCanceled && v.Err.Message == execution.ClosedMessage, "execution.Outcome %+v", v)
	got, s := b.Job(closing), b.Sandbox(box)
	testbed.Check(t, got.State == farm.JobQueued && s.State == farm.SandboxClosing, "close job %s, sandbox %s", got.State, s.State)
}

func TestOneShotSandboxIsClosedAfterItsJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady) // as an earlier attempt left it
	b.agent(box, w)
	got := b.done(w, job, farm.JobCompleted)
	testbed.Require(t, got.Result.Command.Commands[0].Stdout == "one shot\n", "job %s, result %+v, error %+v", got.State, got.Result, got.Error)
	testbed.Until(t, "the sandbox is closed", func() bool { return b.Sandbox(box).State == farm.SandboxClosed })
	testbed.Check(t, !b.Fake.Has(box.ID), "the container still exists")
	asked, err := b.Store.CancelRequested(t.Context(), job)
	testbed.Check(t, err == nil && !asked, "the finished job was cancelled: %v %v", asked, err)
}

// A fenced worker must not close the sandbox that another worker uses.
func TestOneShotOfAnotherWorkerStaysOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.worker(), b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, first)
	claim := b.Claim(job, first.id)
	r := claimedJob(claim)
	v, err := first.perform(t.Context(), r)
	workertest.Must(t, err)
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	taken := b.Claim(job, second.id)
	if committed, err := first.finish(t.Context(), r, v); committed || err != nil {
		t.Fatalf("a fenced worker committed: %v %v", committed, err)
	}
	s := b.Sandbox(box)
	testbed.Require(t, s.State == farm.SandboxClosing && b.Fake.Has(box.ID), "sandbox %s, container exists: %v", s.State, b.Fake.Has(box.ID))
	workertest.Must(t, second.reconciler.Run(t.Context())) // its job has not ended
	testbed.Require(t, b.Fake.Has(box.ID), "the reconciler removed the container of a running job")
	workertest.Must(t, second.node.UseConnection(t.Context(), box.ID, func() *client.Client { return a.Client }))
	v, err = second.perform(t.Context(), claimedJob(taken))
	workertest.Must(t, err)
	testbed.Require(t, v.State == farm.JobCompleted && v.Result.Command.Commands[0].Stdout == "one shot\n", "execution.Outcome %+v", v)
}

// Input files are not written again once the code has started, since it may have changed them.
func TestTakeoverOfOneShotKeepsItsFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, w)
	claim := b.Claim(job, w.id)
	claim.Request.Files = []farm.InputFile{{Path: "in.txt", Content: []byte("input"), Size: 5}}
	r := claimedJob(claim)
	content := func() string {
		body, _, err := a.Open(t.Context(), "in.txt", 0, 0)
		workertest.Must(t, err)
		defer func() { _ = body.Close() }()
		var text [100]byte
		n, _ := body.Read(text[:])
		return string(text[:n])
	}
	workertest.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox))
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	claim.Job.Attempt = 2
	_, err := a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	workertest.Must(t, err)
	workertest.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox)) // the code had not started
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	workertest.Must(t, a.Start(t.Context(), job.ID, agent.Spec{Kind: farm.KindCommand, Commands: claim.Request.Command.Commands, Timeout: time.Minute}))
	_, err = a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	workertest.Must(t, err)
	workertest.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox))
	if content() != "changed" {
		t.Fatalf("the file holds %q", content())
	}
}

func TestJobOfASandboxWithoutRecordIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	job := b.Command(box, "true")
	b.Redis.Del("sf:{" + workertest.Tenant + "}:sbx:" + box.ID)
	got := b.done(w, job, farm.JobFailed)
	testbed.Require(t, got.Error.Code == farm.CodeConflict, "job %s, error %+v", got.State, got.Error)
}
