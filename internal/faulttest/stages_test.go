//go:build faults

package faulttest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A job is cancelled in each state, and then all workers are killed and replaced: it never starts again.
func canceled(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "cancel at every stage, then all workers killed")
	boxes := c.Boxes(4)
	either := []string{"canceled", "completed"}

	head := c.Accept(boxes[0], faulttest.Run{Lines: 10})
	queued := c.Accept(boxes[0], faulttest.Run{Want: []string{"canceled"}, Never: true})
	cancel(t, f, queued.ID)
	running := c.Accept(boxes[1], faulttest.Run{Lines: 600, Want: []string{"canceled"}})
	awaitOutput(t, f, running.ID)
	cancel(t, f, running.ID)
	uploading := c.Accept(boxes[2], faulttest.Run{Want: either, Code: "for n in range(800): open(f'f{n}', 'w').write(str(n))"})
	f.Until(60*time.Second, "some files are stored", func() bool { return f.Objects(boxes[2], uploading.ID) > 20 })
	cancel(t, f, uploading.ID)
	finished := c.Accept(boxes[3], faulttest.Run{Lines: 1})
	_, err := f.Wait(t.Context(), finished.ID)
	testbed.Must(t, err)
	cancel(t, f, finished.ID)
	starting := cancelStart(t, f)

	// Its worker is killed before it receives the cancel: the worker that takes over ends the job.
	orphaned := c.Accept(boxes[3], faulttest.Run{Lines: 600, Want: []string{"canceled"}})
	awaitOutput(t, f, orphaned.ID)
	c.Fault(func() {
		f.Kill(f.Workers()...)
		cancel(t, f, orphaned.ID)
		f.Start(f.Workers()...)
	}, f.AwaitReady)
	f.Completed("the job before the cancelled one", head.ID)
	if box, err := f.Sandbox(t.Context(), starting); err != nil || box.State == "ready" || slices.Contains(f.Containers(), starting) {
		t.Errorf("the sandbox whose start was cancelled: %v, %s, with a container: %v", err, box.State, slices.Contains(f.Containers(), starting))
	}
	c.End()
}

func cancel(t *testing.T, f *faulttest.Farm, job string) {
	t.Helper()
	if _, err := f.Cancel(t.Context(), job); err != nil {
		t.Errorf("cancel: %v", err)
	}
}

// cancelStart cancels a create while a worker starts the sandbox, and returns the sandbox. The worker is held where it would make the sandbox ready.
func cancelStart(t *testing.T, f *faulttest.Farm) string {
	t.Helper()
	starting, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var hold func(worker string)
	hold = func(worker string) {
		f.Link(worker).At(testbed.Stop{Call: "sandbox_move", Do: func(words []string) bool {
			select {
			case <-ended:
				return true
			default:
				hold(worker) // it repeats the call
			}
			if !slices.Contains(words, "ready") {
				return true
			}
			once.Do(func() { close(starting) })
			<-ended
			return false
		}})
	}
	for _, worker := range f.Workers() {
		hold(worker)
	}
	defer func() {
		close(ended)
		for _, worker := range f.Workers() {
			f.Link(worker).Clear()
		}
	}()
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{})
	testbed.Must(t, err)
	select {
	case <-starting:
	case <-time.After(3 * time.Minute):
		t.Fatal("no worker starts the sandbox")
	}
	cancel(t, f, made.Job.ID)
	ctx, done := context.WithTimeout(t.Context(), 3*time.Minute)
	defer done()
	if end, err := f.Wait(ctx, made.Job.ID); err != nil || end.State != "canceled" {
		t.Errorf("the creation that was cancelled: %v, %s", err, end.State)
	}
	return made.Sandbox.ID
}

func awaitOutput(t *testing.T, f *faulttest.Farm, job string) {
	t.Helper()
	for event, err := range f.Events(t.Context(), job, "") {
		testbed.Must(t, err)
		if event.Name == "stdout" {
			return
		}
	}
	t.Fatal("the job ended without output")
}

