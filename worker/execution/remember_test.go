package execution

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// command is a job that appends to the file "count" and then runs commands.
func (k *takeovers) command(commands ...string) farm.Ref {
	commands[0] = "echo x >>count; " + commands[0]
	return k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: commands}}, nil)
}

// ranOnce checks that the code of a job ran once.
func (k *takeovers) ranOnce() {
	k.T.Helper()
	if count, err := os.ReadFile(filepath.Join(k.a.Workspace, "count")); string(count) != "x\n" {
		k.T.Errorf("it ran %d times, %v", strings.Count(string(count), "x"), err)
	}
}

// Redis loses the end of a job whose execution the agent has been told to forget. The job comes back: its code does not run again, and the
// result says how it ended and what is gone.
func TestJobThatComesBackAfterItWasForgottenRunsOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		commands []string
		exits    []int
	}{
		"one":            {[]string{"echo out; exit 7"}, []int{7}},
		"two":            {[]string{"echo out", "echo more"}, []int{0, 0}},
		"second failed":  {[]string{"echo out", "exit 3"}, nil},
		"nothing at all": {[]string{"true"}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := setupTakeovers(t, 0, 0)
			job := k.command(c.commands...)
			whole, err := k.work(job, &fault{at: -1}) // and its finish is lost
			testbed.Must(t, err)
			testbed.Check(t, len(whole.Forget) == 1 && whole.Forget[0] == job.ID, "the agent may forget %v", whole.Forget)
			again, err := k.work(job, &fault{at: -1})
			testbed.Must(t, err)
			if len(again.Result.Notes) > 0 || again.Result.Command.Commands[0].Stdout != whole.Result.Command.Commands[0].Stdout {
				t.Errorf("before it is forgotten: %+v", again.Result)
			}
			testbed.Must(t, k.a.ForgetAll(t.Context(), whole.Forget...))
			for range 2 {
				got, err := k.work(job, &fault{at: -1})
				testbed.Must(t, err)
				if got.State != farm.JobCompleted || len(got.Result.Notes) != 1 || !strings.Contains(got.Result.Notes[0], "output of this job is lost") {
					t.Errorf("afterwards: %+v, %+v", got, got.Result)
				}
				var exits []int
				for _, o := range got.Result.Command.Commands {
					exits = append(exits, o.ExitCode)
				}
				testbed.Check(t, fmt.Sprint(exits) == fmt.Sprint(c.exits), "exit codes %v, want %v", exits, c.exits)
			}
			k.ranOnce()
		})
	}
}

// Redis loses the checkpoint that names the snapshot of what the agent has dropped. The rest of the output is there, and a note.
func TestLostCheckpointCostsTheAcknowledgedOutputOnly(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 0, 0)
	job := k.command("seq 1 2000000; echo end >&2", "echo second; exit 4") // 14.9 MB
	_, err := k.work(job, &fault{at: -1})
	testbed.Must(t, err)
	lost := 0
	for _, key := range k.Redis.Keys() {
		if strings.Contains(key, "cp:"+job.ID) {
			k.Redis.Del(key)
			lost++
		}
	}
	got, err := k.work(job, &fault{at: -1})
	testbed.Must(t, err)
	if lost != 1 || got.State != farm.JobCompleted || len(got.Result.Command.Commands) != 2 {
		t.Fatalf("%d checkpoints; %+v, %+v", lost, got, got.Result)
	}
	first, second := got.Result.Command.Commands[0], got.Result.Command.Commands[1]
	if !strings.HasSuffix(first.Stdout, "1999999\n2000000\n") || first.Stderr != "end\n" || first.ExitCode != 0 || second.Stdout != "second\n" || second.ExitCode != 4 {
		t.Errorf("the rest: %q, %q, %d; %+v", first.Stdout[max(0, len(first.Stdout)-20):], first.Stderr, first.ExitCode, second)
	}
	testbed.Check(t, strings.Contains(strings.Join(got.Result.Notes, "\n"), "A part of the output is missing"), "notes %q", got.Result.Notes)
	k.ranOnce()
}

