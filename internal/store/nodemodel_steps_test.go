//go:build integration

package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// actions are the steps of the model, by name.
func (w *nodeWorld) actions() map[string]func() {
	return map[string]func(){
		"begin": w.begin, "begin 2": w.begin, "ready": w.ready, "ready 2": w.ready, "claim": w.claim, "claim 2": w.claim, "return": w.giveBack, "drop": w.drop,
		"open": w.open, "lease": w.lease, "lease 2": w.lease, "start": w.start, "return GPUs": w.returnGPUs, "return a lease": w.returnLease, "restore": w.restore,
		"reserve": w.reserve, "unreserve": w.unreserve, "drain": w.drain, "end a drain": w.endDrain, "renew": w.renew,
		"lose a node": func() {
			if draw(w, "do it", 0, 0, 1) == 1 {
				w.release(w.node())
			}
		},
	}
}

// begin starts a member; the call may be made again, as after a lost answer.
func (w *nodeWorld) begin() {
	w.number++
	m := store.Member{ID: fmt.Sprint("sbx_m", w.number), Node: w.node(), Image: draw(w, "image", "python", "node"), Network: farm.NetworkNone, Worker: "wrk_a"}
	after := m
	after.State, after.At = store.MemberStarting, w.clock
	w.step("begin "+m.ID, nil, w.one(func(h *holdings) { h.Members[m.ID] = after }), func(ctx context.Context) error { return w.store.BeginMember(ctx, m) })
}

// member draws a member, sometimes one that does not exist.
func (w *nodeWorld) member() string {
	return draw(w, "member", append(w.now.members(func(store.Member) bool { return true }), "sbx_unknown")...)
}

func (w *nodeWorld) ready() {
	id := w.member()
	m, there := w.now.Members[id]
	if !there {
		m.ID = id
	}
	sent := m
	sent.Container = "c-" + id
	var want error
	predicted := w.same()
	switch {
	case there && m.State == store.MemberStarting:
		after := sent
		after.State, after.At = store.MemberIdle, w.clock
		predicted = w.one(func(h *holdings) { h.Members[id], h.Ready[id] = after, w.clock })
	case !there || m.State != store.MemberIdle:
		want = store.ErrNoMember
	}
	w.step("ready "+id, want, predicted, func(ctx context.Context) error { return w.store.MemberReady(ctx, sent) })
}

// claim claims the member that has been ready the longest. Each is claimed once.
func (w *nodeWorld) claim() {
	c := store.MemberClaim{Tenant: draw(w, "tenant", "acme", "globex"), Image: draw(w, "image", "python", "node"), Network: farm.NetworkNone, Nodes: draw(w, "nodes", twoNodes, twoNodes[:1], twoNodes[1:], nil)}
	fit := w.now.members(func(m store.Member) bool {
		return m.State == store.MemberIdle && m.Image == c.Image && slices.Contains(c.Nodes, m.Node)
	})
	idle := w.now.members(func(m store.Member) bool { return m.State == store.MemberIdle && m.Image == c.Image })
	got := map[string]int{} // by tenant, in the two minutes
	for ago := range int64(2) {
		key := fmt.Sprintf("sf:{pool}:claims:%s none 0 %d", c.Image, w.clock.Unix()/60-ago)
		for tenant, n := range w.rdb.HGetAll(w.Context(), key).Val() {
			more, err := strconv.Atoi(n)
			w.must(err)
			got[tenant] += more
		}
	}
	if len(idle) == 1 && got[c.Tenant] >= 4 && slices.Min(slices.Collect(maps.Values(got))) < got[c.Tenant] {
		fit = nil // it is left to the other one
	}
	want, predicted := store.ErrNoMember, w.same()
	if len(fit) > 0 {
		after := w.now.Members[fit[0]]
		after.State, after.Tenant, after.At = store.MemberClaimed, c.Tenant, w.clock
		want, predicted = nil, w.one(func(h *holdings) { h.Members[fit[0]] = after })
	}
	w.step(fmt.Sprintf("claim %+v", c), want, predicted, func(ctx context.Context) error {
		m, err := w.store.ClaimMember(ctx, c)
		if err == nil && (len(fit) == 0 || m.ID != fit[0]) {
			w.Fatalf("%s was claimed, but these are ready: %v", m.ID, fit)
		}
		return err
	})
}

