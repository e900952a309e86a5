package scheduler_test

import (
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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/scheduler"
)

// remembered is a memory of the fleet, with its events as text.
type remembered struct {
	mu     sync.Mutex
	seen   map[string]string
	events []string
}

func (r *remembered) FleetSeen(context.Context) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.seen), nil
}

func (r *remembered) NoteFleet(_ context.Context, n store.FleetNote) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Subject != "" && r.seen[n.Subject] != n.From {
		return false, nil
	}
	if n.To == "" {
		delete(r.seen, n.Subject)
	} else {
		r.seen[n.Subject] = n.To
	}
	e := n.Event
	r.events = append(r.events, strings.TrimSpace(fmt.Sprintf("%s %s%s %s %d %s", e.Kind, e.Worker, e.Node, e.Host, e.Jobs+e.Sandboxes, e.Detail)))
	return true, nil
}

// take returns the events since the last call.
func (r *remembered) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

// leases are those of no node.
type leases struct{}

func (leases) NodesInUse(context.Context) (map[string][]string, error) { return nil, nil }
func (leases) CheckNodes(context.Context, time.Duration, []string, []string) ([]store.NodeLease, error) {
	return []store.NodeLease{{Node: "dead", Age: time.Hour}}, nil
}
func (leases) NodeLapsed(context.Context, string, time.Duration) (bool, error)    { return true, nil }
func (leases) DropNodeLease(context.Context, string, time.Duration) (bool, error) { return true, nil }

// ends loses two sandboxes of a node at its first end, and is not done after that.
type ends struct{ times int }

func (e *ends) EndNode(context.Context, dispatch.NodeEnd) (dispatch.NodeEnded, error) {
	e.times++
	return dispatch.NodeEnded{Done: e.times == 1, Lost: make([]farm.Ref, 2)}, nil
}
func (*ends) CloseUnplaced(context.Context, []string) (int, error) { return 0, nil }

func TestFleetEventsTellWhatHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, d := &fake{due: map[string][]farm.Ref{}}, &drained{}
		memory := &remembered{seen: map[string]string{farm.SeenWorkerPrefix + "w0": `{"node":"n0","host":"h0"}`}}
		change := func(workers []farm.Worker, drains []farm.Drain, open []*farm.Sandbox) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.kept.workers, d.drains, d.open = workers, drains, open
		}
		start := func() *scheduler.Scheduler {
			s, err := scheduler.New(scheduler.Config{}, scheduler.Deps{
				Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Drains: changing{d, &f.mu}, Nodes: leases{}, End: &ends{}, Fleet: memory, Log: slog.New(slog.DiscardHandler),
			})
			testbed.Must(t, err)
			testbed.Must(t, s.Start(t.Context()))
			return s
		}
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(20 * time.Second)
			testbed.Diff(t, "events", want, memory.take())
		}
		one, two := farm.Worker{ID: "w1", Node: "n1", Host: "h1", Running: 3, Draining: true}, farm.Worker{ID: "w2", Node: "n2", Host: "h2"}
		change([]farm.Worker{one, two}, nil, nil)
		s := start()
		expect("node_ended dead  2", "worker_started w1n1 h1 0", "worker_started w2n2 h2 0", "worker_lost w0n0 h0 0")
		two.Problem = "no engine"
		change([]farm.Worker{one, two}, nil, nil)
		expect("worker_problem w2n2 h2 0 no engine")
		two.Problem = ""
		change([]farm.Worker{two}, nil, nil)
		expect("worker_recovered w2n2 h2 0", "worker_lost w1n1 h1 3")
		two.Draining = true
		box := []*farm.Sandbox{{ID: "s1", Node: "n2", State: farm.SandboxBusy}}
		change([]farm.Worker{two}, []farm.Drain{{Node: "n2"}}, box)
		expect("drain_started n2 h2 0")
		change([]farm.Worker{two}, []farm.Drain{{Node: "n2"}}, nil)
		expect("node_drained n2 h2 0 drained")
		s.Stop()
		change(nil, nil, nil) // while nobody leads
		s = start()
		expect("node_ended dead  2", "worker_lost w2n2 h2 0", "drain_ended n2  0")
		s.Stop()
	})
}

// changing guards drains that change.
type changing struct {
	*drained
	mu *sync.Mutex
}

func (l changing) Drains(ctx context.Context) ([]farm.Drain, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drained.Drains(ctx)
}

func (l changing) OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drained.OpenOnNode(ctx, node)
}

// fakePool is a pool that fails while err is set.
type fakePool struct {
	mu      sync.Mutex
	members []store.Member
	err     error
}

func (p *fakePool) Members(context.Context, ...string) ([]store.Member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.members), p.err
}

// gauges reads the pool's series by node and image.
func gauges(t *testing.T, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	testbed.Must(t, err)
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				out[m.GetLabel()[1].GetValue()+"/"+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() // labels are sorted: image, node
			}
		}
	}
	return out
}

// The leader shows what is ready in the pool, without members of nodes that have no worker.
func TestPoolIsShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		on := func(node string) farm.Worker {
			return farm.Worker{Node: node, Pool: []farm.PoolStock{{Image: "python", Target: 3}}}
		}
		f := &fake{kept: keptFake{workers: []farm.Worker{on("n1"), on("n1"), on("n2")}}}
		p := &fakePool{members: []store.Member{
			{ID: "a", Node: "n1", Image: "python", State: store.MemberIdle},
			{ID: "b", Node: "n2", Image: "python", State: store.MemberIdle},
			{ID: "c", Node: "n2", Image: "python", State: store.MemberClaimed},
			{ID: "d", Node: "n2", Image: "python", State: store.MemberStarting},
			{ID: "e", Node: "n1", Image: "node", State: store.MemberIdle},
		}}
		registry := prometheus.NewRegistry()
		s, err := scheduler.New(scheduler.Config{}, scheduler.Deps{
			Records: f, Ledger: f, Jobs: f, Tasks: tasks{f}, Blobs: f, Pool: p, Log: slog.New(slog.DiscardHandler), Metrics: registry,
		})
		testbed.Must(t, err)
		testbed.Must(t, s.Start(t.Context()))
		defer s.Stop()
		time.Sleep(10 * time.Second)
		testbed.Diff(t, "ready", map[string]float64{"n1/python": 1, "n2/python": 1, "n1/node": 1}, gauges(t, registry, "sandfarm_pool_ready"))
		testbed.Diff(t, "targets", map[string]float64{"n1/python": 3, "n2/python": 3, "n1/node": 0}, gauges(t, registry, "sandfarm_pool_target"))

		f.set(func() { f.kept.workers = []farm.Worker{on("n1")} })
		time.Sleep(10 * time.Second)
		testbed.Diff(t, "without a worker on n2, ready", map[string]float64{"n1/python": 1, "n1/node": 1}, gauges(t, registry, "sandfarm_pool_ready"))
		p.mu.Lock()
		p.err = errTest
		p.mu.Unlock()
		time.Sleep(10 * time.Second)
		if n := value(t, registry, "sandfarm_scheduler_loop_errors_total", "pool"); n == 0 {
			t.Error("an error of the pool is not counted")
		}
		f.set(func() { f.owner, f.lease = "another", time.Now().Add(time.Hour) })
		time.Sleep(10 * time.Second)
		if got := gauges(t, registry, "sandfarm_pool_ready"); len(got) != 0 {
			t.Errorf("a scheduler that does not lead shows %v", got)
		}
	})
}
