//go:build faults

package faulttest_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// gpuFarm is a farm of three workers on an engine of its own, whose hook records which of eight devices each container
// has.
type gpuFarm struct {
	*faulttest.Farm
	engine *enginetest.Daemon
	hook   *enginetest.GPUs

	mu     sync.Mutex
	ended  map[string]time.Time // containers that have ended
	saw    map[string]string    // container → what its code found in NVIDIA_VISIBLE_DEVICES
	closed atomic.Int32
}

func newGPUFarm(t *testing.T) *gpuFarm {
	t.Helper()
	f := &gpuFarm{hook: enginetest.NewGPUs(t), ended: map[string]time.Time{}, saw: map[string]string{}}
	engine := enginetest.New(t, enginetest.Options{Path: []string{f.hook.Dir}})
	f.engine = engine
	began := time.Now()
	engine.Load("sandfarm/python")
	t.Logf("loading the image took %s", time.Since(began).Round(time.Second))
	events := exec.CommandContext(t.Context(), "docker", "--host", engine.Host, "events", "--filter", "event=die", "--format", "{{.Actor.ID}} {{.TimeNano}}")
	out, err := events.StdoutPipe()
	if err == nil {
		err = events.Start()
	}
	testbed.Must(t, err)
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = events.Process.Kill()
		<-read
		_ = events.Wait()
	})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			id, at, _ := strings.Cut(lines.Text(), " ")
			nanos, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				t.Errorf("unexpected output of the engine: %q", lines.Text())
				return
			}
			f.mu.Lock()
			f.ended[id] = time.Unix(0, nanos)
			f.mu.Unlock()
		}
	}()
	f.Farm = newFarm(t, faulttest.Config{
		Workers: 3, Schedulers: 1, Links: true, Engine: strings.TrimPrefix(engine.Host, "unix://"),
		Env: []string{"SANDFARM_WORKER_GPUS=model=NVIDIA A100-SXM4-80GB,memory_mb=81920,count=8", "SANDFARM_SCHEDULER_NODE_TIMEOUT=30s"},
	})
	return f
}

// runsOfEach is how many executes each sandbox has, beside its create and its close.
const runsOfEach = 6

// use creates, uses and closes one sandbox with GPUs.
func (f *gpuFarm) use(t *testing.T, request wire.GPU) {
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{GPU: &wire.GPURequest{Count: &request.Count, Model: request.Model}})
	if err != nil {
		t.Errorf("create: %v", err)
		return
	}
	code := "import os\nprint(os.environ['NVIDIA_VISIBLE_DEVICES'])"
	ids := []string{made.Job.ID}
	for range runsOfEach {
		job, err := f.Execute(t.Context(), made.Sandbox.ID, wire.ExecuteRequest{Code: code})
		if err != nil {
			t.Errorf("execute: %v", err)
			return
		}
		ids = append(ids, job.ID)
	}
	var saw []string
	for _, id := range ids {
		job, err := f.Wait(t.Context(), id)
		if err != nil || job.State != "completed" {
			t.Errorf("%s job %s of %s is %s: %v %+v", job.Kind, id, made.Sandbox.ID, job.State, err, job.Error)
			return
		}
		if job.Result != nil && job.Result.Execute != nil {
			saw = append(saw, strings.TrimSpace(job.Result.Execute.Stdout))
		}
	}
	if len(saw) != runsOfEach || len(slices.Compact(saw)) != 1 || len(strings.Split(saw[0], ",")) != request.Count {
		t.Errorf("a sandbox with %d devices saw %q", request.Count, saw)
		return
	}
	f.mu.Lock()
	f.saw[made.Sandbox.ID] = saw[0]
	f.mu.Unlock()
	job, err := f.Close(t.Context(), made.Sandbox.ID)
	if err == nil {
		job, err = f.Wait(t.Context(), job.ID)
	}
	if err != nil || job.State != "completed" {
		t.Errorf("close of %s is %s: %v %+v", made.Sandbox.ID, job.State, err, job.Error)
	}
	f.closed.Add(1)
}

