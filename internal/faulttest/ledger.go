package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// effects is the file of a sandbox to which each job appends its token. It is not in the workspace, so it is not an artifact.
const effects = "/tmp/effects"

// Job is an accepted job in the ledger.
type Job struct {
	ID  string
	Box string

	token string
	run   Run
	bare  bool   // it runs no code: a create or a close
	saw   string // what a caller saw that is not what it was told
	end   wire.Job
}

// apart reports whether nobody can look into the job's sandbox afterwards.
func (j *Job) apart() bool { return j.run.Alone || j.run.First }

// completes reports whether the job must have run to its end.
func (j *Job) completes() bool { return len(j.run.Want) == 0 }

// lost says why an accepted job counts as lost; "" when it does not: it is final, in a state that it may end in.
func (j *Job) lost() string {
	want := j.run.Want
	if j.completes() {
		want = []string{"completed"}
	}
	switch {
	case !j.end.Final():
		return "it is still " + j.end.State
	case !slices.Contains(want, j.end.State):
		why := fmt.Sprintf("it is %s, not %v: %+v", j.end.State, want, j.end.Error)
		if r := j.end.Result; r != nil && r.Execute != nil {
			why += fmt.Sprintf(", %d bytes of output, %+v", len(r.Execute.Stdout), r.Execute.Error)
		}
		return why
	default:
		return ""
	}
}

// misreported says in what the caller was told something else than the sandbox shows; "" for nothing. ran is what the sandbox shows; a job
// in a sandbox of its own has nothing there.
func (j *Job) misreported(ran map[string]int) string {
	began, whole := ran[j.token], ran[j.token+ended]
	reported := j.reported()
	switch state := j.end.State; {
	case !j.end.Final(), j.apart() && state != "completed":
		return ""
	case j.bare:
		return j.saw
	case !j.completes() && !j.apart() && state == "completed" && whole == 0 && (reported == nil || reported.failed == ""):
		return "it is told completed without an error, but did not run to its end"
	case !j.completes():
		return ""
	case state != "completed" && whole > 0:
		return fmt.Sprintf("it ran to its end, and is told %s: %+v", state, j.end.Error)
	case state != "completed":
		return ""
	case reported == nil:
		return "it is told completed, without a result"
	case reported.failed != "":
		return "it is told completed, with " + reported.failed
	case !j.apart() && (began == 0 || whole == 0):
		return fmt.Sprintf("it is told completed, but began %d times and ended %d times", began, whole)
	case j.run.Loud > 0:
		return j.loud(reported)
	case reported.stdout != j.output():
		return fmt.Sprintf("its output is %q", shortened(reported.stdout))
	case reported.stderr != j.errors():
		return fmt.Sprintf("its errors are %q", shortened(reported.stderr))
	case len(reported.artifacts) < j.run.Files:
		return fmt.Sprintf("it has %d artifacts of %d", len(reported.artifacts), j.run.Files)
	default:
		return ""
	}
}

// shortened is a text for a message.
func shortened(text string) string {
	if len(text) <= 600 {
		return text
	}
	return text[:300] + "…" + text[len(text)-300:]
}

// Accept submits a job that must be accepted.
func (c *Case) Accept(box string, run Run) *Job {
	c.f.t.Helper()
	job, err := c.Try(c.f.t.Context(), box, run)
	testbed.Must(c.f.t, err)
	return job
}

// Try submits a job that the farm may refuse. A refused job may still run, but at most once.
func (c *Case) Try(ctx context.Context, box string, run Run) (*Job, error) {
	return c.submit(ctx, box, run, false)
}

// Insist submits a job as a careful caller does: with an idempotency key, again and again until it is accepted.
func (c *Case) Insist(box string, run Run) *Job {
	c.f.t.Helper()
	job, err := c.submit(c.f.t.Context(), box, run, true)
	if err != nil {
		c.f.t.Errorf("not accepted within %s: %v", insistFor, err)
		return &Job{}
	}
	return job
}

// insistFor is how long Insist goes on.
const insistFor = 60 * time.Second

func (c *Case) submit(ctx context.Context, box string, run Run, insist bool) (*Job, error) {
	c.mu.Lock()
	c.sent++
	j := &Job{Box: box, token: fmt.Sprintf("%s-%d", c.id, c.sent), run: run}
	c.limit[j.token] = 1
	if run.Never {
		c.limit[j.token] = 0
	}
	c.mu.Unlock()
	send := func(key client.CallOption) (err error) {
		var got wire.Job
		switch code := j.code(); {
		case run.Alone:
			got, err = c.f.Run(ctx, wire.RunRequest{Code: code}, key)
		case run.command():
			got, err = c.f.Command(ctx, box, wire.CommandRequest{Command: &code, Background: run.Background}, key)
		default:
			got, err = c.f.Execute(ctx, box, wire.ExecuteRequest{Code: code}, key)
		}
		j.ID = got.ID
		return err
	}
	return j, c.accept(j, send, insist)
}

// accept makes a request, with insist again and again until it is accepted, and notes the job.
func (c *Case) accept(j *Job, send func(key client.CallOption) error, insist bool) error {
	key := client.WithIdempotencyKey(fmt.Sprintf("%s-%d", j.token, c.f.started.UnixNano()))
	err := send(key)
	for again := time.Now().Add(insistFor); insist && err != nil && time.Now().Before(again); <-time.After(200 * time.Millisecond) {
		err = send(key)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, j)
	return nil
}

