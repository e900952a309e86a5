package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const nodeTimeout = 5 * time.Minute

// age makes a lease older: the clock of Redis cannot be set.
func (b *bundle) age(t *testing.T, by time.Duration, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		testbed.Must(t, b.rdb.ZIncrBy(t.Context(), b.prefix+"{nodes}:leases", -float64(by.Microseconds()), node).Err())
	}
}

// stopFor makes the last check of the leases older, as if the farm had been stopped.
func (b *bundle) stopFor(t *testing.T, d time.Duration, nodes ...string) {
	t.Helper()
	b.age(t, d, nodes...)
	testbed.Must(t, b.rdb.DecrBy(t.Context(), b.prefix+"{nodes}:checked", d.Microseconds()).Err())
}

// check checks the leases and returns those that have lapsed.
func (b *bundle) check(t *testing.T, live, used []string) map[string]bool {
	t.Helper()
	leases, err := b.CheckNodes(t.Context(), nodeTimeout, live, used)
	testbed.Must(t, err)
	out := map[string]bool{}
	for _, l := range leases {
		out[l.Node] = l.Age >= nodeTimeout
	}
	return out
}

func wantLapsed(t *testing.T, what string, got, want map[string]bool) {
	t.Helper()
	for node, lapsed := range want {
		g, known := got[node]
		testbed.Check(t, known && g == lapsed, "%s: node %s has lapsed: %v (known: %v), want %v", what, node, g, known, lapsed)
	}
	testbed.Check(t, len(got) == len(want), "%s: leases %v, want those of %v", what, got, want)
}

// nodeLeasesLapse renews leases by the clock of Redis, whatever those of workers say, and removes only those that have lapsed.
func nodeLeasesLapse(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	skewed := store.New(b.rdb, Tasks, store.Options{Prefix: b.prefix, Now: func() time.Time { return time.Now().Add(-24 * time.Hour) }})
	t.Cleanup(func() { _ = skewed.Close() })
	for node, s := range map[string]*store.Store{"n1": b.Store, "n2": skewed} {
		_, err := s.RenewNode(ctx, node)
		testbed.Must(t, err)
	}
	wantLapsed(t, "renewed", b.check(t, nil, []string{"n1", "n3"}), map[string]bool{"n1": false, "n2": false, "n3": false})
	b.age(t, nodeTimeout-30*time.Second, "n1")
	b.age(t, nodeTimeout, "n2", "n3")
	lapsed, err := b.NodeLapsed(ctx, "n1", nodeTimeout)
	testbed.Check(t, !lapsed && err == nil, "before the timeout: NodeLapsed = %v, %v", lapsed, err)
	dropped, err := b.DropNodeLease(ctx, "n1", nodeTimeout)
	testbed.Check(t, !dropped && err == nil, "before the timeout: DropNodeLease = %v, %v", dropped, err)
	wantLapsed(t, "n3 has a live worker", b.check(t, []string{"n3"}, []string{"n2"}), map[string]bool{"n1": false, "n2": true, "n3": false})
	lapsed, err = b.NodeLapsed(ctx, "n2", nodeTimeout)
	testbed.Check(t, lapsed && err == nil, "after the timeout: NodeLapsed = %v, %v", lapsed, err)
	dropped, err = b.DropNodeLease(ctx, "n2", nodeTimeout)
	testbed.Check(t, dropped && err == nil, "after the timeout: DropNodeLease = %v, %v", dropped, err)
	lapsed, err = b.NodeLapsed(ctx, "n2", nodeTimeout)
	testbed.Check(t, !lapsed && err == nil, "without a lease: NodeLapsed = %v, %v", lapsed, err)
	wantLapsed(t, "dropped", b.check(t, nil, nil), map[string]bool{"n1": false, "n3": false})
}

