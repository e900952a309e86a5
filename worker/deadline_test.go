package worker

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// deadlinesOf connects a worker to an agent that records the deadlines it gets, in seconds from now.
func deadlinesOf(t *testing.T, w *Worker, box farm.Ref) func() []int64 {
	t.Helper()
	var mu sync.Mutex
	var got []int64
	agent := workertest.Hostile(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ms, err := strconv.ParseInt(r.URL.Query().Get("in_ms"), 10, 64)
		if err != nil || r.Method != http.MethodPut || r.URL.Path != "/v1/deadline" {
			t.Errorf("asked for %s %s", r.Method, r.URL)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, (ms+999)/1000)
	}))
	join(t, w, box, func() *client.Client { return agent })
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// within reports whether n deadlines came and the last is within a minute of the given seconds.
func within(got []int64, n int, seconds int64) bool {
	return len(got) == n && got[n-1] <= seconds && got[n-1] > seconds-60
}

func TestAgentGetsAChangedDeadlineAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	got := deadlinesOf(t, w, box)
	cancels, err := b.Store.Cancels(t.Context())
	workertest.Must(t, err)
	w.background.Go(func() { w.watchCancels(cancels) })
	ttl, name := 7200, "new"
	_, err = b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{Name: &name})
	workertest.Must(t, err)
	_, err = b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{TTLSeconds: &ttl})
	workertest.Must(t, err)
	testbed.Until(t, "the agent has the deadline", func() bool { return within(got(), 1, 7200) })
}

// The reconciler sends deadlines whose message was missed, each once.
func TestReconcilerSendsDeadlines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.Fake.Put(box.ID, true)
	got := deadlinesOf(t, w, box)
	workertest.Must(t, w.reconciler.Run(t.Context())) // the fake's containers have no deadline
	testbed.Until(t, "the agent has the deadline", func() bool { return within(got(), 1, 3600) })
	workertest.Must(t, w.reconciler.Run(t.Context()))
	ttl := 60 * 60 * 24
	_, err := b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{TTLSeconds: &ttl})
	workertest.Must(t, err)
	testbed.Until(t, "the agent has the change", func() bool {
		workertest.Must(t, w.reconciler.Run(t.Context())) // a run during another round of messages leaves them to the next run
		return within(got(), 2, 60*60*24)
	})
	workertest.Must(t, w.reconciler.Run(t.Context()))
	w.node.Close() // the last round has ended
	if n := len(got()); n != 2 {
		t.Errorf("the agent got %d deadlines", n)
	}
}

// A sandbox that its agent ended at the deadline is expired, not lost, whichever part notices first.
func TestSandboxThatEndedItselfIsExpired(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]func(ctx context.Context, w *Worker, job farm.Ref) error{
		"Reconciler": func(ctx context.Context, w *Worker, _ farm.Ref) error { return w.reconciler.Run(ctx) },
		"Job":        func(ctx context.Context, w *Worker, job farm.Ref) error { return w.handle(ctx, workertest.Task(job)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w, box := b.worker(), b.Ready()
			b.Fake.Put(box.ID, false)
			job := b.Command(box, "true")
			w.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
			workertest.Must(t, notice(t.Context(), w, job))
			workertest.Must(t, w.reconciler.Run(t.Context())) // removes what is left
			if s := b.Sandbox(box); s.State != farm.SandboxExpired || s.Reason != "Its time was up." || b.Fake.Has(box.ID) {
				t.Errorf("sandbox is %s (%s), container there: %v", s.State, s.Reason, b.Fake.Has(box.ID))
			}
			if got := b.Job(job); got.State != farm.JobCanceled {
				t.Errorf("the job is %s: %+v", got.State, got.Error)
			}
		})
	}
}
