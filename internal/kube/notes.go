package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// owner is a note: an annotation of the Pod, which code in the sandbox cannot change. It ends with the Pod.
type owner struct {
	Tenant string            `json:"tenant"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Note keeps the owner and labels of a sandbox whose Pod was made before it had an owner. It does not change an existing note.
func (e *Engine) Note(ctx context.Context, sandboxID, tenant string, labels map[string]string) error {
	text, err := json.Marshal(owner{tenant, labels})
	if err != nil {
		return fmt.Errorf("pack note: %w", err)
	}
	path := "/metadata/annotations/" + strings.ReplaceAll(noteOwner, "/", "~1")
	body, err := json.Marshal([]any{
		map[string]any{"op": "test", "path": path, "value": nil}, // null is also what is missing
		map[string]any{"op": "add", "path": path, "value": string(text)},
	})
	if err != nil {
		return fmt.Errorf("pack patch: %w", err)
	}
	var p corev1.Pod
	err = e.call(ctx, writeTimeout, "create note", func(ctx context.Context) error {
		return e.ask(ctx, e.rest.Patch(types.JSONPatchType).Resource("pods").Name(name(sandboxID)).Body(body), &p)
	})
	if apierrors.IsInvalid(err) { // the test failed: there is one
		return nil
	}
	return err
}

// Noted returns a container with the owner and the labels of its sandbox's note; CodeNotFound when there is none.
func (e *Engine) Noted(ctx context.Context, c farm.Container) (farm.Container, error) {
	p := e.pods.get(name(c.SandboxID))
	if p == nil || p.Annotations[noteOwner] == "" { // a note never changes, but the watch may be behind
		var err error
		if p, err = e.read(ctx, name(c.SandboxID)); err != nil {
			return c, err
		}
	}
	var o owner
	if json.Unmarshal([]byte(p.Annotations[noteOwner]), &o) != nil {
		return c, farm.NotFoundf("there is no note of sandbox %s", c.SandboxID)
	}
	c.Tenant, c.Generation, c.Labels = o.Tenant, 1, o.Labels
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	return c, nil
}

// Notes lists the sandboxes that have a note, as List does.
func (e *Engine) Notes(ctx context.Context) ([]string, error) {
	list, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, p := range list {
		if p.Annotations[noteOwner] != "" {
			found = append(found, p.Labels[labelSandbox])
		}
	}
	return found, nil
}

// RemoveNote does nothing: a note is removed with its Pod.
func (*Engine) RemoveNote(context.Context, string) error { return nil }
