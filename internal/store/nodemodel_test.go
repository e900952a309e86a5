//go:build integration

package store_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestNodeModel makes random calls about what nodes hold, of which some crash in their middle: members of the warm pool, leases of GPUs,
// reservations and drains. After each it compares what is stored with a model. At the end of each run the nodes are gone, and nothing is left.
// The records of jobs and sandboxes have a model of their own, TestModel of package dispatch.
func TestNodeModel(t *testing.T) {
	testbed.Runs(t, 60, 100) // some 4,000 steps
	server := testbed.NewRedis(t)
	crash := &testbed.Crasher{}
	rdb, crashing := server.Client(t), server.Client(t)
	crashing.AddHook(crash)
	steps, crashes := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := &nodeWorld{T: t, rdb: rdb, crash: crash, clock: time.Now().UTC().Truncate(time.Millisecond), now: newHoldings()}
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		w.store = store.New(crashing, storetest.NoTasks, store.Options{Now: func() time.Time { return w.clock }})
		w.reader = store.New(rdb, storetest.NoTasks, store.Options{Now: func() time.Time { return w.clock }})
		actions := map[string]func(*rapid.T){}
		for name, action := range w.actions() {
			actions[name] = func(t *rapid.T) {
				w.T = t
				steps++
				action()
			}
		}
		t.Repeat(actions)
		w.T, w.safe = t, true
		for _, node := range twoNodes {
			w.release(node)
		}
		if left := w.keys(); len(left) > 0 {
			t.Fatalf("of nodes that are gone, these keys are left: %v", left)
		}
		crashes += w.crashes
	})
	t.Logf("%d steps, %d crashes", steps, crashes)
}

var (
	twoNodes    = []string{"n1", "n2"}
	fourDevices = []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
	nodeRoom    = farm.Capacity{MemoryMB: 1000, CPUs: 4}
)

// nodeWorld is the real store, beside what must be in it.
type nodeWorld struct {
	*rapid.T
	rdb           redis.UniversalClient // never crashes
	crash         *testbed.Crasher
	store, reader *store.Store // the reader never crashes
	clock         time.Time    // of both; it stands still during a call
	now           *holdings
	safe          bool // calls do not crash
	number        int  // of the last member
	crashes       int
}

// holdings are what is stored of all nodes.
type holdings struct {
	Members  map[string]store.Member
	Ready    map[string]time.Time // when members became idle first
	Open     map[string]bool      // nodes whose leases have been compared with containers
	Leases   map[string]map[string]store.GPULease
	Reserved map[string]map[string]store.Reservation
	Drains   map[string]farm.Drain
}

func newHoldings() *holdings {
	h := &holdings{Members: map[string]store.Member{}, Ready: map[string]time.Time{}, Open: map[string]bool{}, Leases: map[string]map[string]store.GPULease{}, Reserved: map[string]map[string]store.Reservation{}, Drains: map[string]farm.Drain{}}
	for _, node := range twoNodes {
		h.Leases[node], h.Reserved[node] = map[string]store.GPULease{}, map[string]store.Reservation{}
	}
	return h
}

func (h *holdings) clone() *holdings {
	c := &holdings{Members: maps.Clone(h.Members), Ready: maps.Clone(h.Ready), Open: maps.Clone(h.Open), Leases: map[string]map[string]store.GPULease{}, Reserved: map[string]map[string]store.Reservation{}, Drains: maps.Clone(h.Drains)}
	for _, node := range twoNodes {
		c.Leases[node], c.Reserved[node] = maps.Clone(h.Leases[node]), maps.Clone(h.Reserved[node])
	}
	return c
}

// members are the ids of the members that fit, those that got their state first in front.
func (h *holdings) members(fits func(store.Member) bool) []string {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(h.Members)), func(id string) bool { return !fits(h.Members[id]) })
	slices.SortStableFunc(ids, func(a, b string) int { return h.Members[a].At.Compare(h.Members[b].At) })
	return ids
}

// drop removes a member.
func (h *holdings) drop(id string) { delete(h.Members, id); delete(h.Ready, id) }

// leasesOf are the devices that a sandbox has on a node.
func (h *holdings) leasesOf(node, sandbox string) []string {
	return store.GPUs{Leases: h.Leases[node]}.Of(sandbox)
}

