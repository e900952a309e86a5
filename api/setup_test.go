package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// bundle is a farm of which only Docker, S3 and the queue are fakes: records and events are the real store on miniredis.
type bundle struct {
	t         *testing.T
	store     *store.Store
	redis     *miniredis.Miniredis
	blobs     *memory
	documents *storetest.Documents // of records
	worker    *fakeWorker
	server    *api.Server
	web       *httptest.Server
	log       *testbed.Log
}

type option func(*api.Config, *api.Deps)

const key, otherKey = "key-of-acme", "key-of-rival"

func hash(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }

// withKeys gives the server two tenants.
func withKeys(c *api.Config, _ *api.Deps) {
	c.Keys = []api.KeyConfig{{Tenant: "acme", SHA256: hash(key)}, {Tenant: "rival", SHA256: hash(otherKey)}}
}

func setup(t *testing.T, options ...option) *bundle {
	t.Helper()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	b := &bundle{t: t, redis: mini, blobs: &memory{objects: map[string][]byte{}}, documents: storetest.NewDocuments(), log: &testbed.Log{}}
	cfg := api.Config{Heartbeat: time.Second}
	deps := api.Deps{Blobs: b.blobs, Queues: depths{}, Resolver: resolver{}, Version: "1.2.3", Data: "/srv/farm", Logger: b.logger()}
	for _, o := range options {
		o(&cfg, &deps)
	}
	b.store = store.New(rdb, storetest.NoTasks, store.Options{Limits: cfg.Limits, Documents: charging{b.documents}})
	t.Cleanup(func() { _ = b.store.Close() })
	b.worker = startWorker(t, b, rdb, cfg.Limits)
	deps.Store, deps.Submitter = b.store, b.worker
	var err error
	b.server, err = api.New(cfg, deps)
	testbed.Must(t, err)
	b.web = httptest.NewServer(b.server.Handler())
	t.Cleanup(func() { b.server.Stop(); b.web.Close() })
	return b
}

// charging charges for the documents of records, as package blob does.
type charging struct{ *storetest.Documents }

func (c charging) GetDocument(ctx context.Context, key string) ([]byte, error) {
	text, err := c.Documents.GetDocument(ctx, key)
	if err == nil {
		err = budget.Charge(ctx, 6*int64(len(text)))
	}
	return text, err
}

func (b *bundle) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(b.log, nil)) }

// over is the same farm behind another server.
func (b *bundle) over(server *api.Server) *bundle {
	b.t.Helper()
	second := *b
	second.server, second.web = server, httptest.NewServer(server.Handler())
	b.t.Cleanup(second.web.Close)
	return &second
}

// do sends a request and gives its answer with the body read.
func (b *bundle) do(method, target string, body any, headers ...string) (*http.Response, []byte) {
	b.t.Helper()
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(body)
	case []byte:
		reader = bytes.NewReader(body)
	case io.Reader:
		reader = body
	default:
		text, err := json.Marshal(body)
		testbed.Must(b.t, err)
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.web.URL+target, reader)
	testbed.Must(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	testbed.Must(b.t, err)
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatalf("read answer of %s %s: %v", method, target, err)
	}
	return answer, content
}

// get decodes the answer of a request that must have a status.
func get[T any](b *bundle, status int, method, target string, body any, headers ...string) T {
	b.t.Helper()
	answer, content := b.do(method, target, body, headers...)
	var out T
	if answer.StatusCode != status {
		b.t.Fatalf("%s %s: status %d, want %d: %s", method, target, answer.StatusCode, status, content)
	}
	if err := json.Unmarshal(content, &out); err != nil {
		b.t.Fatalf("%s %s: %v in %s", method, target, err, content)
	}
	return out
}