func (w *nodeWorld) giveBack() {
	id, tenant := w.member(), draw(w, "tenant", "acme", "globex")
	m := w.now.Members[id]
	want, predicted := store.ErrNoMember, w.same()
	if m.State == store.MemberClaimed && m.Tenant == tenant {
		m.State, m.Tenant, m.At = store.MemberIdle, "", w.now.Ready[id]
		want, predicted = nil, w.one(func(h *holdings) { h.Members[id] = m })
	}
	w.step("return "+id, want, predicted, func(ctx context.Context) error { return w.store.ReturnMember(ctx, id, tenant) })
}

func (w *nodeWorld) drop() {
	id := w.member()
	states := draw(w, "states", []store.MemberState{store.MemberStarting}, []store.MemberState{store.MemberIdle}, []store.MemberState{store.MemberStarting, store.MemberClaimed})
	want, predicted := store.ErrNoMember, w.same()
	if slices.Contains(states, w.now.Members[id].State) {
		want, predicted = nil, w.one(func(h *holdings) { h.drop(id) })
	}
	w.step(fmt.Sprint("drop ", id, " ", states), want, predicted, func(ctx context.Context) error { return w.store.DropMember(ctx, id, states...) })
}

func (w *nodeWorld) open() {
	node := w.node()
	w.step("open "+node, nil, w.one(func(h *holdings) { h.Open[node] = true }), func(ctx context.Context) error {
		_, err := w.store.OpenGPUs(ctx, node)
		return err
	})
}

func (w *nodeWorld) lease() {
	node := w.node()
	ref, generation := w.sandbox()
	r := store.GPURequest{Node: node, Sandbox: ref, Generation: generation, Worker: "wrk_a", Count: draw(w, "count", 1, 2, 3), Devices: rapid.Permutation(fourDevices).Draw(w.T, "devices")}
	own := w.now.leasesOf(node, ref.ID)
	chosen, gets := own, len(own) == r.Count
	if len(own) == 0 {
		free := slices.DeleteFunc(slices.Clone(r.Devices), func(d string) bool { _, leased := w.now.Leases[node][d]; return leased })
		chosen, gets = free[:min(r.Count, len(free))], len(free) >= r.Count
	}
	var want error
	if gets = gets && w.now.Open[node]; w.now.Open[node] && len(own) > 0 && w.now.Leases[node][own[0]].Generation > generation {
		want, gets = store.ErrFenced, false
	}
	predicted := w.same()
	if gets {
		predicted = w.one(func(h *holdings) {
			for _, d := range chosen {
				h.Leases[node][d] = store.GPULease{Device: d, Sandbox: ref, Generation: generation, Worker: r.Worker, At: w.clock}
			}
		})
	}
	w.step(fmt.Sprintf("lease %+v", r), want, predicted, func(ctx context.Context) error {
		ok, _, err := w.store.LeaseGPUs(ctx, r)
		if err == nil && ok != gets {
			w.Fatalf("LeaseGPUs = %v, want %v; on %s are %+v", ok, gets, node, w.now.Leases[node])
		}
		return err
	})
}

func (w *nodeWorld) start() {
	node := w.node()
	ref, generation := w.sandbox()
	own := w.now.leasesOf(node, ref.ID)
	devices := draw(w, "devices", own, own, fourDevices[:1])
	want, predicted := store.ErrFenced, w.same()
	if len(own) > 0 && slices.Equal(own, devices) && w.now.Leases[node][own[0]].Generation == generation {
		want, predicted = nil, w.one(func(h *holdings) {
			for _, d := range own {
				l := h.Leases[node][d]
				l.Started = true
				h.Leases[node][d] = l
			}
		})
	}
	w.step(fmt.Sprintf("start %s %d with %v", ref.ID, generation, devices), want, predicted, func(ctx context.Context) error {
		return w.store.StartGPUs(ctx, node, ref, generation, devices)
	})
}

