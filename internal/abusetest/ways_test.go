//go:build abuse

package abusetest_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/abusetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	// readers is how many connections an abuser holds on each way in, without reading.
	readers = 60
	// holdTime is how long: the farm fills what it can meanwhile.
	holdTime = 8 * time.Second
)

// hold opens connections that do not read, all at once, and holds them. Some must open: a way in that refuses all of them is not tried.
func (f farm) hold(what string, open func(ctx context.Context, n int) (close func(), err error)) abusetest.Line {
	f.t.Helper()
	var held, refused atomic.Int64
	l := f.Measure(f.t, fmt.Sprintf("%d %s that do not read", readers, what), func() {
		ctx, cancel := context.WithTimeout(f.t.Context(), holdTime)
		defer cancel()
		var g errgroup.Group
		for n := range readers {
			g.Go(func() error {
				end, err := open(ctx, n)
				if err != nil {
					refused.Add(1)
					if ctx.Err() == nil && !strings.Contains(err.Error(), "429") {
						return err
					}
					return nil
				}
				held.Add(1)
				<-ctx.Done()
				end()
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	})
	f.t.Logf("%s: %d were held, %d refused", what, held.Load(), refused.Load())
	if held.Load() == 0 {
		f.t.Errorf("%s: none could be opened", what)
	}
	return l
}

// stream opens a request whose answer is not read.
func (f farm) stream(ctx context.Context, method, url string, body []byte, header http.Header) (end func(), err error) {
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = header
	answer, err := http.DefaultClient.Do(request) //nolint:bodyclose // by end
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return nil, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return func() { _ = answer.Body.Close() }, nil
}

// socket opens a WebSocket that is not read.
func (f farm) socket(ctx context.Context, path string) (*websocket.Conn, error) {
	conn, answer, err := websocket.Dial(ctx, f.URL()+path, &websocket.DialOptions{HTTPHeader: abuser()}) //nolint:bodyclose // Dial has read it
	if err != nil && answer != nil {
		return nil, fmt.Errorf("%s: %w", answer.Status, err)
	}
	return conn, err
}

func abuser() http.Header { return http.Header{"Authorization": {"Bearer " + abusetest.AbuserKey}} }

// talker starts a process that prints for ever, and returns its id.
func (f farm) talker(box string, pty *wire.TerminalSize) string {
	f.t.Helper()
	made, err := f.StartProcess(f.t.Context(), box, wire.ProcessRequest{Command: new("yes " + strings.Repeat("x", 99)), PTY: pty})
	testbed.Must(f.t, err)
	return made.ID
}

// terminals are attached to a terminal on which a program prints for ever.
func terminals(f farm) {
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	id := f.talker(boxes[0], &wire.TerminalSize{Cols: 80, Rows: 24})
	f.within(f.hold("terminals", func(ctx context.Context, _ int) (func(), error) {
		conn, err := f.socket(ctx, "/v1/sandboxes/"+boxes[0]+"/processes/"+id+"/attach")
		return func() { _ = conn.CloseNow() }, err
	}), 0, mib)
}

// ports stream what a server in the sandbox sends for ever.
func ports(f farm) {
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	server := `import socketserver, threading
class Endless(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
        while True:
            self.request.sendall(b"x" * 65536)
class Server(socketserver.ThreadingTCPServer):
    request_queue_size, daemon_threads = 128, True
threading.Thread(target=Server(("127.0.0.1", 8080), Endless).serve_forever, daemon=True).start()`
	if job, err := f.Execute(f.t.Context(), boxes[0], wire.ExecuteRequest{Code: server}, client.WithWait(time.Minute)); err != nil || job.State != "completed" {
		f.t.Fatal(err, job.State)
	}
	f.within(f.hold("downloads from a port", func(ctx context.Context, _ int) (func(), error) {
		return f.stream(ctx, http.MethodGet, f.URL()+"/v1/sandboxes/"+boxes[0]+"/ports/8080/", nil, abuser())
	}), 1, mib)
}

// watches follow a directory in which files come and go.
func watches(f farm) {
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	churn := "mkdir -p churn; while :; do for n in $(seq 200); do : > churn/" + strings.Repeat("x", 100) + "$n; done; rm -rf churn/*; done"
	_, err := f.StartProcess(f.t.Context(), boxes[0], wire.ProcessRequest{Command: &churn})
	testbed.Must(f.t, err)
	f.within(f.hold("watches", func(ctx context.Context, _ int) (func(), error) {
		return f.stream(ctx, http.MethodGet, f.URL()+"/v1/sandboxes/"+boxes[0]+"/watch?recursive=true&path=/workspace", nil, abuser())
	}), 0, mib)
}

// e2bProcesses are started by E2B's protocol, which streams their output.
func e2bProcesses(f farm) {
	var made struct{ SandboxID, EnvdAccessToken string }
	request, status, err := f.send(http.MethodPost, "/e2b/v2/sandboxes", "application/json", strings.NewReader(`{"templateID":"base","timeout":600}`))
	if err != nil || status != http.StatusCreated || json.Unmarshal(request, &made) != nil {
		f.t.Fatalf("create: %v %d %s", err, status, request)
	}
	defer func() {
		if _, status, err := f.send(http.MethodDelete, "/e2b/sandboxes/"+made.SandboxID, "", nil); err != nil || status != http.StatusNoContent {
			f.t.Errorf("close: %v %d", err, status)
		}
	}()
	start := `{"process":{"cmd":"/bin/sh","args":["-c","yes"]}}`
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(start))), start...)
	f.within(f.hold("processes of E2B's protocol", func(ctx context.Context, _ int) (func(), error) {
		return f.stream(ctx, http.MethodPost, f.URL()+"/e2b/process.Process/Start", body, http.Header{
			"Content-Type": {"application/connect+json"}, "E2b-Sandbox-Id": {made.SandboxID}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {made.EnvdAccessToken},
		})
	}), 1, mib)
}

