package scheduler_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, f *fake, log *strings.Builder) *scheduler.Scheduler {
	t.Helper()
	return startWith(t, f, log, scheduler.Config{})
}

func startWith(t *testing.T, f *fake, log *strings.Builder, cfg scheduler.Config) *scheduler.Scheduler {
	t.Helper()
	handler := slog.DiscardHandler
	if log != nil {
		handler = slog.NewTextHandler(&locked{to: log}, nil)
	}
	cfg.Settle = cmp.Or(cfg.Settle, -1)
	s, err := scheduler.New(cfg, scheduler.Deps{Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Log: slog.New(handler)})
	testbed.Must(t, err)
	testbed.Must(t, s.Start(t.Context()))
	return s
}

type locked struct {
	mu sync.Mutex
	to *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

func count(steps []string, step string) (n int) {
	for _, s := range steps {
		if s == step {
			n++
		}
	}
	return n
}

// These tests use the fake clock of synctest: they take no time and are deterministic.

func TestOneOfTwoLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		one := start(t, f, nil)
		synctest.Wait()
		two := start(t, f, nil)
		time.Sleep(10*time.Second + time.Millisecond)
		if n := count(f.done(), "sweep a"); n < 4 || n > 6 {
			t.Errorf("%d sweeps in 10 s at one in 2 s", n)
		}
		first := f.leader()
		one.Stop()
		time.Sleep(2 * time.Second) // the lock was released: the other scheduler does not wait for its expiry
		if now := f.leader(); now == first || now == "" {
			t.Errorf("after the stop of %q, %q leads", first, now)
		}
		before := count(f.done(), "sweep a")
		time.Sleep(10 * time.Second)
		if n := count(f.done(), "sweep a") - before; n < 4 || n > 6 {
			t.Errorf("%d sweeps in 10 s by the second scheduler", n)
		}
		two.Stop()
		two.Stop()
	})
}

// When Redis was away, the registrations of all workers have expired, and so has the lease. Whoever leads next gives the workers time to
// register again before it takes them for dead.
func TestNewLeaderDoesNotSweepAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		s := startWith(t, f, nil, scheduler.Config{Settle: 5 * time.Second, SweepEvery: time.Second})
		defer s.Stop()
		for range 2 {
			before := count(f.done(), "sweep a")
			time.Sleep(4 * time.Second)
			testbed.Diff(t, "a leader of 4 s has swept, times", 0, count(f.done(), "sweep a")-before)
			time.Sleep(4 * time.Second)
			if n := count(f.done(), "sweep a") - before; n == 0 {
				t.Error("a leader of 8 s has not swept")
			}
			f.set(func() { f.lockHangs = true })
			time.Sleep(20 * time.Second)
			f.set(func() { f.lockHangs = false })
			time.Sleep(1500 * time.Millisecond) // the next try for the lead
		}
	})
}

// A leader whose store hangs stops leading when its lease ends, without an answer from the store.
func TestLeaseEndsByTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		s := start(t, f, nil)
		defer s.Stop()
		time.Sleep(4 * time.Second)
		f.set(func() { f.lockHangs = true })
		time.Sleep(6 * time.Second)
		before := count(f.done(), "sweep a")
		time.Sleep(30 * time.Second)
		testbed.Diff(t, "sweeps without a lease", 0, count(f.done(), "sweep a")-before)
		f.set(func() { f.lockHangs = false })
		time.Sleep(10 * time.Second)
		if n := count(f.done(), "sweep a") - before; n == 0 {
			t.Error("it never leads again")
		}
	})
}

// A store that fails for a moment does not cost the lead.
func TestErrorKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}}
		s := start(t, f, nil)
		defer s.Stop()
		time.Sleep(5100 * time.Millisecond)
		f.set(func() { f.lockErr = errTest })
		before := count(f.done(), "sweep a")
		time.Sleep(3 * time.Second)
		if n := count(f.done(), "sweep a") - before; n == 0 {
			t.Error("the first error ended the lead")
		}
		time.Sleep(5 * time.Second)
		before = count(f.done(), "sweep a")
		time.Sleep(10 * time.Second)
		testbed.Diff(t, "sweeps after the lease", 0, count(f.done(), "sweep a")-before)
	})
}

