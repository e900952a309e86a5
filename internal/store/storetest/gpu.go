package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var eightGPUs = []string{"0", "1", "2", "3", "4", "5", "6", "7"}

func (b *bundle) openGPUs(t *testing.T) {
	t.Helper()
	now, err := b.OpenGPUs(t.Context(), "n1")
	testbed.Require(t, err == nil && now.Open, "OpenGPUs = %+v, %v", now, err)
}

// lease asks for devices of n1 for the first generation of a sandbox, and returns those that the sandbox then has.
func (b *bundle) lease(t *testing.T, sandbox farm.Ref, count int, change ...func(*store.GPURequest)) (devices []string) {
	t.Helper()
	r := store.GPURequest{Node: "n1", Sandbox: sandbox, Generation: 1, Worker: "wrk_1", Count: count, Devices: eightGPUs}
	for _, f := range change {
		f(&r)
	}
	ok, now, err := b.LeaseGPUs(t.Context(), r)
	if errors.Is(err, store.ErrFenced) {
		return nil
	}
	testbed.Check(t, err == nil, "LeaseGPUs = %v", err)
	devices = now.Of(sandbox.ID)
	testbed.Check(t, ok == (len(devices) > 0), "LeaseGPUs = %v, but %s has %v", ok, sandbox.ID, devices)
	return devices
}

// as makes a request that of a generation.
func as(generation int) func(*store.GPURequest) {
	return func(r *store.GPURequest) { r.Generation = generation }
}

func gpuLeases(t *testing.T, factory Factory) {
	b := setup(t, factory)
	devices := b.lease(t, box("1"), 1)
	testbed.Check(t, devices == nil, "leased %v before the containers were reconciled", devices)
	b.openGPUs(t)
	b.openGPUs(t)
	devices = b.lease(t, box("1"), 3)
	testbed.Check(t, slices.Equal(devices, []string{"0", "1", "2"}), "leased %v, want the first three", devices)
	devices = b.lease(t, box("2"), 6)
	testbed.Check(t, devices == nil, "leased %v of five", devices)
	devices = b.lease(t, box("2"), 1, func(r *store.GPURequest) { r.Devices = []string{"2", "6"} })
	testbed.Check(t, slices.Equal(devices, []string{"6"}), "leased %v, want 6: 2 is leased to another sandbox", devices)
	devices = b.lease(t, box("far"), 1, func(r *store.GPURequest) { r.Node = "n2" })
	testbed.Check(t, devices == nil, "leased %v of a node that is not open", devices)
	now, err := b.GPUs(t.Context(), "n1")
	want := store.GPULease{Device: "6", Sandbox: box("2"), Generation: 1, Worker: "wrk_1", At: b.clock.Now()}
	testbed.Check(t, err == nil && len(now.Leases) == 4 && cmp.Equal(want, now.Leases["6"]), "GPUs = %+v, %v, want %+v among them", now, err, want)
	if err := b.StartGPUs(t.Context(), "n1", box("2"), 1, []string{"6"}); err != nil {
		t.Errorf("StartGPUs = %v", err)
	}
	want.Started = true
	if now, err = b.GPUs(t.Context(), "n1"); err != nil || !cmp.Equal(want, now.Leases["6"]) {
		t.Errorf("started: %+v, %v", now.Leases["6"], err)
	}
	for range 2 {
		if now, err = b.ReturnGPUs(t.Context(), "n1", box("1"), 0); err != nil || len(now.Leases) != 1 {
			t.Errorf("ReturnGPUs = %+v, %v", now, err)
		}
	}
}

