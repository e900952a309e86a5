//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// notebook is a client with a kernel of the farm.
type notebook struct {
	t    *testing.T
	conn *websocket.Conn
	base string
	next int
	box  string // the kernel's sandbox
}

// said is a message of a kernel.
type kernelMessage struct {
	Channel string
	Type    string `json:"msg_type"`
	Parent  struct {
		ID string `json:"msg_id"`
	} `json:"parent_header"`
	Content map[string]any
}

func (f *farmProcess) notebook(t *testing.T) *notebook {
	t.Helper()
	n := f.startKernel(t)
	n.connect("s")
	return n
}

// startKernel makes a notebook's kernel, to which nobody is connected.
func (f *farmProcess) startKernel(t *testing.T) *notebook {
	t.Helper()
	n := &notebook{t: t, base: f.url + "/jupyter/api/kernels"}
	var kernel struct{ ID, Sandbox string }
	testbed.Must(t, json.Unmarshal(n.post("", http.StatusCreated), &kernel))
	n.base += "/" + kernel.ID
	n.box = kernel.Sandbox
	return n
}

func (n *notebook) post(path string, status int) []byte {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodPost, n.base+path, bytes.NewReader([]byte(`{"env":{"KERNEL_LAUNCH_TIMEOUT":"100"}}`)))
	testbed.Must(n.t, err)
	res, err := http.DefaultClient.Do(req)
	testbed.Must(n.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	testbed.Must(n.t, err)
	if res.StatusCode != status {
		n.t.Fatalf("POST %s: %d: %s", n.base+path, res.StatusCode, text)
	}
	return text
}

func (n *notebook) connect(session string) {
	n.t.Helper()
	conn, _, err := websocket.Dial(n.t.Context(), strings.Replace(n.base, "http", "ws", 1)+"/channels?session_id="+session, nil)
	testbed.Must(n.t, err)
	conn.SetReadLimit(-1)
	n.t.Cleanup(func() { _ = conn.CloseNow() })
	n.conn = conn
}

func (n *notebook) send(channel, kind string, content any) string {
	n.t.Helper()
	n.next++
	id := fmt.Sprintf("m%d", n.next)
	text, err := json.Marshal(map[string]any{"header": map[string]any{"msg_id": id, "msg_type": kind, "session": "s"}, "channel": channel, "content": content})
	testbed.Must(n.t, err)
	testbed.Must(n.t, n.conn.Write(n.t.Context(), websocket.MessageText, text))
	return id
}

func (n *notebook) read() kernelMessage {
	n.t.Helper()
	ctx, done := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer done()
	_, data, err := n.conn.Read(ctx)
	testbed.Must(n.t, err)
	if data[0] == 0 { // with buffers: how many parts, where each begins, the parts
		data = data[binary.BigEndian.Uint32(data[4:]):binary.BigEndian.Uint32(data[8:])]
	}
	var m kernelMessage
	testbed.Must(n.t, json.Unmarshal(data, &m))
	return m
}

// until reads what belongs to a message, up to the state idle.
func (n *notebook) until(id string) (out []kernelMessage) {
	n.t.Helper()
	for {
		m := n.read()
		if m.Parent.ID == id {
			out = append(out, m)
		}
		if m.Parent.ID == id && m.Type == "status" && m.Content["execution_state"] == "idle" {
			return out
		}
	}
}

func (n *notebook) cell(code string) []kernelMessage {
	n.t.Helper()
	return n.until(n.send("shell", "execute_request", map[string]any{"code": code, "allow_stdin": true}))
}

// types lists the types of messages without the states.
func types(messages []kernelMessage) string {
	var out []string
	for _, m := range messages {
		if m.Type != "status" {
			out = append(out, m.Type)
		}
	}
	return strings.Join(out, " ")
}

func replyOf(messages []kernelMessage) map[string]any {
	for _, m := range messages {
		if m.Channel != "iopub" {
			return m.Content
		}
	}
	return nil
}