// Only a sandbox that is idle before its deadline, and asked for that, hibernates; the others are closed.
func TestIdleSandboxesHibernate(t *testing.T) {
	t.Parallel()
	later, sleeps := time.Now().Add(time.Hour), farm.SandboxSpec{OnIdle: farm.OnIdleHibernate}
	for what, c := range map[string]struct {
		box  farm.Sandbox
		want farm.JobKind
	}{
		"idle":       {farm.Sandbox{State: farm.SandboxReady, ExpiresAt: later, Spec: sleeps}, farm.KindHibernate},
		"not asked":  {farm.Sandbox{State: farm.SandboxReady, ExpiresAt: later}, farm.KindClose},
		"expired":    {farm.Sandbox{State: farm.SandboxReady, ExpiresAt: time.Now().Add(-time.Second), Spec: sleeps}, farm.KindClose},
		"hibernated": {farm.Sandbox{State: farm.SandboxHibernated, ExpiresAt: time.Now().Add(-time.Second), Spec: sleeps}, farm.KindClose},
		"queued":     {farm.Sandbox{State: farm.SandboxQueued, ExpiresAt: later, Spec: sleeps}, farm.KindClose},
	} {
		testbed.Diff(t, fmt.Sprintf("%s: SleepsAt", what), (c.want == farm.KindHibernate), c.box.SleepsAt(time.Now()))
		synctest.Test(t, func(t *testing.T) {
			box := c.box
			if box.ExpiresAt.Equal(later) { // the clock of the bubble
				box.ExpiresAt = time.Now().Add(time.Hour)
			} else {
				box.ExpiresAt = time.Now().Add(-time.Second)
			}
			f := &fake{tenants: []string{"a"}, due: map[string][]farm.Ref{"a": {{Tenant: "a", ID: "sbx_1"}}}, boxes: map[string]*farm.Sandbox{"sbx_1": &box}}
			s := start(t, f, &strings.Builder{})
			time.Sleep(time.Minute)
			s.Stop()
			steps := strings.Join(f.done(), "\n")
			if !strings.Contains(steps, string(c.want)+" a sbx_1") || c.want == farm.KindHibernate && strings.Contains(steps, "close a") || c.want == farm.KindClose && strings.Contains(steps, "hibernate a") {
				t.Errorf("%s: %.200s", what, steps)
			}
		})
	}
}

// A sandbox that ended before its deadline was not used.
func TestExpiredSandboxesSayWhy(t *testing.T) {
	t.Parallel()
	for idle, want := range map[int]map[time.Duration]string{
		1: {time.Hour: "It was not used for 1 second (idle_seconds).", -time.Second: "Its time was up."},
		0: {-time.Second: "Its time was up."},
	} {
		for left, why := range want {
			synctest.Test(t, func(t *testing.T) {
				box := &farm.Sandbox{State: farm.SandboxReady, ExpiresAt: time.Now().Add(left), Spec: farm.SandboxSpec{IdleSeconds: idle}}
				f := &fake{tenants: []string{"a"}, due: map[string][]farm.Ref{"a": {{Tenant: "a", ID: "sbx_1"}}}, boxes: map[string]*farm.Sandbox{"sbx_1": box}}
				s := start(t, f, &strings.Builder{})
				time.Sleep(time.Minute)
				s.Stop()
				testbed.Diff(t, fmt.Sprintf("reason, idle limit %d, %s left", idle, left), why, f.reason)
			})
		}
	}
}

// Sandboxes whose hibernation is refused since there is no room for another job are tried again after their idle time, and keep no later deadline
// waiting, however many they are.
func TestRefusedHibernationsKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}, due: map[string][]farm.Ref{}, boxes: map[string]*farm.Sandbox{}}
		for i := range 200 {
			ref := farm.Ref{Tenant: "a", ID: fmt.Sprintf("full-%d", i)}
			if i == 0 {
				ref.ID += "-moved"
			}
			f.due["a"] = append(f.due["a"], ref)
			f.boxes[ref.ID] = &farm.Sandbox{ID: ref.ID, Tenant: "a", State: farm.SandboxReady, Generation: 1, ExpiresAt: time.Now().Add(time.Hour), Spec: farm.SandboxSpec{OnIdle: farm.OnIdleHibernate}}
		}
		f.due["a"] = append(f.due["a"], farm.Ref{Tenant: "a", ID: "sbx_last"})
		s := start(t, f, &strings.Builder{})
		time.Sleep(10 * time.Second)
		s.Stop()
		steps := f.done()
		touched := slices.DeleteFunc(slices.Clone(steps), func(step string) bool { return !strings.HasPrefix(step, "touch ") })
		testbed.Diff(t, "touched", 200, len(touched))
		testbed.Diff(t, "closes of the last", 1, count(steps, "close a sbx_last expired=true inline=true"))
	})
}

func TestErrorOfOneTenantDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		f := &fake{
			tenants: []string{"bad", "good"},
			due:     map[string][]farm.Ref{"good": {{Tenant: "good", ID: "gone"}, {Tenant: "good", ID: "bare"}, {Tenant: "good", ID: "sbx_1"}}},
			expired: map[string][]farm.Artifact{"good": {{ID: "art_1", Tenant: "good", Key: "k"}}},
		}
		s := start(t, f, &log)
		time.Sleep(2*time.Minute + time.Second)
		s.Stop()
		steps := f.done()
		for _, want := range []string{
			"close good gone expired=true inline=true", "close good bare expired=true inline=true", "close good sbx_1 expired=true inline=true", "sweep good", "remove 1", "forget 1",
		} {
			if count(steps, want) == 0 {
				t.Errorf("%q was not done: %q", want, steps[:min(len(steps), 10)])
			}
		}
		if !strings.Contains(log.String(), "made to fail") || strings.Contains(log.String(), "There is no sandbox") {
			t.Errorf("the log says %.300q", log.String())
		}
	})
}

// The object is removed first: if its record were removed before, it would be left forever.
func TestRetentionRemovesObjectsThenRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a"}, expired: map[string][]farm.Artifact{}, deleteErr: errTest}
		for i := range 450 {
			f.expired["a"] = append(f.expired["a"], farm.Artifact{ID: fmt.Sprint("art_", i), Tenant: "a", Key: fmt.Sprint("k", i)})
		}
		s := start(t, f, nil)
		defer s.Stop()
		only := func() (steps []string) {
			for _, step := range f.done() {
				if strings.HasPrefix(step, "remove") || strings.HasPrefix(step, "forget") {
					steps = append(steps, step)
				}
			}
			return steps
		}
		time.Sleep(61 * time.Second)
		if got := only(); count(got, "remove 200") == 0 || f.left("a") != 450 {
			t.Fatalf("records of objects that could not be removed were deleted: %q", got)
		}
		f.set(func() { f.deleteErr, f.steps = nil, nil })
		time.Sleep(time.Minute)
		want := []string{"remove 200", "forget 200", "remove 200", "forget 200", "remove 50", "forget 50"}
		if got := only(); !slices.Equal(got, want) {
			t.Errorf("steps %q, want %q", got, want)
		}
	})
}

// A tenant with many expired artifacts keeps no other waiting until its last one.
func TestTenantsTakeTurnsInRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a", "b", "c"}, expired: map[string][]farm.Artifact{}}
		for tenant, n := range map[string]int{"a": 410, "b": 420, "c": 30} {
			for i := range n {
				f.expired[tenant] = append(f.expired[tenant], farm.Artifact{ID: fmt.Sprint("art_", i), Tenant: tenant, Key: fmt.Sprint(tenant, i)})
			}
		}
		s := start(t, f, nil)
		defer s.Stop()
		time.Sleep(61 * time.Second)
		turns := [][]string{{"forget 200", "forget 200", "forget 30"}, {"forget 200", "forget 200"}, {"forget 10", "forget 20"}}
		got := slices.DeleteFunc(f.done(), func(step string) bool { return !strings.HasPrefix(step, "forget") })
		for i, want := range turns {
			testbed.Require(t, len(got) >= len(want), "%d steps are left in turn %d", len(got), i)
			testbed.Diff(t, fmt.Sprint("turn ", i), want, slices.Sorted(slices.Values(got[:len(want)])))
			got = got[len(want):]
		}
		testbed.Diff(t, "steps after the turns", []string{}, got)
	})
}