// jupyterSockets are opened to one kernel, which prints.
func jupyterSockets(f farm) {
	kernel, end := f.kernel()
	defer end()
	// The code prints for as long as the sockets are held, and is then interrupted by the end of its kernel.
	run := request("m", "execute_request", `{"code":"while True: print('x' * 99)","silent":false,"store_history":false,"allow_stdin":false,"user_expressions":{}}`)
	f.within(f.hold("sockets of Jupyter's protocol", func(ctx context.Context, n int) (func(), error) {
		conn, err := f.socket(ctx, fmt.Sprintf("/jupyter/api/kernels/%s/channels?session_id=%d", kernel, n))
		if err == nil && n == 0 {
			err = conn.Write(ctx, websocket.MessageText, run)
		}
		return func() { _ = conn.CloseNow() }, err
	}), 1, outputLimit*mib+eventLimit*2)
}

// jupyterQuestions have very long answers, which nobody reads.
func jupyterQuestions(f farm) {
	kernel, end := f.kernel()
	defer end()
	conn, err := f.socket(f.t.Context(), "/jupyter/api/kernels/"+kernel+"/channels?session_id=first")
	testbed.Must(f.t, err)
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(-1)
	err = conn.Write(f.t.Context(), websocket.MessageText, request("m", "execute_request", `{"code":"def big(): pass\nbig.__doc__ = 'x' * 40_000_000","silent":false,"store_history":false,"allow_stdin":false,"user_expressions":{}}`))
	for text := ""; err == nil && !strings.Contains(text, `"execute_reply"`); {
		var raw []byte
		_, raw, err = conn.Read(f.t.Context())
		text = string(raw)
	}
	testbed.Must(f.t, err)
	f.within(f.hold("sockets with questions about a docstring of 40 MB", func(ctx context.Context, n int) (func(), error) {
		conn, err := f.socket(ctx, fmt.Sprintf("/jupyter/api/kernels/%s/channels?session_id=%d", kernel, n))
		for i := 0; err == nil && i < 4; i++ {
			err = conn.Write(ctx, websocket.MessageText, request(strconv.Itoa(i), "inspect_request", `{"code":"big","cursor_pos":3,"detail_level":0}`))
		}
		return func() { _ = conn.CloseNow() }, err
	}), 1, mib)
}

