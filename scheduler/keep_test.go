package scheduler_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

// keptFake is what the fake keeps for the loops that trim and the bucket's rules.
type keptFake struct {
	rules    []blob.LifecycleRule
	asked    int // how often rules were asked for
	rulesErr error
	uploads  map[string]time.Time // start times, by key
	over     map[string]store.Trimmed
	workers  []farm.Worker
	queues   []string
	before   time.Time // the latest time up to which tasks were trimmed

	objects   []blob.Info   // of artifacts
	listTakes time.Duration // of each object that is listed
	artifacts map[farm.Ref][]farm.Artifact
	drift     map[string]store.StoredDrift

	memoryDrift store.JobMemory // of the next tenant that is asked for
	forgotten   []store.Forgotten
	forgetErr   error
}

func (f *fake) RepairJobMemory(context.Context, string) (store.JobMemory, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	drift := f.kept.memoryDrift
	f.kept.memoryDrift = store.JobMemory{}
	return drift, true, nil
}

func (f *fake) ForgetFinished(context.Context) ([]store.Forgotten, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.kept.forgotten
	f.kept.forgotten = nil
	return list, f.kept.forgetErr
}

func (f *fake) EnsureLifecycle(_ context.Context, rules ...blob.LifecycleRule) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept.asked++
	if f.kept.rulesErr != nil {
		return false, f.kept.rulesErr
	}
	changed := !slices.Equal(rules, f.kept.rules)
	f.kept.rules = rules
	return changed, nil
}

func (f *fake) AbortUploads(ctx context.Context, prefix string, before time.Time) (n int, err error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.kept.uploads, func(key string, begun time.Time) bool {
		old := strings.HasPrefix(key, prefix) && begun.Before(before)
		if old {
			n++
		}
		return old
	})
	return n, nil
}

func (f *fake) Trim(ctx context.Context, tenant string) (store.Trimmed, error) {
	switch tenant {
	case "bad":
		return store.Trimmed{}, errTest
	case "slow":
		<-ctx.Done()
		return store.Trimmed{}, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.kept.over[tenant]
	delete(f.kept.over, tenant)
	return n, nil
}

func (f *fake) Workers(context.Context) ([]farm.Worker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept.workers, nil
}

// keeps returns a copy of the fake's kept state.
func (f *fake) keeps() keptFake {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept
}

// tasks are the fake's queues.
type tasks struct{ f *fake }

func (t tasks) Trim(ctx context.Context, before time.Time, unused func(string) bool) (queue.Trimmed, error) {
	if ctx.Err() != nil {
		return queue.Trimmed{}, ctx.Err()
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.kept.before = before
	was := len(t.f.kept.queues)
	t.f.kept.queues = slices.DeleteFunc(t.f.kept.queues, unused)
	return queue.Trimmed{Queues: was - len(t.f.kept.queues)}, nil
}

// With the default retention of seven days no rule may remove an object that a record of up to fifteen days names.
func TestLifecycleRulesOutliveTheRecords(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ seconds, days int }{
		"Default": {7 * 24 * 3600, 15}, "OneSecondMore": {7*24*3600 + 1, 16}, "Short": {1, 9}, "Month": {30 * 24 * 3600, 38},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limits := farm.DefaultLimits()
				limits.RetentionSeconds = c.seconds
				f := &fake{}
				s, registry := begin(t, f, scheduler.Config{Lifecycle: true, Limits: limits}, nil)
				defer s.Stop()
				time.Sleep(time.Second) // at the start, not only after the interval
				want := []blob.LifecycleRule{
					{ID: "sandfarm-artifacts", Prefix: "artifacts/", Days: c.days, AbortDays: 8}, // a job prints for a week at most,
					{ID: "sandfarm-manifests", Prefix: "manifests/", Days: c.days, AbortDays: 3},
					{ID: "sandfarm-records"},
					{ID: "sandfarm-requests"},
					{ID: "sandfarm-staging"}, // their objects may be in use at any age
				}
				testbed.Diff(t, "rules", want, f.keeps().rules)
				if least := time.Duration(c.seconds)*time.Second + store.ArtifactGrace; time.Duration(c.days)*24*time.Hour <= least {
					t.Errorf("records name objects for %s", least)
				}
				f.set(func() { f.kept.rules = nil }) // an operator removed them
				time.Sleep(5*time.Minute + time.Second)
				if len(f.keeps().rules) != len(want) || value(t, registry, "sandfarm_scheduler_loop_errors_total", "rules") != 0 {
					t.Errorf("rules are %v", f.keeps().rules)
				}
			})
		})
	}
}

