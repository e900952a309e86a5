package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// floor is a worker whose jobs do nothing until they are told to end.
type floor struct {
	*Worker
	begun chan string              // tenants
	ends  map[string]chan struct{} // by tenant
}

func newFloor(slots int) *floor {
	return &floor{
		Worker: &Worker{places: newPlaces(slots), jobs: activeJobs{byID: map[string]*activeJob{}}, node: new(node.Node), now: time.Now},
		begun:  make(chan string, 1000), ends: map[string]chan struct{}{"loud": make(chan struct{}), "quiet": make(chan struct{})},
	}
}

// start has the worker handle a number of jobs of a tenant.
func (f *floor) start(t *testing.T, tenant string, n int, task queue.Task) {
	t.Helper()
	for range n {
		task := task
		task.Ref = farm.Ref{Tenant: tenant, ID: farm.NewID(farm.JobPrefix)}
		go func() {
			j := f.jobs.reserve(task.Ref)
			defer f.jobs.remove(task.Ref.ID)
			leave, err := f.enter(t.Context(), j, task)
			if err != nil {
				f.begun <- fmt.Sprint(err)
				return
			}
			defer leave()
			f.begun <- tenant
			<-f.ends[tenant]
		}()
	}
	synctest.Wait()
}

func (f *floor) end(tenant string, n int) {
	for range n {
		f.ends[tenant] <- struct{}{}
	}
}

func (f *floor) expect(t *testing.T, want map[string]int) {
	t.Helper()
	synctest.Wait()
	got := map[string]int{}
	for range len(f.begun) {
		got[<-f.begun]++
	}
	testbed.Check(t, maps.Equal(got, want), "jobs that began: %v, want %v", got, want)
}

// Background commands of one tenant took all slots of a worker. Now it has those of the settings, and another tenant's job begins at once.
func TestOneTenantDoesNotTakeThePlacesOfOthers(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2, 64} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, onNode := newFloor(slots), queue.Task{Queue: farm.NodeQueue("")}
				f.start(t, "loud", slots-1, onNode)
				f.start(t, "loud", 1, onNode)
				f.expect(t, map[string]int{"loud": slots})
				f.start(t, "loud", 16, onNode)
				f.expect(t, map[string]int{})
				got := f.jobs.waiting()[onNode.Queue]
				testbed.Check(t, got.Jobs == 16 && got.Since == time.Now(), "%+v wait", got)
				jobs, _ := f.jobs.count()
				testbed.Check(t, jobs == 0, "%d of the jobs count as running before they are claimed", jobs)
				f.start(t, "quiet", 1, onNode)
				f.expect(t, map[string]int{"quiet": 1})
				f.start(t, "loud", 1, queue.Task{Queue: onNode.Queue, Aside: true})
				f.expect(t, map[string]int{"loud": 1})
				f.end("quiet", 1)
				f.expect(t, map[string]int{})
				f.end("loud", 2) // at most one of them is the one that did not wait
				synctest.Wait()
				began := len(f.begun)
				testbed.Check(t, began >= 1 && began <= 2, "%d jobs began when two had ended", began)
				f.end("loud", slots+16+1-2)
				synctest.Wait()
				if began := len(f.begun); began != 16 || len(f.jobs.waiting()) != 0 {
					t.Errorf("%d of 16 jobs that waited have begun, %v wait", began, f.jobs.waiting())
				}
			})
		})
	}
}

// What other nodes can run does not wait here for long.
func TestJobOfASharedQueueIsPutBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue   string
		timeout time.Duration
	}{"Shared": {farm.QueueCPU, placeTimeout}, "OfTheNode": {farm.NodeQueue(""), nodeTimeout}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFloor(1)
				f.start(t, "loud", 2, queue.Task{Queue: c.queue})
				time.Sleep(c.timeout - 1) // by the clock of the bubble
				f.expect(t, map[string]int{"loud": 1})
				time.Sleep(time.Nanosecond)
				f.expect(t, map[string]int{errNoPlace.Error(): 1})
				f.end("loud", 1)
			})
		})
	}
}

// busy makes a worker with one slot, which its tenant has taken, and returns a function that gives it back.
func (b *bundle) busy() (*Worker, func()) {
	b.T.Helper()
	b.cfg.Slots = 1
	w := b.worker()
	leave, err := w.enter(b.T.Context(), newActiveJob(farm.Ref{}), workertest.Task(farm.Ref{Tenant: workertest.Tenant}))
	testbed.Must(b.T, err)
	return w, leave
}