// kernel starts a kernel for clients of Jupyter and returns its id, and a function that ends it.
func (f farm) kernel() (id string, end func()) {
	f.t.Helper()
	var made struct{ ID string }
	text, status := f.post("/jupyter/api/kernels", `{"name":"python3"}`)
	if status != http.StatusCreated || json.Unmarshal(text, &made) != nil {
		f.t.Fatalf("kernel: %d %s", status, text)
	}
	return made.ID, func() {
		if _, status, err := f.send(http.MethodDelete, "/jupyter/api/kernels/"+made.ID, "", nil); err != nil || status != http.StatusNoContent {
			f.t.Errorf("shut down: %v %d", err, status)
		}
	}
}

// request is a message of a client of Jupyter.
func request(id, kind, content string) []byte {
	return fmt.Appendf(nil, `{"channel":"shell","header":{"msg_id":%q,"msg_type":%q,"session":"0","username":"x","version":"5.3","date":"2026-01-01T00:00:00Z"},"parent_header":{},"metadata":{},"content":%s,"buffers":[]}`, id, kind, content)
}

// dashboardLogins log in over and over, with keys that are wrong and with one that is right, and never log out.
func dashboardLogins(f farm) {
	const logins = 600
	l := f.Measure(f.t, fmt.Sprintf("%d log-ins to the dashboard", logins), func() {
		var g errgroup.Group
		g.SetLimit(16)
		for n := range logins {
			g.Go(func() error {
				key, right := abusetest.AbuserKey, n%2 == 1
				if !right {
					key = fmt.Sprintf("sk-wrong-%032d", n)
				}
				end, err := f.stream(f.t.Context(), http.MethodPost, f.URL()+"/session", fmt.Appendf(nil, `{"key":%q}`, key), http.Header{"Origin": {f.URL()}})
				switch {
				case err == nil && !right:
					return errors.New("a wrong key logs in")
				case err == nil:
					end()
				case !strings.Contains(err.Error(), "429") && (right || !strings.Contains(err.Error(), "401")):
					return fmt.Errorf("log in: %w", err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	})
	f.within(l, 0, mib)
}

// A sandbox of more memory than any host has is refused, and starts nothing.
func largerThanTheHost(f farm) {
	l := f.Measure(f.t, "100 creates of 64 TiB", func() {
		for range 100 {
			_, err := f.CreateSandbox(f.t.Context(), wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: new(64 << 20)}})
			if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Status != http.StatusUnprocessableEntity {
				f.t.Fatalf("answer %v", err)
			}
		}
	})
	if f.within(l, 0, mib); len(f.Containers()) > 3 {
		f.t.Errorf("containers %v", f.Containers())
	}
}

// One tenant creates sandboxes until it is refused: at its quota, while the neighbour's calls are answered.
func tooManySandboxes(f farm) {
	var made []wire.Created
	var refused []wire.Problem
	l := f.Measure(f.t, fmt.Sprintf("%d creates at a quota of %d sandboxes", 3*sandboxes, sandboxes), func() {
		for range 3 * sandboxes {
			text, status := f.post("/v1/sandboxes", `{"resources":{"memory_mb":128}}`)
			var problem wire.Problem
			var created wire.Created
			switch {
			case status == http.StatusAccepted && json.Unmarshal(text, &created) == nil:
				made = append(made, created)
			case status == http.StatusTooManyRequests && json.Unmarshal(text, &problem) == nil:
				refused = append(refused, problem)
			default:
				f.t.Fatalf("status %d: %s", status, text)
			}
		}
		for _, created := range made {
			if job, err := f.Wait(f.t.Context(), created.Job.ID); err != nil || job.State != "completed" {
				f.t.Errorf("create: %v %+v", err, job)
			}
		}
	})
	for _, created := range made {
		closing, err := f.Close(f.t.Context(), created.Sandbox.ID)
		if err == nil { // else the next round begins at the quota
			_, err = f.Wait(f.t.Context(), closing.ID)
		}
		if err != nil {
			f.t.Error(err)
		}
	}
	for _, problem := range refused {
		if problem.Code != "exhausted" || problem.Quota == nil || problem.Quota.Limit == nil || *problem.Quota.Limit != sandboxes {
			f.t.Errorf("refused with %+v", problem)
		}
	}
	if f.within(l, sandboxes, mib); len(made) > sandboxes || len(made) == 0 { // the harness has one, and those of the last row may still close
		f.t.Errorf("%d sandboxes were made; the quota is %d", len(made), sandboxes)
	}
}

// Tars of a few KB repeat a member with a name of 900,000 bytes.
func longNames(f farm) {
	const callers, members = 16, 1000
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	var member, packed bytes.Buffer
	testbed.Must(f.t, tar.NewWriter(&member).WriteHeader(&tar.Header{Name: strings.Repeat("a", 900_000), Typeflag: tar.TypeFifo, Format: tar.FormatGNU}))
	zip := gzip.NewWriter(&packed)
	for range members {
		_, _ = zip.Write(member.Bytes()) // a buffer takes all
	}
	_ = zip.Close()
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"copy_project","arguments":{"container_id":%q,"local_src_dir":"p","content_base64":%q}}}`,
		boxes[0], base64.StdEncoding.EncodeToString(packed.Bytes()))
	f.within(f.Measure(f.t, fmt.Sprintf("%d tars of %d members with names of 900 KB", callers, members), func() {
		var g errgroup.Group
		for range callers {
			g.Go(func() error {
				text, status, err := f.send(http.MethodPost, "/mcp/docker-sandbox", "application/json", strings.NewReader(call))
				if err == nil && (status != http.StatusTooManyRequests && !bytes.Contains(text, []byte("a name of 900000 bytes")) || len(text) > mib) {
					err = fmt.Errorf("status %d, %d bytes: %s", status, len(text), text[:min(len(text), 300)])
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			f.t.Error(err)
		}
	}), 0, mib)
}

// Forms of 40 MB have empty files only, with the longest paths, of a character that an encoder may make six.
func longPaths(f farm) {
	const callers, files = 16, 10_000
	boxes, closeAll := f.boxes(1)
	defer closeAll()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for i := range files {
		_, _ = form.CreateFormFile("file", fmt.Sprint(i)+strings.Repeat("/"+strings.Repeat("<", 200), 19)) // a buffer takes all
	}
	_ = form.Close()
	f.within(f.Measure(f.t, fmt.Sprintf("%d forms of %d empty files with paths of 4 KB", callers, files), func() {
		f.each(make([]string, callers), func(context.Context, string) error {
			text, status, err := f.send(http.MethodPost, "/v1/sandboxes/"+boxes[0]+"/files?wait=0", form.FormDataContentType(), bytes.NewReader(body.Bytes()))
			if err == nil && status != http.StatusRequestEntityTooLarge && status != http.StatusTooManyRequests {
				return fmt.Errorf("status %d: %s", status, text[:min(len(text), 300)])
			}
			return nil // an error: the connection ended before all was sent
		})
	}), 0, mib)
}

// post sends a request without the client, which would repeat one that is refused.
func (f farm) post(path, body string) (text []byte, status int) {
	f.t.Helper()
	text, status, err := f.send(http.MethodPost, path, "application/json", strings.NewReader(body))
	testbed.Must(f.t, err)
	return text, status
}

// send is post with another method and another kind of body.
func (f farm) send(method, path, kind string, body io.Reader) (text []byte, status int, err error) {
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.URL()+path, body)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Authorization", "Bearer "+abusetest.AbuserKey)
	request.Header.Set("Content-Type", kind)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err = io.ReadAll(answer.Body)
	return text, answer.StatusCode, err
}
