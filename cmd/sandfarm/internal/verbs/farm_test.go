package verbs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// fakeFarm implements the routes that the verbs use. Script is what every job does.
type fakeFarm struct {
	*httptest.Server
	t *testing.T

	// Script plays the job: send publishes events, and the returned result ends it. Canceled is closed by DELETE.
	Script func(send func(name string, data any), canceled <-chan struct{}) (state string, result *wire.Result)
	Key    string                      // required from clients; empty: none
	Routes map[string]http.HandlerFunc // more routes, by pattern
	Links  map[string][]byte           // content of /link/…
	After  func(time.Duration) <-chan time.Time

	mu       sync.Mutex
	requests []string // method, path and body of each request
	canceled chan struct{}
	job      wire.Job
	done     chan struct{}
	events   []string
	more     chan struct{} // closed and made anew with every event
}

func newFarm(t *testing.T) *fakeFarm {
	t.Helper()
	f := &fakeFarm{t: t, canceled: make(chan struct{}), done: make(chan struct{}), more: make(chan struct{}), Routes: map[string]http.HandlerFunc{}, Links: map[string][]byte{}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeFarm) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Errorf("read: %v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.mu.Lock()
	f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	f.mu.Unlock()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/run", f.start)
	mux.HandleFunc("POST /v1/sandboxes/{id}/execute", f.start)
	mux.HandleFunc("POST /v1/sandboxes/{id}/commands", f.start)
	mux.HandleFunc("GET /v1/jobs/{id}", f.read)
	mux.HandleFunc("DELETE /v1/jobs/{id}", f.cancel)
	mux.HandleFunc("GET /v1/jobs/{id}/events", f.follow)
	mux.HandleFunc("GET /link/{name...}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			f.t.Errorf("credentials were sent with a link")
		}
		content, ok := f.Links[r.PathValue("name")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
	for pattern, handler := range f.Routes {
		mux.HandleFunc(pattern, handler)
	}
	if f.Key != "" && strings.HasPrefix(r.URL.Path, "/v1/") && r.Header.Get("Authorization") != "Bearer "+f.Key {
		f.answer(w, http.StatusUnauthorized, wire.Problem{Status: 401, Code: "unauthorized", Detail: "A valid API key is needed: send Authorization: Bearer <key>, or X-API-Key."})
		return
	}
	mux.ServeHTTP(w, r)
}

func (f *fakeFarm) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		f.t.Errorf("answer: %v", err)
	}
}

func (f *fakeFarm) start(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	f.job = wire.Job{ID: "job_1", Kind: "run", SandboxID: "sbx_1", State: "running"}
	job := f.job
	f.mu.Unlock()
	go func() {
		state, result := f.Script(f.send, f.canceled)
		f.mu.Lock()
		f.job.State, f.job.Result = state, result
		f.mu.Unlock()
		f.send("state", wire.StateData{State: state})
		close(f.done)
	}()
	f.answer(w, http.StatusAccepted, job)
}

func (f *fakeFarm) send(name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		f.t.Errorf("event: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf("id: %d-1\nevent: %s\ndata: %s\n\n", len(f.events)+1, name, text))
	close(f.more)
	f.more = make(chan struct{})
}

func (f *fakeFarm) read(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("wait") != "" {
		select {
		case <-f.done:
		case <-r.Context().Done():
			return
		}
	}
	f.mu.Lock()
	job := f.job
	f.mu.Unlock()
	f.answer(w, http.StatusOK, job)
}

func (f *fakeFarm) cancel(w http.ResponseWriter, r *http.Request) {
	close(f.canceled)
	f.mu.Lock()
	job := f.job
	f.mu.Unlock()
	f.answer(w, http.StatusAccepted, job)
}

func (f *fakeFarm) follow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; {
		f.mu.Lock()
		fresh, more := f.events[n:], f.more
		f.mu.Unlock()
		for _, event := range fresh {
			_, _ = io.WriteString(w, event)
		}
		_ = http.NewResponseController(w).Flush()
		n += len(fresh)
		if len(fresh) > 0 && strings.Contains(fresh[len(fresh)-1], "event: state") {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// asked returns the requests that the farm received, in order.
func (f *fakeFarm) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.requests...)
}

// artifact is an artifact with this path whose link serves content.
func (f *fakeFarm) artifact(path, content string) wire.Artifact {
	link := fmt.Sprintf("a%d", len(f.Links))
	f.Links[link] = []byte(content)
	sum := sha256.Sum256([]byte(content))
	return wire.Artifact{ID: "art_" + link, Path: path, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), URL: f.URL + "/link/" + link}
}

// prints is a script that prints and returns a result.
func prints(stdout string, result wire.ExecuteResult) func(func(string, any), <-chan struct{}) (string, *wire.Result) {
	return func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
		if stdout != "" {
			send("stdout", wire.TextData{Text: stdout})
		}
		return "completed", &wire.Result{Execute: &result}
	}
}

// outputs is the result of a run of the program.
type outputs struct {
	code        int
	out, stderr string
}

// sandfarm runs the program against the farm.
func (f *fakeFarm) sandfarm(ctx context.Context, stdin string, args ...string) outputs {
	f.t.Helper()
	var out, stderr testbed.Log
	code := programWith(ctx, verbs.Streams{After: f.After, Local: f.local}, strings.NewReader(stdin), &out, &stderr, map[string]string{"SANDFARM_URL": f.URL, "SANDFARM_API_KEY": f.Key, "HOME_TOWN": "Ulm"}, args...)
	return outputs{code, out.String(), stderr.String()}
}

func program(ctx context.Context, in io.Reader, out, stderr io.Writer, env map[string]string, args ...string) int {
	return programWith(ctx, verbs.Streams{}, in, out, stderr, env, args...)
}

// local reaches the farm as --local does.
func (f *fakeFarm) local(context.Context, string) (*http.Client, func() error, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", f.Listener.Addr().String())
	}}
	return &http.Client{Transport: transport}, func() error { transport.CloseIdleConnections(); return nil }, nil
}

func programWith(ctx context.Context, s verbs.Streams, in io.Reader, out, stderr io.Writer, env map[string]string, args ...string) int {
	root := &cobra.Command{Use: "sandfarm", Short: "Run untrusted code in sandboxes", Version: "test"}
	s.In, s.Out, s.Err, s.Getenv = in, out, stderr, func(name string) string { return env[name] }
	verbs.Add(root, s)
	root.SetArgs(args)
	return verbs.Execute(ctx, root, stderr)
}
