//go:build integration

package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestStopAndStartKeepsSandboxesJobsAndArtifacts(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{Name: "kept"})
	result := f.run(box.ID, "kept = 41\nopen('made.txt', 'w').write('still here')")
	f.stop(syscall.SIGINT)
	f.start()
	if got := f.run(box.ID, "print(kept + 1)").Stdout; got != "42\n" {
		t.Fatalf("variables after a restart: %q", got)
	}
	link, err := f.Link(t.Context(), result.Artifacts[0].ID)
	testbed.Must(t, err)
	if got := download(t, link); string(got) != "still here" {
		t.Fatalf("artifact after a restart: %q", got)
	}
}

// When a worker is killed in the middle of a run, the next one continues the same execution.
func TestKilledWorkerMidRunGivesOneRunWithCompleteOutput(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{})
	const lines = 60
	job, err := f.Execute(t.Context(), box.ID, wire.ExecuteRequest{Code: fmt.Sprintf(`
import time
open('runs.txt', 'a').write('x')
for n in range(%d):
    print(n, flush=True)
    time.sleep(0.1)
`, lines)})
	testbed.Must(t, err)
	until(t.Context(), t, "some lines have been sent", time.Minute, func() bool {
		stdout := 0
		for event, err := range f.Events(t.Context(), job.ID, "") {
			if err != nil {
				return false
			}
			if event.Name == "stdout" {
				stdout++
			}
			if stdout == 5 {
				return true
			}
		}
		return false
	})
	f.stop(syscall.SIGKILL)
	f.start()
	done, err := f.Wait(t.Context(), job.ID)
	if err != nil || done.State != "completed" {
		t.Fatalf("after the kill: %v %+v", err, done)
	}
	var want strings.Builder
	for n := range lines {
		fmt.Fprintln(&want, n)
	}
	testbed.Diff(t, "output after the kill is incomplete", want.String(), done.Result.Execute.Stdout)
	testbed.Diff(t, "attempt", 2, done.Attempt)
	if got := f.run(box.ID, "print(open('runs.txt').read())").Stdout; got != "x\n" {
		t.Errorf("the code ran %d times", strings.Count(got, "x"))
	}
	var streamed strings.Builder
	for event, err := range f.Events(t.Context(), job.ID, "") {
		testbed.Must(t, err)
		if event.Name == "stdout" {
			var data wire.TextData
			testbed.Must(t, json.Unmarshal(event.Data, &data))
			streamed.WriteString(data.Text)
		}
	}
	testbed.Diff(t, "events after the kill are incomplete", want.String(), streamed.String())
}

// Without redis-server jobs are lost when the farm stops, and a warning says so. Sandboxes are restored from the engine.
func TestWithoutRedisServerSandboxesAreRestored(t *testing.T) {
	t.Parallel()
	f := newFarm(t, "PATH=")
	if n := strings.Count(f.out.String(), "redis-server is not installed"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, f.out.Tail())
	}
	box := f.sandbox(wire.CreateRequest{Name: "adopted", Labels: map[string]string{"kept": "yes"}})
	f.run(box.ID, "kept = 41")
	f.stop(syscall.SIGINT)
	f.start()
	if got := f.run(box.ID, "print(kept + 1)").Stdout; got != "42\n" {
		t.Fatalf("variables after a restart: %q", got)
	}
	again, err := f.Sandbox(t.Context(), box.ID)
	if err != nil || again.Name != "adopted" || again.Labels["kept"] != "yes" || !again.ExpiresAt.Equal(box.ExpiresAt) {
		t.Fatalf("the sandbox after a restart: %v %+v", err, again)
	}
}
