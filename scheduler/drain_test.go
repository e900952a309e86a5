package scheduler_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/scheduler"
)

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

func (d *drained) SandboxRoutes(_ context.Context, ref farm.Ref) ([]store.Route, error) {
	if ref.ID == d.busy {
		return []store.Route{{}}, nil
	}
	return nil, nil
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
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
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
