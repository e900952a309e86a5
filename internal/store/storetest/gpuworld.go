package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// gpuWorld is a node with containers, and attempts to start them, which advance one step at a time.
type gpuWorld struct {
	*bundle
	random     *rand.Rand
	containers map[string][]string // devices of each sandbox's container
	made       map[string]int      // the generation of each container
	started    map[string]bool
	generation map[string]int // of each sandbox
	attempts   []*gpuAttempt
	most       int // most devices that ran at once
}

// gpuAttempt is a worker's attempt to start a sandbox. Workers stop at any step, continue much later, and several try the same sandbox.
type gpuAttempt struct {
	sandbox    farm.Ref
	devices    []string
	generation int
	stage      int
}

// gpusAreNeverShared makes random steps of many workers, with takeovers, closings, creates that leave the node and come back, returns of dead
// workers' leases, late returns and losses of all data of Redis, and checks the running containers after each step.
func gpusAreNeverShared(t *testing.T, factory Factory) {
	for seed := range uint64(4) {
		b := setup(t, factory)
		w := &gpuWorld{bundle: b, random: rand.New(rand.NewPCG(seed, 1)), containers: map[string][]string{}, made: map[string]int{}, started: map[string]bool{}, generation: map[string]int{}} //nolint:gosec // a test's steps
		b.openGPUs(t)
		for step := range 400 {
			w.step(t)
			owner := map[string]string{}
			for sandbox, devices := range w.containers {
				if !w.started[sandbox] {
					continue
				}
				for _, device := range devices {
					if other, ok := owner[device]; ok {
						t.Fatalf("seed %d, step %d: device %s is in %s and %s", seed, step, device, other, sandbox)
					}
					owner[device] = sandbox
				}
			}
			w.most = max(w.most, len(owner))
		}
		if w.most < len(eightGPUs)/2 {
			t.Errorf("seed %d: only %d devices ran at once", seed, w.most)
		}
	}
	gpusAreLeasedOnce(t, factory)
}

func (w *gpuWorld) step(t *testing.T) {
	t.Helper()
	sandbox := box(fmt.Sprint(w.random.IntN(12)))
	w.attempts = slices.DeleteFunc(w.attempts, func(a *gpuAttempt) bool { return a.stage > 2 })
	switch n := w.random.IntN(100); {
	case n < 35:
		a := &gpuAttempt{sandbox: sandbox, generation: w.current(sandbox.ID)}
		count := 1 + int(sandbox.ID[len(sandbox.ID)-1]-'0')%3
		order := func(r *store.GPURequest) {
			r.Devices = slices.Clone(eightGPUs)
			w.random.Shuffle(len(r.Devices), func(i, j int) { r.Devices[i], r.Devices[j] = r.Devices[j], r.Devices[i] })
		}
		if a.devices = w.lease(t, sandbox, count, order, as(a.generation)); len(a.devices) > 0 {
			w.attempts = append(w.attempts, a)
		}
	case n < 75 && len(w.attempts) > 0:
		w.advance(t, w.attempts[w.random.IntN(len(w.attempts))])
	case n < 82: // closed: the container is removed first
		w.remove(sandbox)
		if _, err := w.ReturnGPUs(t.Context(), "n1", sandbox, w.current(sandbox.ID)); err != nil {
			t.Fatal(err)
		}
	case n < 86: // its create leaves the node, and may come back
		w.generation[sandbox.ID] = w.current(sandbox.ID) + 1
	case n < 88 && w.current(sandbox.ID) > 1: // a worker notices late that its create has left
		if _, err := w.ReturnGPUs(t.Context(), "n1", sandbox, w.current(sandbox.ID)-1); err == nil {
			w.remove(sandbox) // the leases were of that generation, and its worker removes the container first
		} else if !errors.Is(err, store.ErrFenced) {
			t.Fatal(err)
		}
	case n < 99: // the lease of a worker that is considered dead
		now, err := w.GPUs(t.Context(), "n1")
		if err != nil {
			t.Fatal(err)
		}
		if devices := now.Of(sandbox.ID); len(devices) > 0 && !now.Leases[devices[0]].Started && w.containers[sandbox.ID] == nil {
			if _, err := w.ReturnGPULease(t.Context(), "n1", now.Leases[devices[0]]); err != nil {
				t.Fatal(err)
			}
		}
	case n < 100:
		w.wipe(t)
	}
}

// current is the generation of a sandbox.
func (w *gpuWorld) current(sandbox string) int { return max(w.generation[sandbox], 1) }

// advance makes the next step of an attempt: make the container, note the start, start.
func (w *gpuWorld) advance(t *testing.T, a *gpuAttempt) {
	t.Helper()
	id := a.sandbox.ID
	switch a.stage++; a.stage {
	case 1:
		if w.containers[id] != nil && w.made[id] < a.generation {
			w.remove(a.sandbox) // of an earlier generation
			a.stage = 1
		}
		if w.containers[id] == nil { // otherwise the engine returns the existing one
			w.containers[id], w.made[id] = a.devices, a.generation
		}
	case 2:
		if !slices.Equal(w.containers[id], a.devices) {
			a.stage = 9
			return
		}
		err := w.StartGPUs(t.Context(), "n1", a.sandbox, a.generation, a.devices)
		if errors.Is(err, store.ErrFenced) {
			a.stage = 9
			if !w.started[id] && a.generation == w.current(id) {
				w.remove(a.sandbox)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	case 3:
		if slices.Equal(w.containers[id], a.devices) { // by the engine's id: a later container of the sandbox is not this one
			w.started[id] = true
		}
	}
}

func (w *gpuWorld) remove(sandbox farm.Ref) {
	delete(w.containers, sandbox.ID)
	delete(w.started, sandbox.ID)
	for _, a := range w.attempts {
		if a.sandbox == sandbox && a.stage > 0 {
			a.stage = 9 // its container was removed
		}
	}
}

// wipe deletes all data of Redis, has workers ask at once, and then restores the leases of the containers.
func (w *gpuWorld) wipe(t *testing.T) {
	t.Helper()
	keys, err := w.rdb.Keys(t.Context(), w.prefix+"*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	if err := w.rdb.Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
	if devices := w.lease(t, box("hasty"), 1); devices != nil {
		t.Fatalf("leased %v before the containers were reconciled", devices)
	}
	for _, running := range []bool{true, false} { // running containers first: they have their devices
		for id, devices := range maps.Clone(w.containers) {
			if w.started[id] != running {
				continue
			}
			sandbox := farm.Ref{Tenant: Tenant, ID: id}
			_, err := w.RestoreGPUs(t.Context(), "n1", sandbox, w.current(id), devices)
			if farm.CodeOf(err) == farm.CodeConflict && !running { // made for a lease that had ended: it never starts
				w.remove(sandbox)
				_, err = w.ReturnGPUs(t.Context(), "n1", sandbox, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	w.openGPUs(t)
}
