package bridge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// served is a bridge that runs against a farm, with the other ends of its streams. It ends with the test.
type served struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Scanner
	log *strings.Builder
	end chan error
}

// A client shows why its server ended: a key that the farm refuses is said before the first call.
func TestServeRefusesToStartWithoutAKey(t *testing.T) {
	t.Parallel()
	_, server := remote(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(t, w, http.StatusUnauthorized, wire.Problem{Code: "unauthorized", Detail: "A key is needed."})
	})
	c, err := client.New(server.URL)
	testbed.Must(t, err)
	files, err := bridge.OpenRoots([]string{t.TempDir()}, "", "")
	testbed.Must(t, err)
	defer func() { _ = files.Close() }()
	err = bridge.Serve(t.Context(), verbs.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, c, files, bridge.Toolset, "1")
	testbed.Check(t, client.CodeOf(err) == "unauthorized", "it ended with %v", err)
}

// TestStdio is a single test with a single bridge, since a process can serve stdio only once.
func TestStdio(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testbed.Diff(t, fmt.Sprintf("%s %s came with", r.Method, r.URL), "Bearer secret", r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/sandboxes":
			_ = json.NewEncoder(w).Encode(wire.List[wire.Sandbox]{Items: []wire.Sandbox{{ID: "sbx_1", Name: "mine", State: "ready"}}})
		case "/v1/jobs/job_1":
			<-release
			_ = json.NewEncoder(w).Encode(wire.Job{ID: "job_1", SandboxID: "sbx_1", Kind: "execute", State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{Stdout: "late\n"}}})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(wire.Problem{Code: "not_found", Detail: "There is no such thing."})
		}
	}))
	t.Cleanup(farm.Close)
	s := serve(t, farm.URL)

	s.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if got := s.answer("1"); !strings.Contains(got, `"sandfarm"`) || !strings.Contains(got, `"1.2.3"`) {
		t.Errorf("initialize: %s", got)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.send(`{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"list_sandboxes","arguments":{}}}`)
	if got := s.answer(`"two"`); !strings.Contains(got, "sbx_1") || strings.Contains(got, `"isError":true`) {
		t.Errorf("list_sandboxes: %s", got)
	}
	s.send(`{"jsonrpc":"2.0","id":5,"method":"prompts/list"}`)
	if got := s.answer("5"); !strings.Contains(got, `"analyse_file"`) || !strings.Contains(got, `"run_script"`) {
		t.Errorf("prompts/list: %s", got)
	}
	s.send(`{"jsonrpc":"2.0","id":6,"method":"prompts/get","params":{"name":"plot_data","arguments":{"data":"rain.csv"}}}`)
	if got := s.answer("6"); !strings.Contains(got, "rain.csv") {
		t.Errorf("prompts/get: %s", got)
	}
	s.send(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)
	if got := s.answer("7"); !strings.Contains(got, `"cancel_job"`) || !strings.Contains(got, `"restart_kernel"`) {
		t.Errorf("tools/list: %s", got)
	}
	s.send(`not JSON`)
	if got := s.answer("null"); !strings.Contains(got, "-32700") {
		t.Errorf("not JSON: %s", got)
	}
	s.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"upload_file_to_sandbox","arguments":{"sandbox_id":"sbx_1","local_file_path":"/etc/passwd"}}}`)
	if got := s.answer("3"); !strings.Contains(got, `"isError":true`) || !strings.Contains(got, "outside") {
		t.Errorf("upload from outside: %s", got)
	}

	// The client closes its end while a call is under way, whose line has no end: the answer comes, then the end, and nothing else was written.
	_, err := io.WriteString(s.in, `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"get_job_result","arguments":{"job_id":"job_1"}}}`)
	testbed.Must(t, errors.Join(err, s.in.Close()))
	select {
	case err := <-s.end:
		t.Fatalf("it ended before the answer: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if got := s.answer("4"); !strings.Contains(got, "late") {
		t.Errorf("the last call: %s", got)
	}
	if err := <-s.end; err != nil || s.out.Scan() {
		t.Errorf("it ended with %v, and last wrote %q", err, s.out.Text())
	}
	if !strings.Contains(s.log.String(), farm.URL) || strings.Contains(s.log.String(), "secret") {
		t.Errorf("the log says %s", s.log)
	}
}

func serve(t *testing.T, url string) *served {
	t.Helper()
	c, err := client.New(url, client.WithKey("secret"))
	testbed.Must(t, err)
	files, err := bridge.OpenRoots([]string{t.TempDir()}, "", "")
	testbed.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	s := &served{t: t, in: toServer, out: bufio.NewScanner(fromServer), log: &strings.Builder{}, end: make(chan error, 1)}
	s.out.Buffer(nil, 1<<20)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.end <- bridge.Serve(ctx, verbs.Streams{In: in, Out: out, Err: s.log}, c, files, bridge.Toolset, "1.2.3")
		_ = out.Close()
	}()
	t.Cleanup(func() {
		cancel()
		_ = toServer.Close()
		_ = fromServer.Close()
		<-ended
	})
	return s
}

func (s *served) send(line string) {
	s.t.Helper()
	_, err := io.WriteString(s.in, line+"\n")
	testbed.Must(s.t, err)
}

// answer reads the next message, which must be the answer with this id.
func (s *served) answer(id string) string {
	s.t.Helper()
	if !s.out.Scan() {
		s.t.Fatalf("no answer to %s: %v", id, s.out.Err())
	}
	var head struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(s.out.Bytes(), &head); err != nil || string(head.ID) != id {
		s.t.Errorf("%v: the message is no answer to %s: %s", err, id, s.out.Text())
	}
	return s.out.Text()
}