// An object store without rules is logged once, and the farm continues; without the setting no rules are requested.
func TestLifecycleRulesAreNotSupported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		f := &fake{tenants: []string{"a"}, kept: keptFake{rulesErr: fmt.Errorf("put: %w", blob.ErrNoLifecycle)}}
		s := startWith(t, f, &log, scheduler.Config{Lifecycle: true})
		time.Sleep(time.Hour)
		s.Stop()
		if n := strings.Count(log.String(), "supports no lifecycle rules"); n != 1 || f.keeps().asked < 10 {
			t.Errorf("%d warnings after %d tries: %.300s", n, f.keeps().asked, log.String())
		}
		if strings.Contains(log.String(), "did not succeed") || count(f.done(), "sweep a") == 0 {
			t.Errorf("the farm does not continue: %.300s", log.String())
		}
		off := &fake{}
		s = startWith(t, off, nil, scheduler.Config{})
		time.Sleep(time.Hour)
		s.Stop()
		if off.keeps().asked > 0 {
			t.Error("rules are requested without the setting")
		}
	})
}

// An object store that does not answer is an error each time, and is asked again.
func TestLifecycleRulesComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{kept: keptFake{rulesErr: errTest}}
		s, registry := begin(t, f, scheduler.Config{Lifecycle: true}, nil)
		defer s.Stop()
		time.Sleep(11 * time.Minute)
		if n := value(t, registry, "sandfarm_scheduler_loop_errors_total", "rules"); n < 2 {
			t.Errorf("%v errors", n)
		}
		f.set(func() { f.kept.rulesErr = nil })
		time.Sleep(5*time.Minute + time.Second)
		if len(f.keeps().rules) != 5 {
			t.Errorf("rules are %v", f.keeps().rules)
		}
	})
}

// The upload of a job's output is not aborted while the job runs, also where a job may run for longer than a sandbox lives.
func TestUploadsOfLongJobsAreKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ttl, timeout int }{"LongTTL": {30, 1}, "LongTimeout": {1, 30}} { // days
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const day = 24 * time.Hour
				now, limits := time.Now(), farm.DefaultLimits()
				limits.TTLMaxSeconds, limits.TimeoutMaxSeconds = c.ttl*24*3600, c.timeout*24*3600
				f := &fake{
					kept:   keptFake{uploads: map[string]time.Time{"artifacts/old": now.Add(-31 * day), "artifacts/young": now.Add(-31*day + 2*time.Hour)}},
					staged: map[string]time.Time{"staging/old": now.Add(-31 * day), "staging/young": now.Add(-31*day + 2*time.Hour)},
				}
				s, _ := begin(t, f, scheduler.Config{Lifecycle: true, Limits: limits}, nil)
				defer s.Stop()
				time.Sleep(time.Hour + time.Second)
				f.set(func() {
					left := slices.Sorted(maps.Keys(f.kept.uploads))
					testbed.Diff(t, "left", []string{"artifacts/young", "staging/young"}, append(left, slices.Sorted(maps.Keys(f.staged))...))
					testbed.Diff(t, "days of the rule", 31, f.kept.rules[0].AbortDays)
				})
			})
		})
	}
}

func TestUnfinishedUploadsAreAborted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		f := &fake{kept: keptFake{uploads: map[string]time.Time{
			"artifacts/a": now.Add(-8 * 24 * time.Hour), "staging/a": now.Add(-73 * time.Hour), "index/a": now.Add(-80 * time.Hour),
			"artifacts/young": now.Add(-7 * 24 * time.Hour), "theirs/a": now.Add(-1000 * time.Hour),
		}}}
		s, registry := begin(t, f, scheduler.Config{Limits: farm.DefaultLimits()}, nil)
		defer s.Stop()
		time.Sleep(time.Hour + time.Second)
		f.mu.Lock()
		left := slices.Sorted(maps.Keys(f.kept.uploads))
		f.mu.Unlock()
		testbed.Diff(t, "left", []string{"artifacts/young", "theirs/a"}, left)
		if n := value(t, registry, "sandfarm_scheduler_uploads_aborted_total", ""); n != 3 {
			t.Errorf("%v uploads counted", n)
		}
	})
}