// The order of tenants changes from run to run: each of three comes last at times.
func TestOrderOfTenantsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{tenants: []string{"a", "b", "c"}}
		s := start(t, f, nil)
		defer s.Stop()
		time.Sleep(5 * time.Minute)
		steps := slices.DeleteFunc(f.done(), func(step string) bool { return !strings.HasPrefix(step, "sweep") })
		last := map[string]bool{}
		for run := range slices.Chunk(steps, len(f.tenants)) {
			last[run[len(run)-1]] = true
		}
		testbed.Diff(t, "last in some of 150 runs", []string{"sweep a", "sweep b", "sweep c"}, slices.Sorted(maps.Keys(last)))
	})
}

func TestOldStagedObjectsAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		f := &fake{staged: map[string]time.Time{
			"staging/a/old": now.Add(-8 * 24 * time.Hour), "staging/a/young": now.Add(-7 * 24 * time.Hour), // a sandbox lives a week at most
			"theirs/a/old":  now.Add(-1000 * time.Hour),
			"records/a/old": now.Add(-15 * 24 * time.Hour), "records/a/young": now.Add(-14 * 24 * time.Hour),
			"staging/a/named": now.Add(-1000 * time.Hour), "records/a/named": now.Add(-1000 * time.Hour),
		}, named: []string{"staging/a/named", "records/a/named"}, namedErr: errTest}
		s := start(t, f, nil)
		defer s.Stop()
		time.Sleep(2*time.Hour + time.Millisecond)
		f.set(func() { // who cannot ask removes nothing
			testbed.Diff(t, "objects", 7, len(f.staged))
			f.namedErr = nil
		})
		time.Sleep(2*time.Hour + time.Millisecond)
		f.mu.Lock()
		left := slices.Sorted(maps.Keys(f.staged))
		f.mu.Unlock()
		want := []string{"records/a/named", "records/a/young", "staging/a/named", "staging/a/young", "theirs/a/old"}
		testbed.Diff(t, "left", want, left)
	})
}

// More objects than one run can list are gone through in several, from where the last one stopped, and unfinished uploads are aborted before.
func TestManyStagedObjectsAreRemovedInSeveralRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		f := &fake{staged: map[string]time.Time{}, kept: keptFake{
			listTakes: 50 * time.Millisecond, uploads: map[string]time.Time{"staging/a": now.Add(-80 * time.Hour)},
		}}
		for _, prefix := range []string{"staging/", "records/"} { // as many as can be listed in 75 s, in each
			for i := range 1500 {
				f.staged[fmt.Sprintf("%sa/%04d", prefix, i)] = now
			}
			for i := range 250 {
				f.staged[fmt.Sprintf("%sb/%04d", prefix, i)] = now.Add(-20 * 24 * time.Hour)
			}
		}
		s, registry := begin(t, f, scheduler.Config{}, nil)
		defer s.Stop()
		left := func() (old, uploads int) {
			f.set(func() {
				for key := range f.staged {
					if strings.Contains(key, "/b/") {
						old++
					}
				}
				uploads = len(f.kept.uploads)
			})
			return old, uploads
		}
		time.Sleep(10 * time.Minute)
		if old, uploads := left(); old != 500 || uploads != 0 {
			t.Errorf("after a run %d old objects and %d uploads are left", old, uploads)
		}
		time.Sleep(6 * time.Hour)
		old, _ := left()
		testbed.Diff(t, "old objects left", 0, old)
		testbed.Diff(t, "failed runs", 0.0, value(t, registry, "sandfarm_scheduler_loop_errors_total", "unstage"))
		f.set(func() { f.staged["records/a/0000"] = now.Add(-20 * 24 * time.Hour) }) // behind the position: in the next walk
		time.Sleep(5 * time.Hour)
		f.set(func() {
			if _, there := f.staged["records/a/0000"]; there {
				t.Error("a walk that came to the end does not begin anew")
			}
		})
	})
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	f := &fake{}
	s, err := scheduler.New(scheduler.Config{}, scheduler.Deps{Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Log: slog.New(slog.DiscardHandler)})
	testbed.Must(t, err)
	s.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	testbed.Must(t, s.Start(ctx))
	cancel() // only Stop ends the loops
	if err := s.Start(t.Context()); err == nil {
		t.Error("it starts twice")
	}
	s.Stop()
	s.Stop()
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := scheduler.New(scheduler.Config{NodeTimeout: -1}, scheduler.Deps{})
	if want := "scheduler.node_timeout is -1ns"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %q", err, want)
	}
}
