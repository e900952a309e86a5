package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// submitter accepts jobs that no worker takes.
type submitter struct{ *store.Store }

func (s submitter) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	return s.Accept(ctx, a)
}

func (s submitter) Cancel(context.Context, farm.Ref) (*farm.Job, error) {
	return nil, errors.New("not used")
}

// A batch of jobs with large results is in memory one job at a time, also where an earlier call with the same key has accepted them.
func TestBatchReadsOneResultAtATime(t *testing.T) {
	t.Parallel()
	const jobs, tenant = 5, "acme"
	documents := storetest.NewDocuments()
	st := records(t, documents)
	s := service.New(service.Deps{Submitter: submitter{st}, Store: st}, service.Options{})
	memory := budget.New(16 << 20)
	ctx, hold := memory.With(t.Context(), tenant, time.Minute)
	t.Cleanup(hold.Release)

	entry := json.RawMessage(`{"kind":"run","code":"1"}`)
	entries := make([]json.RawMessage, jobs)
	for i := range entries {
		entries[i] = entry
	}
	call := service.Call{Tenant: tenant, Key: "k", Route: "batch"}
	admitAll := func(more int) (int, error) { return more, nil }
	batch, err := s.Batch(ctx, call, entries, admitAll)
	testbed.Must(t, err)
	result := strings.Repeat("x", 1<<20)
	for out := range batch.Outcomes(ctx) {
		if out.Err != nil || out.Job.State != "queued" || out.Job.Request == nil || out.Sandbox == nil {
			t.Fatalf("accepted: %v, %+v", out.Err, out.Job)
		}
		ref := farm.Ref{Tenant: tenant, ID: out.Job.ID}
		_, err = st.Claim(ctx, ref, "w")
		testbed.Must(t, err)
		_, err = st.Finish(ctx, store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: result}}})
		testbed.Must(t, err)
	}
	for _, wait := range []time.Duration{0, time.Minute} {
		call.Wait = wait
		batch, err := s.Batch(ctx, call, entries, admitAll)
		testbed.Must(t, err)
		_, before := documents.Calls()
		read := 0
		for out := range batch.Outcomes(ctx) {
			read++
			if _, gets := documents.Calls(); gets-before != read {
				t.Errorf("wait %s: %d documents were read for %d outcomes", wait, gets-before, read)
			}
			if out.Err != nil || out.Job.State != "completed" || out.Job.Result == nil || out.Job.Result.Execute.Stdout != result || out.Job.Request == nil {
				t.Errorf("wait %s: outcome %d: %v, job %s is %s", wait, read, out.Err, out.Job.ID, out.Job.State)
			}
		}
		testbed.Diff(t, fmt.Sprintf("wait %s: outcomes", wait), jobs, read)
	}
}

// records is a store that one worker is registered in.
func records(t *testing.T, documents *storetest.Documents) *store.Store {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	st := store.New(rdb, storetest.NoTasks, store.Options{Documents: documents})
	t.Cleanup(func() { _, _ = st.Close(), rdb.Close() })
	testbed.Must(t, st.Heartbeat(t.Context(), farm.Worker{ID: "w", Queues: []string{"cpu"}, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}}))
	return st
}

