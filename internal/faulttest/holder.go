package faulttest

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// Holder is the name of the living worker that has a job, or had it at its end; "" while none has.
func (f *Farm) Holder(job string) string {
	id, err := f.redis.HGet(f.t.Context(), "sf:{default}:job:"+job, "worker").Result()
	if err != nil {
		return ""
	}
	return f.workerOf(id)
}

// workerOf is the name of the living worker with an id; "" if there is none.
func (f *Farm) workerOf(id string) string {
	for _, name := range f.Workers() {
		if id != "" && f.Alive(name) && f.components[name].worker() == id {
			return name
		}
	}
	return ""
}

// Node is the node of a living worker.
func (f *Farm) Node(worker string) (node string) {
	f.t.Helper()
	f.Until(time.Minute, worker+" is registered", func() bool {
		workers, err := f.Client.Workers(f.t.Context())
		at := slices.IndexFunc(workers, func(w wire.Worker) bool { return w.ID == f.components[worker].worker() })
		if err == nil && at >= 0 {
			node = workers[at].Node
		}
		return node != ""
	})
	return node
}

// holding says which living worker has a job, and how many workers would have died with it if this one did.
type holding struct {
	worker string
	deaths int
}

// held are the running jobs of living workers.
func (f *Farm) held() map[string]holding {
	ids, err := f.redis.ZRange(f.t.Context(), "sf:{default}:open", 0, -1).Result()
	if err != nil || len(ids) == 0 {
		return nil
	}
	pipe := f.redis.Pipeline()
	read := make([]*redis.SliceCmd, len(ids))
	for i, id := range ids {
		read[i] = pipe.HMGet(f.t.Context(), "sf:{default}:job:"+id, "state", "worker", "attempt", "spared")
	}
	if _, err := pipe.Exec(f.t.Context()); err != nil {
		return nil
	}
	workers := map[string]string{}
	held := map[string]holding{}
	for i, id := range ids {
		var j struct {
			State   string `redis:"state"`
			Worker  string `redis:"worker"`
			Attempt int    `redis:"attempt"`
			Spared  int    `redis:"spared"`
		}
		if err := read[i].Scan(&j); err != nil || j.State != "running" {
			continue
		}
		if _, known := workers[j.Worker]; !known {
			workers[j.Worker] = f.workerOf(j.Worker)
		}
		if name := workers[j.Worker]; name != "" {
			held[id] = holding{name, j.Attempt - j.Spared}
		}
	}
	return held
}

// AwaitHolder waits until a living worker has a job that runs.
func (f *Farm) AwaitHolder(job string) (name string) {
	f.t.Helper()
	f.Until(2*time.Minute, "a worker has job "+job, func() bool {
		name = f.Holder(job)
		return name != ""
	})
	return name
}

// leader is the name of the living scheduler that leads; "" while none does.
func (f *Farm) leader() string {
	id, err := f.redis.Get(f.t.Context(), "sf:lock:scheduler").Result()
	if err != nil {
		return ""
	}
	for _, name := range f.Schedulers() {
		if f.Alive(name) && strings.Contains(f.components[name].out.String(), id) {
			return name
		}
	}
	return ""
}

// AwaitLeader waits until a scheduler leads.
func (f *Farm) AwaitLeader() (leader string) {
	f.t.Helper()
	f.Until(60*time.Second, "a scheduler leads", func() bool { leader = f.leader(); return leader != "" })
	return leader
}

// Lease is for how long the scheduler that leads, or led last, keeps others from it; 0 or less: it does not.
func (f *Farm) Lease() time.Duration {
	left, err := f.redis.PTTL(f.t.Context(), "sf:lock:scheduler").Result()
	if err != nil {
		f.t.Errorf("read the lease of the scheduler: %v", err)
	}
	return left
}

// Claims is how often workers have claimed a job, takeovers after an orderly stop included.
func (f *Farm) Claims(job string) int {
	n, err := f.redis.HGet(f.t.Context(), "sf:{default}:job:"+job, "attempt").Int()
	if err != nil {
		f.t.Errorf("read the attempt of %s: %v", job, err)
	}
	return n
}

// crashes is how many workers may die with a job before the farm gives it up.
const crashes = 3

// LastTry reports whether a worker has a job that the farm would give up if this worker died too.
func (f *Farm) LastTry(name string) bool {
	for _, h := range f.held() {
		if h.worker == name && h.deaths >= crashes {
			return true
		}
	}
	return false
}

// Objects is how many artifacts of a job are in the object store.
func (f *Farm) Objects(box, job string) int {
	found, err := filepath.Glob(filepath.Join(f.dir, "s3", "sandfarm", "artifacts", "*", box, job, "*"))
	if err != nil {
		f.t.Errorf("list objects of %s: %v", job, err)
	}
	return len(found)
}

// KillSandbox kills the agent of a sandbox, its first process, from outside. The sandbox must be on the farm's first engine.
func (f *Farm) KillSandbox(box string) {
	f.t.Helper()
	if err := f.containers.kill(box); err != nil {
		f.t.Fatalf("kill the agent of %s: %v", box, err)
	}
}

// Release lets held jobs go on. Their sandboxes must be on the farm's first engine.
func (c *Case) Release(jobs ...*Job) {
	c.f.t.Helper()
	for _, j := range jobs {
		if err := c.f.containers.exec(j.Box, "touch", j.released()); err != nil {
			c.f.t.Fatalf("release job %s: %v", j.ID, err)
		}
	}
}

