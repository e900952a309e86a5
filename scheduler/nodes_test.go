package scheduler_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

// leased are nodes whose leases follow the clock of the test. Passes that end a node do not reach their end while stuck is set.
type leased struct {
	mu       sync.Mutex
	renewed  map[string]time.Time
	stuck    bool
	ended    []string
	reason   string
	unplaced []string
}

func (l *leased) NodesInUse(context.Context) (map[string][]string, error) {
	return map[string][]string{"old": {"a"}, "": {"a", "b"}}, nil
}

func (l *leased) CheckNodes(_ context.Context, _ time.Duration, live, used []string) ([]store.NodeLease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range live {
		l.renewed[node] = time.Now()
	}
	for _, node := range used {
		if _, known := l.renewed[node]; !known {
			l.renewed[node] = time.Now()
		}
	}
	var out []store.NodeLease
	for node, at := range l.renewed {
		out = append(out, store.NodeLease{Node: node, Age: time.Since(at)})
	}
	return out, nil
}

func (l *leased) NodeLapsed(_ context.Context, node string, timeout time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.renewed[node]
	return known && time.Since(at) >= timeout, nil
}

func (l *leased) DropNodeLease(_ context.Context, node string, timeout time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, known := l.renewed[node]; !known || time.Since(at) < timeout {
		return false, nil
	}
	delete(l.renewed, node)
	return true, nil
}

func (l *leased) EndNode(ctx context.Context, e dispatch.NodeEnd) (dispatch.NodeEnded, error) {
	gone, err := e.Gone(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || !gone || l.stuck {
		return dispatch.NodeEnded{}, err
	}
	l.ended, l.reason = append(l.ended, e.Node), e.Reason
	return dispatch.NodeEnded{Done: true, Lost: []farm.Ref{{Tenant: "a", ID: "sbx_1"}}}, nil
}

func (l *leased) CloseUnplaced(_ context.Context, tenants []string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unplaced = slices.Clone(tenants)
	return 0, nil
}

func (l *leased) get() (ended []string, reason string, unplaced []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ended), l.reason, slices.Clone(l.unplaced)
}

// A node whose lease is not renewed for node_timeout is ended once, also one that never had a lease; one with a live worker is not.
func TestNodesWithoutWorkersAreEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{kept: keptFake{workers: []farm.Worker{{ID: "w1", Node: "n1"}, {ID: "w2", Node: "n2"}}}}
		nodes := &leased{renewed: map[string]time.Time{}, stuck: true}
		registry := prometheus.NewRegistry()
		s, err := scheduler.New(scheduler.Config{NodeTimeout: 30 * time.Second}, scheduler.Deps{
			Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Nodes: nodes, End: nodes, Log: slog.New(slog.DiscardHandler), Metrics: registry,
		})
		testbed.Must(t, err)
		testbed.Must(t, s.Start(t.Context()))
		defer s.Stop()
		time.Sleep(20 * time.Second)
		f.set(func() { f.kept.workers = []farm.Worker{{ID: "w1", Node: "n1"}} }) // the worker of n2 died
		time.Sleep(25 * time.Second)
		if ended, _, unplaced := nodes.get(); len(ended) != 0 || !slices.Equal(unplaced, []string{"a", "b"}) {
			t.Errorf("ended %v, unplaced sandboxes of %v", ended, unplaced)
		}
		time.Sleep(15 * time.Second)
		nodes.mu.Lock()
		nodes.stuck = false // the passes until here were stopped
		nodes.mu.Unlock()
		time.Sleep(10 * time.Second)
		ended, reason, _ := nodes.get()
		slices.Sort(ended)
		if !slices.Equal(ended, []string{"n2", "old"}) || !strings.Contains(reason, "30s") {
			t.Errorf("ended %v: %q", ended, reason)
		}
		for name, want := range map[string]float64{"sandfarm_scheduler_nodes_ended_total": 2, "sandfarm_scheduler_nodes_sandboxes_lost_total": 2} {
			testbed.Diff(t, name, want, value(t, registry, name, ""))
		}
		ages := leaseAges(t, registry)
		if age, ok := ages["n1"]; !ok || age > 5 {
			t.Errorf("ages of leases: %v", ages)
		}
	})
}

