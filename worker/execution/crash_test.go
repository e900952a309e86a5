//go:build integration

package execution

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The machine of Redis loses its power right after a job was finished: with appendfsync everysec the end of the job is not on the disk. The job
// is running again, and another worker gets it. Its code does not run again, and the result is the same.
func TestFinishThatRedisLosesInACrash(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t, "--appendonly", "yes", "--appendfsync", "everysec")
	rdb := server.Client(t)
	b := setup(t)
	b.Store = store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: b.Blobs, Durability: store.DurabilityEverySec})
	t.Cleanup(func() { _ = b.Store.Close() })
	b.Dispatch = dispatch.New(b.Store, queue.NewClient(rdb, b.Log), farm.DefaultLimits(), b.Log)
	box := b.Ready()
	b.Fake.Put(box.ID, true)
	a := agenttest.StartPlain(t)
	job := b.Accept(farm.KindCommand, box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"echo x >>count; seq 1 100; exit 5"}}}, nil)

	dir := filepath.Dir(server.Socket)
	work := func(saved string) (*Runner, Outcome) {
		t.Helper()
		worker := farm.NewID(farm.WorkerPrefix)
		b.Register(worker)
		x, n := b.runner()
		x.cleanups.running = true // the test forgets
		testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agenttest.Connect(t, a.Server) }))
		claim := b.Claim(job, worker)
		testbed.Must(t, b.Store.RemoveWorker(t.Context(), worker))
		if saved != "" { // what is on the disk when the power fails
			for !strings.Contains(rdb.Info(t.Context(), "persistence").Val(), "aof_buffer_length:0\r") { // Redis writes later while it syncs
				time.Sleep(time.Millisecond)
			}
			testbed.Must(t, os.CopyFS(saved, os.DirFS(filepath.Join(dir, "appendonlydir"))))
		}
		got, err := x.Run(t.Context(), Task{Claim: claim}, claim.Sandbox, nil)
		testbed.Must(t, err)
		_, err = b.Store.Finish(t.Context(), finishOf(claim.Job, got))
		testbed.Must(t, err)
		x.CleanUp(context.WithoutCancel(t.Context()), claim.Sandbox, got)
		return x, got
	}
	var first Outcome
	for crash := range 3 {
		saved := filepath.Join(t.TempDir(), "aof")
		x, got := work(saved)
		if crash == 0 {
			first = got
		} else if got.State != first.State || got.Result.Command.Commands[0].ExitCode != 5 {
			t.Errorf("after crash %d: %+v", crash, got)
		}
		if lost := strings.Join(got.Result.Notes, ""); crash < 2 && (lost != "" || got.Result.Command.Commands[0].Stdout != first.Result.Command.Commands[0].Stdout) {
			t.Errorf("after crash %d: %q, %+v", crash, lost, got.Result.Command)
		} else if crash == 2 && !strings.Contains(lost, "output of this job is lost") {
			t.Errorf("after it was forgotten: %q", lost)
		}
		if crash == 1 { // this crash comes later than the disk may be behind
			x.forgetDue(t.Context(), time.Now().Add(b.Store.DurableAfter()))
			x.background.Wait()
		} else if x.forgetDue(t.Context(), time.Now().Add(-time.Minute)); len(x.cleanups.forget[box.ID].waiting) != 1 {
			t.Error("the agent was told to forget too early")
		}
		server.Kill()
		testbed.Must(t, os.RemoveAll(filepath.Join(dir, "appendonlydir")))
		testbed.Must(t, os.CopyFS(filepath.Join(dir, "appendonlydir"), os.DirFS(saved)))
		server.Start(t)
		back := b.Job(job)
		testbed.Require(t, back.State == farm.JobRunning, "after crash %d the job is %s: nothing was lost", crash, back.State)
	}
	work("")
	done := b.Job(job)
	testbed.Check(t, done.State == farm.JobCompleted, "the job is %s", done.State)
	if count, err := os.ReadFile(filepath.Join(a.Workspace, "count")); string(count) != "x\n" {
		t.Errorf("the code ran %d times, %v", strings.Count(string(count), "x"), err)
	}
}