// Create creates a sandbox as a careful caller does, and returns its id when its creation has ended; "" if that did not complete. It has one
// container then.
func (c *Case) Create(request wire.CreateRequest) (box string) {
	j := c.bare("")
	err := c.accept(j, func(key client.CallOption) error {
		made, err := c.f.CreateSandbox(c.f.t.Context(), request, key)
		j.ID, j.Box = made.Job.ID, made.Sandbox.ID
		return err
	}, true)
	if err != nil {
		c.f.t.Errorf("create: not accepted within %s: %v", insistFor, err)
		return ""
	}
	if !c.completed(j) {
		return ""
	}
	if n := c.containers(j.Box); n != 1 {
		j.saw = fmt.Sprintf("its sandbox is told ready, and has %d containers", n)
	}
	return j.Box
}

// Close closes a sandbox as a careful caller does. When it is told closed, it has no container.
func (c *Case) Close(box string) {
	j := c.bare(box)
	err := c.accept(j, func(key client.CallOption) error {
		got, err := c.f.Close(c.f.t.Context(), box, key)
		j.ID = got.ID
		return err
	}, true)
	if err != nil {
		c.f.t.Errorf("close: not accepted within %s: %v", insistFor, err)
		return
	}
	if !c.completed(j) {
		return
	}
	now, err := c.f.Sandbox(c.f.t.Context(), box)
	if n := c.containers(box); err != nil || now.State != "closed" || n > 0 {
		j.saw = fmt.Sprintf("its sandbox is %s, with %d containers: %v", now.State, n, err)
	}
}

// Ran submits a job as Insist does, and waits for its end.
func (c *Case) Ran(box string, run Run) {
	c.f.t.Helper()
	if j := c.Insist(box, run); j.ID != "" {
		c.completed(j)
	}
}

// bare is a job of the case that runs no code.
func (c *Case) bare(box string) *Job {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	return &Job{Box: box, token: fmt.Sprintf("%s-%d", c.id, c.sent), bare: true}
}

// completed waits for the end of a job. If it has not completed, the books will say so.
func (c *Case) completed(j *Job) bool {
	ctx, done := context.WithTimeout(c.f.t.Context(), 2*settleWithin)
	defer done()
	for ctx.Err() == nil {
		if end, err := c.f.Wait(ctx, j.ID); err == nil {
			return end.State == "completed"
		}
		<-time.After(200 * time.Millisecond)
	}
	return false
}

// containers is how many containers a sandbox has.
func (c *Case) containers(box string) (n int) {
	for _, other := range c.f.Containers() {
		if other == box {
			n++
		}
	}
	return n
}

// What a process may have more at the end than it had idle at the start: pools of connections stay open for a while. Seen were at most 10
// goroutines and 17 descriptors: a process has up to 20 connections to Redis.
const (
	moreGoroutines  = 20
	moreDescriptors = 30
	idleWithin      = 150 * time.Second // the queue looks once a minute for tasks that a dead process had, and then waits before it repeats them
)

// use is what a process holds.
type use struct{ goroutines, descriptors int }

// kindOf is the kind of a component: "worker" of "worker-2".
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// using measures the processes that run, the largest of each kind. Without Config.Links it is empty.
func (f *Farm) using() map[string]use {
	found := map[string]use{}
	for name := range f.links {
		if !f.Alive(name) {
			continue
		}
		u, err := f.useOf(name)
		if err != nil {
			f.t.Logf("measure %s: %v", name, err)
			continue
		}
		limit := found[kindOf(name)]
		found[kindOf(name)] = use{max(limit.goroutines, u.goroutines), max(limit.descriptors, u.descriptors)}
	}
	return found
}

// useOf measures one process.
func (f *Farm) useOf(name string) (u use, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.PID(name)))
	if err != nil {
		return use{}, err
	}
	u.descriptors = len(entries)
	_, address, _ := strings.Cut(f.components[name].env[len(f.components[name].env)-1], "=")
	answer, err := http.Get("http://" + address + "/metrics") //nolint:noctx // a process of this machine, bounded by the test
	if err != nil {
		return use{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			u.goroutines, err = strconv.Atoi(value)
			return u, err
		}
	}
	return use{}, fmt.Errorf("%s shows no go_goroutines", address)
}

// End closes every sandbox, prints what is left of the farm's work, and fails the test if anything is: containers, keys, reservations and
// documents of sandboxes and jobs that have ended, staged objects, goroutines or descriptors.
func (f *Farm) End() {
	f.t.Helper()
	if n := f.CloseAll(); n > 0 {
		f.t.Errorf("%d containers are left", n)
	}
	var keys []string
	var now map[string]use
	var more []string
	for end := time.Now().Add(idleWithin); ; <-time.After(500 * time.Millisecond) {
		keys, now, more = slices.Concat(f.leftKeys(), f.leftRecords(), f.leftObjects()), f.using(), nil
		for kind, before := range f.idleUse {
			if now[kind].goroutines > before.goroutines+moreGoroutines || now[kind].descriptors > before.descriptors+moreDescriptors {
				more = append(more, kind)
			}
		}
		if len(keys)+len(more) == 0 || time.Now().After(end) {
			break
		}
	}
	line := fmt.Sprintf("%-44s %d containers, %d keys and objects left", f.t.Name()+", at the end", len(f.Containers()), len(keys))
	for _, kind := range slices.Sorted(maps.Keys(f.idleUse)) {
		line += fmt.Sprintf("; %s: %d goroutines (idle at first: %d), %d descriptors (%d)", kind, now[kind].goroutines, f.idleUse[kind].goroutines, now[kind].descriptors, f.idleUse[kind].descriptors)
	}
	report(f.t, line)
	if len(keys) > 0 {
		f.t.Errorf("keys and objects are left: %v", keys[:min(len(keys), 20)])
	}
	if len(more) > 0 {
		f.t.Errorf("these hold more than at first: %v", more)
	}
}
