package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
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
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	documents := storetest.NewDocuments()
	st := store.New(rdb, storetest.NoTasks, store.Options{Documents: documents})
	t.Cleanup(func() { _, _ = st.Close(), rdb.Close() })
	ctx := t.Context()
	if err := st.Heartbeat(ctx, farm.Worker{ID: "w", Queues: []string{"cpu"}, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}}); err != nil {
		t.Fatal(err)
	}
	s := service.New(service.Deps{Submitter: submitter{st}, Store: st}, service.Options{})
	memory := budget.New(16 << 20)
	ctx, hold := memory.With(ctx, tenant, time.Minute)
	t.Cleanup(hold.Release)

	entry := json.RawMessage(`{"kind":"run","code":"1"}`)
	entries := make([]json.RawMessage, jobs)
	for i := range entries {
		entries[i] = entry
	}
	call := service.Call{Tenant: tenant, Key: "k", Route: "batch"}
	admitAll := func(more int) (int, error) { return more, nil }
	batch, err := s.Batch(ctx, call, entries, admitAll)
	if err != nil {
		t.Fatal(err)
	}
	result := strings.Repeat("x", 1<<20)
	for out := range batch.Outcomes(ctx) {
		if out.Err != nil || out.Job.State != "queued" || out.Job.Request == nil || out.Sandbox == nil {
			t.Fatalf("accepted: %v, %+v", out.Err, out.Job)
		}
		ref := farm.Ref{Tenant: tenant, ID: out.Job.ID}
		if _, err := st.Claim(ctx, ref, "w"); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Finish(ctx, store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: result}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, wait := range []time.Duration{0, time.Minute} {
		call.Wait = wait
		batch, err := s.Batch(ctx, call, entries, admitAll)
		if err != nil {
			t.Fatal(err)
		}
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
		if read != jobs {
			t.Errorf("wait %s: %d outcomes", wait, read)
		}
	}
}