// Of the entries of a batch that waits for no job, the first 64 KiB stay in memory until they are sent. The others are read again then, and are shown alike.
func TestABatchKeepsNoLongRequests(t *testing.T) {
	t.Parallel()
	const long = 20 << 10 // the request of each entry is a document
	st := records(t, storetest.NewDocuments())
	const head, tail = `{"kind":"run","labels":{"a":"b"},"code":"`, `"}`
	code := func(size int) string { return strings.Repeat("x", size-len(head+tail)) } // of an entry
	entry := func(size int) json.RawMessage { return json.RawMessage(head + code(size) + tail) }
	for name, c := range map[string]struct {
		last int // size of the last entry
		kept int
	}{
		"below the limit": {budget.SmallBytes - 2*long - 1, 3},
		"at the limit":    {budget.SmallBytes - 2*long, 3},
		"above the limit": {budget.SmallBytes - 2*long + 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shown := &showing{submitter: submitter{st}}
			s := service.New(service.Deps{Submitter: shown, Store: st}, service.Options{})
			call := service.Call{Tenant: "acme"}
			entries := []json.RawMessage{entry(long), entry(long), entry(c.last)}
			batch, err := s.Batch(t.Context(), call, entries, func(more int) (int, error) { return more, nil })
			testbed.Must(t, err)
			for i, held := range shown.held {
				deadline := time.Now().Add(10 * time.Second)
				runtime.GC()
				for ; i >= c.kept && held(); runtime.GC() {
					if time.Now().After(deadline) {
						t.Errorf("the request of entry %d stays in memory", i)
						break
					}
				}
				if i < c.kept && !held() {
					t.Errorf("the request of entry %d is not kept", i)
				}
			}
			i := 0
			for out := range batch.Outcomes(t.Context()) {
				testbed.Must(t, out.Err)
				if out.Job.State != "queued" || out.Job.Waiting == nil || out.Job.Request.Code != code(len(entries[i])) || out.Sandbox.Labels["a"] != "b" {
					t.Errorf("entry %d is shown as %+v, %+v", i, out.Job, out.Sandbox)
				}
				i++
			}
			testbed.Diff(t, "outcomes", len(entries), i)
		})
	}
}

// showing is a Submitter that says of what each job shows of its request whether it is in memory.
type showing struct {
	submitter
	held []func() bool
}

func (s *showing) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	accepted, err := s.Accept(ctx, a)
	if err == nil {
		s.held = append(s.held, inMemory(accepted.Job.Redacted))
	}
	return accepted, err
}

// probing is a Submitter that calls submitted first.
type probing struct {
	submitter
	submitted func()
}

func (p probing) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	p.submitted()
	return p.submitter.Submit(ctx, a)
}

// A batch of many small entries is decoded and checked on a core of its tenant's, one entry at a time, which is given back before an entry waits.
func TestEntriesOfABatchAreCheckedOnACore(t *testing.T) {
	t.Parallel()
	const tenant = "acme"
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	st := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _ = st.Close(), rdb.Close() })
	testbed.Must(t, st.Heartbeat(t.Context(), farm.Worker{ID: "w", Queues: []string{"cpu"}, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}}))
	memory := budget.New(0)
	free := func() int { return testbed.FreeCores(t, memory, tenant) }
	whole := free()
	var checked, submitted []int // cores that are free when an entry is checked first, and when it is submitted
	fresh := true
	s := service.New(service.Deps{
		Submitter: probing{submitter{st}, func() { submitted, fresh = append(submitted, free()), true }}, Store: st, Now: func() time.Time {
			if fresh {
				checked, fresh = append(checked, free()), false
			}
			return time.Now()
		},
	}, service.Options{})
	entries := make([]json.RawMessage, 100)
	for i := range entries {
		entries[i] = json.RawMessage(`{"kind":"execute","code":"1","sandbox_id":"` + farm.NewID(farm.SandboxPrefix) + `"}`)
	}
	ctx, hold := memory.With(t.Context(), tenant, 0)
	defer hold.Release()
	_, err := s.Batch(ctx, service.Call{Tenant: tenant}, entries, func(more int) (int, error) { return more, nil })
	testbed.Must(t, err)
	if len(submitted) != len(entries) {
		t.Fatalf("%d of %d entries are submitted", len(submitted), len(entries))
	}
	if checked[0] != whole || checked[len(entries)-1] != whole-1 {
		t.Errorf("of %d cores %d and %d are free while the first and the last entry are checked", whole, checked[0], checked[len(entries)-1])
	}
	if least := slices.Min(submitted); least != whole {
		t.Errorf("of %d cores %d are free when an entry is submitted", whole, least)
	}
	if got := free(); got != whole {
		t.Errorf("of %d cores %d are free after the batch", whole, got)
	}
}