// gpusAreFenced lets a worker continue whose create left the node and came back to it, as the next generation.
func gpusAreFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.openGPUs(t)
	devices := b.lease(t, box("1"), 2)
	again := b.lease(t, box("1"), 2, func(r *store.GPURequest) { r.Worker = "wrk_2" })
	testbed.Check(t, slices.Equal(devices, again), "the worker that takes over has %v, the first one had %v", again, devices)
	b.clock.forward(time.Second)
	again = b.lease(t, box("1"), 2, as(2))
	testbed.Check(t, slices.Equal(devices, again), "the next generation has %v, the first one had %v", again, devices)
	before, err := b.GPUs(t.Context(), "n1")
	testbed.Must(t, err)
	_, _, err = b.LeaseGPUs(t.Context(), store.GPURequest{Node: "n1", Sandbox: box("1"), Generation: 1, Worker: "wrk_1", Count: 2, Devices: eightGPUs})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "LeaseGPUs of an old generation = %v", err)
	err = b.StartGPUs(t.Context(), "n1", box("1"), 1, devices)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "StartGPUs of an old generation = %v", err)
	err = b.StartGPUs(t.Context(), "n1", box("1"), 2, devices[:1])
	testbed.Check(t, errors.Is(err, store.ErrFenced), "StartGPUs with some of the devices = %v", err)
	err = b.StartGPUs(t.Context(), "n1", box("1"), 2, []string{"0", "5"})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "StartGPUs with other devices = %v", err)
	_, err = b.ReturnGPUs(t.Context(), "n1", box("1"), 1)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "ReturnGPUs of an old generation = %v", err)
	read := before.Leases[devices[0]]
	read.At = read.At.Add(-time.Second)
	_, err = b.ReturnGPULease(t.Context(), "n1", read)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "ReturnGPULease of a lease that was made again = %v", err)
	if after, err := b.GPUs(t.Context(), "n1"); err != nil || !cmp.Equal(before, after) {
		t.Errorf("refused calls changed leases: %v\n%s", err, cmp.Diff(before, after))
	}
	if err := b.StartGPUs(t.Context(), "n1", box("1"), 2, devices); err != nil {
		t.Errorf("StartGPUs = %v", err)
	}
	now, err := b.ReturnGPULease(t.Context(), "n1", before.Leases[devices[0]])
	testbed.Check(t, err == nil && len(now.Leases) == 0, "ReturnGPULease = %+v, %v", now, err)
	err = b.StartGPUs(t.Context(), "n1", box("1"), 2, devices)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "StartGPUs after the return = %v", err)
}

// gpuLeasesOfTheReleaseBefore reads rows with the fence that the release before had: they are older than any generation.
func gpuLeasesOfTheReleaseBefore(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.openGPUs(t)
	row := "57 bound wrk_0 1700000000000000 " + box("1").ID + " acme"
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{room}:gpus:n1", "3", row).Err())
	now, err := b.GPUs(t.Context(), "n1")
	want := store.GPULease{Device: "3", Sandbox: box("1"), Started: true, Worker: "wrk_0", At: time.UnixMicro(1700000000000000).UTC()}
	diff := cmp.Diff(want, now.Leases["3"])
	testbed.Check(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
	devices := b.lease(t, box("2"), 8)
	testbed.Check(t, devices == nil, "leased %v of seven", devices)
	devices = b.lease(t, box("1"), 1)
	testbed.Check(t, slices.Equal(devices, []string{"3"}), "its sandbox has %v", devices)
	testbed.Must(t, b.StartGPUs(t.Context(), "n1", box("1"), 1, []string{"3"}))
	now, err = b.ReturnGPUs(t.Context(), "n1", box("1"), 1)
	testbed.Check(t, err == nil && len(now.Leases) == 0, "ReturnGPUs = %+v, %v", now, err)
}

func largeGPURequestsGoFirst(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.openGPUs(t)
	since := b.clock.Now()
	b.lease(t, box("1"), 4)
	b.lease(t, box("2"), 1)
	all := func(r *store.GPURequest) { r.Since = since }
	b.lease(t, box("large"), 8, all) // has not waited long: does not block others
	b.lease(t, box("3"), 1)
	b.clock.forward(31 * time.Second)
	b.lease(t, box("larger"), 9, all) // can never be satisfied: does not block others
	b.lease(t, box("4"), 1)
	b.lease(t, box("large"), 8, all)
	devices := b.lease(t, box("5"), 1, all)
	testbed.Check(t, devices == nil, "%v went to a sandbox that came later", devices)
	devices = b.lease(t, box("1"), 4)
	testbed.Check(t, len(devices) == 4, "a sandbox that waits blocks one that has its devices already")
	for _, s := range []string{"1", "2", "3", "4"} {
		_, err := b.ReturnGPUs(t.Context(), "n1", box(s), 0)
		testbed.Must(t, err)
	}
	devices = b.lease(t, box("5"), 1, all)
	testbed.Check(t, devices == nil, "%v went to a sandbox that came later", devices)
	devices = b.lease(t, box("large"), 8, all)
	testbed.Check(t, len(devices) == 8, "the sandbox that waited has %v", devices)
	// A sandbox that blocks others and stops asking no longer blocks them.
	b.lease(t, box("5"), 1, all)
	_, err := b.ReturnGPUs(t.Context(), "n1", box("5"), 0)
	testbed.Must(t, err)
	_, err = b.ReturnGPUs(t.Context(), "n1", box("large"), 0)
	testbed.Must(t, err)
	devices = b.lease(t, box("6"), 1)
	testbed.Check(t, devices != nil, "the devices are still blocked for a sandbox that no longer asks")
}

func gpuLeasesAreRestored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	_, err := b.RestoreGPUs(t.Context(), "n1", box("1"), 1, []string{"1", "2"})
	testbed.Check(t, err == nil, "RestoreGPUs = %v", err)
	b.openGPUs(t)
	devices := b.lease(t, box("2"), 7)
	testbed.Check(t, devices == nil, "leased %v of six", devices)
	devices = b.lease(t, box("2"), 6)
	testbed.Check(t, !slices.Contains(devices, "1") && !slices.Contains(devices, "2"), "leased %v: 1 and 2 were restored", devices)
	before, err := b.GPUs(t.Context(), "n1")
	testbed.Must(t, err)
	after, err := b.RestoreGPUs(t.Context(), "n1", box("2"), 1, []string{"0", "3"})
	diff := cmp.Diff(before, after)
	testbed.Check(t, err == nil && diff == "", "restoring a leased device: %v\n%s", err, diff)
	_, err = b.RestoreGPUs(t.Context(), "n1", box("3"), 1, []string{"0", "1"})
	wantCode(t, "adopt what is another's", err, farm.CodeConflict)
	if after, err = b.GPUs(t.Context(), "n1"); err != nil || !cmp.Equal(before, after) {
		t.Errorf("after the conflict: %v\n%s", err, cmp.Diff(before, after))
	}
}

