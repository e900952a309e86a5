//go:build integration

package farmd_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A caretaker that is stopped removes the sandboxes, but not while a container with the named labels runs.
func TestCaretakerRemovesSandboxesWhenNoWorkerRuns(t *testing.T) {
	t.Parallel()
	namespace := "sandfarm-test-" + farm.NewID("")
	e, err := engine.New(engine.Config{Namespace: namespace})
	testbed.Must(t, err)
	const image = "sandfarm/python:latest"
	t.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer done()
		for _, err := range []error{e.RemoveAll(ctx, true), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	volume, err := e.EnsureAgent(t.Context(), "v1", "runc", func(context.Context) ([]farm.AgentProgram, error) {
		return []farm.AgentProgram{{Name: "agent", Data: []byte("never run")}}, nil
	}, image)
	testbed.Must(t, err)
	node, err := e.NodeID(t.Context())
	testbed.Must(t, err)
	id := farm.NewID(farm.SandboxPrefix)
	made, err := e.Create(t.Context(), farm.ContainerSpec{
		SandboxID: id, Tenant: "t", Node: node, Deadline: time.Now().Add(time.Hour), Image: image, Command: []string{"sleep", "600"},
		Agent: volume, Resources: farm.Resources{MemoryMB: 64, CPUs: 0.5, PIDs: 16, DiskMB: 16},
	})
	testbed.Must(t, err)
	testbed.Must(t, e.Start(t.Context(), made))
	s := &farmd.Settings{Engine: farmd.EngineSettings{Namespace: namespace}}

	// The sandbox itself stands for a worker that runs.
	if output := caretake(t, s, engine.LabelSandbox+"="+id); !strings.Contains(output, "the sandboxes stay") {
		t.Errorf("output %q", output)
	}
	if left, err := e.List(t.Context()); err != nil || len(left) != 1 {
		t.Fatalf("containers %v, error %v; want the sandbox", left, err)
	}
	if output := caretake(t, s, engine.LabelSandbox+"=sbx_none"); !strings.Contains(output, "removed every sandbox") {
		t.Errorf("output %q", output)
	}
	if left, err := e.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("containers %v, error %v; want none", left, err)
	}
	if again, err := e.NodeID(t.Context()); err != nil || again != node {
		t.Errorf("node %s, error %v; want it to keep its name %s", again, err, node)
	}
	if err := farmd.Teardown(t.Context(), &farmd.Settings{}, []string{"a=b"}, io.Discard); err == nil || !strings.Contains(err.Error(), "engine.namespace") {
		t.Errorf("without a namespace: error %v", err)
	}
	if err := farmd.Teardown(t.Context(), s, nil, io.Discard); err == nil {
		t.Error("without labels: no error, though no worker could ever keep its sandboxes")
	}
}

// caretake runs a caretaker until it is ready, stops it, and returns its output.
func caretake(t *testing.T, s *farmd.Settings, label string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	output := &recorder{line: func(text string) {
		if strings.Contains(text, "waiting to remove") {
			stop()
		}
	}}
	testbed.Must(t, farmd.Teardown(ctx, s, []string{label}, output))
	return output.String()
}

// recorder stores its input and reports each write.
type recorder struct {
	bytes.Buffer
	line func(string)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.line(string(p))
	return w.Buffer.Write(p)
}
