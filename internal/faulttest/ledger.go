package faulttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// effects is the file of a sandbox to which each job appends its token. It is not in the workspace, so it is not an artifact.
const effects = "/tmp/effects"

// Run is code to run, and how the job must end.
type Run struct {
	Lines int      // lines that it prints, one each 0.1 s
	Code  string   // what it does after them
	Out   string   // what Code prints
	Want  []string // states that it may end in; none: completed, with its whole output, once
	Never bool     // it must not start at all
}

// Job is an accepted job in the ledger.
type Job struct {
	ID  string
	Box string

	token string
	run   Run
	end   wire.Job
}

// completes reports whether the job must have run to its end.
func (j *Job) completes() bool { return len(j.run.Want) == 0 }

func (j *Job) code() string {
	return fmt.Sprintf("open(%q, 'a').write(%q)\nimport time\nfor n in range(%d):\n    print(n, flush=True)\n    time.sleep(0.1)\n%s",
		effects, j.token+"\n", j.run.Lines, j.run.Code)
}

// output is the complete output of the job.
func (j *Job) output() string {
	var b strings.Builder
	for n := range j.run.Lines {
		fmt.Fprintln(&b, n)
	}
	return b.String() + j.run.Out
}

// problem says why an accepted job counts as lost; "" when it does not. ran is how often it started.
func (j *Job) problem(ran int) string {
	switch {
	case !j.end.Final():
		return "it is still " + j.end.State
	case !j.completes() && !slices.Contains(j.run.Want, j.end.State):
		why := fmt.Sprintf("it is %s, not %v: %+v", j.end.State, j.run.Want, j.end.Error)
		if r := j.end.Result; r != nil && r.Execute != nil {
			why += fmt.Sprintf(", %d bytes of output, %+v", len(r.Execute.Stdout), r.Execute.Error)
		}
		return why
	case !j.completes():
		return ""
	case j.end.State != "completed" || j.end.Result == nil || j.end.Result.Execute == nil:
		return fmt.Sprintf("it is %s: %+v", j.end.State, j.end.Error)
	case ran == 0:
		return "it has left no trace in its sandbox"
	case j.end.Result.Execute.Error != nil || j.end.Result.Execute.Stdout != j.output():
		return fmt.Sprintf("its output is not whole: %q %+v", j.end.Result.Execute.Stdout, j.end.Result.Execute.Error)
	default:
		return ""
	}
}

// Accept submits a job that must be accepted.
func (c *Case) Accept(box string, run Run) *Job {
	c.f.t.Helper()
	job, err := c.Try(c.f.t.Context(), box, run)
	if err != nil {
		c.f.t.Fatalf("accept: %v", err)
	}
	return job
}

// Try submits a job that the farm may refuse. A refused job may still run, but at most once.
func (c *Case) Try(ctx context.Context, box string, run Run) (*Job, error) {
	c.mu.Lock()
	c.sent++
	j := &Job{Box: box, token: fmt.Sprintf("%s-%d", c.id, c.sent), run: run}
	c.most[j.token] = 1
	if run.Never {
		c.most[j.token] = 0
	}
	c.mu.Unlock()
	got, err := c.f.Execute(ctx, box, wire.ExecuteRequest{Code: j.code()})
	if err != nil {
		return nil, err
	}
	j.ID = got.ID
	c.mu.Lock()
	c.jobs = append(c.jobs, j)
	c.mu.Unlock()
	return j, nil
}

// settle waits until the accepted jobs have ended.
func (c *Case) settle(within time.Duration) {
	ctx, done := context.WithTimeout(c.f.t.Context(), within)
	defer done()
	var group sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, j := range c.jobs {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if end, err := c.f.Wait(ctx, j.ID); err == nil {
				j.end = end
				return
			}
			j.end, _ = c.f.Job(c.f.t.Context(), j.ID)
		})
	}
	group.Wait()
}

// effectsOf counts what jobs left in a sandbox.
func (c *Case) effectsOf(box string) (map[string]int, error) {
	job, err := c.f.Execute(c.f.t.Context(), box, wire.ExecuteRequest{
		Code: fmt.Sprintf("import os\nprint(open(%q).read() if os.path.exists(%q) else '', end='')", effects, effects),
	}, client.WithWait(60*time.Second))
	if err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	if job.State != "completed" || job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Error != nil {
		return nil, fmt.Errorf("read effects: the job is %s: %+v", job.State, job.Error)
	}
	ran := map[string]int{}
	for token := range strings.FieldsSeq(job.Result.Execute.Stdout) {
		ran[token]++
	}
	return ran, nil
}

// Forget stops requiring records of the jobs so far. Their effects still count.
func (c *Case) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = nil
}

// Abandon removes sandboxes that a fault has ended from the ledger, since their effects cannot be read. Their jobs stay.
func (c *Case) Abandon(boxes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boxes = slices.DeleteFunc(c.boxes, func(box string) bool { return slices.Contains(boxes, box) })
}

// Own adds sandboxes that the test made to the case.
func (c *Case) Own(boxes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boxes = append(c.boxes, boxes...)
}
