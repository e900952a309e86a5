package api_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// A client whose kernel waits for room is told its position in the queue, and its cell runs when there is room.
func TestJupyterTellsThePositionInTheQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 { // before it, and no worker takes them
		b.waiting("default")
	}
	box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: "default", Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600, Labels: map[string]string{"jupyter": "python3"}}}
	_, err := b.worker.Accept(t.Context(), store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: "default", Kind: farm.KindCreate, SandboxID: box.ID, Queue: farm.QueueCPU},
		Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box,
	})
	if err != nil {
		t.Fatal(err)
	}
	id := farm.UUIDOf(farm.SandboxPrefix, box.ID)
	if k := get[notebookKernel](b, 200, "GET", "/jupyter/api/kernels/"+id, nil); k.ExecutionState != "starting" {
		t.Errorf("the kernel is %+v", k)
	}
	f := b.frontend(id, "?session_id=s")
	for m := f.read(); m.Content["execution_state"] != "starting" || m.Metadata.Sandfarm.Position != 3; {
		m = f.read()
	}
	cell := f.send("shell", "execute_request", map[string]any{"code": "print 1"}) // the dispatcher of the tests now hands out all jobs: there is room
	if messages := f.until(cell); messages[len(messages)-1] != "iopub status idle" {
		t.Errorf("the cell: %q", messages)
	}
}

// The start of a kernel has no place for the packages that could not be installed, so its first cell says so.
func TestJupyterFirstCellNamesWhatWasNotInstalled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := get[notebookKernel](b, 201, "POST", "/jupyter/api/kernels", `{"name":"python3","env":{"KERNEL_PACKAGES":"six missing"}}`)
	f := b.frontend(k.ID, "?session_id=s")
	want := []string{
		"iopub status busy", "iopub execute_input print one", "iopub stream one",
		"iopub stream [missing was not installed when the sandbox started: missing is not in the package index.]", "shell execute_reply ok", "iopub status idle",
	}
	if diff := cmp.Diff(want, f.until(f.send("shell", "execute_request", map[string]any{"code": "print one"}))); diff != "" {
		t.Errorf("the first cell (-want +got):\n%s", diff)
	}
}
