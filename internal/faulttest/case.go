package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	settleWithin  = 90 * time.Second // accepted jobs end within this time after the last fault, or are lost
	tidyWithin    = 2 * time.Minute  // containers of ended sandboxes are gone within this time: the reconciler looks each 30 s for those that the engine made late
	recoverWithin = 90 * time.Second
)

// Case is one fault, with its ledger.
type Case struct {
	f    *Farm
	name string
	id   string

	mu        sync.Mutex
	jobs      []*Job
	sent      int
	limit     map[string]int // how often each submitted job may run, by its token
	canceled  map[string]bool
	boxes     []string
	recovery  time.Duration
	takeovers []time.Duration
}

// Report is the result of a case's ledger.
type Report struct {
	Accepted    int
	Lost        int           // not final, or not in a state that they may end in
	Doubled     int           // ran more often than once
	Misreported int           // the caller was told something else than the sandbox shows
	TextTwice   int           // the events of a job have more text than it printed, or other text
	Left        int           // containers of sandboxes that have ended
	Recovery    time.Duration // the longest time until a neighbour's job went through again
	Takeovers   []time.Duration
}

// String is the line that End prints.
func (r Report) String() string {
	line := fmt.Sprintf("%d jobs accepted: %d lost, %d ran twice, %d misreported, %d with text twice; %d containers left; a neighbour's job went through after %.1f s",
		r.Accepted, r.Lost, r.Doubled, r.Misreported, r.TextTwice, r.Left, r.Recovery.Seconds())
	if len(r.Takeovers) > 0 {
		line += fmt.Sprintf("; %d takeovers, p95 %.1f s, longest %.1f s", len(r.Takeovers), r.P95().Seconds(), slices.Max(r.Takeovers).Seconds())
	}
	return line
}

// Case opens the ledger of a fault. The cases of a farm run one after the other; until the next one, failures of the farm go to this
// one's test.
func (f *Farm) Case(t testing.TB, name string) *Case {
	before := f.t
	f.t = t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of the farm:\n%s", f.logs())
		}
		f.t = before
	})
	f.cases++
	return &Case{f: f, name: name, id: fmt.Sprintf("case-%d", f.cases), limit: map[string]int{}, canceled: map[string]bool{}}
}

// Boxes creates n ready sandboxes for the case.
func (c *Case) Boxes(n int) []string {
	c.f.t.Helper()
	reused := min(n, len(c.f.idle))
	boxes := slices.Clone(c.f.idle[:reused])
	c.f.idle = c.f.idle[reused:]
	made := make([]string, n-reused)
	errs := make([]error, n-reused)
	var group sync.WaitGroup
	for i := range made {
		group.Go(func() { made[i], errs[i] = c.f.create(wire.CreateRequest{}) })
	}
	group.Wait()
	testbed.Must(c.f.t, errors.Join(errs...))
	boxes = append(boxes, made...)
	c.boxes = append(c.boxes, boxes...)
	return boxes
}

// Fault calls harm and waits for the recovery: a neighbour's job completes, and every job that ran before has a living worker or has ended.
// heal, if not nil, ends the harm. The neighbour tries from the harm on, and has recoverWithin after heal.
func (c *Case) Fault(harm, heal func()) time.Duration {
	c.f.t.Helper()
	ran := c.running()
	began := time.Now()
	harm()
	ctx, done := context.WithCancel(c.f.t.Context())
	defer done()
	probed := make(chan time.Duration, 1)
	go func() { probed <- c.probe(ctx, began) }()
	if heal != nil {
		heal()
	}
	defer time.AfterFunc(recoverWithin, done).Stop()
	c.watch(ran, began)
	recovery := <-probed
	if recovery == 0 {
		c.f.t.Fatalf("no neighbour's job completed within %s\n%s", recoverWithin, c.f.logs())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recovery = max(c.recovery, recovery)
	return recovery
}

// running lists the jobs of the case that a living worker has.
func (c *Case) running() (ran []*Job) {
	held := c.f.held()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if _, ok := held[j.ID]; ok {
			ran = append(ran, j)
		}
	}
	return ran
}

