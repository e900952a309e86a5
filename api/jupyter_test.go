package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// notebookKernel is a kernel as Jupyter's clients read it.
type notebookKernel struct {
	ID             string
	Name           string
	LastActivity   string `json:"last_activity"`
	ExecutionState string `json:"execution_state"`
	Connections    *int
	Sandbox        string
}

func (b *bundle) kernel(headers ...string) notebookKernel {
	b.t.Helper()
	return get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", nil, headers...)
}

// refusal checks that a request is refused in the form that Jupyter's clients read.
func (b *bundle) refusal(status int, method, target string, body any, headers ...string) {
	b.t.Helper()
	got := get[struct{ Message, Reason, Code string }](b, status, method, target, body, headers...)
	if got.Message == "" || got.Reason == "" || got.Code == "" {
		b.t.Errorf("%s %s is refused with %+v", method, target, got)
	}
}

func TestJupyterKernelsAreSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	if !regexp.MustCompile(`^\w{8}(-\w{4}){3}-\w{12}$`).MatchString(k.ID) || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`).MatchString(k.LastActivity) {
		t.Errorf("clients cannot read %+v", k)
	}
	if k.Name != "python3" || k.ExecutionState != "idle" || k.Connections == nil || !farm.ValidID(farm.SandboxPrefix, k.Sandbox) {
		t.Errorf("kernel %+v", k)
	}
	if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels?1699999999999", nil); len(list) != 1 || list[0].ID != k.ID {
		t.Errorf("kernels %+v", list)
	}
	get[notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	get[notebookKernel](b, http.StatusOK, "POST", "/jupyter/api/kernels/"+k.ID+"/restart", nil, "Content-Type", "application/json")
	if answer, _ := b.do("POST", "/jupyter/api/kernels/"+k.ID+"/interrupt", "{}"); answer.StatusCode != http.StatusNoContent {
		t.Errorf("interrupt: %d", answer.StatusCode)
	}
	specs := get[struct {
		Default     string
		Kernelspecs map[string]struct {
			Name      string
			Resources map[string]any
			Spec      struct {
				Argv     []string
				Language string
				Display  string `json:"display_name"`
			}
		}
	}](b, http.StatusOK, "GET", "/jupyter/api/kernelspecs", nil)
	if spec := specs.Kernelspecs[specs.Default]; spec.Name != "python3" || spec.Resources == nil || len(spec.Spec.Argv) == 0 || spec.Spec.Language != "python" || spec.Spec.Display == "" {
		t.Errorf("kernelspecs %+v", specs)
	}
	if answer, _ := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	if state := get[struct{ State string }](b, http.StatusOK, "GET", "/v1/sandboxes/"+k.Sandbox, nil).State; state != "closed" {
		t.Errorf("the sandbox is %s", state)
	}
}

// A kernel of a sandbox that somebody else made ends without it.
func TestJupyterTakesASandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := get[struct{ Sandbox struct{ ID string } }](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"labels":{"mine":"1"}}`).Sandbox.ID
	body := `{"name":"python3","env":{"KERNEL_SANDBOX":"` + box + `","KERNEL_WORKING_DIR":"/home/me","PATH":"/bin"}}`
	k := get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", body)
	if k.Sandbox != box {
		t.Fatalf("kernel %+v", k)
	}
	if again := get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", body); again.ID != k.ID {
		t.Errorf("the same sandbox has the kernels %s and %s", k.ID, again.ID)
	}
	if answer, text := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("delete: %d: %s", answer.StatusCode, text)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	left := get[struct {
		State  string
		Labels map[string]string
	}](b, http.StatusOK, "GET", "/v1/sandboxes/"+box, nil)
	if left.State != "ready" || !cmp.Equal(left.Labels, map[string]string{"mine": "1"}) {
		t.Errorf("the sandbox is %+v", left)
	}
}

func TestJupyterSessionsBelongToNotebooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type session struct {
		ID, Path, Name, Type string
		Kernel               notebookKernel
	}
	const body = `{"path":"a.ipynb","name":"a","type":"notebook","kernel":{"name":"python3"}}`
	first := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", body)
	if again := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", body); again.ID != first.ID || again.Kernel.ID == "" {
		t.Errorf("the same notebook has the sessions %+v and %+v", first, again)
	}
	other := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", `{"notebook":{"path":"b.ipynb"},"kernel":{"name":"python"}}`)
	if list := get[[]session](b, http.StatusOK, "GET", "/jupyter/api/sessions", nil); len(list) != 2 || other.ID == first.ID || other.Type != "notebook" {
		t.Errorf("sessions %+v, %+v", list, other)
	}
	renamed := get[session](b, http.StatusOK, "PATCH", "/jupyter/api/sessions/"+first.ID, `{"path":"c.ipynb"}`)
	if renamed.Path != "c.ipynb" || renamed.Name != "a" || renamed.Kernel.ID != first.Kernel.ID {
		t.Errorf("renamed: %+v", renamed)
	}
	b.refusal(http.StatusBadRequest, "POST", "/jupyter/api/sessions", `{}`)
	if answer, _ := b.do("DELETE", "/jupyter/api/sessions/"+first.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/sessions/"+first.ID, nil)
}

func TestJupyterTakesKeysAsItsClientsSendThem(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	k := b.kernel("Authorization", "token "+key)
	for name, headers := range map[string][]string{
		"token":  {"Authorization", "token " + key},
		"Token":  {"Authorization", "Token  " + key},
		"Bearer": {"Authorization", "Bearer " + key},
		"header": {"X-API-Key", key},
	} {
		if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels", nil, headers...); len(list) != 1 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for name, query := range map[string]string{"query": "?token=" + key, "both": "?x=1&token=" + key} {
		headers := []string{}
		if name == "both" {
			headers = []string{"Authorization", "token "}
		}
		if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels"+query, nil, headers...); len(list) != 1 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for _, headers := range [][]string{{}, {"Authorization", "token "}, {"Authorization", "token wrong"}, {"Authorization", "token"}, {"Authorization", "Basic " + key}} {
		b.refusal(http.StatusUnauthorized, "GET", "/jupyter/api/kernels", nil, headers...)
	}
	get[struct{ Version string }](b, http.StatusOK, "GET", "/jupyter/api", nil) // clients ask it without a key
	foreign := []string{"Authorization", "token " + otherKey}
	if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels", nil, foreign...); len(list) != 0 {
		t.Errorf("another tenant sees %v", list)
	}
	for _, at := range []string{"GET ", "DELETE ", "POST /restart", "POST /interrupt", "GET /channels"} {
		method, rest, _ := strings.Cut(at, " ")
		b.refusal(http.StatusNotFound, method, "/jupyter/api/kernels/"+k.ID+rest, nil, foreign...)
	}
	// The other routes take no key from the query.
	b.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", "/v1/sandboxes?token="+key, nil)
}

func TestJupyterRefusesBadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const kernels = "/jupyter/api/kernels"
	b.refusal(http.StatusNotFound, "POST", kernels, `{"name":"cobol"}`)
	b.refusal(http.StatusBadRequest, "POST", kernels, `{"name":`)
	b.refusal(http.StatusBadRequest, "POST", kernels, `{"env":"x"}`)
	b.refusal(http.StatusUnprocessableEntity, "POST", kernels, `{"env":{"KERNEL_MEMORY_MB":"much"}}`)
	b.refusal(http.StatusUnprocessableEntity, "POST", kernels, `{"env":{"KERNEL_TTL_SECONDS":"0"}}`)
	b.refusal(http.StatusNotFound, "POST", kernels, `{"env":{"KERNEL_SANDBOX":"sbx_none"}}`)
	b.refusal(http.StatusRequestEntityTooLarge, "POST", kernels, strings.Repeat(" ", 1<<20+1))
	for _, id := range []string{"x", "sbx_none", "00000000-0000-0000-0000-000000000000", strings.Repeat("0", 32)} {
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+id, nil)
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+id+"/channels", nil)
	}
	k := b.kernel()
	b.refusal(http.StatusUpgradeRequired, "GET", kernels+"/"+k.ID+"/channels", nil)
	b.refusal(http.StatusBadRequest, "GET", kernels+"/"+k.ID+"/channels?session_id="+strings.Repeat("x", 257), nil)
	if box := b.sandbox(); box != "" { // a sandbox is no kernel until somebody makes it one
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+farm.UUIDOf(farm.SandboxPrefix, box), nil)
	}
}

