package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// create is the handler of create jobs: it starts a sandbox and installs its packages.
func (w *Worker) create(ctx context.Context, j *activeJob) (execution.Outcome, error) {
	_, installed, err := w.ready(ctx, j)
	if err != nil {
		return execution.Outcome{}, w.abandon(ctx, j, err)
	}
	return installed.Outcome(), nil
}

// ready brings the job's sandbox from queued to ready. A worker that takes over can repeat every step.
func (w *Worker) ready(ctx context.Context, j *activeJob) (*farm.Sandbox, *execution.Installed, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer j.task().OnCancel(ctx, func() { stop(execution.ErrCanceled) })()
	sandbox := j.Sandbox
	done := sandbox.State == farm.SandboxReady || sandbox.State == farm.SandboxBusy // an earlier attempt has done this
	if !done {
		j.start.Store(&stop)
		defer j.start.Store(nil)
		var err error
		if sandbox, err = w.boot(ctx, j, sandbox); err != nil {
			return nil, nil, err
		}
	}
	installed, err := w.executions.InstallRequested(ctx, j.task(), sandbox)
	if err != nil || done {
		return sandbox, installed, retry.Cause(ctx, err)
	}
	moved, err := w.move(ctx, store.Move{
		Ref: sandbox.Ref(), To: farm.SandboxReady, Node: w.node.ID(), Container: sandbox.Container, Touch: true,
		Generation: sandbox.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt,
	})
	if err != nil {
		return nil, nil, retry.Cause(ctx, err)
	}
	w.log.InfoContext(ctx, "sandbox ready", "sandbox_id", sandbox.ID, "tenant", sandbox.Tenant, "image", sandbox.Spec.Image, "job_id", j.Job.ID)
	return moved, installed, nil
}

// boot starts a sandbox's container and its first kernel.
func (w *Worker) boot(ctx context.Context, j *activeJob, sandbox *farm.Sandbox) (*farm.Sandbox, error) {
	moved, err := w.move(ctx, store.Move{Ref: sandbox.Ref(), To: farm.SandboxStarting, Node: w.node.ID(), Runtime: w.node.Runtime(sandbox.Spec), Generation: sandbox.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt})
	if err != nil {
		return nil, retry.Cause(ctx, err)
	}
	if spec := j.Request.Sandbox; spec != nil {
		moved.Spec.Env = spec.Env // the record has only their names
	}
	if moved.Pooled && moved.Generation == 1 { // a later generation has left its member
		container, ok, err := w.placement.AssignMember(ctx, moved)
		if ok || err != nil {
			moved.Container = container
			return moved, retry.Cause(ctx, err)
		}
	}
	started, err := w.placement.Turn(ctx, moved.Tenant)
	if err != nil {
		return nil, retry.Cause(ctx, err)
	}
	defer w.background.Go(func() { j.asked.Wait(); started() }) // what the engine goes on with keeps the turn
	ctx, done := context.WithTimeoutCause(ctx, w.cfg.CreateTimeout, farm.Errorf(farm.CodeUnavailable, "the sandbox did not start within %s", w.cfg.CreateTimeout))
	defer done()
	if moved.Container, err = w.startContainerWithRetry(ctx, moved, &j.asked); err != nil {
		return nil, noRoom(ctx, retry.Cause(ctx, err), err)
	}
	w.placement.Started(moved.ID)
	c, err := w.node.Connect(ctx, moved)
	if err != nil {
		return nil, retry.Cause(ctx, err)
	}
	if err := c.StartKernel(ctx, "default", "python"); err != nil && farm.CodeOf(err) != farm.CodeInvalid && farm.CodeOf(err) != farm.CodeNotFound {
		return nil, retry.Cause(ctx, fmt.Errorf("start kernel: %w", err))
	}
	return moved, nil
}

// move moves a sandbox as soon as Redis answers. A repeated move succeeds.
func (w *Worker) move(ctx context.Context, m store.Move) (moved *farm.Sandbox, err error) {
	err = retry.Writes{}.Do(ctx, func(ctx context.Context) (err error) {
		moved, err = w.store.MoveSandbox(ctx, m)
		return err
	})
	return moved, err
}

// startContainerWithRetry starts the container. While the engine does not answer, for example during its restart, the start is retried
// until the create times out, so that callers do not lose the job. The error then names the engine as the reason.
func (w *Worker) startContainerWithRetry(ctx context.Context, s *farm.Sandbox, asked *asked) (string, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		id, err := w.startContainer(ctx, s, asked)
		if err == nil || farm.CodeOf(err) != farm.CodeUnavailable {
			return id, err
		}
		if stop := retry.Sleep(ctx, pause); stop != nil {
			if farm.CodeOf(stop) == farm.CodeUnavailable { // the create timed out
				return "", farm.Wrap(err, farm.CodeUnavailable, "The container engine does not answer. Try again in a moment.")
			}
			return "", stop
		}
	}
}

