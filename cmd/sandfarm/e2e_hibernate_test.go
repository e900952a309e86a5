//go:build integration && gvisor

package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
)

// sleepers is a farm whose engine makes checkpoints.
type sleepers struct{ *farmProcess }

// TestHibernate stores sandboxes under gVisor and goes on with them, as callers do.
func TestHibernate(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t, enginetest.Options{Args: []string{"--experimental"}})
	engine.Load("sandfarm/python")
	f := sleepers{newFarm(t, "SANDFARM_ENGINE_HOST="+engine.Host)}
	t.Run("each", func(t *testing.T) { // the farm must not stop before all of them are done
		for name, test := range map[string]func(sleepers){"Memory": sleepers.memory, "Idle": sleepers.idle} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(f.on(t))
			})
		}
	})
	f.restarted()
}

// TestAttacksHibernated runs the sample of attacks in sandboxes that hibernate before each attack and after it: what bounds a sandbox bounds it
// after its checkpoint, and what an attack leaves behind is not stronger for having slept.
func TestAttacksHibernated(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t, enginetest.Options{Args: []string{"--experimental"}})
	engine.Load("sandfarm/python")
	r := attackRun{hibernates: true}
	r.corpus(t, false, "SANDFARM_ENGINE_HOST="+engine.Host)
}

// on is the farm for a part of the test.
func (f sleepers) on(t *testing.T) sleepers {
	part := *f.farmProcess
	part.t = t
	return sleepers{&part}
}

// says runs code and compares what it prints.
func (f sleepers) says(box, code, want string) {
	f.t.Helper()
	if got := strings.TrimSpace(f.run(box, code).Stdout); got != want {
		f.t.Fatalf("%q prints %q, want %q", code, got, want)
	}
}

// state waits until a sandbox is in a state.
func (f sleepers) state(box, want string) {
	f.t.Helper()
	until(f.t.Context(), f.t, "the sandbox is "+want, 2*time.Minute, func() bool {
		got, err := f.Sandbox(f.t.Context(), box)
		return err == nil && got.State == want
	})
}

// hibernate hibernates or resumes a sandbox and returns how long that took.
func (f sleepers) hibernate(what string, job wire.Job, err error) time.Duration {
	f.t.Helper()
	if job = f.ended(job, err); job.State != "completed" {
		f.t.Fatalf("%s: %s %+v", what, job.State, job.Error)
	}
	return job.FinishedAt.Sub(*job.StartedAt)
}

// memory: variables, threads, files and a kernel of 100 MB are there afterwards, twice; by the call and by work that arrives.
func (f sleepers) memory() {
	box := f.sandbox(wire.CreateRequest{}).ID
	f.says(box, `
import os, threading, time
data, ticks = os.urandom(100_000_000), [0]
def count():
    while True:
        ticks[0] += 1
        time.sleep(0.05)
threading.Thread(target=count, daemon=True).start()
open("note.txt", "w").write("kept")
total = sum(data[::4096])
print("made")`, "made")
	for n := range 2 {
		job, err := f.Hibernate(f.t.Context(), box)
		froze := f.hibernate("hibernate", job, err)
		f.state(box, "hibernated")
		if n == 0 {
			job, err = f.Resume(f.t.Context(), box)
			f.t.Logf("a kernel with 100 MB: hibernated in %s, resumed in %s", froze, f.hibernate("resume", job, err))
			f.state(box, "ready")
		}
		f.says(box, `
before = ticks[0]
while ticks[0] == before:
    time.sleep(0.01)
print(open("note.txt").read(), len(data), total == sum(data[::4096]))`, fmt.Sprintf("kept %d True", 100_000_000))
	}
}

// idle: with on_idle "hibernate" a sandbox sleeps when nobody uses it, and the next code finds its variables.
func (f sleepers) idle() {
	onIdle, idle := "hibernate", 10
	box := f.sandbox(wire.CreateRequest{OnIdle: &onIdle, IdleSeconds: &idle}).ID
	f.says(box, "x = 41; print(x)", "41")
	f.state(box, "hibernated")
	f.says(box, "print(x + 1)", "42")
}

// restarted: a sandbox sleeps while the farm is restarted.
func (f sleepers) restarted() {
	f.t.Helper()
	box := f.sandbox(wire.CreateRequest{}).ID
	f.says(box, "x = 'before'; print(x)", "before")
	job, err := f.Hibernate(f.t.Context(), box)
	f.hibernate("hibernate", job, err)
	f.stop(syscall.SIGTERM)
	f.start()
	f.state(box, "hibernated")
	f.says(box, "print(x)", "before")
}