// gpusAreLeasedOnce has many sandboxes ask at the same time.
func gpusAreLeasedOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.openGPUs(t)
	var mu sync.Mutex
	holder := map[string]string{}
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			s := box(fmt.Sprint(i))
			for range 10 {
				devices := b.lease(t, s, 1+i%3)
				mu.Lock()
				for _, device := range devices {
					testbed.Diff(t, fmt.Sprintf("other holder of %s", device), "", holder[device])
					holder[device] = s.ID
				}
				mu.Unlock()
				mu.Lock()
				for _, device := range devices {
					delete(holder, device)
				}
				mu.Unlock()
				if len(devices) == 0 {
					continue
				}
				if _, err := b.ReturnGPUs(t.Context(), "n1", s, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// gpuWorld is a node with containers, and attempts to start them, which advance one step at a time.
type gpuWorld struct {
	*bundle
	random     *rand.Rand
	containers map[string][]string // devices of each sandbox's container
	made       map[string]int      // the generation of each container
	started    map[string]bool
	generation map[string]int // of each sandbox
	attempts   []*gpuAttempt
	limit      int // most devices that ran at once
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
					other, ok := owner[device]
					testbed.Require(t, !ok, "seed %d, step %d: device %s is in %s and %s", seed, step, device, other, sandbox)
					owner[device] = sandbox
				}
			}
			w.limit = max(w.limit, len(owner))
		}
		testbed.Check(t, w.limit >= len(eightGPUs)/2, "seed %d: only %d devices ran at once", seed, w.limit)
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
		_, err := w.ReturnGPUs(t.Context(), "n1", sandbox, w.current(sandbox.ID))
		testbed.Must(t, err)
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
		testbed.Must(t, err)
		if devices := now.Of(sandbox.ID); len(devices) > 0 && !now.Leases[devices[0]].Started && w.containers[sandbox.ID] == nil {
			_, err = w.ReturnGPULease(t.Context(), "n1", now.Leases[devices[0]])
			testbed.Must(t, err)
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
		testbed.Must(t, err)
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
	testbed.Require(t, err == nil && len(keys) != 0, "keys: %v, %v", keys, err)
	testbed.Must(t, w.rdb.Del(t.Context(), keys...).Err())
	devices := w.lease(t, box("hasty"), 1)
	testbed.Require(t, devices == nil, "leased %v before the containers were reconciled", devices)
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
			testbed.Must(t, err)
		}
	}
	w.openGPUs(t)
}
