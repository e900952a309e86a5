package worker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// User ids of sandboxes: one of their own for each, so that limits which the kernel counts by user are not shared.
const (
	firstUID = 20_000
	uidRange = 40_000
)

// create makes a sandbox ready, with the packages that it is to have.
func (w *Worker) create(ctx context.Context, r *run) (verdict, error) {
	sandbox, installed, err := w.ready(ctx, r)
	if err != nil {
		return verdict{}, w.abandon(ctx, r, err)
	}
	v := verdict{state: farm.JobCompleted, result: installed.result()}
	if installed != nil {
		v.after = func(ctx context.Context) { w.forgetInstalls(ctx, r.Job.ID, sandbox) }
	}
	return v, nil
}

// ready brings the job's sandbox from queued to ready. Every step may be done again by a worker that takes over.
func (w *Worker) ready(ctx context.Context, r *run) (*farm.Sandbox, *installed, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer afterCancel(ctx, r, func() { stop(errCanceled) })()
	sandbox := r.Sandbox
	done := sandbox.State == farm.SandboxReady || sandbox.State == farm.SandboxBusy // the worker before came this far
	if !done {
		r.start.Store(&stop)
		defer r.start.Store(nil)
		var err error
		if sandbox, err = w.boot(ctx, r, sandbox); err != nil {
			return nil, nil, err
		}
	}
	installed, err := w.installAsked(ctx, r, sandbox)
	if err != nil || done {
		return sandbox, installed, causeOr(ctx, err)
	}
	moved, err := w.store.MoveSandbox(ctx, store.Move{
		Ref: ref(sandbox), To: farm.SandboxReady, Node: w.node, Container: sandbox.Container, Touch: true, Job: r.Job.ID, Attempt: r.Job.Attempt,
	})
	if err != nil {
		return nil, nil, causeOr(ctx, err)
	}
	w.log.InfoContext(ctx, "sandbox ready", "sandbox_id", sandbox.ID, "tenant", sandbox.Tenant, "image", sandbox.Spec.Image, "job_id", r.Job.ID)
	return moved, installed, nil
}

// boot starts a sandbox's container and its first kernel.
func (w *Worker) boot(ctx context.Context, r *run, sandbox *farm.Sandbox) (*farm.Sandbox, error) {
	ctx, done := context.WithTimeoutCause(ctx, w.cfg.CreateTimeout, farm.Errorf(farm.CodeUnavailable, "the sandbox did not start within %s", w.cfg.CreateTimeout))
	defer done()
	moved, err := w.store.MoveSandbox(ctx, store.Move{Ref: ref(sandbox), To: farm.SandboxStarting, Node: w.node, Job: r.Job.ID, Attempt: r.Job.Attempt})
	if err != nil {
		return nil, causeOr(ctx, err)
	}
	if moved.Pooled {
		container, ok, err := w.takeMember(ctx, moved)
		if ok || err != nil {
			moved.Container = container
			return moved, causeOr(ctx, err)
		}
	}
	defer w.pool.begun()()
	if moved.Container, err = w.startPatiently(ctx, r, moved); err != nil {
		return nil, causeOr(ctx, err)
	}
	w.gpus.forget(moved.ID)
	c, err := w.link(ctx, moved)
	if err != nil {
		return nil, causeOr(ctx, err)
	}
	if err := c.StartKernel(ctx, "default", "python"); err != nil && farm.CodeOf(err) != farm.CodeInvalid && farm.CodeOf(err) != farm.CodeNotFound {
		return nil, causeOr(ctx, fmt.Errorf("start kernel: %w", err))
	}
	return moved, nil
}

// startPatiently starts the container. An engine that does not answer, as while it is being restarted, is tried again
// until the create's time is up: callers should not lose a job to it. The error then says what was waited for.
func (w *Worker) startPatiently(ctx context.Context, r *run, s *farm.Sandbox) (string, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		id, err := w.start(ctx, r, s)
		if err == nil || farm.CodeOf(err) != farm.CodeUnavailable {
			return id, err
		}
		if stop := sleep(ctx, pause); stop != nil {
			if farm.CodeOf(stop) == farm.CodeUnavailable { // the time is up
				return "", farm.Wrap(err, farm.CodeUnavailable, "The container engine does not answer. Try again in a moment.")
			}
			return "", stop
		}
	}
}

