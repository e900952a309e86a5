package faulttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/wire"
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

// Leader is the name of the living scheduler that leads; "" while none does.
func (f *Farm) Leader() string {
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
	container := f.containerOf(box)
	out, err := docker(f.cfg.Engine, "inspect", "--format", "{{.State.Pid}}", container)
	var pid int
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(out))
	}
	if err == nil && pid > 1 {
		var groups []byte // an engine in a pid namespace of its own means another process
		if groups, err = os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && !strings.Contains(string(groups), container) {
			err = errors.New("it is not in the container: the engine must count processes as this test does")
		}
	}
	if err == nil && pid > 1 {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil || pid <= 1 {
		f.t.Fatalf("kill the agent of %s: process %d: %v", box, pid, err)
	}
}

// Release lets held jobs go on. Their sandboxes must be on the farm's first engine.
func (c *Case) Release(jobs ...*Job) {
	c.f.t.Helper()
	for _, j := range jobs {
		if _, err := docker(c.f.cfg.Engine, "exec", c.f.containerOf(j.Box), "touch", j.released()); err != nil {
			c.f.t.Fatalf("release job %s: %v", j.ID, err)
		}
	}
}

// containerOf is the container of a sandbox on the farm's first engine.
func (f *Farm) containerOf(box string) string {
	f.t.Helper()
	id, err := docker(f.cfg.Engine, "ps", "-q", "--filter", "label=sandfarm.sandbox="+box)
	if err != nil || strings.TrimSpace(id) == "" {
		f.t.Fatalf("no container of %s runs: %v", box, err)
	}
	return strings.TrimSpace(id)
}