// The object store is down when a job's files are uploaded: they are uploaded when it is back.
func collectWithoutStore(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "object store killed at collect")
	boxes := c.Boxes(2)
	job := c.Accept(boxes[0], faulttest.Run{Lines: 15, Code: "open('made.txt', 'w').write('whole')"})
	f.AwaitHolder(job.ID)
	c.Fault(func() { f.Kill(faulttest.S3) }, func() {
		beside := c.Accept(boxes[1], faulttest.Run{Lines: 40}) // has no files, so it is not blocked
		f.Completed("a job without files", beside.ID)
		if now, err := f.Job(t.Context(), job.ID); err != nil || now.State != "running" {
			t.Errorf("the job whose files cannot be stored: %v, %s", err, now.State)
		}
		f.Start(faulttest.S3)
	})
	end, err := f.Wait(t.Context(), job.ID)
	if err != nil || end.State != "completed" || len(end.Result.Execute.Artifacts) != 1 || f.Objects(boxes[0], job.ID) != 1 {
		t.Errorf("the job with a file: %v %+v", err, end)
	}
	c.End()
}

// No sandbox outlives its deadline, whatever happens to its worker. How long after it a sandbox ends is printed: the agent's part of that is tested
// with a clock of its own.
func deadline(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "workers killed before a deadline")
	busy := func(request wire.CreateRequest) (box wire.Sandbox, holder string) {
		box, err := f.Sandbox(t.Context(), f.Box(request))
		testbed.Must(t, err)
		return box, f.AwaitHolder(c.Accept(box.ID, faulttest.Run{Lines: 3000, Want: []string{"canceled", "lost"}}).ID)
	}
	box, holder := busy(wire.CreateRequest{})
	c.Fault(func() { f.Kill(holder); box = expireSoon(t, f, box.ID) }, nil)
	f.Until(time.Until(box.ExpiresAt)+hang, "the sandbox of a dead worker is gone", func() bool { return !slices.Contains(f.Containers(), box.ID) })
	t.Logf("with another worker: gone %.1f s after its deadline", time.Since(box.ExpiresAt).Seconds())
	f.Back(holder)

	ttl := 60 // its agent knows it from the start, which may take long on a busy machine
	box, _ = busy(wire.CreateRequest{TTLSeconds: &ttl})
	c.Fault(func() { f.Kill(f.Workers()...) }, func() {
		f.Until(time.Until(box.ExpiresAt)+hang, "the sandbox has ended by itself", func() bool { return !slices.Contains(f.Running(), box.ID) })
		t.Logf("without any worker: ended %.1f s after its deadline", time.Since(box.ExpiresAt).Seconds())
		if time.Now().Before(box.ExpiresAt) {
			t.Error("the sandbox ended before its deadline")
		}
		f.Back(f.Workers()...)
	})
	f.Until(60*time.Second, "what is left of the sandbox is removed", func() bool { return !slices.Contains(f.Containers(), box.ID) })
	f.AwaitState(box.ID, "expired")
	c.End()
}

// Redis loses all data: jobs are lost, but sandboxes keep running and are restored, with their kernels' variables.
func wiped(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "all of Redis's data wiped")
	boxes := c.Boxes(3)
	for n, box := range boxes {
		if job, err := f.Wait(t.Context(), c.Accept(box, faulttest.Run{Code: fmt.Sprintf("kept = %d", n)}).ID); err != nil || job.State != "completed" {
			t.Fatalf("before: %v %+v", err, job)
		}
	}
	c.Forget() // ended jobs need no record
	before := f.Containers()
	c.Fault(f.Wipe, restorerKilled(t, f))
	for n, box := range boxes {
		f.AwaitState(box, "ready")
		c.Accept(box, faulttest.Run{Code: "print(kept)", Out: fmt.Sprintln(n)})
	}
	if after := f.Containers(); len(after) != len(before) {
		t.Errorf("%d containers before, %d after", len(before), len(after))
	}
	c.End()
}