func leaseAges(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	testbed.Must(t, err)
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "sandfarm_scheduler_node_lease_age_seconds" {
			for _, m := range family.GetMetric() {
				out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

func TestNodeTimeoutHasALeastValue(t *testing.T) {
	t.Parallel()
	for timeout, fine := range map[time.Duration]bool{time.Second - 1: false, time.Second: true, time.Second + 1: true, -1: false} {
		if err := (scheduler.Config{NodeTimeout: timeout}).Validate(); (err == nil) != fine {
			t.Errorf("%s: %v", timeout, err)
		}
	}
}

// drained are the drains of some nodes, which do not change.
type drained struct {
	drains []farm.Drain
	open   []*farm.Sandbox
	busy   string // a sandbox with an unfinished job
}

func (d *drained) Drains(context.Context) ([]farm.Drain, error) { return d.drains, nil }

func (d *drained) OpenOnNode(_ context.Context, node string) ([]*farm.Sandbox, error) {
	return slices.DeleteFunc(slices.Clone(d.open), func(s *farm.Sandbox) bool { return s.Node != node }), nil
}

func (d *drained) HasJob(_ context.Context, ref farm.Ref, _ ...farm.JobKind) (bool, error) {
	return ref.ID == d.busy, nil
}

// A drain hibernates or closes idle sandboxes as it says, those that can, and none that is in use.
func TestDrainsEndIdleSandboxes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		box := func(node, id, runtime string, used time.Duration, change func(*farm.Sandbox)) *farm.Sandbox {
			s := &farm.Sandbox{ID: id, Tenant: "a", Node: node, State: farm.SandboxReady, Runtime: runtime, LastUsedAt: now.Add(-used), ExpiresAt: now.Add(time.Hour)}
			if change != nil {
				change(s)
			}
			return s
		}
		d := &drained{
			drains: []farm.Drain{{Node: "keeps"}, {Node: "sleeps", Idle: farm.DrainHibernate}, {Node: "closes", Idle: farm.DrainClose}},
			open: []*farm.Sandbox{
				box("keeps", "k1", "runsc", time.Hour, nil), box("active", "a1", "runsc", time.Hour, nil),
				box("sleeps", "s1", "runsc", time.Hour, nil), box("sleeps", "s2", "runc", time.Hour, nil),
				box("sleeps", "s3", "runsc", time.Hour, func(s *farm.Sandbox) { s.Spec.GPU = &farm.GPU{Count: 1} }),
				box("sleeps", "s4", "runsc", time.Hour, func(s *farm.Sandbox) { s.State = farm.SandboxBusy }),
				box("closes", "c1", "runc", farm.DrainIdleAfter, nil), box("closes", "c2", "runc", farm.DrainIdleAfter-20*time.Second, nil),
				box("closes", "busy", "runc", time.Hour, nil), box("closes", "c3", "runc", time.Hour, func(s *farm.Sandbox) { s.OneShot = true }),
			},
			busy: "busy",
		}
		f := &fake{due: map[string][]farm.Ref{}, kept: keptFake{workers: []farm.Worker{{ID: "w1", Node: "sleeps", Hibernates: []string{"runsc"}}, {ID: "w2", Node: "closes"}}}}
		registry := prometheus.NewRegistry()
		s, err := scheduler.New(scheduler.Config{}, scheduler.Deps{
			Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Drains: d, Log: slog.New(slog.DiscardHandler), Metrics: registry,
		})
		testbed.Must(t, err)
		testbed.Must(t, s.Start(t.Context()))
		defer s.Stop()
		jobs := func() []string {
			var done []string
			for _, step := range f.done() {
				if words := strings.Fields(step); words[0] == "close" || words[0] == "hibernate" {
					done = append(done, words[0]+" "+words[2])
				}
			}
			slices.Sort(done)
			return done
		}
		time.Sleep(5 * time.Second)
		if got, want := jobs(), []string{"close c1", "hibernate s1"}; !slices.Equal(got, want) {
			t.Errorf("jobs %v, want %v", got, want)
		}
		time.Sleep(30 * time.Second) // c2 is idle now; the others are not tried again yet
		if got, want := jobs(), []string{"close c1", "close c2", "hibernate s1"}; !slices.Equal(got, want) {
			t.Errorf("jobs %v, want %v", got, want)
		}
		time.Sleep(40 * time.Second) // those of before failed
		if got, want := jobs(), []string{"close c1", "close c1", "close c2", "hibernate s1", "hibernate s1"}; !slices.Equal(got, want) {
			t.Errorf("jobs %v, want %v", got, want)
		}
		left := map[string]float64{}
		families, err := registry.Gather()
		testbed.Must(t, err)
		for _, family := range families {
			if family.GetName() == "sandfarm_drained_node_sandboxes" {
				for _, m := range family.GetMetric() {
					left[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if len(left) != 3 || left["keeps"] != 1 || left["sleeps"] != 4 || left["closes"] != 4 {
			t.Errorf("left on drained nodes: %v", left)
		}
	})
}
