//go:build integration

package main_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/embedded"
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

func TestKilledRedisComesBackWithItsRecords(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{})
	f.run(box.ID, "v = 1")
	f.killRedis(t)
	until(t.Context(), t, "the farm works again after Redis was killed", time.Minute, func() bool {
		job, err := f.Execute(t.Context(), box.ID, wire.ExecuteRequest{Code: "print(v)"}, client.WithWait(10*time.Second))
		return err == nil && job.State == "completed" && job.Result.Execute.Stdout == "1\n"
	})
}

// killRedis kills the farm's Redis once it has passed all that it was told on to the system.
func (f *farmProcess) killRedis(t *testing.T) {
	t.Helper()
	socket, err := embedded.RedisSocket(filepath.Join(f.data, "redis"))
	testbed.Must(t, err)
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = rdb.Close() }()
	var info string
	until(t.Context(), t, "Redis has written its append-only file", time.Minute, func() bool {
		info, err = rdb.Info(t.Context(), "everything").Result()
		return err == nil && strings.Contains(info, "\naof_buffer_length:0\r")
	})
	_, rest, _ := strings.Cut(info, "\nprocess_id:")
	text, _, _ := strings.Cut(rest, "\r")
	pid, err := strconv.Atoi(text)
	testbed.Must(t, err)
	testbed.Must(t, syscall.Kill(pid, syscall.SIGKILL))
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