// watch waits until each of these jobs has a living worker, and records how long each had none.
func (c *Case) watch(jobs []*Job, began time.Time) {
	left := slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return c.f.Holder(j.ID) != "" })
	c.f.Until(recoverWithin, "every job that ran has a living worker", func() bool {
		left = slices.DeleteFunc(left, func(j *Job) bool {
			held := c.f.Holder(j.ID) != ""
			if !held {
				state, err := c.f.redis.HGet(c.f.t.Context(), "sf:{default}:job:"+j.ID, "state").Result()
				held = err == nil && state != "running"
			}
			if held {
				c.mu.Lock()
				c.takeovers = append(c.takeovers, time.Since(began))
				c.mu.Unlock()
			}
			return held
		})
		return len(left) == 0
	})
}

// probe submits small jobs until one completes, and returns the time since the fault; 0 if ctx ended first.
func (c *Case) probe(ctx context.Context, began time.Time) time.Duration {
	for ctx.Err() == nil {
		job, err := c.f.Execute(ctx, c.f.probe, wire.ExecuteRequest{Code: "print('well')"}, client.WithWait(5*time.Second))
		if err == nil && !job.Final() {
			job, err = c.f.Wait(ctx, job.ID)
		}
		if err == nil && job.State == "completed" && job.Result.Execute.Stdout == "well\n" {
			return time.Since(began)
		}
		// The fault may have ended the sandbox of the probe. A caller would create a new one.
		if box, err := c.f.Sandbox(ctx, c.f.probe); err == nil && (box.State == "lost" || box.State == "failed") {
			made, err := c.f.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(10*time.Second))
			if err == nil {
				c.f.probe = made.Sandbox.ID
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return 0
}

// End waits for the accepted jobs, prints the line of the case, and fails the test on any number but 0, 0, 0.
func (c *Case) End() Report {
	t := c.f.t
	t.Helper()
	c.settle(settleWithin)
	r := Report{Accepted: len(c.jobs), Recovery: c.recovery, Takeovers: c.takeovers}
	ran := map[string]int{}
	var unread []string
	for _, box := range c.boxes {
		more, err := c.effectsOf(box)
		if err != nil {
			t.Errorf("sandbox %s: %v", box, err)
			unread = append(unread, box)
		}
		for token, n := range more {
			ran[token] += n
		}
	}
	for _, j := range c.jobs {
		if why := j.lost(); why != "" {
			r.Lost++
			t.Errorf("accepted job %s is lost: %s", j.ID, why)
		}
		if why := j.misreported(ran); why != "" && (j.apart() || !slices.Contains(unread, j.Box)) {
			r.Misreported++
			t.Errorf("accepted job %s is misreported: %s", j.ID, why)
		}
	}
	r.TextTwice = c.textTwice()
	for token, limit := range c.limit {
		if n := ran[token]; n > limit {
			r.Doubled += n - limit
			t.Errorf("%s ran %d times", token, n)
		}
	}
	r.Left = c.f.left()
	for _, box := range c.boxes {
		if !slices.Contains(unread, box) {
			c.f.idle = append(c.f.idle, box)
		}
	}
	if r.Left > 0 {
		t.Errorf("%d containers are left of sandboxes that have ended", r.Left)
	}
	report(t, fmt.Sprintf("%-44s %s", c.name, r))
	return r
}

// textsRead is of how many jobs of a case the events are read.
const textsRead = 60

// textTwice counts the jobs whose events have other text than they printed.
func (c *Case) textTwice() (n int) {
	for i, j := range c.jobs {
		if i%max(1, len(c.jobs)/textsRead) != 0 || !j.completes() || j.run.Loud > 0 || j.end.State != "completed" {
			continue
		}
		if out, errs, err := c.f.text(j.ID); err != nil || out != j.output() || errs != j.errors() {
			n++
			c.f.t.Errorf("the events of job %s have %q, and of stderr %q: %v", j.ID, shortened(out), shortened(errs), err)
		}
	}
	return n
}

// left counts the containers of sandboxes that are not open, after waiting for their removal.
func (f *Farm) left() (n int) {
	for end := time.Now().Add(tidyWithin); ; {
		open := map[string]bool{}
		for box, err := range f.Sandboxes(f.t.Context(), client.SandboxFilter{}) {
			if err != nil {
				f.t.Errorf("list sandboxes: %v", err)
				return 1
			}
			switch box.State {
			case "closed", "expired", "failed", "lost":
			default:
				open[box.ID] = true
			}
		}
		n = 0
		members := f.members()
		for _, box := range f.Containers() {
			if _, pooled := members[box]; !open[box] && !pooled {
				n++
			}
		}
		if n == 0 || time.Now().After(end) {
			return n
		}
		<-time.After(200 * time.Millisecond)
	}
}

// report logs a line, and appends it to the file that SANDFARM_TEST_REPORT names.
func report(t testing.TB, line string) {
	t.Log(line)
	name := os.Getenv("SANDFARM_TEST_REPORT")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the caller's own file
	if err == nil {
		_, err = fmt.Fprintln(file, line)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Errorf("write the report: %v", err)
	}
}

// CloseIdle closes the sandboxes that no case uses, so that the next case gets new ones: the fault may have ended some.
func (f *Farm) CloseIdle() {
	f.t.Helper()
	for _, box := range f.idle {
		if _, err := f.Close(f.t.Context(), box); err != nil {
			f.t.Logf("close %s: %v", box, err)
		}
	}
	f.idle = nil
}

// CloseAll closes every sandbox of the farm and gives the number of containers that are left, but for those of the warm pool.
func (f *Farm) CloseAll() int {
	f.t.Helper()
	for _, box := range append(f.idle, f.probe) {
		if _, err := f.Close(f.t.Context(), box); err != nil {
			f.t.Errorf("close %s: %v", box, err)
		}
	}
	f.idle = nil
	left := func() int {
		members := f.members()
		return len(slices.DeleteFunc(f.Containers(), func(box string) bool { _, pooled := members[box]; return pooled }))
	}
	for end := time.Now().Add(60 * time.Second); left() > 0 && time.Now().Before(end); {
		<-time.After(200 * time.Millisecond)
	}
	return left()
}

// P95 is the time that 95 of 100 takeovers do not exceed; 0 when there was none.
func (r Report) P95() time.Duration {
	if len(r.Takeovers) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.Takeovers))
	return sorted[(len(sorted)*95+99)/100-1]
}

