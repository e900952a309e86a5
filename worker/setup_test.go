package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hashicorp/yamux"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

const tenant = "acme"

// bundle is a farm whose records, object store and agents are real, and whose engine is a fake that speaks Docker's API.
type bundle struct {
	t     *testing.T
	cfg   Config
	deps  Deps
	redis *miniredis.Miniredis
	store *store.Store
	eng   *fakeEngine
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, redis: miniredis.RunT(t), eng: newFakeEngine(t)}
	rdb := redis.NewClient(&redis.Options{Addr: b.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	log := slog.New(slog.DiscardHandler)
	b.store = store.New(rdb, store.Options{Logger: log})
	t.Cleanup(func() { _ = b.store.Close() })
	blobs, err := blob.New(blob.Config{Endpoint: s3.Endpoint(), AccessKey: "access", SecretKey: "secret-key", Bucket: "farm", Region: "us-east-1"})
	must(t, err)
	must(t, blobs.EnsureBucket(t.Context()))
	e, err := engine.New(engine.Config{Host: "tcp://" + strings.TrimPrefix(b.eng.URL, "http://"), Namespace: "test", Logger: log})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	b.cfg = Config{UploadRetry: 5 * time.Second, Grace: 200 * time.Millisecond}
	b.deps = Deps{
		Store: b.store, Blobs: blobs, Engine: e, Log: log,
		Dispatch: dispatch.New(b.store, queue.NewClient(rdb, log), farm.DefaultLimits(), log),
	}
	return b
}

// worker makes a worker that is not started.
func (b *bundle) worker() *Worker {
	b.t.Helper()
	w, err := New(b.cfg, b.deps)
	must(b.t, err)
	w.node = "n1"
	must(b.t, b.store.Heartbeat(b.t.Context(), farm.Worker{ID: w.id, Node: "n1"}))
	b.t.Cleanup(w.Stop)
	return w
}

// agent starts an agent and links workers to it as that of a sandbox.
func (b *bundle) agent(sandbox farm.Ref, workers ...*Worker) *agenttest.Agent {
	b.t.Helper()
	a := agenttest.Start(b.t, "/usr/bin:/bin", nil)
	b.eng.put(sandbox.ID, true)
	for _, w := range workers {
		join(b.t, w, sandbox, func() *client.Client { return agenttest.Connect(b.t, a.Server) })
	}
	return a
}

// join gives a worker the link to a sandbox.
func join(t *testing.T, w *Worker, sandbox farm.Ref, connect func() *client.Client) {
	t.Helper()
	l, err := w.links.get(context.WithoutCancel(w.base), sandbox.ID, func(context.Context) (*client.Client, error) { return connect(), nil })
	must(t, err)
	<-l.ready
}

// hostile is a client to an agent that answers as the handler does.
func hostile(t *testing.T, h http.Handler) *client.Client {
	t.Helper()
	ours, theirs := net.Pipe()
	session, err := yamux.Server(theirs, nil)
	must(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(session)
	}()
	c, err := client.New(ours, client.Options{})
	must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		_ = session.Close()
		<-served
	})
	return c
}

// accept takes a job in.
func (b *bundle) accept(kind farm.JobKind, sandbox string, request *farm.Request, change func(*store.Accept)) farm.Ref {
	b.t.Helper()
	a := store.Accept{Job: &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: tenant, Kind: kind, SandboxID: sandbox, Queue: farm.QueueCPU, TimeoutSeconds: 60}, Request: request}
	a.Job.Inline = kind == farm.KindClose
	if change != nil {
		change(&a)
	}
	_, err := b.store.Accept(b.t.Context(), a)
	must(b.t, err)
	return a.Job.Ref()
}

// creation takes in a job that makes a sandbox, or runs code in one of its own.
func (b *bundle) creation(kind farm.JobKind) (job, sandbox farm.Ref) {
	b.t.Helper()
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: tenant, OneShot: kind == farm.KindRun,
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600},
	}
	request := &farm.Request{Sandbox: &box.Spec}
	if kind == farm.KindRun {
		request.Command = &farm.CommandRequest{Commands: []string{"echo one shot"}}
	}
	job = b.accept(kind, box.ID, request, func(a *store.Accept) { a.Sandbox = box })
	return job, farm.Ref{Tenant: tenant, ID: box.ID}
}

// ready makes a sandbox that is ready on the worker's node.
func (b *bundle) ready() farm.Ref {
	b.t.Helper()
	job, sandbox := b.creation(farm.KindCreate)
	claim, err := b.store.Claim(b.t.Context(), job, "wrk_setup")
	must(b.t, err)
	b.move(sandbox, farm.SandboxStarting, farm.SandboxReady)
	_, err = b.store.Finish(b.t.Context(), store.Finish{Ref: job, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	must(b.t, err)
	return sandbox
}

func (b *bundle) move(sandbox farm.Ref, states ...farm.SandboxState) {
	b.t.Helper()
	for _, to := range states {
		_, err := b.store.MoveSandbox(b.t.Context(), store.Move{Ref: sandbox, To: to, Node: "n1"})
		must(b.t, err)
	}
}

// command takes in a shell command.
func (b *bundle) command(sandbox farm.Ref, line string) farm.Ref {
	b.t.Helper()
	return b.accept(farm.KindCommand, sandbox.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{line}}}, nil)
}

