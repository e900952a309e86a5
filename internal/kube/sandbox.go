package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// createAgain is the time between tries while the API server holds the name of a Pod that it no longer shows.
const createAgain = 50 * time.Millisecond

// Name is the name of a sandbox's Pod. It is derived from the sandbox's id, so a Pod can be found and removed by the record alone.
func (*Engine) Name(sandboxID string) string { return name(sandboxID) }

// split takes what names a container apart: its Pod, and the Pod's uid if it is named for good.
func split(id string) (pod string, uid types.UID) {
	pod, text, _ := strings.Cut(id, "/")
	return pod, types.UID(text)
}

// Create makes a Pod with the hardened profile, which is not scheduled before Start, and returns its id. See node.Engine. CodeExhausted if the quota of
// the namespace is used up, CodeConflict if the cluster refuses the Pod or changes it.
func (e *Engine) Create(ctx context.Context, s farm.ContainerSpec) (string, error) {
	switch {
	case s.SandboxID == "" || s.Image == "" || s.Agent == "" || len(s.Command) == 0:
		return "", farm.Invalidf("a sandbox's Pod needs the sandbox's id, an image, an agent and a command")
	case len(s.GPUs) > 0:
		return "", farm.Invalidf("a cluster gives out its GPUs itself")
	case s.GPU.Wanted() && len(e.gpuModels(s.GPU.Model)) == 0:
		return "", farm.Invalidf("worker.gpus names no GPU of the model %q", s.GPU.Model)
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	uid, err := e.freeUID(ctx, s.SandboxID)
	if err != nil {
		return "", err
	}
	want := e.pod(s, uid)
	for {
		var made corev1.Pod
		err := e.call(ctx, writeTimeout, "create container", func(ctx context.Context) error {
			return e.ask(ctx, e.rest.Post().Resource("pods").Body(want), &made)
		})
		if err == nil {
			if err := changed(want, &made); err != nil {
				return "", joined(err, e.Remove(ctx, containerID(&made)))
			}
			return containerID(&made), nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		there, gone := e.read(ctx, want.Name)
		if farm.CodeOf(gone) == farm.CodeNotFound { // it was just removed
			if !pause(ctx, createAgain) {
				return "", err
			}
			continue
		}
		if gone != nil || there.Labels[labelSandbox] != s.SandboxID {
			return "", err
		}
		order := cmp.Compare(generation(there), max(s.Generation, 1))
		switch {
		case order > 0:
			return "", fmt.Errorf("create container of sandbox %s: %w", s.SandboxID, farm.ErrNewer)
		case order == 0 && there.DeletionTimestamp == nil:
			return containerID(there), nil
		case order < 0:
			e.log.InfoContext(ctx, "Pod of an earlier generation is removed", "sandbox_id", s.SandboxID)
		}
		if err := e.Remove(ctx, containerID(there)); err != nil {
			return "", err
		}
	}
}

// pause waits for d; false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// joined adds the error of a cleanup to the one that made it necessary, whose code stays.
func joined(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return fmt.Errorf("%w; and then: %v", err, cleanup) //nolint:errorlint // its kind is not that of the call
}

// freeUID is a user id that no other Pod of the namespace has, as far as the watch knows. Two that are created at once may still get the same.
func (e *Engine) freeUID(ctx context.Context, sandboxID string) (int, error) {
	list, err := e.list(ctx)
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, p := range list {
		if p.Labels[labelSandbox] != sandboxID && p.Spec.SecurityContext != nil && p.Spec.SecurityContext.RunAsUser != nil {
			used[int(*p.Spec.SecurityContext.RunAsUser)] = true
		}
	}
	return farm.NextUID(farm.PreferredUID(sandboxID)-1, used)
}

// Start lets the cluster run a Pod, and waits until its sandbox runs. While the cluster has no room the Pod waits; CodeExhausted with the scheduler's
// reason at the end of ctx. CodeNotFound if the Pod is gone, or its image cannot be pulled; CodeConflict if the kubelet cannot run it.
func (e *Engine) Start(ctx context.Context, id string) error {
	pod, uid := split(id)
	patch := map[string]any{"spec": map[string]any{"schedulingGates": nil}}
	if uid != "" {
		patch["metadata"] = map[string]any{"uid": uid}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("pack patch: %w", err)
	}
	var p corev1.Pod
	err = e.call(ctx, writeTimeout, "start container", func(ctx context.Context) error {
		return e.ask(ctx, e.rest.Patch(types.MergePatchType).Resource("pods").Name(pod).Body(body), &p)
	})
	if isReplaced(err) {
		return farm.Wrap(err, farm.CodeNotFound, "start container: the cluster does not have it")
	}
	if err != nil || state(&p).Running != nil {
		return err
	}
	return e.awaitStart(ctx, &p)
}

// awaitStart waits until the sandbox of a Pod runs, or has run.
func (e *Engine) awaitStart(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var reason error
	err := e.pods.await(ctx, func(known map[string]*corev1.Pod) (bool, error) {
		now := known[p.Name]
		if now == nil || now.UID != p.UID {
			return false, farm.NotFoundf("the Pod of the sandbox was removed while it started")
		}
		s := state(now)
		switch {
		case s.Terminated != nil && (s.Terminated.Reason == "StartError" || s.Terminated.Reason == "ContainerCannotRun"):
			return true, farm.Conflictf("The kubelet cannot run the sandbox: %s", shorten(s.Terminated.Message))
		case s.Running != nil || s.Terminated != nil:
			return true, nil
		}
		var fatal bool
		reason, fatal = waits(now)
		if fatal {
			return true, reason
		}
		return false, nil
	})
	if err != nil && ctx.Err() != nil && reason != nil {
		return reason
	}
	return err
}

// waits says why a Pod does not run yet; nil if nothing is wrong. A fatal reason does not pass.
func waits(p *corev1.Pod) (reason error, fatal bool) { //nolint:revive // the error is the finding
	for _, s := range p.Status.InitContainerStatuses {
		if ended := s.State.Terminated; ended != nil && ended.ExitCode != 0 {
			return farm.Conflictf("The container %s of the sandbox's Pod ended with exit code %d (%s): %s", s.Name, ended.ExitCode, ended.Reason, shorten(ended.Message)), true
		}
	}
	if ended(p) {
		return farm.Conflictf("The cluster ended the Pod of the sandbox before it ran: %s %s", p.Status.Reason, shorten(p.Status.Message)), true
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull": // ErrImagePull is tried again once
			return farm.NotFoundf("The image %s cannot be pulled: %s", s.Image, shorten(w.Message)), true
		case "ErrImagePull":
			reason = farm.NotFoundf("The image %s cannot be pulled: %s", s.Image, shorten(w.Message))
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
			return farm.Conflictf("The kubelet cannot run the container %s of the sandbox: %s: %s", s.Name, w.Reason, shorten(w.Message)), true
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			reason = farm.Errorf(farm.CodeExhausted, "The cluster has no room for the sandbox: %s", shorten(c.Message))
		}
	}
	return reason, false
}

// shorten bounds what a cluster says.
func shorten(text string) string {
	const most = 400
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Update changes the limits of memory and cores of a running Pod in place; that of processes it cannot. CodeConflict under gVisor, or if the
// Pod's machine has no room or cannot do it.
func (e *Engine) Update(ctx context.Context, id, runtime string, limits farm.Resources) error {
	if farm.GVisor(cmp.Or(runtime, e.ownRuntime())) {
		return farm.Conflictf("gVisor cannot change the limits of a running sandbox; create another one")
	}
	p, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	want := e.requirements(limits)
	for _, c := range p.Spec.Containers {
		switch have := c.Resources.Limits; {
		case c.Name != containerSandbox:
		case !slices.Equal(c.Args, processLimit(limits)):
			return farm.Conflictf("the limit of processes of a running sandbox cannot change in a cluster; create another one")
		case have.Memory().Equal(*want.Limits.Memory()) && have.Cpu().Equal(*want.Limits.Cpu()):
			return nil
		}
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": containerSandbox, "resources": want}}},
	})
	if err != nil {
		return fmt.Errorf("pack patch: %w", err)
	}
	var now corev1.Pod
	err = e.call(ctx, writeTimeout, "update container", func(ctx context.Context) error {
		return e.ask(ctx, e.rest.Patch(types.StrategicMergePatchType).Resource("pods").Name(p.Name).SubResource("resize").Body(body), &now)
	})
	if isReplaced(err) {
		return farm.Wrap(err, farm.CodeNotFound, "update container: the cluster does not have it")
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, updateTimeout, farm.Errorf(farm.CodeUnavailable, "The kubelet did not change the limits of the sandbox within %s.", updateTimeout))
	defer cancel()
	return e.pods.await(ctx, func(known map[string]*corev1.Pod) (bool, error) { return resized(known[p.Name], p.UID, want) })
}

// resized reports whether the kubelet has given a Pod these limits; an error if it does not.
func resized(p *corev1.Pod, uid types.UID, want corev1.ResourceRequirements) (bool, error) {
	if p == nil || p.UID != uid {
		return false, farm.NotFoundf("the Pod of the sandbox was removed while its limits changed")
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue { // an error while it is in progress is tried again
			return false, farm.Conflictf("The machine of the sandbox cannot change its limits now: %s: %s", c.Reason, shorten(c.Message))
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == containerSandbox && s.Resources != nil {
			return s.Resources.Limits.Memory().Equal(*want.Limits.Memory()) && s.Resources.Limits.Cpu().Equal(*want.Limits.Cpu()), nil
		}
	}
	return false, nil
}

// Remove ends a Pod, and waits until the cluster no longer has it: then the kubelet has ended its programs.
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, removeTimeout, farm.Errorf(farm.CodeUnavailable, "The machine of the sandbox did not end it within %s: its kubelet may be down.", removeTimeout))
	defer cancel()
	pod, uid := split(id)
	options := metav1.DeleteOptions{}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	body, err := json.Marshal(options)
	if err != nil {
		return fmt.Errorf("pack options: %w", err)
	}
	err = e.call(ctx, writeTimeout, "remove container", func(ctx context.Context) error {
		object, err := e.rest.Delete().Namespace(e.cfg.Namespace).Resource("pods").Name(pod).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Get()
		if p, ok := object.(*corev1.Pod); ok && err == nil {
			uid = p.UID
			e.pods.saw(p)
		}
		return err
	})
	switch code := farm.CodeOf(err); {
	case code == farm.CodeNotFound, apierrors.IsConflict(err): // another Pod has the name now
		return nil
	case err != nil:
		return err
	}
	return e.pods.await(ctx, func(known map[string]*corev1.Pod) (bool, error) {
		p := known[pod]
		return p == nil || uid != "" && p.UID != uid, nil
	})
}