// Cancel cancels a job of the case, which may then end as canceled too.
func (c *Case) Cancel(id string) {
	c.mu.Lock()
	c.canceled[id] = true
	c.mu.Unlock()
	if _, err := c.f.Cancel(c.f.t.Context(), id); err != nil {
		c.f.t.Errorf("cancel %s: %v", id, err)
	}
}

// settle waits until the accepted jobs have ended.
func (c *Case) settle(within time.Duration) {
	ctx, done := context.WithTimeout(c.f.t.Context(), within)
	defer done()
	for _, j := range c.jobs {
		if c.canceled[j.ID] {
			j.run.Want = append(j.run.Want, "canceled", "completed")
		}
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, j := range c.jobs {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for ctx.Err() == nil { // the farm may still be recovering
				if end, err := c.f.Wait(ctx, j.ID); err == nil {
					j.end = end
					return
				}
				<-time.After(200 * time.Millisecond)
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

// text is the text that the events of a job have, read from the first one.
func (f *Farm) text(job string) (stdout, stderr string, err error) {
	ctx, done := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer done()
	var out, errs strings.Builder
	for event, err := range f.Events(ctx, job, "") {
		if err != nil {
			return "", "", err
		}
		if event.Name != "stdout" && event.Name != "stderr" {
			continue
		}
		var data wire.TextData
		if err := json.Unmarshal(event.Data, &data); err != nil {
			return "", "", fmt.Errorf("read event: %w", err)
		}
		if event.Name == "stdout" {
			out.WriteString(data.Text)
		} else {
			errs.WriteString(data.Text)
		}
	}
	return out.String(), errs.String(), nil
}

// Completed waits until the jobs of the case have ended: they must have completed.
func (c *Case) Completed(what string) {
	c.f.t.Helper()
	c.mu.Lock()
	jobs := slices.Clone(c.jobs)
	c.mu.Unlock()
	for _, j := range jobs {
		c.f.Completed(what, j.ID)
	}
}

// goneWithWork are the kinds of keys of a tenant that nothing may have when all its jobs and sandboxes have ended. The
// list of queues that held jobs back, "holds", is put in order by the next job that waits.
func goneWithWork() []string {
	return []string{"line", "osj", "stops", "out", "held", "act", "cp", "open", "openboxes", "due"}
}

// leftKeys are the keys of work that has ended: in the queues, and of the kinds of goneWithWork.
func (f *Farm) leftKeys() (left []string) {
	ctx := f.t.Context()
	for scan := f.redis.Scan(ctx, 0, "*", 1000).Iterator(); scan.Next(ctx); {
		key := scan.Val()
		switch {
		case strings.HasPrefix(key, "asynq:{") && slices.Contains([]string{"pending", "active", "lease", "retry", "archived"}, key[strings.LastIndexByte(key, ':')+1:]):
			left = append(left, key)
		case strings.HasPrefix(key, "sf:{default}:"):
			kind, _, _ := strings.Cut(strings.TrimPrefix(key, "sf:{default}:"), ":")
			if slices.Contains(goneWithWork(), kind) {
				left = append(left, key)
			}
		}
	}
	slices.Sort(left)
	return left
}

// leftRecords are entries for sandboxes and jobs that have ended in the keys that stay: reservations of nodes and devices, claimed members of
// the pool, drains, and documents that nothing removes. All sandboxes must have been closed.
func (f *Farm) leftRecords() (left []string) {
	ctx := f.t.Context()
	members := f.members()
	for _, pattern := range []string{"sf:{room}:node:*", "sf:*gpus:*"} {
		for scan := f.redis.Scan(ctx, 0, pattern, 1000).Iterator(); scan.Next(ctx); {
			for _, field := range f.redis.HKeys(ctx, scan.Val()).Val() {
				if _, pooled := members[field]; !pooled && field != "#" { // that field says that devices may be leased
					left = append(left, scan.Val()+" "+field)
				}
			}
		}
	}
	for id, state := range members {
		if state == "claimed" {
			left = append(left, "claimed member "+id)
		}
	}
	if n := f.redis.HLen(ctx, "sf:{nodes}:drains").Val(); n > 0 {
		left = append(left, "sf:{nodes}:drains")
	}
	for _, id := range f.redis.ZRangeArgs(ctx, redis.ZRangeArgs{Key: "sf:{default}:docs", Start: "+inf", Stop: "+inf", ByScore: true}).Val() {
		left = append(left, "documents of "+id)
	}
	slices.Sort(left)
	return left
}

// members are the states of the members of the warm pool, by the ids of their sandboxes.
func (f *Farm) members() map[string]string {
	ctx, prefix := f.t.Context(), "sf:{pool}:m:"
	found := map[string]string{}
	for scan := f.redis.Scan(ctx, 0, prefix+"*", 1000).Iterator(); scan.Next(ctx); {
		found[strings.TrimPrefix(scan.Val(), prefix)] = f.redis.HGet(ctx, scan.Val(), "state").Val()
	}
	return found
}

// leftObjects are the staged objects. MinIO has a folder for each object.
func (f *Farm) leftObjects() (left []string) {
	err := filepath.WalkDir(filepath.Join(f.Stored(), "staging"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "xl.meta" {
			left = append(left, strings.TrimPrefix(filepath.Dir(path), f.Stored()+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an object may be removed meanwhile
		f.t.Errorf("list staged objects: %v", err)
	}
	return left
}
