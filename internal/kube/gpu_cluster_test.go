//go:build kubernetes

package kube

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// gpuNode gives the cluster's machine two devices of a model, as NVIDIA's device plugin and its discovery of features do. Nothing is behind them.
func (b *bundle) gpuNode(t *testing.T, model string) {
	t.Helper()
	patch := func(ctx context.Context, sub string, body any) {
		t.Helper()
		text, err := json.Marshal(body)
		if err == nil {
			err = b.admin.Patch(types.MergePatchType).AbsPath("/api/v1/nodes/node", sub).Body(text).Do(ctx).Error()
		}
		if err != nil {
			t.Errorf("patch the machine: %v", err)
		}
	}
	set := func(ctx context.Context, count, label any) {
		t.Helper()
		patch(ctx, "", map[string]any{"metadata": map[string]any{"labels": map[string]any{labelGPU: label}}})
		patch(ctx, "status", map[string]any{"status": map[string]any{"capacity": map[string]any{resourceGPU: count}, "allocatable": map[string]any{resourceGPU: count}}})
	}
	set(t.Context(), "2", model)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		set(ctx, nil, nil)
	})
}

// The cluster gives out its GPUs: a sandbox gets those that it asks for, on a machine with the model, and one for which none are left waits and says why.
func TestGPUs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.gpuNode(t, "NVIDIA-A100-SXM4-80GB")
	cfg := b.cfg
	cfg.GPUModels = []string{"NVIDIA-A100-SXM4-80GB", "Tesla-T4"}
	b.Engine = b.connect(t, cfg)
	create := func(g farm.GPU) (name, id string) {
		t.Helper()
		s := b.spec(t, "wait")
		s.GPU = &g
		id, err := b.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return b.Name(s.SandboxID), id
	}
	_, both := create(farm.GPU{Count: 2, Model: "a100"})
	if err := b.Start(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	waits := func(g farm.GPU, reason string) (id string) {
		t.Helper()
		name, id := create(g)
		ctx, cancel := contextUntil(t, func() bool {
			p := b.pods.get(name)
			return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == "Unschedulable"
		})
		defer cancel()
		if err := b.Start(ctx, id); farm.CodeOf(err) != farm.CodeExhausted || !strings.Contains(err.Error(), reason) {
			t.Errorf("start: %v, want %q", err, reason)
		}
		return id
	}
	waits(farm.GPU{Count: 1, Model: "t4"}, "didn't match Pod's node affinity")
	later := waits(farm.GPU{Count: 1}, "Insufficient nvidia.com/gpu")
	if err := b.Remove(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), later); err != nil {
		t.Errorf("when devices are free: %v", err)
	}
}