// noLeases is the prediction of a call after which a sandbox has no devices on a node.
func (w *nodeWorld) noLeases(node string, own []string) []*holdings {
	return w.one(func(h *holdings) {
		for _, d := range own {
			delete(h.Leases[node], d)
		}
	})
}

func (w *nodeWorld) returnGPUs() {
	node := w.node()
	ref, generation := w.sandbox()
	own := w.now.leasesOf(node, ref.ID)
	predicted := w.noLeases(node, own)
	var want error
	if len(own) > 0 && w.now.Leases[node][own[0]].Generation > generation {
		want, predicted = store.ErrFenced, w.same()
	}
	w.step(fmt.Sprintf("return GPUs of %s %d", ref.ID, generation), want, predicted, func(ctx context.Context) error {
		_, err := w.store.ReturnGPUs(ctx, node, ref, generation)
		return err
	})
}

// returnLease returns a lease that was read, perhaps long ago.
func (w *nodeWorld) returnLease() {
	node := w.node()
	ref, _ := w.sandbox()
	own := w.now.leasesOf(node, ref.ID)
	if len(own) == 0 {
		return
	}
	read, predicted := w.now.Leases[node][own[0]], w.noLeases(node, own)
	var want error
	if draw(w, "it was made again since", 0, 1) == 1 {
		read.At = read.At.Add(-1)
		read.At = read.At.Truncate(1000)
		want, predicted = store.ErrFenced, w.same()
	}
	w.step("return the lease of "+ref.ID, want, predicted, func(ctx context.Context) error {
		_, err := w.store.ReturnGPULease(ctx, node, read)
		return err
	})
}

// restore writes the devices of a container whose leases Redis has lost.
func (w *nodeWorld) restore() {
	node := w.node()
	ref, generation := w.sandbox()
	if len(w.now.leasesOf(node, ref.ID)) > 0 {
		return
	}
	devices := draw(w, "devices", fourDevices[:1], fourDevices[1:3], fourDevices[2:])
	var want error
	predicted := w.one(func(h *holdings) {
		for _, d := range devices {
			if _, taken := h.Leases[node][d]; taken {
				want = farm.Conflictf("taken")
				continue
			}
			h.Leases[node][d] = store.GPULease{Device: d, Sandbox: ref, Generation: generation, Started: true, At: w.clock}
		}
	})
	w.step(fmt.Sprintf("restore %v of %s", devices, ref.ID), want, predicted, func(ctx context.Context) error {
		_, err := w.store.RestoreGPUs(ctx, node, ref, generation, devices)
		return err
	})
}

func (w *nodeWorld) reserve() {
	node := w.node()
	ref, generation := w.sandbox()
	r := store.ReserveRequest{Node: node, Capacity: nodeRoom, Sandbox: ref, Generation: generation, Want: farm.Capacity{MemoryMB: draw(w, "memory", 200, 400, 600), CPUs: draw(w, "cores", 0.5, 1, 2)}, Force: draw(w, "force", 0, 0, 0, 1) == 1}
	own, has := w.now.Reserved[node][ref.ID]
	others := farm.Capacity{}
	for id, o := range w.now.Reserved[node] {
		if id != ref.ID {
			others.MemoryMB, others.CPUs = others.MemoryMB+o.Size.MemoryMB, others.CPUs+o.Size.CPUs
		}
	}
	fits := others.MemoryMB+r.Want.MemoryMB <= nodeRoom.MemoryMB && others.CPUs+r.Want.CPUs <= nodeRoom.CPUs
	grows := !has || r.Want.MemoryMB > own.Size.MemoryMB || r.Want.CPUs > own.Size.CPUs
	gets := r.Force || fits || !grows
	var want error
	if has && own.Generation > generation {
		want, gets = store.ErrFenced, false
	}
	predicted, size := w.same(), own.Size
	if gets {
		size = r.Want
		predicted = w.one(func(h *holdings) {
			h.Reserved[node][ref.ID] = store.Reservation{Size: r.Want, At: w.clock, Generation: generation}
		})
	}
	sum := farm.Capacity{MemoryMB: others.MemoryMB + size.MemoryMB, CPUs: others.CPUs + size.CPUs}
	w.step(fmt.Sprintf("reserve %+v", r), want, predicted, func(ctx context.Context) error {
		ok, nodes, err := w.store.Reserve(ctx, r)
		if err == nil && (ok != gets || nodes[node].Reserved != sum) {
			w.Fatalf("Reserve = %v, %+v, want %v, %+v", ok, nodes[node], gets, sum)
		}
		return err
	})
}