// A job that failed has stopped its code; where the record of that is lost, the job fails again and is not reported as cancelled.
func TestJobThatComesBackAfterItFailedFails(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 0, 0)
	job := k.command("sleep 60")
	testbed.Must(t, k.a.Start(t.Context(), job.ID, agent.Spec{Kind: farm.KindCommand, Commands: []string{"echo x >>count; sleep 60"}}))
	testbed.Must(t, k.a.Forget(t.Context(), job.ID)) // see halt
	got, err := k.work(job, &fault{at: -1})
	testbed.Must(t, err)
	testbed.Check(t, got.State == farm.JobFailed && got.Err != nil && strings.Contains(got.Err.Message, "earlier attempt"), "outcome %+v", got)
}

// The agent is told what it may forget in few calls, however many jobs end.
func TestEndedJobsAreForgottenTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	a := agenttest.StartPlain(t)
	b.Fake.Put(box.ID, true)
	testbed.Must(t, n.UseConnection(t.Context(), box.ID, func() *client.Client { return agenttest.Connect(t, a.Server) }))
	sandbox, err := b.Store.Sandbox(t.Context(), box)
	testbed.Must(t, err)
	var ids []string
	for range 50 {
		id := agenttest.NewID()
		testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("true")))
		agenttest.Read(t, a.Client, id)
		x.CleanUp(t.Context(), sandbox, Outcome{Forget: []string{id}})
		ids = append(ids, id)
	}
	gone := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: workertest.Tenant} // there is no connection to it
	x.CleanUp(t.Context(), gone, Outcome{Forget: []string{agenttest.NewID()}})
	for deadline := time.Now().Add(time.Minute); ; {
		list, err := a.Executions(t.Context())
		testbed.Must(t, err)
		x.cleanups.mu.Lock()
		left := len(x.cleanups.forget)
		x.cleanups.mu.Unlock()
		if len(list) == 0 && left == 0 {
			break
		}
		testbed.Require(t, !time.Now().After(deadline), "%d executions are left in the agent, %d sandboxes with some here", len(list), left)
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the agent has no signal for it
	}
	for _, id := range ids {
		known, err := a.Execution(t.Context(), id)
		testbed.Require(t, err == nil && known != nil && known.Done, "execution %+v, %v", known, err)
	}
	testbed.Check(t, !n.Connected(gone.ID), "a connection was opened for what may be forgotten")
}

// What waits to be forgotten is bounded where an agent does not answer.
func TestWhatIsToBeForgottenIsBounded(t *testing.T) {
	t.Parallel()
	for _, ended := range []int{maxForget - 1, maxForget, maxForget + 1} {
		b := setup(t)
		x, _ := b.runner()
		x.cleanups.running = true // no loop
		sandbox := &farm.Sandbox{ID: "sbx_x"}
		for i := range ended {
			x.CleanUp(t.Context(), sandbox, Outcome{Forget: []string{fmt.Sprint(i)}})
		}
		if got := len(x.cleanups.forget["sbx_x"].waiting); got != min(ended, maxForget) || x.cleanups.forget["sbx_x"].waiting[got-1].id != fmt.Sprint(ended-1) {
			t.Errorf("of %d executions %d wait", ended, got)
		}
	}
}

// Nothing is dropped before the end of its job is durable.
func TestNothingIsForgottenBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, _ := b.runner()
	x.cleanups.running = true // no loop
	now := time.Now()
	x.cleanups.forget = map[string]*forgetting{"sbx_x": {sandbox: &farm.Sandbox{ID: "sbx_x"}, waiting: []ended{
		{"a", now.Add(-time.Second)}, {"b", now}, {"c", now.Add(time.Millisecond)},
	}}}
	testbed.Check(t, x.forgetDue(t.Context(), now), "the loop would end while something waits")
	x.background.Wait()
	f := x.cleanups.forget["sbx_x"]
	testbed.Check(t, len(f.waiting) == 1 && f.waiting[0].id == "c" && !f.busy, "waiting %+v, busy %v", f.waiting, f.busy)
	x.forgetDue(t.Context(), now.Add(time.Second))
	x.background.Wait()
	testbed.Check(t, !x.forgetDue(t.Context(), now.Add(time.Second)) && len(x.cleanups.forget) == 0, "left: %+v", x.cleanups.forget)
}
