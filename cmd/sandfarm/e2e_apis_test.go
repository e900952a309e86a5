//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// apisFarm is a farm of three APIs behind a balancer. They share nothing but Redis and the object store.
type apisFarm struct {
	*servicesFarm
	balancer *balancer
	key      string
}

func newAPIsFarm(t *testing.T) *apisFarm {
	t.Helper()
	f := &apisFarm{servicesFarm: newServicesFarm(t), key: "sf_key_of_the_test_of_several_apis_0123"}
	f.kill("api", syscall.SIGTERM)
	var apis, names []string
	for i := range 3 {
		name := fmt.Sprintf("api %d", i)
		names, apis = append(names, name), append(apis, testbed.Address(t))
		f.commands[name] = []string{
			"env", "SANDFARM_API_LISTEN=" + apis[i], "SANDFARM_DATA=" + t.TempDir(), "SANDFARM_API_KEYS=acme:" + hashOf(f.key), program, "api",
		}
	}
	f.startParts(names...)
	f.balancer = newBalancer(t, apis...)
	f.url = f.balancer.URL
	var err error
	f.Client, err = client.New(f.url, client.WithKey(f.key))
	testbed.Must(t, err)
	for _, api := range apis {
		until(t.Context(), t, api+" is ready", time.Minute, func() bool {
			r, err := http.Get("http://" + api + "/readyz")
			if err != nil {
				return false
			}
			_ = r.Body.Close()
			return r.StatusCode == http.StatusOK
		})
	}
	return f
}

// TestThreeAPIs uses a farm whose load balancer sends each request to another API: nothing needs affinity.
func TestThreeAPIs(t *testing.T) {
	t.Parallel()
	f := newAPIsFarm(t)
	box := f.sandbox(wire.CreateRequest{}).ID
	t.Run("At once", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *apisFarm, string){
			"MCP": mcpOverAPIs, "Files": filesOverAPIs, "Terminal": terminalOverAPIs,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				process, services, own := *f.farmProcess, *f.servicesFarm, *f
				process.t = t
				services.farmProcess, own.servicesFarm = &process, &services
				test(t, &own, box)
			})
		}
	})
	killedAPI(t, f, box)
}

// spread checks that each API had requests for a path.
func (f *apisFarm) spread(path string) {
	f.t.Helper()
	if n := f.balancer.by(path); n != 3 {
		f.t.Errorf("%d APIs had requests for %s, want 3", n, path)
	}
}

// ticks is code that prints numbers for some seconds, and what it prints.
func ticks(n int) (code, want string) {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "tick %d\n", i)
	}
	return fmt.Sprintf("import time\nfor i in range(%d):\n    print('tick', i, flush=True); time.sleep(.1)", n), text.String()
}

// Each call of MCP is at another API.
func mcpOverAPIs(t *testing.T, f *apisFarm, _ string) {
	for _, revision := range []string{mcp.ProtocolVersion20260728, mcp.ProtocolVersion20251125} {
		m := newMCP(t, f.url, f.key, revision)
		made, _ := m.call("create_sandbox", map[string]any{"ttl_seconds": 600})
		box := made["sandbox_id"]
		m.call("execute_python_code", map[string]any{"sandbox_id": box, "code": "x = 20"})
		code, want := ticks(5)
		if run, _ := m.call("execute_python_code", map[string]any{"sandbox_id": box, "code": code}); run["stdout"] != want {
			t.Errorf("%s: it ran: %v", revision, run)
		}
		if live := strings.Join(m.reported(), ""); !strings.Contains(live, "tick 0\n") {
			t.Errorf("%s: progress %q", revision, live)
		}
		if run, _ := m.call("execute_python_code", map[string]any{"sandbox_id": box, "code": "print(x + 22)"}); run["stdout"] != "42\n" {
			t.Errorf("%s: its variables: %v", revision, run)
		}
		m.call("close_sandbox", map[string]any{"sandbox_id": box})
	}
	f.spread("/mcp")
}

// What is uploaded at one API is read at the others: files of the workspace, any files, files of a run, artifacts.
func filesOverAPIs(t *testing.T, f *apisFarm, _ string) {
	box := f.sandbox(wire.CreateRequest{}).ID
	content := make([]byte, 3<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(content)
	read := func(what string, open func() (io.ReadCloser, error)) {
		t.Helper()
		for range 3 {
			r, err := open()
			testbed.Must(t, err)
			got, err := io.ReadAll(r)
			_ = r.Close()
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s: %d bytes, %v, want %d", what, len(got), err, len(content))
			}
		}
	}
	files := f.Files(box)
	testbed.Must(t, files.Write(t.Context(), "data.bin", bytes.NewReader(content)))
	read("a file of the workspace", func() (io.ReadCloser, error) { return files.Read(t.Context(), "data.bin", 0) })
	f.spread("/v1/sandboxes/" + box + "/files/data.bin")
	_, err := f.FS(box).Write(t.Context(), "/tmp/data.bin", bytes.NewReader(content), client.WriteIf{})
	testbed.Must(t, err)
	read("any file", func() (io.ReadCloser, error) { return f.FS(box).Open(t.Context(), "/tmp/data.bin") })
	f.run(box, "import shutil; shutil.copy('data.bin', 'copy.bin')")
	var artifacts []wire.Artifact
	for a, err := range f.Artifacts(t.Context(), client.ArtifactFilter{SandboxID: box}) {
		testbed.Must(t, err)
		artifacts = append(artifacts, a)
	}
	at := slices.IndexFunc(artifacts, func(a wire.Artifact) bool { return a.Name == "copy.bin" })
	if at < 0 {
		t.Fatalf("artifacts %+v", artifacts)
	}
	read("an artifact", func() (io.ReadCloser, error) { return f.Download(t.Context(), artifacts[at]) })
}