func (w *nodeWorld) unreserve() {
	node := w.node()
	ref, generation := w.sandbox()
	predicted := w.same()
	if own, has := w.now.Reserved[node][ref.ID]; has && own.Generation <= generation {
		predicted = w.one(func(h *holdings) { delete(h.Reserved[node], ref.ID) })
	}
	w.step(fmt.Sprintf("unreserve %s %d", ref.ID, generation), nil, predicted, func(ctx context.Context) error {
		_, err := w.store.Unreserve(ctx, node, nodeRoom, ref, generation)
		return err
	})
}

func (w *nodeWorld) drain() {
	d := farm.Drain{Node: w.node(), Since: w.clock.UTC(), Idle: draw(w, "idle", farm.DrainKeep, farm.DrainHibernate, farm.DrainClose)}
	after := d
	if before, drained := w.now.Drains[d.Node]; drained {
		after.Since = before.Since
	}
	w.step(fmt.Sprintf("drain %+v", d), nil, w.one(func(h *holdings) { h.Drains[d.Node] = after }), func(ctx context.Context) error {
		got, err := w.store.SetDrain(ctx, d)
		if err == nil && !cmp.Equal(got, after) {
			w.Fatalf("SetDrain = %+v, want %+v", got, after)
		}
		return err
	})
}

func (w *nodeWorld) endDrain() {
	node := w.node()
	var want error
	if _, drained := w.now.Drains[node]; !drained {
		want = farm.NotFoundf("not drained")
	}
	w.step("end the drain of "+node, want, w.one(func(h *holdings) { delete(h.Drains, node) }), func(ctx context.Context) error { return w.store.EndDrain(ctx, node) })
}

// renew renews a node's lease, by which its workers learn that it is drained.
func (w *nodeWorld) renew() {
	node := w.node()
	w.step("renew "+node, nil, w.same(), func(ctx context.Context) error {
		drained, err := w.store.RenewNode(ctx, node)
		if _, want := w.now.Drains[node]; err == nil && drained != want {
			w.Fatalf("RenewNode = %v, want %v", drained, want)
		}
		return err
	})
}

// release ends a node. A crash leaves a part of what it holds, which the next pass ends.
func (w *nodeWorld) release(node string) {
	h := w.now.clone()
	h.Reserved[node], h.Leases[node] = map[string]store.Reservation{}, map[string]store.GPULease{}
	delete(h.Open, node)
	predicted := []*holdings{h}
	for _, id := range h.members(func(m store.Member) bool { return m.Node == node }) {
		h = h.clone()
		h.drop(id)
		predicted = append(predicted, h)
	}
	h = h.clone()
	delete(h.Drains, node)
	w.step("release of "+node, nil, append(predicted, h), func(ctx context.Context) error {
		err := w.store.ReleaseNode(ctx, node)
		if errors.Is(err, store.ErrNoMember) {
			w.Fatalf("release of %s: %v", node, err)
		}
		return err
	})
}