// TestJupyter uses a kernel of a real farm as notebooks do.
func TestJupyter(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	t.Run("Cells", f.notebookCells)
	t.Run("Widgets", f.notebookWidgets)
	t.Run("Input", f.notebookInput)
	t.Run("DeadKernels", f.notebookDeaths)
	t.Run("OtherJobs", f.notebookOtherJobs)
}

func (f *farmProcess) notebookCells(t *testing.T) {
	t.Parallel()
	n := f.notebook(t)
	got := n.cell("import matplotlib.pyplot as plt\nprint('hi')\nplt.plot([1, 2])\nplt.show()\n6 * 7")
	testbed.Diff(t, "messages", "execute_input stream display_data execute_result execute_reply", types(got))
	large := n.cell("from IPython.display import HTML, display\ndisplay(HTML('x' * 400_000))")
	data, _ := large[2].Content["data"].(map[string]any)
	if text, _ := data["text/html"].(string); len(text) != 400_000 || data["text/plain"] == nil {
		t.Errorf("a large value came as %.200v", large)
	}
	first := n.send("shell", "execute_request", map[string]any{"code": "import time\nprint('begun', flush=True)\ntime.sleep(600)"})
	second := n.send("shell", "execute_request", map[string]any{"code": "print('never')"})
	for n.read().Type != "stream" {
	}
	n.post("/interrupt", http.StatusNoContent)
	if reply := replyOf(n.until(first)); reply["ename"] != "KeyboardInterrupt" {
		t.Errorf("the interrupted cell ended with %v", reply)
	}
	if reply := replyOf(n.until(second)); reply["status"] != "aborted" {
		t.Errorf("the cell behind it ended with %v", reply)
	}
	answered := n.until(n.send("shell", "execute_request", map[string]any{"code": "y = 3", "user_expressions": map[string]string{"twice": "2 * y"}}))
	if text := fmt.Sprint(replyOf(answered)["user_expressions"]); !strings.Contains(text, "text/plain:6") {
		t.Errorf("expressions: %s", text)
	}
}

// What is printed into a widget is what comes between two messages of the cell, and a slider that is moved makes the kernel print again.
func (f *farmProcess) notebookWidgets(t *testing.T) {
	t.Parallel()
	n := f.notebook(t)
	got := n.cell(`
from comm import create_comm
print("before")
c = create_comm(target_name="jupyter.widget", comm_id="w", data={"state": {}}, buffers=[b"x"])
print("within")
c.send({"method": "update"})
print("after")
def moved(message):
    print("moved to", message["content"]["data"]["value"])
c.on_msg(moved)
`)
	want := "execute_input stream comm_open stream comm_msg stream execute_reply"
	testbed.Diff(t, "messages", want, types(got))
	id := n.send("shell", "comm_msg", map[string]any{"comm_id": "w", "data": map[string]any{"value": 6}})
	if got := n.until(id); types(got) != "stream" || got[1].Content["text"] != "moved to 6\n" {
		t.Errorf("the moved slider made %+v", got)
	}
}

func (f *farmProcess) notebookInput(t *testing.T) {
	t.Parallel()
	n := f.notebook(t)
	id := n.send("shell", "execute_request", map[string]any{"code": "print('Hello', input('name? '))", "allow_stdin": true})
	for m := n.read(); m.Type != "input_request"; m = n.read() {
		if m.Type == "execute_reply" {
			t.Fatalf("the cell ended: %v", m)
		}
	}
	n.send("stdin", "input_reply", map[string]any{"value": "Ada"})
	if got := n.until(id); !strings.Contains(fmt.Sprint(got), "Hello Ada") {
		t.Errorf("after the answer: %v", got)
	}
}

