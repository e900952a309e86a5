package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/internal/webhook"
)

// Whoever waits for a callback finds in the log why it does not come, and when it is tried next.
func TestFailedCallbacksAreLogged(t *testing.T) {
	t.Parallel()
	refused := &webhook.Failure{Host: "hooks.example:9000", Reason: errors.New("the receiver answered 400")}
	gone := &webhook.Failure{Host: "hooks.example:9000", Gone: true, Reason: errors.New("the receiver answered 410")}
	first, last := queue.Try{Number: 1, Max: 16, RetryIn: 5 * time.Second}, queue.Try{Number: 16, Max: 16}
	for name, test := range map[string]struct {
		err   error
		try   queue.Try
		stops bool     // the worker stops while it delivers
		log   []string // parts of the only line; empty: there is none
		again bool     // the queue tries again
		count string   // the outcome that is counted; empty: none
	}{
		"Delivered": {nil, first, false, nil, false, callbackOK},
		"Refused": {
			refused, first, false,
			[]string{"level=WARN", "tried again", "job_id=job_", "host=hooks.example:9000", "answered 400", "try=1 tries=16", "retry_in_ms=5000"},
			true, callbackError,
		},
		"LastTry":            {refused, last, false, []string{"level=WARN", "given up", "host=hooks.example:9000", "answered 400", "try=16 tries=16"}, false, callbackGivenUp},
		"Gone":               {gone, first, false, []string{"given up", "answered 410", "try=1 tries=16"}, false, callbackGivenUp},
		"OtherTrouble":       {errors.New("read job: no answer"), first, false, []string{"tried again", "read job: no answer"}, true, callbackError},
		"DeliveredAsItStops": {nil, first, true, nil, false, callbackOK},
		"WorkerStops":        {refused, last, true, nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			var log bytes.Buffer
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			b.deps.Log = slog.New(slog.NewTextHandler(&log, nil))
			b.deps.Callback = func(context.Context, farm.Ref) error {
				if test.stops {
					stop()
				}
				return test.err
			}
			w := b.worker()
			ref := b.Accept(farm.KindCommand, b.Ready().ID, &farm.Request{}, func(a *store.Accept) { a.Job.CallbackURL = "https://hooks.example:9000/secret?token=secret" })
			_, err := b.Dispatch.Cancel(t.Context(), ref)
			testbed.Must(t, err)
			log.Reset()
			err = w.deliver(ctx, queue.Task{Type: queue.TypeCallback, Ref: ref, Try: test.try})
			testbed.Diff(t, fmt.Sprintf("error %v: tried again", err), test.again, err != nil)
			lines := log.String()
			testbed.Check(t, strings.Count(lines, "\n") == min(len(test.log), 1) && !strings.Contains(lines, "secret"), "log:\n%s", lines)
			for _, part := range test.log {
				testbed.Check(t, strings.Contains(lines, part), "no %q in the log:\n%s", part, lines)
			}
			left, err := b.Store.Callbacks(t.Context(), ref.Tenant, 10)
			if testbed.Must(t, err); len(left) == 1 != test.again {
				t.Errorf("callbacks left: %v", left)
			}
			for _, outcome := range []string{callbackOK, callbackError, callbackGivenUp} {
				var got dto.Metric
				testbed.Must(t, w.metrics.callbacks.WithLabelValues(outcome).Write(&got))
				n := got.GetCounter().GetValue()
				testbed.Check(t, (n == 1) == (outcome == test.count), "%s was counted %v times", outcome, n)
			}
		})
	}
}

// A receiver that never answers holds no slot of jobs, and only some of those of callbacks.
func TestSilentReceiversStopNobodyElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.Slots = 1
	dial := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: b.Redis.Addr()}) }
	b.deps.Listen = func(c queue.ServerConfig) (Server, error) {
		c.Logger = b.Log
		return queue.NewServer(dial, c)
	}
	const silent = "silent"
	began, others, release := make(chan struct{}, 1000), make(chan string, 1000), make(chan struct{})
	b.deps.Callback = func(_ context.Context, ref farm.Ref) error {
		if ref.Tenant == silent {
			began <- struct{}{}
			<-release
		} else {
			others <- ref.ID
		}
		return nil
	}
	w := b.worker()
	t.Cleanup(sync.OnceFunc(func() { close(release) })) // before the worker stops
	rdb := dial()
	t.Cleanup(func() { _ = rdb.Close() })
	tasks := queue.NewClient(rdb, b.Log)
	send := func(name string, task queue.Task) {
		testbed.Must(t, tasks.Enqueue(t.Context(), name, task, queue.EnqueueOptions{ID: task.Ref.ID}))
	}
	for i := range callbackSlots + 10 {
		send(farm.QueueCallbacks, queue.Task{Type: queue.TypeCallback, Ref: farm.Ref{Tenant: silent, ID: fmt.Sprintf("job_silent%d", i)}})
	}
	send(farm.QueueCallbacks, queue.Task{Type: queue.TypeCallback, Ref: farm.Ref{Tenant: "other", ID: "job_other"}})
	send(farm.QueueControl, queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "other", ID: "job_unknown"}})
	testbed.Must(t, w.serve())
	select {
	case <-others:
	case <-time.After(time.Minute):
		t.Fatal("the other tenant's callback waits for the silent receiver")
	}
	testbed.Until(t, "a job is handled beside the callbacks", func() bool {
		waits, err := tasks.Has(t.Context(), farm.QueueControl, "job_unknown")
		testbed.Must(t, err)
		return !waits
	})
	const share = callbackSlots / 2
	testbed.Until(t, "the silent tenant has all that it may have", func() bool { return len(began) >= share-1 }) // beside the other one
	n := len(began)
	testbed.Check(t, n <= share, "%d callbacks of one tenant are delivered at once, want %d", n, share)
}

// enterAll begins deliveries of a tenant until it has its share.
func enterAll(l *lanes, tenant string) (leave []func(), later time.Duration) {
	for {
		one, err := l.enter(tenant)
		if err != nil {
			put, _ := errors.AsType[queue.Later](err)
			return leave, put.In
		}
		leave = append(leave, one)
	}
}

// Callbacks beyond a tenant's share come again the later, the more there are, and at once after one has ended.
func TestCallbacksOfATenantTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLanes()
	busy, first := enterAll(l, "a")
	testbed.Diff(t, "callbacks of a tenant at once", callbackSlots/2, len(busy))
	for range 10_000 {
		enterAll(l, "a")
	}
	_, last := enterAll(l, "a")
	testbed.Check(t, first == time.Second && last == longestPutBack, "the first that is put back waits for %v, the last for %v", first, last)
	busy[0]()
	again, later := enterAll(l, "a")
	testbed.Diff(t, "deliveries in place of one that ended", 1, len(again))
	testbed.Diff(t, "after a delivery ended, the next that is put back waits for", first, later)
	for _, leave := range append(busy[1:], again...) {
		leave()
	}
	testbed.Check(t, len(l.putBack) == 0, "%d tenants are kept without a delivery", len(l.putBack))
}

// Silent receivers of several tenants leave places to the next.
func TestCallbacksOfSomeTenantsLeavePlaces(t *testing.T) {
	t.Parallel()
	l := newLanes()
	var got []int
	for _, tenant := range []string{"a", "b", "c", "d", "e", "f"} {
		busy, _ := enterAll(l, tenant)
		got = append(got, len(busy))
	}
	testbed.Diff(t, "callbacks of each tenant", []int{32, 16, 8, 4, 2, 1}, got)
	_, err := l.enter("g")
	testbed.Must(t, err)
}