// problem checks that a request is refused with a code, in the right form, and gives the problem.
func (b *bundle) problem(code farm.Code, status int, method, target string, body any, headers ...string) wire.Problem {
	b.t.Helper()
	answer, content := b.do(method, target, body, headers...)
	var p wire.Problem
	if err := json.Unmarshal(content, &p); err != nil {
		b.t.Fatalf("%s %s: status %d, no problem: %s", method, target, answer.StatusCode, content)
	}
	if answer.StatusCode != status || p.Code != string(code) || p.Status != status {
		b.t.Fatalf("%s %s: status %d code %q, want %d %q: %s", method, target, answer.StatusCode, p.Code, status, code, content)
	}
	if kind := answer.Header.Get("Content-Type"); kind != "application/problem+json" {
		b.t.Fatalf("%s %s: content type %q", method, target, kind)
	}
	if p.Type == "" || p.Title == "" || p.Detail == "" || p.RequestID != answer.Header.Get("X-Request-Id") || !strings.HasPrefix(p.RequestID, "req_") {
		b.t.Fatalf("%s %s: the problem lacks something: %s", method, target, content)
	}
	return p
}

// sandbox creates a ready sandbox.
func (b *bundle) sandbox(headers ...string) string {
	b.t.Helper()
	made := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", "{}", headers...)
	if made.Sandbox.State != "ready" || made.Job.State != "completed" {
		b.t.Fatalf("sandbox is %s, job %s", made.Sandbox.State, made.Job.State)
	}
	return made.Sandbox.ID
}

// fakeWorker takes jobs from the store as a worker would and ends them by what their code says.
type fakeWorker struct {
	*store.Store
	rdb   *redis.Client
	tasks chan farm.Ref
	files *workspace
	blobs *memory
	gate  chan struct{} // code "block" and packages named "slow" wait for it
	have  installed
	looks atomic.Int32 // for packages, into sandboxes
}

func startWorker(t *testing.T, b *bundle, rdb *redis.Client, limits farm.Limits) *fakeWorker {
	t.Helper()
	records := store.New(rdb, storetest.Tasks, store.Options{Limits: limits, Documents: b.documents})
	t.Cleanup(func() { _ = records.Close() })
	w := &fakeWorker{Store: records, rdb: rdb, tasks: make(chan farm.Ref, 1000), files: &workspace{files: map[string][]byte{}}, blobs: b.blobs, gate: make(chan struct{})}
	err := b.store.Heartbeat(t.Context(), farm.Worker{ID: "wrk_1", Queues: []string{"cpu"}, Runtimes: []string{"runc"}, Images: []farm.Image{{Name: "python", Languages: []string{"python", "bash"}}}})
	testbed.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				select {
				case ref := <-w.tasks:
					w.work(ctx, ref)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); group.Wait() })
	return w
}

// Submit takes a job in as the dispatcher does.
func (w *fakeWorker) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	accepted, err := w.Accept(ctx, a)
	w.take(ctx)
	return accepted, err
}

// Cancel ends a job as the dispatcher does.
func (w *fakeWorker) Cancel(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	job, _, err := w.Store.Cancel(ctx, ref, nil)
	w.take(ctx)
	return job, err
}

// take takes the jobs that were enqueued.
func (w *fakeWorker) take(ctx context.Context) {
	jobs, _ := storetest.Enqueued(context.WithoutCancel(ctx), w.rdb, "sf:")
	for _, ref := range jobs {
		w.tasks <- ref
	}
}

func (w *fakeWorker) work(ctx context.Context, ref farm.Ref) {
	claim, err := w.Claim(ctx, ref, "wrk_1")
	if err != nil || w.LoadRequest(ctx, claim) != nil {
		return
	}
	w.take(ctx)
	end := store.Finish{Ref: ref, Attempt: claim.Job.Attempt, State: farm.JobCompleted}
	box := farm.Ref{Tenant: ref.Tenant, ID: claim.Job.SandboxID}
	switch claim.Job.Kind {
	case farm.KindCreate, farm.KindRun:
		_, _ = w.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxStarting, Node: "n1"})
		_, _ = w.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxReady, Container: "c1"})
		if claim.Request.Install != nil {
			end.Result = w.install(ctx, claim)
		}
		if claim.Request.Execute != nil {
			w.execute(ctx, ref, claim, &end)
		}
	case farm.KindInstall:
		end.Result = w.install(ctx, claim)
	case farm.KindPackages:
		w.looks.Add(1)
		end.Result = &farm.Result{Packages: w.have.all()}
	case farm.KindExecute:
		w.execute(ctx, ref, claim, &end)
	case farm.KindCommand:
		end.Result = &farm.Result{Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{Command: claim.Request.Command.Commands[0], Stdout: "ran\n"}}}}
	case farm.KindClose:
		open, _ := w.UnfinishedJobs(ctx, box)
		for _, job := range open {
			if job.ID != ref.ID {
				_, _ = w.Force(ctx, job, farm.JobCanceled, nil)
			}
		}
		_, _ = w.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxClosed})
	case farm.KindFile:
		result, err := w.files.do(ctx, w.blobs, claim.Request.File)
		if err == nil && result.Staged != "" {
			err = w.KeepCopy(ctx, ref, result.Length, 0)
		}
		end.Result = &farm.Result{File: result}
		if err != nil {
			end.State, end.Result = farm.JobFailed, nil
			end.Error = &farm.JobError{Code: farm.CodeOf(err), Message: farm.MessageOf(err)}
		}
	default:
	}
	_, _ = w.Finish(ctx, end)
	w.take(ctx)
}

