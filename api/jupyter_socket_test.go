package api_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func TestJupyterEndsConnectionsWithAReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	for name, c := range map[string]struct {
		kind websocket.MessageType
		data []byte
		want websocket.StatusCode
	}{
		"NoJSON":         {websocket.MessageText, []byte("{"), websocket.StatusInvalidFramePayloadData},
		"Offsets":        {websocket.MessageBinary, []byte{0, 0, 0, 9, 1}, websocket.StatusInvalidFramePayloadData},
		"UnknownChannel": {websocket.MessageText, []byte(`{"header":{"msg_id":"1","msg_type":"x"},"channel":"iopub"}`), websocket.StatusInvalidFramePayloadData},
		"TooLong":        {websocket.MessageText, make([]byte, jupyter.MaxMessageBytes+1), websocket.StatusMessageTooBig},
		"TooManyValues":  {websocket.MessageText, []byte(`{"header":{"msg_id":"1","msg_type":"x"},"content":{"x":[1` + strings.Repeat(",1", farm.MaxBodyValues) + `]}}`), websocket.StatusMessageTooBig},
	} {
		f := b.frontend(k.ID, "")
		f.write(c.kind, c.data)
		t.Log(name)
		f.closed(c.want)
	}
	second := b.frontend(k.ID, "")
	second.until(second.send("shell", "kernel_info_request", map[string]any{}))
	if answer, _ := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	if m := second.read(); m.Type != "status" || m.Content["execution_state"] != "dead" {
		t.Errorf("the end of the kernel is told as %+v", m)
	}
	second.closed(websocket.StatusNormalClosure)
	other := b.frontend(b.kernel().ID, "")
	b.server.Stop()
	other.closed(websocket.StatusServiceRestart)
}

func TestJupyterSpeaksTheFramingThatIsAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	f := b.frontend(k.ID, "", "other", "v1.kernel.websocket.jupyter.org")
	if got := f.conn.Subprotocol(); got != "v1.kernel.websocket.jupyter.org" {
		t.Fatalf("subprotocol %q", got)
	}
	f.send("shell", "kernel_info_request", map[string]any{})
	if kind, data, err := f.conn.Read(t.Context()); err != nil || kind != websocket.MessageBinary || !strings.Contains(string(data), "iopub") {
		t.Errorf("%v %q: %v", kind, data, err)
	}
	if got := b.frontend(k.ID, "", "other").conn.Subprotocol(); got != "" {
		t.Errorf("subprotocol %q", got)
	}
}

// Any page can open a WebSocket to any server, and no browser asks first.
func TestJupyterIsNotForForeignPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	at := strings.Replace(b.web.URL, "http", "ws", 1) + "/jupyter/api/kernels/" + k.ID + "/channels"
	own, err := url.Parse(b.web.URL)
	if err != nil {
		t.Fatal(err)
	}
	for origin, ok := range map[string]bool{"": true, "http://" + own.Host: true, "https://evil.example": false, "null": false} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		conn, _, err := websocket.Dial(t.Context(), at, &websocket.DialOptions{HTTPHeader: header})
		if (err == nil) != ok {
			t.Errorf("origin %q: %v", origin, err)
		}
		if conn != nil {
			_ = conn.CloseNow()
		}
	}
}

// Idle connections hold no memory, so that a client may send a message that needs its tenant's whole share.
func TestJupyterLargeMessagesAreRead(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	f := b.frontend(b.kernel().ID, "?session_id=s")
	f.until(f.send("shell", "execute_request", map[string]any{"code": "", "odd": strings.Repeat("x", 8<<20)}))
}

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