// removeAtOnce is how many Pods RemoveAll removes in parallel.
const removeAtOnce = 16

// RemoveAll removes the Pods of all sandboxes of the namespace. It continues after an error and joins the errors.
func (e *Engine) RemoveAll(ctx context.Context, _ bool) error {
	list, err := e.list(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(removeAtOnce)
	failed := make([]error, len(list))
	for i, p := range list {
		group.Go(func() error {
			failed[i] = e.Remove(ctx, containerID(p))
			return nil
		})
	}
	_ = group.Wait() // the errors are in failed
	return errors.Join(failed...)
}

// Inspect describes a Pod, by its id or name, as the API server has it now.
func (e *Engine) Inspect(ctx context.Context, id string) (farm.Container, error) {
	p, err := e.find(ctx, id)
	if err != nil {
		return farm.Container{}, err
	}
	return inspect(p), nil
}

// List describes the Pods of all sandboxes of the namespace, running or not, as the watch has reported them: what another process did a moment ago may
// be missing. It asks the API server only whether it answers.
func (e *Engine) List(ctx context.Context) ([]farm.Container, error) {
	if err := e.Ping(ctx); err != nil {
		return nil, err
	}
	all, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]farm.Container, 0, len(all))
	for _, p := range all {
		list = append(list, describe(p))
	}
	return list, nil
}