// stoppedFarmEndsNoNode stops the whole farm for a day: the leases count on from there, except those that had lapsed before.
func stoppedFarmEndsNoNode(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.check(t, []string{"n1", "n2", "n3"}, nil)
	b.age(t, nodeTimeout-time.Minute, "n2")
	b.age(t, nodeTimeout, "n3")
	b.stopFor(t, 24*time.Hour, "n1", "n2", "n3")
	wantLapsed(t, "after a day", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": false, "n3": true})
	b.age(t, time.Minute, "n1", "n2")
	wantLapsed(t, "a minute later", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": true, "n3": true})

	b.stopFor(t, -time.Hour, "n1", "n2", "n3") // the clock of Redis was set back
	wantLapsed(t, "after the clock was set back", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": true, "n3": true})
	testbed.Must(t, b.rdb.Del(t.Context(), b.prefix+"{nodes}:checked").Err())
	b.age(t, 24*time.Hour, "n1")
	got := b.check(t, nil, nil)
	testbed.Check(t, !got["n1"], "when it is not known when they were checked: %v", got)
}

// onNode checks which sandboxes of the test's tenant are on a node.
func (b *bundle) onNode(t *testing.T, what, node string, want ...farm.Ref) {
	t.Helper()
	got, err := b.OpenIDsOnNode(t.Context(), Tenant, node)
	testbed.Require(t, err == nil, "OpenIDsOnNode(%q) = %v", node, err)
	byID := func(a, c farm.Ref) int { return strings.Compare(a.ID, c.ID) }
	slices.SortFunc(got, byID)
	slices.SortFunc(want, byID)
	testbed.Check(t, slices.Equal(got, want), "%s: on node %q are %v, want %v", what, node, got, want)
	for _, box := range want {
		on, err := b.IsOnNode(t.Context(), box, node)
		elsewhere, other := b.IsOnNode(t.Context(), box, node+"x")
		testbed.Check(t, on && !elsewhere && err == nil && other == nil, "%s: IsOnNode = %v, on another node %v, %v, %v", what, on, elsewhere, err, other)
	}
	nodes, err := b.NodesOf(t.Context(), Tenant)
	testbed.Require(t, err == nil, "NodesOf = %v", err)
	var of []farm.Ref
	for id, its := range nodes {
		if its == node {
			of = append(of, farm.Ref{Tenant: Tenant, ID: id})
		}
	}
	slices.SortFunc(of, byID)
	if node == "" {
		testbed.Check(t, len(of) == 0, "%s: the node of %v is none", what, of)
		return
	}
	testbed.Check(t, slices.Equal(of, want), "%s: node %q is that of %v, want %v", what, node, of, want)
	boxes, err := b.OpenOnNode(t.Context(), node)
	testbed.Require(t, err == nil, "OpenOnNode(%q) = %v", node, err)
	read := make([]farm.Ref, 0, len(boxes))
	for _, box := range boxes {
		read = append(read, box.Ref())
	}
	slices.SortFunc(read, byID)
	testbed.Check(t, slices.Equal(read, want), "%s: records on node %q are %v, want %v", what, node, read, want)
}

func (b *bundle) move(t *testing.T, m store.Move) {
	t.Helper()
	_, err := b.MoveSandbox(t.Context(), m)
	testbed.Must(t, err)
}

// sandboxesAreIndexedByNode follows sandboxes through their life: they are listed for the node that they are on, while they are open.
func sandboxesAreIndexedByNode(t *testing.T, factory Factory) {
	b := setup(t, factory)
	pooled := Create() // it claimed a member of the pool, so its node is known when it is accepted
	pooled.Sandbox.Node, pooled.Job.Queue = "n1", farm.NodeQueue("n1")
	b.accept(t, pooled)
	cold := Create()
	b.accept(t, cold)
	first, second := farm.Ref{Tenant: Tenant, ID: pooled.Sandbox.ID}, farm.Ref{Tenant: Tenant, ID: cold.Sandbox.ID}
	b.onNode(t, "accepted", "n1", first)

	c := b.claim(t, cold.Job.Ref(), "w1")
	b.move(t, store.Move{Ref: second, To: farm.SandboxStarting, Node: "n1"})
	b.onNode(t, "starting", "n1", first, second)
	testbed.Must(t, b.Requeue(t.Context(), cold.Job.Ref(), store.Requeue{Attempt: c.Job.Attempt, Elsewhere: true}))
	b.onNode(t, "taken away", "n1", first)
	b.move(t, store.Move{Ref: second, To: farm.SandboxStarting, Node: "n2"})
	b.onNode(t, "on another node", "n2", second)
	b.move(t, store.Move{Ref: second, To: farm.SandboxReady, Node: "n2", Container: "c"})
	nodes, err := b.NodesInUse(t.Context())
	diff := cmp.Diff(map[string][]string{"n1": {Tenant}, "n2": {Tenant}}, nodes)
	testbed.Check(t, err == nil && diff == "", "NodesInUse: %v (-want +got):\n%s", err, diff)
	b.accept(t, CloseJob(second.ID))
	b.onNode(t, "closing", "n2", second)
	b.onNode(t, "closing", "")
	b.move(t, store.Move{Ref: second, To: farm.SandboxClosed})
	b.onNode(t, "closed", "n2")

	waiting := b.box(t, farm.SandboxQueued)
	b.onNode(t, "queued without a node", "")
	b.accept(t, CloseJob(waiting.ID))
	b.onNode(t, "closing without a node", "", waiting)
	b.move(t, store.Move{Ref: waiting, To: farm.SandboxClosed})
	b.onNode(t, "closed without a node", "")

	testbed.Must(t, b.Requeue(t.Context(), pooled.Job.Ref(), store.Requeue{Elsewhere: true}))
	nodes, err = b.NodesInUse(t.Context())
	testbed.Check(t, err == nil && len(nodes) == 0, "NodesInUse = %v, %v; want none", nodes, err)
	n, err := b.rdb.Exists(t.Context(), b.prefix+"{"+Tenant+"}:nodes").Result()
	testbed.Check(t, err == nil && n == 0, "the index without sandboxes has a key: %d, %v", n, err)
}

// indexOfNodesIsRepaired takes the index away, as a release without it would leave the records, and adds what is wrong to it.
func indexOfNodesIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	ready, busy := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxBusy)
	closed, closing := b.box(t, farm.SandboxClosed), b.box(t, farm.SandboxQueued)
	b.accept(t, CloseJob(closing.ID))
	tenant := b.prefix + "{" + Tenant + "}:"
	testbed.Must(t, b.rdb.Del(ctx, tenant+"nodes", tenant+"on:n1", tenant+"on:").Err())
	for _, tenants := range []string{"n1", "n2"} {
		testbed.Must(t, b.rdb.Del(ctx, b.prefix+"{nodes}:tenants:"+tenants).Err())
	}
	b.rdb.SAdd(ctx, tenant+"nodes", "n2")
	b.rdb.SAdd(ctx, tenant+"on:n2", ready.ID, closed.ID, "sbx_gone")
	b.rdb.SAdd(ctx, b.prefix+"{nodes}:tenants:n1", "nobody")
	drift, err := b.RepairUse(ctx, Tenant)
	if diff := cmp.Diff(store.Drift{"nodes": 6}, drift); err != nil || diff != "" { // three are missing and three too many
		t.Errorf("RepairUse: %v (-want +got):\n%s", err, diff)
	}
	nodes, err := b.NodesInUse(ctx)
	diff := cmp.Diff(map[string][]string{"n1": {Tenant}, "": {Tenant}}, nodes)
	testbed.Check(t, err == nil && diff == "", "NodesInUse: %v (-want +got):\n%s", err, diff)
	b.onNode(t, "repaired", "n1", ready, busy)
	b.onNode(t, "repaired", "n2")
	b.onNode(t, "repaired", "", closing)
	tenants, err := b.rdb.SMembers(ctx, b.prefix+"{nodes}:tenants:n1").Result()
	testbed.Check(t, err == nil && slices.Equal(tenants, []string{Tenant}), "tenants of the node: %v, %v", tenants, err)
	drift, err = b.RepairUse(ctx, Tenant)
	testbed.Check(t, err == nil && len(drift) == 0, "a second RepairUse = %v, %v", drift, err)
}

func pooled(id, node string) store.Member {
	return store.Member{
		ID: id, Node: node, Container: "c-" + id, Image: "python", Network: farm.NetworkPackages, Version: "v1", Worker: "w",
		Resources: farm.Resources{MemoryMB: 2048, CPUs: 2, PIDs: 256, DiskMB: 1024},
	}
}

func wanted(nodes ...string) store.MemberClaim {
	return store.MemberClaim{Tenant: Tenant, Image: "python", Network: farm.NetworkPackages, DiskMB: 1024, Nodes: nodes}
}

func (b *bundle) member(t *testing.T, m store.Member) {
	t.Helper()
	testbed.Must(t, errors.Join(b.BeginMember(t.Context(), m), b.MemberReady(t.Context(), m)))
}

// A member is claimed once, the oldest first, and only by a create that it can serve.
func poolClaimsTheOldestMatch(t *testing.T, factory Factory) {
	b := setup(t, factory)
	first, second := pooled("sbx_1", "n1"), pooled("sbx_2", "n2")
	testbed.Must(t, b.BeginMember(t.Context(), first))
	m, err := b.ClaimMember(t.Context(), wanted("n1", "n2"))
	testbed.Require(t, errors.Is(err, store.ErrNoMember), "claim of a member that starts = %+v, %v", m, err)
	for range 2 { // the second call imitates a retry after a lost answer
		testbed.Must(t, b.MemberReady(t.Context(), first))
	}
	b.clock.forward(time.Second)
	b.member(t, second)
	for name, change := range map[string]func(*store.MemberClaim){
		"another image":   func(c *store.MemberClaim) { c.Image = "node" },
		"another network": func(c *store.MemberClaim) { c.Network = farm.NetworkNone },
		"another runtime": func(c *store.MemberClaim) { c.Runtime = "runsc" },
		"another disk":    func(c *store.MemberClaim) { c.DiskMB = 512 },
		"dead nodes":      func(c *store.MemberClaim) { c.Nodes = []string{"n3"} },
		"no node":         func(c *store.MemberClaim) { c.Nodes = nil },
	} {
		c := wanted("n1", "n2")
		change(&c)
		m, err := b.ClaimMember(t.Context(), c)
		testbed.Check(t, errors.Is(err, store.ErrNoMember), "%s: %+v, %v", name, m, err)
	}
	got, err := b.ClaimMember(t.Context(), wanted("n1", "n2"))
	testbed.Must(t, err)
	want := first
	want.State, want.Tenant, want.At = store.MemberClaimed, Tenant, got.At
	testbed.Diff(t, "claimed", &want, got)
	m, err = b.ClaimMember(t.Context(), wanted("n1"))
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "claimed twice: %+v, %v", m, err)
	m, err = b.ClaimMember(t.Context(), wanted("n1", "n2"))
	testbed.Check(t, err == nil && m.ID == "sbx_2", "second claim = %+v, %v", m, err)
	if list, err := b.Members(t.Context(), "n1"); err != nil || len(list) != 1 || list[0].State != store.MemberClaimed || list[0].Tenant != Tenant {
		t.Errorf("members of n1 = %+v, %v", list, err)
	}
}

