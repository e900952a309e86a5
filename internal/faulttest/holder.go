package faulttest

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Holder is the name of the living worker that has a job; "" while none has.
func (f *Farm) Holder(job string) string {
	id, err := f.redis.HGet(f.t.Context(), "sf:{default}:job:"+job, "worker").Result()
	if err != nil || id == "" {
		return ""
	}
	for _, name := range f.Workers() {
		if f.Alive(name) && f.components[name].worker() == id {
			return name
		}
	}
	return ""
}

// AwaitHolder waits until a living worker has a job that runs.
func (f *Farm) AwaitHolder(job string) (name string) {
	f.t.Helper()
	f.Until(30*time.Second, "a worker has job "+job, func() bool {
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

// LastTry reports whether a worker has a job of the case that the farm would give up if this worker died too.
func (c *Case) LastTry(name string) bool {
	return slices.ContainsFunc(c.running(), func(j *Job) bool { return c.f.Holder(j.ID) == name && c.f.Claims(j.ID) >= crashes })
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
	out, err := docker(f.cfg.Engine, "inspect", "--format", "{{.State.Pid}}", f.containerOf(box))
	var pid int
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(out))
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
