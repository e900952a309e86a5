package store_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// waits answers WAITAOF, which Redis has since 7.2, for a server without it. It counts the calls.
type waits struct {
	mu     sync.Mutex
	synced int64 // files that have synced
	calls  int
}

func (w *waits) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (w *waits) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "waitaof" {
			return w.answer(cmd)
		}
		return next(ctx, cmd)
	}
}

func (w *waits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		last := cmds[len(cmds)-1]
		if last.Name() != "waitaof" {
			return next(ctx, cmds)
		}
		err := next(ctx, cmds[:len(cmds)-1])
		_ = w.answer(last)
		return err
	}
}

func (w *waits) answer(cmd redis.Cmder) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	cmd.(*redis.Cmd).SetVal([]any{w.synced, int64(0)})
	return nil
}

// count gives the number of calls since the last one.
func (w *waits) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.calls = 0 }()
	return w.calls
}

// waitingStore is a store with DurabilityAOF.
func waitingStore(t *testing.T) (*store.Store, *waits) {
	t.Helper()
	w := &waits{synced: 1}
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	rdb.AddHook(w)
	t.Cleanup(func() { _ = rdb.Close() })
	return store.New(rdb, storetest.NoTasks, store.Options{Durability: store.DurabilityAOF}), w
}

func TestAcceptAndFinishWaitForTheFile(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	if err := s.CheckDurability(t.Context()); err != nil || w.count() != 1 {
		t.Errorf("CheckDurability: %v", err)
	}
	if err := s.Heartbeat(t.Context(), farm.Worker{ID: "w1"}); err != nil || w.count() != 0 {
		t.Errorf("a heartbeat waited, %v", err)
	}
	for _, limit := range []int{2, 1} { // the first calls send their scripts once more
		waited := func(what string, err error) {
			t.Helper()
			if n := w.count(); err != nil || n < 1 || n > limit {
				t.Errorf("%s waited %d times, %v", what, n, err)
			}
		}
		a := storetest.Create()
		_, err := s.Accept(t.Context(), a)
		waited("Accept", err)
		ref := a.Job.Ref()
		claim, err := s.Claim(t.Context(), ref, "w1")
		if err != nil || w.count() != 0 {
			t.Fatalf("Claim: %v", err)
		}
		waited("Checkpoint", s.Checkpoint(t.Context(), ref, claim.Job.Attempt, []byte("{}")))
		_, err = s.Finish(t.Context(), store.Finish{Ref: ref, Attempt: claim.Job.Attempt, State: farm.JobCompleted})
		waited("Finish", err)
	}
}

// What is stored but not confirmed in time is an error, so that the caller repeats the call, which waits again.
func TestUnconfirmedWriteIsRepeated(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	w.synced = 0
	a := storetest.Create()
	if _, err := s.Accept(t.Context(), a); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("unconfirmed Accept: %v", err)
	}
	w.synced = 1
	w.count()
	if out, err := s.Accept(t.Context(), a); err != nil || w.count() != 1 || out.Job.ID != a.Job.ID {
		t.Errorf("repeated Accept: %+v, %v", out, err)
	}
	claim, err := s.Claim(t.Context(), a.Job.Ref(), "w1")
	if err != nil {
		t.Fatal(err)
	}
	f := store.Finish{Ref: a.Job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobCompleted}
	w.synced = 0
	if _, err := s.Finish(t.Context(), f); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("unconfirmed Finish: %v", err)
	}
	w.synced = 1
	if _, err := s.Finish(t.Context(), store.Finish{Ref: f.Ref, Attempt: f.Attempt + 1, State: f.State}); err == nil {
		t.Error("another attempt finished the job")
	}
}

// Many jobs that end at once wait for the file together.
func TestWaitsAreShared(t *testing.T) {
	t.Parallel()
	s, w := waitingStore(t)
	const jobs = 64
	var wg sync.WaitGroup
	errs := make([]error, jobs)
	for i := range jobs {
		a := storetest.Create()
		wg.Go(func() { _, errs[i] = s.Accept(t.Context(), a) })
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		t.Errorf("Accept: %v", errs[i])
	}
	if n := w.count(); n > jobs {
		t.Errorf("%d waits for %d jobs", n, jobs)
	} else {
		t.Logf("%d waits for %d jobs", n, jobs)
	}
}

func TestDurableAfter(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	for d, want := range map[store.Durability]time.Duration{
		"": 0, store.DurabilityAOF: 0, store.DurabilityReplica: 0, store.DurabilityEverySec: 2 * time.Second,
	} {
		if got := store.New(rdb, storetest.NoTasks, store.Options{Durability: d}).DurableAfter(); got != want {
			t.Errorf("%q: durable after %s, want %s", d, got, want)
		}
	}
}