// start makes and starts the container; one that is there already is taken, unless it is void.
func (w *Worker) start(ctx context.Context, r *run, s *farm.Sandbox) (string, error) {
	if err := w.clearVoid(ctx, s); err != nil {
		return "", err
	}
	image, err := w.image(ctx, s.Spec.Image)
	if err != nil {
		return "", err
	}
	spec := w.containerSpec(s, image)
	if err := w.equip(s, &spec); err != nil {
		return "", err
	}
	spec.Labels[labelAttempt] = strconv.Itoa(r.Job.Attempt)
	id, err := w.engine.Create(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	if err := w.guard(ctx, s); err != nil {
		return "", err
	}
	if err := w.engine.Start(ctx, id); err != nil {
		return "", fmt.Errorf("start container: %w", err)
	}
	return id, nil
}

func (w *Worker) containerSpec(s *farm.Sandbox, image farm.Image) engine.Spec {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(s.ID))
	command := []string{agent.BinaryPath, "init"}
	if w.indexFor(s) != nil {
		command = append(command, "--index")
	}
	if !s.ExpiresAt.IsZero() {
		command = append(command, "--ends-in", max(s.ExpiresAt.Sub(w.now()), time.Millisecond).String())
	}
	return engine.Spec{
		SandboxID: s.ID, Tenant: s.Tenant, Image: image.Ref, Node: w.node,
		AgentVolume: w.volume, AgentMount: agent.MountDir, Command: command,
		UID: firstUID + int(hash.Sum32()%uidRange), Env: maps.Clone(s.Spec.Env),
		Resources: s.Spec.Resources, Network: s.Spec.Network, Deadline: s.ExpiresAt, Labels: w.labels(s),
	}
}

// abandon cleans up after a sandbox that did not become ready, and says why. errSilent says that its creation is to go on
// elsewhere.
func (w *Worker) abandon(ctx context.Context, r *run, err error) error {
	if errors.Is(err, errStopping) || errors.Is(context.Cause(ctx), errStopping) {
		return err
	}
	if errors.Is(err, store.ErrFenced) {
		w.fencedStart(ctx, r)
		return err
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	closed := errors.Is(err, store.ErrMove) || w.closing(ctx, r.Sandbox)
	if !closed && w.engineDied(ctx, r, err) {
		return errSilent
	}
	if r.canceled() {
		err = errCanceled
	}
	reason := "It was cancelled before it was ready."
	if !errors.Is(err, errCanceled) {
		reason = farm.MessageOf(err)
	}
	var merr error
	if !closed {
		_, merr = w.store.MoveSandbox(ctx, store.Move{Ref: ref(r.Sandbox), To: farm.SandboxFailed, Reason: reason, Job: r.Job.ID, Attempt: r.Job.Attempt})
	}
	if errors.Is(merr, store.ErrFenced) { // what is there is another attempt's
		w.fencedStart(ctx, r)
		return merr
	}
	w.links.drop(r.Sandbox.ID)
	if rerr := w.engine.Remove(ctx, w.containerOf(r.Sandbox)); rerr != nil {
		w.log.WarnContext(ctx, "container of an abandoned sandbox is left to the reconciler", "sandbox_id", r.Sandbox.ID, "error", rerr)
	} else {
		w.leaveGPUs(ctx, r.Sandbox)
	}
	w.leaveRoom(ctx, ref(r.Sandbox))
	w.forgetMember(ctx, r.Sandbox)
	if closed { // meanwhile; the close job does the rest
		return errCanceled
	}
	if merr != nil {
		w.log.WarnContext(ctx, "failed sandbox was not recorded", "sandbox_id", r.Sandbox.ID, "error", merr)
		return err
	}
	w.endJobs(ctx, r.Sandbox, r.Job.ID, farm.JobCanceled, "The sandbox did not become ready: "+reason)
	return err
}

// endJobs ends every open job of a sandbox but one, and but those that close it.
func (w *Worker) endJobs(ctx context.Context, s *farm.Sandbox, but string, state farm.JobState, message string) {
	jobs, err := w.openJobs(ctx, s)
	if err != nil {
		w.log.WarnContext(ctx, "open jobs of a sandbox are left to the sweeper", "sandbox_id", s.ID, "error", err)
		return
	}
	for _, job := range jobs {
		if job.ID == but || job.Kind == farm.KindClose {
			continue
		}
		if err := w.dispatch.Force(ctx, job.Ref(), state, &farm.JobError{Code: farm.CodeConflict, Message: message}); err != nil {
			w.log.WarnContext(ctx, "open job of a sandbox is left to the sweeper", "job_id", job.ID, "error", err)
		}
	}
}

func ref(s *farm.Sandbox) farm.Ref { return farm.Ref{Tenant: s.Tenant, ID: s.ID} }

// causeOr gives the reason why a context ended, or else the error.
func causeOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