func (b *bundle) closeJob(sandbox farm.Ref) farm.Ref {
	b.t.Helper()
	return b.accept(farm.KindClose, sandbox.ID, &farm.Request{Close: &farm.CloseRequest{}}, nil)
}

func (b *bundle) job(ref farm.Ref) *farm.Job {
	b.t.Helper()
	job, err := b.store.Job(b.t.Context(), ref)
	must(b.t, err)
	return job
}

func (b *bundle) sandbox(ref farm.Ref) *farm.Sandbox {
	b.t.Helper()
	s, err := b.store.Sandbox(b.t.Context(), ref)
	must(b.t, err)
	return s
}

// stdout joins the text of a job's events.
func (b *bundle) stdout(job farm.Ref) string {
	b.t.Helper()
	var text strings.Builder
	for after := ""; ; {
		events, err := b.store.Events(b.t.Context(), job, after, 0)
		must(b.t, err)
		if len(events) == 0 {
			return text.String()
		}
		for _, e := range events {
			after = e.ID
			if e.Name == farm.EventStdout {
				text.WriteString(e.Text)
			}
		}
	}
}

func task(ref farm.Ref) queue.Task { return queue.Task{Type: queue.TypeJob, Ref: ref} }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for something that comes at once on a healthy machine.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !met(); {
		if time.Now().After(end) {
			t.Fatalf("%s: waited for nothing", what)
		}
		if err := sleep(t.Context(), 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// fakeEngine answers what the worker asks of Docker about containers. Containers go by "test-" and the sandbox's id.
type fakeEngine struct {
	*httptest.Server
	mu         sync.Mutex
	containers map[string]bool // running
	removed    []string
	broken     bool // removals fail
	memory     int  // MiB of the host
	cores      int

	labels  map[string]map[string]string // of containers, where they are not the usual ones
	notes   map[string]map[string]string // labels of volumes
	updates []string                     // bodies of changes of limits
}

func newFakeEngine(t *testing.T) *fakeEngine {
	e := &fakeEngine{containers: map[string]bool{}, memory: 1 << 20, cores: 64, labels: map[string]map[string]string{}, notes: map[string]map[string]string{}}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *fakeEngine) put(sandbox string, running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers["test-"+sandbox] = running
}

func (e *fakeEngine) has(sandbox string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.containers["test-"+sandbox]
	return ok
}

func (e *fakeEngine) breakRemovals(broken bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = broken
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Api-Version", "1.47")
	w.Header().Set("Content-Type", "application/json")
	_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(path, "containers/"), "/json"), "/update")
	running, ok := e.containers[name]
	labels := func(name string) map[string]string {
		if own, ok := e.labels[name]; ok {
			return own
		}
		return map[string]string{engine.LabelNamespace: "test", engine.LabelSandbox: strings.TrimPrefix(name, "test-"), engine.LabelTenant: tenant, engine.LabelNode: "n1"}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/_ping"):
		_, _ = w.Write([]byte("OK"))
	case path == "info":
		_ = json.NewEncoder(w).Encode(map[string]any{"MemTotal": e.memory << 20, "NCPU": e.cores})
	case path == "images/json":
		_ = json.NewEncoder(w).Encode([]any{map[string]any{"Id": "sha256:1", "RepoTags": []string{"sandfarm/python:1"}, "Labels": map[string]string{engine.LabelImage: "python"}}})
	case path == "containers/json":
		list := []any{}
		for name, running := range e.containers {
			state := map[bool]string{true: "running", false: "exited"}[running]
			list = append(list, map[string]any{"Id": name, "Names": []string{"/" + name}, "Labels": labels(name), "State": state, "HostConfig": map[string]any{}})
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.HasPrefix(path, "volumes"):
		e.volume(w, r, strings.TrimPrefix(strings.TrimPrefix(path, "volumes"), "/"))
	case r.Method == http.MethodDelete && e.broken:
		http.Error(w, `{"message":"device or resource busy"}`, http.StatusInternalServerError)
	case !ok:
		http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(e.containers, name)
		e.removed = append(e.removed, name)
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(path, "/json"):
		_ = json.NewEncoder(w).Encode(map[string]any{
			"Id": name, "Created": time.Now().Format(time.RFC3339Nano), "State": map[string]any{"Running": running, "ExitCode": 137, "OOMKilled": !running},
			"HostConfig": map[string]any{}, "Config": map[string]any{"Labels": labels(name)},
		})
	case strings.HasSuffix(r.URL.Path, "/update"):
		body, _ := io.ReadAll(r.Body)
		e.updates = append(e.updates, string(body))
		_, _ = w.Write([]byte("{}"))
	default:
		http.Error(w, `{"message":"the fake does not do this"}`, http.StatusNotImplemented)
	}
}

var errTest = errors.New("made to fail")