// waits handles the task of a job, and returns when it waits.
func (b *bundle) waits(w *Worker, job farm.Ref) (handled chan error) {
	b.T.Helper()
	task := workertest.Task(job)
	task.Queue = farm.NodeQueue(workertest.Node)
	handled = make(chan error, 1)
	go func() { handled <- w.handle(b.T.Context(), task) }()
	testbed.Until(b.T, "the job waits", func() bool { return w.jobs.waiting()[task.Queue].Jobs == 1 })
	got := b.Job(job)
	testbed.Check(b.T, got.State == farm.JobQueued && got.Attempt == 0, "the job that waits is %s, attempt %d", got.State, got.Attempt)
	return handled
}

func TestJobRunsWhenItsPlaceIsFree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, leave := b.busy()
	box := b.Ready()
	b.agent(box, w)
	job := b.Command(box, "true")
	handled := b.waits(w, job)
	w.registered.Store(true)
	testbed.Must(t, w.beat(t.Context()))
	workers, err := b.Store.Workers(t.Context())
	if err != nil || len(workers) != 1 || workers[0].Running != 0 || workers[0].Waiting[farm.NodeQueue(workertest.Node)].Jobs != 1 {
		t.Errorf("the heartbeat has %+v, %v", workers, err)
	}
	if attempt, listed := workers[0].Jobs[job.ID]; !listed || attempt != 0 { // else the sweep would enqueue it again
		t.Errorf("the heartbeat lists %v", workers[0].Jobs)
	}
	leave()
	testbed.Must(t, <-handled)
	b.JobIs(job, farm.JobCompleted)
}

// Reads, and what ends a sandbox, do not wait for a worker that is full.
func TestReadAndCloseBesideAFullWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, leave := b.busy()
	defer leave()
	box := b.Ready()
	b.agent(box, w)
	read := b.Accept(farm.KindFile, box.ID, &farm.Request{File: &farm.FileRequest{Op: farm.FileList, Path: "."}}, func(a *store.Accept) { a.Job.Inline = true })
	for _, job := range []farm.Ref{read, b.CloseJob(box)} {
		task := workertest.Task(job)
		task.Aside = true
		testbed.Must(t, w.handle(t.Context(), task))
		b.JobIs(job, farm.JobCompleted)
	}
}

func TestCancelEndsTheWaitForAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, leave := b.busy()
	defer leave()
	b.watchCancels(w)
	job := b.Command(b.Ready(), "true")
	handled := b.waits(w, job)
	_, err := w.dispatch.Cancel(t.Context(), job)
	testbed.Must(t, err)
	testbed.Must(t, <-handled)
	got := b.Job(job)
	testbed.Check(t, got.State == farm.JobCanceled && got.Attempt == 0, "the job is %s, attempt %d", got.State, got.Attempt)
}

// A worker that stops claims nothing that waited, though its own jobs give their places back.
func TestStopEndsTheWaitForAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, leave := b.busy()
	job := b.Command(b.Ready(), "true")
	handled := b.waits(w, job)
	w.Stop()
	leave()
	err := <-handled
	testbed.Check(t, isLater(err), "the task gave %v", err)
	err = w.handle(t.Context(), workertest.Task(job))
	testbed.Check(t, isLater(err), "a task that comes later gave %v", err)
	got := b.Job(job)
	testbed.Check(t, got.State == farm.JobQueued && got.Attempt == 0, "the job is %s, attempt %d", got.State, got.Attempt)
}

func isLater(err error) bool {
	_, ok := errors.AsType[queue.Later](err)
	return ok
}

// The queue takes a task away whose lease is lost.
func TestLostTaskEndsTheWaitForAPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, onNode := newFloor(1), queue.Task{Queue: farm.NodeQueue("")}
		f.start(t, "loud", 1, onNode)
		lost := queue.Task{Ref: farm.Ref{Tenant: "loud", ID: "job_lost"}, Queue: onNode.Queue}
		ctx, lose := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { lose(workertest.ErrTest) })
		_, err := f.enter(ctx, f.jobs.reserve(lost.Ref), lost)
		testbed.Check(t, errors.Is(err, workertest.ErrTest), "enter = %v", err)
		f.end("loud", 1)
	})
}
