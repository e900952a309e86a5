package kube

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// defaultRuntime is what the cluster's default runtime is called: a Pod does not say which one it is.
const defaultRuntime = "default"

// PolicyName is the name of the NetworkPolicy without which no worker starts. It selects the Pods of sandboxes and allows nothing.
const PolicyName = "sandfarm-sandboxes"

// Identify checks that the namespace takes Pods of sandboxes with the default runtime and these, and leaves them as they are. It creates none. The
// node's id comes from the namespace's, so a namespace that is made anew is another node.
func (e *Engine) Identify(ctx context.Context, runtimes ...string) (id farm.EngineIdentity, err error) {
	id.Arch = goruntime.GOARCH // the agent's, to which Pods are bound
	id.Runtimes = []string{e.ownRuntime()}
	for _, name := range runtimes {
		if !slices.Contains(id.Runtimes, name) {
			id.Runtimes = append(id.Runtimes, name)
		}
	}
	var namespace corev1.Namespace
	err = e.call(ctx, readTimeout, "read namespace", func(ctx context.Context) error {
		return e.rest.Get().AbsPath("/api/v1/namespaces", e.cfg.Namespace).Do(ctx).Into(&namespace)
	})
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return id, farm.Wrap(err, farm.CodeUnavailable, "The cluster has no namespace %s. Create it, or correct engine.namespace.", e.cfg.Namespace)
	case err != nil:
		return id, err
	case namespace.Status.Phase == corev1.NamespaceTerminating:
		return id, farm.Errorf(farm.CodeUnavailable, "The namespace %s of the sandboxes is being deleted.", e.cfg.Namespace)
	}
	id.Node = farm.DerivedID(farm.NodePrefix, string(namespace.UID))
	if err := e.checkPolicy(ctx); err != nil {
		return id, err
	}
	for _, name := range id.Runtimes {
		if err := e.tryRuntime(ctx, name); err != nil {
			return id, err
		}
	}
	return id, nil
}

// ownRuntime is the runtime of sandboxes that name none.
func (e *Engine) ownRuntime() string {
	if e.cfg.Runtime == "" {
		return defaultRuntime
	}
	return e.cfg.Runtime
}

// checkPolicy makes sure that the network of sandboxes is closed. Whether the cluster's network enforces that cannot be read.
func (e *Engine) checkPolicy(ctx context.Context) error {
	var p networkingv1.NetworkPolicy
	err := e.call(ctx, readTimeout, "read network policy", func(ctx context.Context) error {
		return e.rest.Get().AbsPath("/apis/networking.k8s.io/v1/namespaces", e.cfg.Namespace, "networkpolicies", PolicyName).Do(ctx).Into(&p)
	})
	selects := p.Spec.PodSelector
	closed := len(p.Spec.Ingress) == 0 && len(p.Spec.Egress) == 0 && slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) && slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	all := len(selects.MatchExpressions) == 0 && (len(selects.MatchLabels) == 0 || len(selects.MatchLabels) == 1 && selects.MatchLabels[labelRole] == roleSandbox)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return farm.Conflictf("The namespace %s has no NetworkPolicy %s, so sandboxes would have a network. Apply deploy/kubernetes/sandboxes.yaml.", e.cfg.Namespace, PolicyName)
	case err != nil:
		return err
	case !closed || !all:
		return farm.Conflictf("The NetworkPolicy %s of the namespace %s does not deny all traffic of all sandboxes. Apply deploy/kubernetes/sandboxes.yaml again.", PolicyName, e.cfg.Namespace)
	}
	return nil
}

// tryRuntime has the cluster check the Pod of a sandbox, without creating it: its admission knows the runtime classes, limit ranges, Pod security
// and webhooks.
func (e *Engine) tryRuntime(ctx context.Context, name string) error {
	want := e.pod(farm.ContainerSpec{
		SandboxID: "check-" + farm.NewID(""), Runtime: name, Image: e.cfg.AgentImage, Agent: e.cfg.AgentImage, Command: []string{"/bin/true"},
	}, farm.FirstUID)
	var got corev1.Pod
	err := e.call(ctx, writeTimeout, "check the Pods of sandboxes", func(ctx context.Context) error {
		return e.rest.Post().Namespace(e.cfg.Namespace).Resource("pods").Param("dryRun", "All").Body(want).Do(ctx).Into(&got)
	})
	switch {
	case err == nil:
		return changed(want, &got)
	case farm.CodeOf(err) == farm.CodeExhausted: // the quota is used up now, by sandboxes
		return nil
	case farm.CodeOf(err) == farm.CodeConflict && strings.Contains(err.Error(), "RuntimeClass"):
		return farm.Wrap(err, farm.CodeConflict, "the cluster has no RuntimeClass %q. Create it, or take it out of engine.runtime, engine.runtimes and engine.image_runtimes.", name)
	}
	return err
}

// isQuota reports whether a request was refused by a ResourceQuota. The API has no reason of its own for it.
func isQuota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// isReplaced reports whether a patch that names a Pod by its uid met another Pod of the same name.
func isReplaced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "metadata.uid")
}

// statusText is what the API server said.
func statusText(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return shorten(status.Status().Message)
	}
	return fmt.Sprint(err)
}