// step makes a call that may crash. What is stored must then be the last of the predicted states, after a crash any of them, or as before.
// Without a crash the call must have the error that is predicted.
func (w *nodeWorld) step(what string, want error, predicted []*holdings, call func(ctx context.Context) error) {
	w.Helper()
	if !w.safe {
		if at := rapid.IntRange(-6, 4).Draw(w.T, what+": crash at command"); at > 0 {
			w.crash.Arm(at, rapid.Bool().Draw(w.T, "the command was carried out"))
		}
	}
	err := call(w.Context())
	crashed := w.crash.Dead()
	w.crash.Heal()
	if crashed {
		w.crashes++
		predicted = append([]*holdings{w.now}, predicted...)
	} else {
		if !errors.Is(err, want) && (want == nil || farm.CodeOf(err) != farm.CodeOf(want) || farm.CodeOf(err) == farm.CodeInternal) {
			w.Fatalf("%s gave the error %v, want %v", what, err, want)
		}
		predicted = predicted[len(predicted)-1:]
	}
	stored, diff := w.read(), ""
	for _, h := range predicted {
		if diff = cmp.Diff(h, stored); diff == "" {
			w.now = h
			w.keysFit(what)
			w.clock = w.clock.Add(time.Millisecond)
			return
		}
	}
	w.Fatalf("%s (crashed: %v) does not leave what is predicted (-predicted +stored):\n%s", what, crashed, diff)
}

// one is the prediction of a call that changes the holdings in one step.
func (w *nodeWorld) one(change func(h *holdings)) []*holdings {
	h := w.now.clone()
	change(h)
	return []*holdings{h}
}

// same is the prediction of a call that changes nothing.
func (w *nodeWorld) same() []*holdings { return []*holdings{w.now} }

// read reads what is stored, by the calls that the farm has for it.
func (w *nodeWorld) read() *holdings {
	ctx, h := w.Context(), newHoldings()
	members, err := w.reader.Members(ctx)
	w.must(err)
	for _, m := range members {
		h.Members[m.ID] = m
		if ready := w.rdb.HGet(ctx, "sf:{pool}:m:"+m.ID, "ready").Val(); ready != "" {
			at, err := strconv.ParseInt(ready, 10, 64)
			w.must(err)
			h.Ready[m.ID] = time.UnixMicro(at).UTC()
		}
	}
	for _, node := range twoNodes {
		gpus, err := w.reader.GPUs(ctx, node)
		w.must(err)
		h.Leases[node] = gpus.Leases
		if gpus.Open {
			h.Open[node] = true
		}
		reserved, err := w.reader.Reservations(ctx, node)
		w.must(err)
		for ref, r := range reserved {
			h.Reserved[node][ref.ID] = r
		}
	}
	drains, err := w.reader.Drains(ctx)
	w.must(err)
	for _, d := range drains {
		h.Drains[d.Node] = d
	}
	return h
}

// keysFit checks the indexes of the pool, which no call lists, and that there is no key that nobody reads.
func (w *nodeWorld) keysFit(what string) {
	w.Helper()
	want := map[string]bool{}
	for id, m := range w.now.Members {
		want["{pool}:m:"+id], want["{pool}:node:"+m.Node], want["{pool}:nodes"] = true, true, true
		if m.State == store.MemberIdle {
			want["{pool}:idle:"+m.Image+" none 0"] = true
		}
	}
	for _, node := range twoNodes {
		if len(w.now.Leases[node]) > 0 || w.now.Open[node] {
			want["{room}:gpus:"+node] = true
		}
		if len(w.now.Reserved[node]) > 0 {
			want["{room}:node:"+node] = true
		}
	}
	if len(w.now.Drains) > 0 {
		want["{nodes}:drains"] = true
	}
	got := map[string]bool{}
	for _, key := range w.keys() {
		got[key] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.Fatalf("the keys after %s (-expected +stored):\n%s", what, diff)
	}
	for key := range got {
		image, ok := strings.CutPrefix(key, "{pool}:idle:")
		if !ok {
			continue
		}
		idle := w.now.members(func(m store.Member) bool { return m.State == store.MemberIdle && m.Image+" none 0" == image })
		if diff := cmp.Diff(idle, w.rdb.ZRange(w.Context(), "sf:"+key, 0, -1).Val()); diff != "" {
			w.Fatalf("the idle members after %s (-expected +stored):\n%s", what, diff)
		}
	}
}

// keys are the keys of what nodes hold. Nodes that were seen lately and that ever had a member, and tenants that asked for one, are remembered for a while.
func (w *nodeWorld) keys() []string {
	keys, err := w.rdb.Keys(w.Context(), "sf:*").Result()
	w.must(err)
	for i, key := range keys {
		keys[i] = strings.TrimPrefix(key, "sf:")
	}
	return slices.DeleteFunc(keys, func(key string) bool {
		return key == "{room}:nodes" || strings.HasPrefix(key, "{pool}:claims:") || strings.HasPrefix(key, "{nodes}:leases")
	})
}

func (w *nodeWorld) must(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

// draw draws one of a few values.
func draw[T any](w *nodeWorld, what string, from ...T) T {
	return rapid.SampledFrom(from).Draw(w.T, what)
}

// sandbox draws one of a few sandboxes and a generation of it.
func (w *nodeWorld) sandbox() (ref farm.Ref, generation int) {
	return farm.Ref{Tenant: storetest.Tenant, ID: draw(w, "sandbox", "sbx_a", "sbx_b", "sbx_c", "sbx_d")}, draw(w, "generation", 1, 2, 3)
}

func (w *nodeWorld) node() string { return draw(w, "node", twoNodes...) }