// A terminal whose connection breaks continues at the next API, with what was typed and what it wrote.
func terminalOverAPIs(t *testing.T, f *apisFarm, box string) {
	p, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Argv: []string{"sh"}, PTY: &wire.TerminalSize{Cols: 80, Rows: 24}})
	testbed.Must(t, err)
	a := f.Attach(box, p.ID)
	type piece struct {
		text string
		exit bool
	}
	pieces := make(chan piece, 1000)
	go func() {
		defer close(pieces)
		for out, err := range a.Output(t.Context()) {
			if err != nil {
				t.Errorf("attach: %v", err)
				return
			}
			pieces <- piece{string(out.Data), out.Exit != nil}
		}
	}()
	path := "/v1/sandboxes/" + box + "/processes/" + p.ID + "/attach"
	var screen strings.Builder
	sees := func(want string) {
		t.Helper()
		for !strings.Contains(screen.String(), want) {
			select {
			case p, ok := <-pieces:
				if !ok {
					t.Fatalf("%q does not come, after %q", want, screen.String())
				}
				screen.WriteString(p.text)
			case <-time.After(2 * time.Minute):
				t.Fatalf("%q does not come, after %q", want, screen.String())
			}
		}
	}
	for i := range 4 {
		testbed.Must(t, a.Write(t.Context(), []byte(fmt.Sprintf("echo $((%d + 1000)) seen\n", i))))
		sees(fmt.Sprintf("%d seen", 1000+i))
		f.balancer.cut(path)
	}
	testbed.Must(t, a.Write(t.Context(), []byte("exit\n")))
	for p := range pieces {
		if screen.WriteString(p.text); p.exit {
			break
		}
	}
	for i := range 4 {
		if n := strings.Count(screen.String(), fmt.Sprintf("%d seen", 1000+i)); n != 1 {
			t.Errorf("line %d was seen %d times in %q", i, n, screen.String())
		}
	}
	f.spread(path)
}

// An API that is killed costs its callers a connection: events and waits continue at the others.
func killedAPI(t *testing.T, f *apisFarm, box string) {
	t.Helper()
	code, want := ticks(40)
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: code})
	testbed.Must(t, err)
	killed := false
	var got strings.Builder
	for e, err := range f.Events(t.Context(), job.ID, "") {
		testbed.Must(t, err)
		if e.Name == "stdout" {
			var data wire.TextData
			testbed.Must(t, json.Unmarshal(e.Data, &data))
			got.WriteString(data.Text)
		}
		if !killed && strings.Contains(got.String(), "tick 3") {
			killed = true
			f.balancer.mu.Lock()
			at := (f.balancer.next["/v1/jobs/"+job.ID+"/events"] - 1) % 3
			f.balancer.mu.Unlock()
			f.kill(fmt.Sprintf("api %d", at), syscall.SIGKILL)
		}
	}
	if got.String() != want || !killed {
		t.Errorf("the events have %q, want %q (killed %v)", got.String(), want, killed)
	}
	testbed.Diff(t, "the job ends as", "completed", f.ended(job, nil).State)
	testbed.Diff(t, "after the kill it", "on\n", f.run(box, "print('on')").Stdout)
}

// balancer is a load balancer without affinity: each request has a connection of its own, and goes to the API after the one that had the
// last request for the same path.
type balancer struct {
	apis []*url.URL
	*httptest.Server

	mu     sync.Mutex
	paths  int
	next   map[string]int          // API of the next request, by path
	served map[string]map[int]bool // APIs that had requests, by path
	open   map[string][]net.Conn   // of callers, by path
}

type connKey struct{}

func newBalancer(t *testing.T, apis ...string) *balancer {
	t.Helper()
	b := &balancer{next: map[string]int{}, served: map[string]map[int]bool{}, open: map[string][]net.Conn{}}
	for _, api := range apis {
		b.apis = append(b.apis, &url.URL{Scheme: "http", Host: api})
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(b.pick(r.In))
			r.Out.Host = r.In.Host
		},
	}
	b.Server = httptest.NewUnstartedServer(proxy)
	b.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	b.Config.SetKeepAlivesEnabled(false)
	b.Start()
	t.Cleanup(func() { b.CloseClientConnections(); b.Close() })
	return b
}

func (b *balancer) pick(r *http.Request) *url.URL {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := r.URL.Path
	if b.served[path] == nil {
		b.served[path], b.next[path] = map[int]bool{}, b.paths
		b.paths++
	}
	at := b.next[path] % len(b.apis)
	b.next[path]++
	b.served[path][at] = true
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		b.open[path] = append(b.open[path], conn)
	}
	return b.apis[at]
}

// cut breaks the connections of a path.
func (b *balancer) cut(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.open[path] {
		_ = conn.Close()
	}
	delete(b.open, path)
}

// by is how many APIs had requests for a path.
func (b *balancer) by(path string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.served[path])
}