// A kernel that dies ends its cell with an error, and clients are told that there is a new one.
func (f *farmProcess) notebookDeaths(t *testing.T) {
	t.Parallel()
	n := f.notebook(t)
	got := n.cell("import os\nos._exit(9)")
	if reply := replyOf(got); reply["status"] != "error" || reply["ename"] != "KernelDied" {
		t.Errorf("the cell ended with %v", reply)
	}
	for m := n.read(); m.Content["execution_state"] != "restarting"; m = n.read() {
	}
	if got := n.cell("print('again')"); types(got) != "execute_input stream execute_reply" {
		t.Errorf("the next cell: %s", types(got))
	}
	n.cell("import threading, os\nthreading.Timer(0.1, lambda: os._exit(1)).start()")
	for m := n.read(); m.Content["execution_state"] != "restarting"; m = n.read() {
	}
	for m := n.read(); m.Content["execution_state"] != "starting"; m = n.read() {
	}
	n.post("/restart", http.StatusOK)
	for m := n.read(); m.Content["execution_state"] != "starting"; m = n.read() {
		if m.Content["execution_state"] == "restarting" { // clients take that for a crash
			t.Errorf("the restart that was asked for was told as %+v", m)
		}
	}
	if got := n.cell("print('once more')"); types(got) != "execute_input stream execute_reply" {
		t.Errorf("after a restart: %s", types(got))
	}
}

// What jobs of /v1 do in the kernel is seen as another client's work, by who is connected before they begin and by who connects while they run.
func (f *farmProcess) notebookOtherJobs(t *testing.T) {
	t.Parallel()
	n := f.notebook(t)
	n.cell("x = 6")
	job, err := f.Execute(t.Context(), n.box, wire.ExecuteRequest{Code: "print('by another', x * 7)\nx"}, client.WithWait(time.Minute))
	testbed.Must(t, err)
	begun := wire.ExecuteRequest{Code: "import time\nprint('begun', flush=True)\ntime.sleep(600)"}
	got := n.until(job.ID)
	if want := "execute_input stream execute_result"; types(got) != want || !strings.Contains(fmt.Sprint(got), "by another 42") || !strings.Contains(fmt.Sprint(got), "print('by another'") {
		t.Errorf("the job is seen as %+v", got)
	}
	job, err = f.Execute(t.Context(), n.box, begun, client.WithWait(0))
	testbed.Must(t, err)
	for m := n.read(); m.Parent.ID != job.ID || m.Type != "stream"; m = n.read() {
	}
	n.post("/interrupt", http.StatusNoContent)
	if got := n.until(job.ID); types(got) != "error" {
		t.Errorf("the interrupted job is seen as %+v", got)
	}
	early := f.startKernel(t)
	job, err = f.Execute(t.Context(), early.box, begun, client.WithWait(0))
	testbed.Must(t, err)
	early.connect("s")
	for m := early.read(); m.Parent.ID != job.ID || m.Type != "stream"; m = early.read() {
	}
}

// jupyterTimeout bounds the clients of Jupyter, which take some 20 s, or minutes on a busy machine.
const jupyterTimeout = 10 * time.Minute

// TestJupyterClients uses a farm by clients of Jupyter, without a change to them. `make test-jupyter` runs all, and otherwise those run that start
// fast: those that use the farm as a gateway, and those whose kernels are local ones to them.
func TestJupyterClients(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SANDFARM_TEST_JUPYTER")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER does not name the clients of Jupyter: run the tests with make, or `deploy/setup.sh jupyter` and then `export SANDFARM_TEST_JUPYTER=$(deploy/setup.sh jupyter-dir)`")
	}
	which := "not every"
	if os.Getenv("SANDFARM_TEST_CLIENTS") == "all" {
		which = ""
	}
	f := newFarm(t)
	ctx, cancel := context.WithTimeout(t.Context(), jupyterTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(dir, "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "testdata/jupyter")
	path := filepath.Join(dir, "bin") + string(filepath.ListSeparator) + os.Getenv("PATH") // its Python has the SDK's source, and what the kernel needs
	run.Env = append(os.Environ(), "PATH="+path, "PYTHONPATH="+absolute(t, "../../sdk/python/src"), "JUPYTER_GATEWAY_URL="+f.url+"/jupyter", "SANDFARM_PROGRAM="+program, "PYTHONDONTWRITEBYTECODE=1", "JUPYTER_PLATFORM_DIRS=1", "HOME="+t.TempDir())
	run.WaitDelay = 5 * time.Second
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