// overlaps finds devices that two containers had at the same time.
func (f *gpuFarm) overlaps(t *testing.T) (containers int) {
	type span struct {
		container string
		from, to  time.Time
	}
	spans := map[string][]span{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hook.Seen(t) {
		if slices.Equal(h.Devices, []string{"void"}) { // the workers' probe of the driver
			continue
		}
		containers++
		to, ended := f.ended[h.Container]
		if !ended {
			t.Errorf("container %s, which had %v, has not ended", h.Container, h.Devices)
			to = time.Now()
		}
		for _, device := range h.Devices {
			if n, err := strconv.Atoi(device); err != nil || n < 0 || n > 7 {
				t.Errorf("there is no device %q", device)
			}
			for _, other := range spans[device] {
				if other.container != h.Container && h.At.Before(other.to) && other.from.Before(to) {
					t.Errorf("device %s was in %s from %s to %s, and in %s from %s to %s", device, other.container, other.from, other.to, h.Container, h.At, to)
				}
			}
			spans[device] = append(spans[device], span{h.Container, h.At, to})
		}
	}
	testbed.Diff(t, "devices were used", 8, len(spans))
	return containers
}

// Twenty-five sandboxes with 200 jobs share eight devices while workers are killed: no device is ever in two containers, all jobs
// complete, and all devices are free at the end.
func TestGPUsAreNeverInTwoSandboxes(t *testing.T) {
	t.Parallel()
	f := newGPUFarm(t)
	const sandboxes = 25
	began := time.Now()
	wants := make(chan wire.GPU, sandboxes)
	for i := range sandboxes {
		wants <- wire.GPU{Count: 1 + i%10/8, Model: []string{"", "A100", "nvidia a100-sxm4-80gb"}[i%3]}
	}
	close(wants)
	var users sync.WaitGroup
	for range 14 {
		users.Go(func() {
			for want := range wants {
				f.use(t, want)
			}
		})
	}
	for _, kill := range []struct {
		at    int32
		names []string
	}{{2, f.Workers()[:1]}, {9, f.Workers()[1:]}} {
		f.Until(3*time.Minute, fmt.Sprintf("%d sandboxes are done", kill.at), func() bool { return f.closed.Load() >= kill.at || t.Failed() })
		f.Kill(kill.names...)
		f.Start(kill.names...)
	}
	users.Wait()
	t.Logf("%d jobs in %d sandboxes, three workers killed: %s", sandboxes*(2+runsOfEach), sandboxes, time.Since(began).Round(time.Second))
	if done := f.closed.Load(); done != sandboxes {
		t.Errorf("%d sandboxes are done, want %d", done, sandboxes)
	}
	f.awaitFree(t)
	if rounds() > 1 {
		for range rounds() {
			t.Run("LeaserKilled", f.leaserKilled)
			t.Run("NodeGone", f.nodeGone)
		}
	}
	f.Until(time.Minute, "the engine has told of every end", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.ended) >= sandboxes
	})
	if n := f.overlaps(t); n < sandboxes {
		t.Errorf("%d containers had devices, want %d or more", n, sandboxes)
	}
	f.waitsForDevices(t)
	nine := 9
	if _, err := f.CreateSandbox(t.Context(), wire.CreateRequest{GPU: &wire.GPURequest{Count: &nine}}, client.WithWait(time.Second)); err == nil || !strings.Contains(err.Error(), "8 × a100-sxm4-80gb (81920 MiB)") {
		t.Errorf("nine devices: %v", err)
	}
	if n := f.CloseAll(); n > 0 {
		t.Errorf("%d containers are left", n)
	}
}

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
	at := atEach{name: "worker killed where it leases GPUs", points: points, processes: f.Workers()[1:], act: kill(f.Farm), with: f.leases}
	at.happens(t, f.Farm)
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
		f.Back(f.Workers()...)
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
	f.Completed("the create that waited", made.Job.ID)
	if _, err := f.Close(t.Context(), made.Sandbox.ID); err != nil {
		t.Error(err)
	}
}