// frontend is a client with a WebSocket.
type frontend struct {
	t      *testing.T
	conn   *websocket.Conn
	next   int
	leaves atomic.Bool // it has begun to close the connection
}

func (b *bundle) frontend(kernel, query string, protocols ...string) *frontend {
	b.t.Helper()
	ctx, done := context.WithTimeout(b.t.Context(), time.Minute)
	defer done()
	f := &frontend{t: b.t}
	// A browser that closes answers no pings. This client would try, fail, and reset the connection: then what it has sent can be lost.
	answers := func(context.Context, []byte) bool { return !f.leaves.Load() }
	var err error
	f.conn, _, err = websocket.Dial(ctx, strings.Replace(b.web.URL, "http", "ws", 1)+"/jupyter/api/kernels/"+kernel+"/channels"+query,
		&websocket.DialOptions{Subprotocols: protocols, OnPingReceived: answers})
	if err != nil {
		b.t.Fatal(err)
	}
	f.conn.SetReadLimit(-1)
	b.t.Cleanup(func() { _ = f.conn.CloseNow() })
	return f
}

// leave closes the connection as a browser does, without waiting for its end.
func (f *frontend) leave() {
	f.leaves.Store(true)
	go func() { _ = f.conn.Close(websocket.StatusGoingAway, "") }()
}

// send sends a message and returns its id.
func (f *frontend) send(channel, kind string, content any) string {
	f.t.Helper()
	f.next++
	id := fmt.Sprintf("m%d", f.next)
	text, err := json.Marshal(map[string]any{
		"header": map[string]any{"msg_id": id, "msg_type": kind, "session": "s", "username": "", "version": "5.3", "odd": true}, "channel": channel,
		"parent_header": map[string]any{"msg_id": "forged"}, "metadata": map[string]any{}, "content": content, "buffers": []any{},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(websocket.MessageText, text)
	return id
}

func (f *frontend) write(kind websocket.MessageType, data []byte) {
	f.t.Helper()
	if err := f.conn.Write(f.t.Context(), kind, data); err != nil {
		f.t.Fatal(err)
	}
}

// shownMessage is a message as a client shows it.
type shownMessage struct {
	Channel string
	Type    string `json:"msg_type"`
	Parent  struct {
		ID  string `json:"msg_id"`
		Odd bool
	} `json:"parent_header"`
	Content map[string]any
}

// until reads the messages that belong to a message of the client, up to the state idle, and lists what they say.
func (f *frontend) until(id string) []string {
	f.t.Helper()
	var out []string
	for {
		m := f.read()
		if m.Parent.ID != id {
			continue
		}
		if !m.Parent.Odd {
			f.t.Errorf("the parent of %+v lacks what the client's header had", m)
		}
		line := m.Channel + " " + m.Type
		for _, field := range []string{"execution_state", "text", "status", "code", "wait"} {
			if v, ok := m.Content[field]; ok {
				line += fmt.Sprintf(" %v", v)
			}
		}
		if out = append(out, strings.TrimSpace(line)); line == "iopub status idle" {
			return out
		}
	}
}

func (f *frontend) read() shownMessage {
	f.t.Helper()
	ctx, done := context.WithTimeout(f.t.Context(), time.Minute)
	defer done()
	kind, data, err := f.conn.Read(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	var m shownMessage
	if kind != websocket.MessageText || json.Unmarshal(data, &m) != nil {
		f.t.Fatalf("%v: %.100q", kind, data)
	}
	return m
}

// closed waits for the end of the connection.
func (f *frontend) closed(want websocket.StatusCode) {
	f.t.Helper()
	ctx, done := context.WithTimeout(f.t.Context(), time.Minute)
	defer done()
	for {
		if _, _, err := f.conn.Read(ctx); err != nil {
			if got := websocket.CloseStatus(err); got != want {
				f.t.Errorf("the connection ended with %d (%v), want %d", got, err, want)
			}
			return
		}
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
	f := b.frontend(k.ID, "", "other", jupyter.Subprotocol)
	if got := f.conn.Subprotocol(); got != jupyter.Subprotocol {
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