// Sample is what a farm holds at one moment, by what is measured: "memory of api" in MiB, "goroutines of worker", "descriptors of
// scheduler", "keys", "memory of redis", "containers", "files" in MiB.
type Sample struct {
	At     time.Time
	Values map[string]float64
}

// Measure measures the farm. It needs Config.Links.
func (f *Farm) Measure() (Sample, error) {
	s := Sample{At: time.Now(), Values: map[string]float64{}}
	for kind, u := range f.using() {
		s.Values["goroutines of "+kind], s.Values["descriptors of "+kind] = float64(u.goroutines), float64(u.descriptors)
	}
	for name := range f.links {
		if !f.Alive(name) {
			continue
		}
		resident, err := f.resident(name)
		if err != nil {
			return s, err
		}
		s.Values["memory of "+kindOf(name)] = max(s.Values["memory of "+kindOf(name)], resident)
	}
	keys, err := f.redis.DBSize(f.t.Context()).Result()
	if err != nil {
		return s, fmt.Errorf("count keys: %w", err)
	}
	info, err := f.redis.InfoMap(f.t.Context(), "memory").Result()
	if err != nil {
		return s, fmt.Errorf("read memory of Redis: %w", err)
	}
	used, err := strconv.ParseFloat(info["Memory"]["used_memory"], 64)
	if err != nil {
		return s, fmt.Errorf("read memory of Redis: %w", err)
	}
	files, err := size(f.Stored())
	s.Values["keys"], s.Values["memory of redis"], s.Values["containers"], s.Values["files"] = float64(keys), used/(1<<20), float64(len(f.Containers())), files
	return s, err
}

// resident is the memory of a process in MiB.
func (f *Farm) resident(name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", f.PID(name)))
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", name, err)
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}

// size is what the files below a directory have, in MiB. Files that disappear meanwhile do not count.
func size(dir string) (float64, error) {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return float64(bytes) / (1 << 20), err
}

// Growth fits a line to the second half of some samples, and returns by how much each value grew over that half, and its mean there.
func Growth(samples []Sample, name string) (growth, mean float64) {
	half := samples[len(samples)/2:]
	first, last := half[0].At, half[len(half)-1].At
	var n, sumT, sumV, sumTT, sumTV float64
	for _, s := range half {
		t, v := s.At.Sub(first).Seconds(), s.Values[name]
		n, sumT, sumV, sumTT, sumTV = n+1, sumT+t, sumV+v, sumTT+t*t, sumTV+t*v
	}
	mean = sumV / n
	if spread := n*sumTT - sumT*sumT; spread > 0 {
		growth = (n*sumTV - sumT*sumV) / spread * last.Sub(first).Seconds()
	}
	return growth, mean
}

// Report prints a line, and adds it to the file that SANDFARM_TEST_REPORT names.
func (f *Farm) Report(line string) { report(f.t, line) }
