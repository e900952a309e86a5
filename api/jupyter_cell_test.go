package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJupyterRunsCellsInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.frontend(b.kernel().ID, "?session_id=s")
	info := f.send("shell", "kernel_info_request", map[string]any{})
	if diff := cmp.Diff([]string{"iopub status busy", "shell kernel_info_reply ok", "iopub status idle"}, f.until(info)); diff != "" {
		t.Errorf("kernel_info (-want +got):\n%s", diff)
	}
	first, second := f.send("shell", "execute_request", map[string]any{"code": "print one"}), f.send("", "execute_request", map[string]any{"code": "animate"})
	if diff := cmp.Diff([]string{"iopub status busy", "iopub execute_input print one", "iopub stream one\n", "shell execute_reply ok", "iopub status idle"}, f.until(first), cmp.Transformer("space", strings.TrimSpace)); diff != "" {
		t.Errorf("the first cell (-want +got):\n%s", diff)
	}
	want := []string{
		"iopub status busy", "iopub execute_input animate", "iopub display_data", "iopub update_display_data", "iopub clear_output true", "iopub execute_result",
		"iopub clear_output false", "shell execute_reply ok", "iopub status idle",
	}
	if diff := cmp.Diff(want, f.until(second)); diff != "" {
		t.Errorf("the second cell (-want +got):\n%s", diff)
	}
	unknown := f.send("shell", "conjure_request", map[string]any{})
	if diff := cmp.Diff([]string{"iopub status busy", "shell conjure_reply error", "iopub status idle"}, f.until(unknown)); diff != "" {
		t.Errorf("a message of an unknown type (-want +got):\n%s", diff)
	}
	wrong := f.send("shell", "execute_request", map[string]any{"code": 1})
	if diff := cmp.Diff([]string{"iopub status busy", "iopub error error", "shell execute_reply error", "iopub status idle"}, f.until(wrong)); diff != "" {
		t.Errorf("a cell whose code is no text (-want +got):\n%s", diff)
	}
}

// Cells behind one that failed are not run: "Run All" of notebooks relies on it.
func TestJupyterAbortsCellsBehindAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := b.frontend(b.kernel().ID, "")
	f.send("shell", "execute_request", map[string]any{"code": "block"})
	failed := f.send("shell", "execute_request", map[string]any{"code": "raise x"})
	aborted := f.send("shell", "execute_request", map[string]any{"code": "print no"})
	f.until(f.send("shell", "kernel_info_request", map[string]any{})) // all three have come in
	close(b.worker.gate)
	if diff := cmp.Diff([]string{"iopub status busy", "iopub execute_input raise x", "iopub error", "shell execute_reply error", "iopub status idle"}, f.until(failed)); diff != "" {
		t.Errorf("the failed cell (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"iopub status busy", "shell execute_reply aborted", "iopub status idle"}, f.until(aborted)); diff != "" {
		t.Errorf("the cell behind it (-want +got):\n%s", diff)
	}
	on := f.send("shell", "execute_request", map[string]any{"code": "raise x", "stop_on_error": false})
	after := f.send("shell", "execute_request", map[string]any{"code": "print yes"})
	f.until(on)
	if got := f.until(after); len(got) != 5 {
		t.Errorf("behind an error that is to be ignored: %v", got)
	}
}