// startContainer creates and starts the container. A container that an earlier attempt of the same generation made is used. ErrFenced if the engine has
// the container of a later generation.
//
// The engine finishes what it has begun even if its caller disconnects, so it is always waited for, and asked does not end before: once ctx has ended, the
// container is removed if its sandbox is not being started any more. Code that ends a start changes the record before it removes the container, so one
// of the two removes it.
func (w *Worker) startContainer(ctx context.Context, s *farm.Sandbox, asked *asked) (string, error) {
	image, err := w.node.Image(ctx, s.Spec.Image)
	if err != nil {
		return "", err
	}
	spec := w.node.ContainerSpec(s, image)
	if err := w.placement.AddDevices(s, &spec); err != nil {
		return "", err
	}
	type result struct {
		id  string
		err error
	}
	made := make(chan result)
	asked.begin()
	w.background.Go(func() {
		defer asked.end()
		work, done := context.WithCancel(context.WithoutCancel(ctx))
		defer done()
		defer context.AfterFunc(w.base, done)() //nolint:contextcheck // a stop of the worker ends it: the next one uses the container
		id, err := w.engine.Create(work, spec)
		switch {
		case errors.Is(err, farm.ErrNewer):
			err = errors.Join(err, store.ErrFenced)
		case err == nil && ctx.Err() == nil:
			err = w.startCreated(work, s, id)
		}
		select {
		case made <- result{id, err}:
		case <-ctx.Done():
			if id != "" && work.Err() == nil {
				w.removeUnwanted(work, s, id)
			}
		}
	})
	select {
	case r := <-made:
		if r.err != nil {
			return "", fmt.Errorf("start container: %w", r.err)
		}
		return r.id, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// startCreated starts a container that has its devices.
func (w *Worker) startCreated(ctx context.Context, s *farm.Sandbox, id string) error {
	if err := w.placement.CheckDevices(ctx, s); err != nil {
		return err
	}
	return w.engine.Start(ctx, id)
}

// removeUnwanted removes a container that was made after the start of its sandbox had ended, unless another attempt continues the start here.
func (w *Worker) removeUnwanted(ctx context.Context, s *farm.Sandbox, container string) {
	now, err := w.lifecycle.read(ctx, s)
	if err == nil && now.Generation == s.Generation && !now.State.Final() && now.State != farm.SandboxClosing {
		return
	}
	if err == nil || farm.CodeOf(err) == farm.CodeNotFound {
		err = w.engine.Remove(ctx, container)
		if err == nil && now != nil && now.State.Final() {
			w.lifecycle.gone(ctx, s)
		}
	}
	if err != nil {
		w.log.WarnContext(ctx, "container that was made too late is left to the reconciler", "sandbox_id", s.ID, "error", err)
	}
}

// abandon cleans up after a sandbox that did not become ready, and returns the reason for the job. errEngineSilent and errNoRoom mean that the
// create is requeued.
func (w *Worker) abandon(ctx context.Context, j *activeJob, err error) error {
	if errors.Is(err, node.ErrStopping) || errors.Is(context.Cause(ctx), node.ErrStopping) {
		return err
	}
	if errors.Is(err, store.ErrFenced) {
		w.cleanUpFenced(ctx, j)
		return err
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	closed := errors.Is(err, store.ErrMove) || w.lifecycle.Closing(ctx, j.Sandbox)
	if !closed && errors.Is(err, errNoRoom) && !j.task().Canceled() {
		return err
	}
	if !closed && w.engineDied(ctx, j, err) {
		return errEngineSilent
	}
	if j.task().Canceled() {
		err = execution.ErrCanceled
	}
	reason := "It was cancelled before it was ready."
	if !errors.Is(err, execution.ErrCanceled) {
		reason = farm.MessageOf(err)
	}
	var merr error
	if !closed {
		_, merr = w.store.MoveSandbox(ctx, store.Move{Ref: j.Sandbox.Ref(), To: farm.SandboxFailed, Reason: reason, Generation: j.Sandbox.Generation, Job: j.Job.ID, Attempt: j.Job.Attempt})
	}
	if errors.Is(merr, store.ErrFenced) { // another attempt has the sandbox
		w.cleanUpFenced(ctx, j)
		return merr
	}
	w.node.Disconnect(j.Sandbox.ID)
	if rerr := w.engine.Remove(ctx, w.node.Container(j.Sandbox)); rerr != nil {
		w.log.WarnContext(ctx, "container of a failed sandbox is left to the reconciler", "sandbox_id", j.Sandbox.ID, "error", rerr)
	} else {
		if !closed && j.asked.open.Load() == 0 { // else removeUnwanted says it
			w.lifecycle.gone(ctx, j.Sandbox)
		}
		w.placement.ReleaseGPUs(ctx, j.Sandbox)
	}
	w.placement.Release(ctx, j.Sandbox)
	if closed { // the close job does the rest
		return execution.ErrCanceled
	}
	if merr != nil {
		w.log.WarnContext(ctx, "sandbox was not marked as failed", "sandbox_id", j.Sandbox.ID, "error", merr)
		return err
	}
	w.lifecycle.endJobs(ctx, j.Sandbox, j.Job.ID, farm.JobCanceled, "The sandbox did not become ready: "+reason)
	return err
}