// list returns the Pods of the watch.
func (e *Engine) list(ctx context.Context) (list []*corev1.Pod, err error) {
	err = e.call(ctx, readTimeout, "list containers", func(ctx context.Context) error {
		list, err = e.pods.all(ctx)
		return err
	})
	return list, err
}

// find reads a Pod from the API server, by its id or name.
func (e *Engine) find(ctx context.Context, id string) (*corev1.Pod, error) {
	pod, uid := split(id)
	p, err := e.read(ctx, pod)
	switch {
	case err != nil:
		return nil, err
	case uid != "" && p.UID != uid, p.Labels[labelRole] != roleSandbox:
		return nil, farm.NotFoundf("the cluster does not have the Pod %s", id)
	}
	return p, nil
}

func (e *Engine) read(ctx context.Context, name string) (*corev1.Pod, error) {
	var p corev1.Pod
	err := e.call(ctx, readTimeout, "inspect container", func(ctx context.Context) error {
		return e.ask(ctx, e.rest.Get().Resource("pods").Name(name), &p)
	})
	return &p, err
}

// ask sends a request about a Pod of the namespace, and takes the Pod of the answer.
func (e *Engine) ask(ctx context.Context, r *rest.Request, into *corev1.Pod) error {
	if err := r.Namespace(e.cfg.Namespace).Do(ctx).Into(into); err != nil {
		return err
	}
	e.pods.saw(into)
	return nil
}