// execute plays code: "print X" prints, "make NAME" makes an artifact, "animate" displays, updates and clears, "block" waits for the gate, "end STATE" ends so.
func (w *fakeWorker) execute(ctx context.Context, ref farm.Ref, claim *store.Claim, end *store.Finish) {
	verb, rest, _ := strings.Cut(claim.Request.Execute.Code, " ")
	out := &farm.ExecuteResult{ExecutionCount: 1}
	end.Result = &farm.Result{Execute: out}
	switch verb {
	case "end":
		end.State, end.Timings.RunMS = farm.JobState(rest), 3100 // it takes a while to end code that ignores the interrupt
	case "print":
		out.Stdout = rest + "\n"
		_ = w.AppendEvents(ctx, ref, claim.Job.Attempt, []farm.Event{{ID: "3-0", Name: farm.EventStdout, Text: out.Stdout}})
		end.LastEvent = 3
	case "make":
		now := time.Now()
		a := farm.Artifact{
			ID: farm.ArtifactID(ref.ID, rest), Tenant: ref.Tenant, SandboxID: claim.Job.SandboxID, JobID: ref.ID, Name: rest, Path: rest,
			Size: 1, ContentType: "text/plain", Key: "artifacts/" + rest, CreatedAt: now, ExpiresAt: now.Add(time.Hour),
		}
		_ = w.AddArtifacts(ctx, 0, []farm.Artifact{a})
		_ = w.AppendEvents(ctx, ref, claim.Job.Attempt, []farm.Event{{ID: "3-0", Name: farm.EventArtifact, Artifact: &a}})
		end.Result.Artifacts, end.LastEvent = []farm.Artifact{a}, 3
	case "animate":
		first := farm.RichResult{Mime: "text/plain", Data: "1", DisplayID: "bar", Metadata: json.RawMessage(`{"width":"<3"}`)}
		update := first
		update.Data, update.Update = "", true
		last := farm.RichResult{Display: 1, Mime: "text/plain", Data: "2", Result: true}
		_ = w.AppendEvents(ctx, ref, claim.Job.Attempt, []farm.Event{
			{ID: "3-1", Name: farm.EventDisplay, Display: &first},
			{ID: "4-1", Name: farm.EventDisplay, Display: &update},
			{ID: "5-1", Name: farm.EventClear, Wait: true},
			{ID: "6-1", Name: farm.EventDisplay, Display: &last},
			{ID: "7-1", Name: farm.EventClear},
		})
		update.Update = false
		out.Rich, end.LastEvent = []farm.RichResult{update, last}, 7
	case "block":
		_ = w.AppendEvents(ctx, ref, claim.Job.Attempt, []farm.Event{{ID: "3-0", Name: farm.EventStdout, Text: "begun\n"}})
		select {
		case <-w.gate:
		case <-ctx.Done():
		}
	case "note":
		end.Result.Notes = []string{rest}
	case "raise":
		out.Error = &farm.CodeError{Name: "ValueError", Value: rest}
		out.ExitCode = 1
		if cell := claim.Request.Execute.Cell; cell != nil && cell.Stops {
			behind, _ := w.QueuedCells(ctx, farm.Ref{Tenant: ref.Tenant, ID: claim.Job.SandboxID}, cell.Session)
			for _, waiting := range behind {
				_, _ = w.Cancel(ctx, waiting)
			}
		}
	}
}
