//go:build faults

package faulttest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// awaitFree waits until all workers say that all devices are free.
func (f *gpuFarm) awaitFree(t *testing.T) {
	t.Helper()
	f.Until(time.Minute, "all devices are free", func() bool {
		workers, err := f.Farm.Client.Workers(t.Context())
		return err == nil && len(workers) > 0 && !slices.ContainsFunc(workers, func(w wire.Worker) bool { return len(w.GPUs) != 8 || w.GPUsLeased != 0 })
	})
}

// leaserKilled kills workers before and after they lease devices, start a container with them and return them: none stays leased.
func (f *gpuFarm) leaserKilled(t *testing.T) {
	points := slices.Repeat(bothSides("gpu"), 3) // lease, start, return
	atPoints(t, f.Farm, atEach{name: "worker killed where it leases GPUs", points: points, processes: f.Workers()[1:], act: kill(f.Farm), with: f.leases})
	f.awaitFree(t)
}

// leases are creations and closes of sandboxes with a device.
func (f *gpuFarm) leases(c *faulttest.Case) traffic {
	slots := make(chan struct{}, 6)
	one := 1
	return traffic{before: func() {}, after: func() {}, send: func(int) {
		select {
		case slots <- struct{}{}:
			if box := c.Create(wire.CreateRequest{GPU: &wire.GPURequest{Count: &one}}); box != "" {
				c.Ran(box, faulttest.Run{Lines: 1, First: true})
				c.Close(box)
			}
			<-slots
		default:
		}
	}}
}

// nodeGone takes the node away, with its engine, while sandboxes have its devices: the leases end with the node. When it is back, its old
// containers are removed before their devices are leased again.
func (f *gpuFarm) nodeGone(t *testing.T) {
	c := f.Case(t, "a node with GPUs gone, then back")
	two, eight := 2, 8
	var boxes []string
	for range 3 {
		box := f.Box(wire.CreateRequest{GPU: &wire.GPURequest{Count: &two}})
		boxes = append(boxes, box)
		f.AwaitHolder(c.Accept(box, faulttest.Run{Lines: 3000, Want: []string{"lost"}}).ID)
	}
	t.Cleanup(f.engine.Resume)
	c.Fault(func() {
		f.engine.Pause()
		f.Kill(f.Workers()...)
	}, func() {
		f.Until(2*time.Minute, "the sandboxes are lost, and nothing is leased", func() bool {
			leases, err := f.Redis().Keys(t.Context(), "sf:*gpus:*").Result()
			return err == nil && len(leases) == 0 && !slices.ContainsFunc(boxes, func(box string) bool {
				now, err := f.Sandbox(t.Context(), box)
				return err != nil || now.State != "lost"
			})
		})
		f.engine.Resume()
		f.Start(f.Workers()...)
		f.AwaitReady()
	})
	f.CloseIdle()
	all := f.Box(wire.CreateRequest{GPU: &wire.GPURequest{Count: &eight}})
	if n := slices.IndexFunc(boxes, func(box string) bool { return slices.Contains(f.Containers(), box) }); n >= 0 {
		t.Errorf("all devices are leased again while %s, of the node's former life, has a container", boxes[n])
	}
	c.Ran(all, faulttest.Run{Lines: 1, First: true})
	c.Close(all)
	c.End()
	f.awaitFree(t)
}

// waitsForDevices creates a sandbox while all devices are leased: it has a position in the queue, and starts when they are free.
func (f *gpuFarm) waitsForDevices(t *testing.T) {
	t.Helper()
	one, eight := 1, 8
	all := f.Box(wire.CreateRequest{GPU: &wire.GPURequest{Count: &eight}})
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{GPU: &wire.GPURequest{Count: &one}})
	if err != nil || made.Job.Position != 1 {
		t.Errorf("create while all devices are leased: %v, position %d", err, made.Job.Position)
	}
	if _, err := f.Close(t.Context(), all); err != nil {
		t.Error(err)
	}
	if end, err := f.Wait(t.Context(), made.Job.ID); err != nil || end.State != "completed" {
		t.Errorf("the create that waited: %v, %s", err, end.State)
	}
	if _, err := f.Close(t.Context(), made.Sandbox.ID); err != nil {
		t.Error(err)
	}
}