// A request that waits for its job is not charged any more, so its body is not in memory: no part of it keeps the rest.
func TestARequestThatWaitsHoldsNoBody(t *testing.T) {
	t.Parallel()
	const size, many = 1 << 20, 1000
	st := records(t, storetest.NewDocuments())
	a := storetest.Create()
	_, err := st.Accept(t.Context(), a)
	testbed.Must(t, err)
	box := a.Sandbox.ID
	for name, start := range map[string]func(context.Context, *service.Service, service.Call) (service.Outcome, error){
		"code": func(ctx context.Context, s *service.Service, c service.Call) (service.Outcome, error) {
			return s.Execute(ctx, c, box, wire.ExecuteRequest{Code: strings.Repeat("x", size)})
		},
		"commands": func(ctx context.Context, s *service.Service, c service.Call) (service.Outcome, error) {
			return s.Command(ctx, c, box, wire.CommandRequest{Commands: []string{"true", strings.Repeat("x", size)}})
		},
		"run": func(ctx context.Context, s *service.Service, c service.Call) (service.Outcome, error) {
			return s.Run(ctx, c, wire.RunRequest{Code: "1", Files: slices.Collect(func(yield func(wire.InputFile) bool) {
				for i := range many {
					yield(wire.InputFile{Path: fmt.Sprint(i), Content: new("1")})
				}
			})})
		},
		"files": func(ctx context.Context, s *service.Service, c service.Call) (service.Outcome, error) {
			i := 0
			return s.WriteFiles(ctx, c, box, ".", func() (service.Part, error) {
				if i++; i > many {
					return service.Part{}, io.EOF
				}
				return service.Part{Path: fmt.Sprint(i), Content: strings.NewReader("1")}, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parts := make(chan map[string]func() bool, 1) // of the body: whether each is in memory
			s := service.New(service.Deps{Submitter: weighing{submitter{st}, parts}, Store: st}, service.Options{})
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := start(ctx, s, service.Call{Tenant: storetest.Tenant, Wait: time.Hour})
				left <- err
			}()
			select {
			case err := <-left:
				t.Fatalf("before the job is accepted: %v", err)
			case found := <-parts:
				for what, held := range found {
					deadline := time.Now().Add(10 * time.Second)
					for runtime.GC(); held(); runtime.GC() {
						if time.Now().After(deadline) {
							t.Errorf("the %s stays in memory while the job is waited for", what)
							break
						}
					}
				}
			}
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller has left: %v", err)
			}
		})
	}
}

// weighing is a Submitter that says of the parts of each request whether they are in memory.
type weighing struct {
	submitter
	parts chan map[string]func() bool
}

func (w weighing) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	found := map[string]func() bool{}
	for name, r := range map[string]*farm.Request{"request": a.Request, "shown request": a.Whole} {
		found[name] = inMemory(r)
		switch {
		case r.Command != nil:
			found["last command of the "+name] = inMemory(unsafe.StringData(r.Command.Commands[len(r.Command.Commands)-1]))
		case r.File != nil:
			found["list of parts of the "+name] = inMemory(&r.File.Parts[0])
		case len(r.Files) > 0:
			found["list of files of the "+name] = inMemory(&r.Files[0])
		default:
			found["code of the "+name] = inMemory(unsafe.StringData(r.Execute.Code))
		}
	}
	accepted, err := w.submitter.Submit(ctx, a)
	w.parts <- found
	return accepted, err
}

func inMemory[T any](part *T) func() bool {
	w := weak.Make(part)
	return func() bool { return w.Value() != nil }
}

// emptyQueues have no backlog.
type emptyQueues struct{ service.Queues }

func (emptyQueues) Depths(context.Context) ([]farm.QueueDepth, error) { return nil, nil }

// What a tenant has in its queues is counted page by page: no record is held.
func TestQueuesOfATenantHoldNoRecords(t *testing.T) {
	t.Parallel()
	const jobs = 250 // more than a page
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	st := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _ = st.Close(), rdb.Close() })
	a := storetest.Create()
	_, err := st.Accept(t.Context(), a)
	testbed.Must(t, err)
	for range jobs {
		job := storetest.Execute(a.Sandbox.ID)
		job.Job.Redacted = &farm.Request{Execute: &farm.ExecuteRequest{Code: strings.Repeat("x", 1000)}}
		_, err := st.Accept(t.Context(), job)
		testbed.Must(t, err)
	}
	s := service.New(service.Deps{Store: st, Queues: emptyQueues{}}, service.Options{})
	ctx, hold := budget.New(0).With(t.Context(), storetest.Tenant, 0)
	defer hold.Release()
	list, err := s.OwnQueues(ctx, storetest.Tenant)
	testbed.Must(t, err)
	if i := slices.IndexFunc(list.Items, func(q wire.Queue) bool { return q.Name == farm.QueueCPU }); list.Items[i].Depth != jobs+1 {
		t.Errorf("of the jobs of a tenant %d wait, want %d", list.Items[i].Depth, jobs+1)
	}
	testbed.Diff(t, "bytes that are held", int64(0), hold.Bytes())
}