// A tenant that has got four members lately leaves the last one to others that asked for one of this kind and got fewer.
func poolLeavesTheLastMember(t *testing.T, factory Factory) {
	b := setup(t, factory)
	made := 0
	for i, step := range []struct {
		tenant string
		ready  int           // members that become ready before
		pause  time.Duration // before
		disk   int           // of another kind
		gets   bool
	}{
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "calm"},
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "busy", ready: 1, gets: true}, // the fourth
		{tenant: "busy", ready: 2, gets: true}, // one is left
		{tenant: "busy"},
		{tenant: "calm", gets: true},
		{tenant: "calm", ready: 1, gets: true},
		{tenant: "busy", ready: 1},
		{tenant: "new", gets: true},
		{tenant: "odd", disk: 512, pause: 2 * time.Minute},
		{tenant: "busy", ready: 1, gets: true}, // from here on nobody else asks for one of this kind
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "busy", ready: 1, gets: true},
		{tenant: "busy", ready: 1, gets: true},
	} {
		for range step.ready {
			made++
			b.member(t, pooled(fmt.Sprintf("sbx_%d", made), "n1"))
		}
		b.clock.forward(step.pause)
		c := wanted("n1")
		if c.Tenant = step.tenant; step.disk > 0 {
			c.DiskMB = step.disk
		}
		m, err := b.ClaimMember(t.Context(), c)
		testbed.Check(t, (err == nil) == step.gets && (err == nil || errors.Is(err, store.ErrNoMember)), "step %d: %s gets %+v, %v", i, step.tenant, m, err)
	}
}