// emptyPages is a Store whose pages of jobs are empty, without an end, and counts them.
type emptyPages struct {
	*store.Store
	read int
}

func (e *emptyPages) Jobs(context.Context, string, store.JobFilter, store.Page) ([]*farm.Job, string, error) {
	e.read++
	return nil, "more", nil
}

// Cells of a notebook are looked for in four pages of jobs, however many a sandbox has run.
func TestCellsAreLookedForInSomePages(t *testing.T) {
	t.Parallel()
	pages := &emptyPages{}
	cells, err := service.New(service.Deps{Store: pages}, service.Options{}).Cells(t.Context(), storetest.Tenant, "sbx_1", "session")
	testbed.Must(t, err)
	testbed.Check(t, len(cells) == 0 && pages.read == 4, "%d cells in %d pages", len(cells), pages.read)
}

// leaving is a Submitter whose caller leaves once the job is accepted.
type leaving struct {
	*store.Store
	leave    context.CancelFunc
	answers  bool // the caller hears that the job was accepted
	ends     bool // the job ends before its cancel
	accepted *farm.Job
}

func (l *leaving) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	accepted, err := l.Accept(ctx, a)
	l.accepted = accepted.Job
	l.leave()
	if err == nil && !l.answers {
		return store.Accepted{}, context.Canceled
	}
	return accepted, err
}

func (l *leaving) Cancel(ctx context.Context, ref farm.Ref) (*farm.Job, error) {
	if l.ends {
		if _, err := l.Claim(ctx, ref, "w"); err != nil {
			return nil, err
		}
		result := &farm.Result{File: &farm.FileResult{Staged: "staging/" + ref.ID}}
		if _, err := l.Finish(ctx, store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: result}); err != nil {
			return nil, err
		}
	}
	job, _, err := l.Store.Cancel(ctx, ref, nil)
	return job, err
}

// dropped are the keys that were deleted.
type dropped struct {
	service.Blobs
	keys []string
}

func (d *dropped) Delete(ctx context.Context, keys ...string) error {
	d.keys = append(d.keys, keys...)
	return ctx.Err()
}

// A read whose caller has left is canceled; what it has staged by then is deleted.
func TestReadsEndWithTheirCaller(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	st := store.New(rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _ = st.Close(), rdb.Close() })
	a := storetest.Create()
	must := func(_ any, err error) {
		t.Helper()
		testbed.Must(t, err)
	}
	must(st.Accept(t.Context(), a))
	for _, state := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		must(st.MoveSandbox(t.Context(), store.Move{Ref: a.Sandbox.Ref(), To: state, Node: "n1"}))
	}
	for name, l := range map[string]*leaving{
		"while it waits":       {answers: true},
		"before it hears":      {},
		"at the end of a read": {answers: true, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			l.Store, l.leave = st, leave
			blobs := &dropped{}
			s := service.New(service.Deps{Submitter: l, Store: st, Blobs: blobs}, service.Options{})
			call := service.Call{Tenant: storetest.Tenant, Wait: time.Minute}
			if _, err := s.ReadFile(ctx, call, a.Sandbox.ID, "big.bin", service.Range{}); err == nil {
				t.Fatal("a read without a caller is answered")
			}
			job, err := st.Job(t.Context(), l.accepted.Ref())
			must(nil, err)
			want, keys := farm.JobCanceled, []string(nil)
			if l.ends {
				want, keys = farm.JobCompleted, []string{"staging/" + job.ID}
			}
			testbed.Diff(t, "the job", want, job.State)
			testbed.Diff(t, "deleted", keys, blobs.keys)
		})
	}
}