// A member is returned after a refused create, but only by the tenant that claimed it.
func poolTakesMembersBack(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.member(t, pooled("sbx_1", "n1"))
	b.clock.forward(time.Second)
	b.member(t, pooled("sbx_2", "n1"))
	m, err := b.ClaimMember(t.Context(), wanted("n1"))
	testbed.Must(t, err)
	if err := b.ReturnMember(t.Context(), m.ID, "other"); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("returned by another tenant: %v", err)
	}
	testbed.Must(t, b.ReturnMember(t.Context(), m.ID, Tenant))
	if err := b.ReturnMember(t.Context(), m.ID, Tenant); !errors.Is(err, store.ErrNoMember) {
		t.Errorf("returned twice: %v", err)
	}
	again, err := b.ClaimMember(t.Context(), wanted("n1"))
	testbed.Require(t, err == nil && again.ID == "sbx_1", "claimed again = %+v, %v", again, err) // it is still the oldest
	err = b.DropMember(t.Context(), "sbx_1", store.MemberIdle, store.MemberStarting)
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "a claimed member was dropped as idle: %v", err)
	testbed.Must(t, b.DropMember(t.Context(), "sbx_1", store.MemberClaimed))
	testbed.Must(t, b.DropMember(t.Context(), "sbx_2", store.MemberIdle))
	_, err = b.Member(t.Context(), "sbx_2")
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "a dropped member exists: %v", err)
	err = b.MemberReady(t.Context(), pooled("sbx_2", "n1"))
	testbed.Check(t, errors.Is(err, store.ErrNoMember), "a dropped member became ready: %v", err)
	list, err := b.Members(t.Context())
	testbed.Check(t, err == nil && len(list) == 0, "left are %+v, %v", list, err)
	keys := b.keys(t, "{pool}*")
	testbed.Check(t, !slices.ContainsFunc(keys, func(key string) bool { return !strings.Contains(key, "{pool}:claims:") }), "left are keys %v", keys) // claims expire
}

// 50 creates at once get each member of 20 once.
func poolClaimsOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for i := range 20 {
		b.member(t, pooled(fmt.Sprintf("sbx_%02d", i), "n1"))
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	got, misses := map[string]int{}, 0
	for range 50 {
		group.Go(func() {
			m, err := b.ClaimMember(t.Context(), wanted("n1"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, store.ErrNoMember):
				misses++
			case err != nil:
				t.Error(err)
			default:
				got[m.ID]++
			}
		})
	}
	group.Wait()
	testbed.Check(t, len(got) == 20 && misses == 30, "%d members were claimed, %d creates got none; want 20 and 30", len(got), misses)
}

func (b *bundle) keys(t *testing.T, pattern string) []string {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), b.prefix+pattern).Result()
	testbed.Must(t, err)
	return keys
}
