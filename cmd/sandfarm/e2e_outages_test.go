//go:build integration

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
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
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// outageFor is the length of an outage. Heartbeats of workers are lost meanwhile; their jobs must not be.
const outageFor = 4 * time.Second

func TestOutages(t *testing.T) {
	t.Parallel()
	f := newServicesFarm(t)
	t.Run("RedisHangs", func(t *testing.T) {
		f.outage(t, func() { f.signal("redis", syscall.SIGSTOP) }, func() { f.signal("redis", syscall.SIGCONT) }, f.redisDown)
	})
	t.Run("RedisIsKilled", func(t *testing.T) {
		f.outage(t, func() { f.kill("redis", syscall.SIGKILL) }, func() { f.startParts("redis") }, f.redisDown)
	})
	t.Run("ObjectStoreIsKilled", func(t *testing.T) {
		f.outage(t, func() { f.kill("minio", syscall.SIGKILL) }, func() { f.startParts("minio") }, f.s3Down)
	})
	t.Run("ObjectStoreHangs", func(t *testing.T) {
		f.outage(t, func() { f.signal("minio", syscall.SIGSTOP) }, func() { f.signal("minio", syscall.SIGCONT) }, nil)
	})
	t.Run("EngineIsStopped", func(t *testing.T) {
		var waiting wire.Created
		f.outage(t, func() { f.engine.set(true) }, func() { f.engine.set(false) }, func(t *testing.T, box string) {
			// Jobs accepted before the farm notices wait for the engine.
			if r := f.ask("POST", "/v1/sandboxes", `{}`); r.status != http.StatusAccepted || json.Unmarshal(r.body, &waiting) != nil {
				t.Errorf("create at once: %d %s", r.status, r.detail)
			}
			f.engineDown(t, box)
		})
		if job, err := f.Wait(t.Context(), waiting.Job.ID); err != nil || job.State != "completed" {
			t.Errorf("the sandbox that waited for the engine: %v %+v", err, job)
		}
	})
	t.Run("WorkerIsKilledWhileItUploads", f.killedUpload)
}

// outage stops a component while a job runs, and starts it again. Afterwards the job, its output, its events and its file are complete.
func (f *servicesFarm) outage(t *testing.T, begin, end func(), during func(t *testing.T, box string)) {
	t.Helper()
	const lines = 50
	box := f.sandbox(wire.CreateRequest{}).ID
	f.run(box, "kept = 41")
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: fmt.Sprintf(
		"import time\nfor n in range(%d):\n    print(n, flush=True)\n    time.sleep(0.1)\nopen('made.txt', 'w').write('whole')", lines)})
	testbed.Must(t, err)
	until(t.Context(), t, "the job runs", time.Minute, func() bool {
		now, err := f.Job(t.Context(), job.ID)
		return err == nil && now.State == "running"
	})
	begin()
	back := time.NewTimer(outageFor)
	if during != nil {
		during(t, box)
	}
	<-back.C
	end()
	f.awaitReady()
	done, err := f.Wait(t.Context(), job.ID)
	if err != nil || done.State != "completed" || done.Result == nil || done.Result.Execute == nil {
		t.Fatalf("after the outage: %v %+v", err, done)
	}
	var want, events strings.Builder
	for n := range lines {
		fmt.Fprintln(&want, n)
	}
	if got := done.Result.Execute.Stdout; got != want.String() {
		t.Errorf("output is incomplete: %q", got)
	}
	for event, err := range f.Events(t.Context(), job.ID, "") {
		var data wire.TextData
		if err == nil && event.Name == "stdout" {
			err = json.Unmarshal(event.Data, &data)
		}
		testbed.Must(t, err)
		events.WriteString(data.Text)
	}
	if events.String() != want.String() {
		t.Errorf("events are incomplete: %q", events.String())
	}
	if files := done.Result.Execute.Artifacts; len(files) != 1 || string(download(t, files[0].URL)) != "whole" {
		t.Errorf("artifacts: %+v", files)
	}
	if got := f.run(box, "print(kept + 1)").Stdout; got != "42\n" {
		t.Errorf("the sandbox afterwards: %q", got)
	}
	if _, err := f.Close(t.Context(), box); err != nil {
		t.Error(err)
	}
}

// down expects a 503 with its code and a Retry-After.
func (f *servicesFarm) down(t *testing.T, method, path string, body any) {
	t.Helper()
	r := f.ask(method, path, body)
	if r.status != http.StatusServiceUnavailable || r.code != farm.CodeUnavailable || r.retryAfter == "" {
		t.Errorf("%s %s: status %d, code %q, Retry-After %q: %s", method, path, r.status, r.code, r.retryAfter, r.detail)
	}
	if strings.Contains(r.detail, "127.0.0.1") || strings.Contains(r.detail, ".sock") {
		t.Errorf("%s %s reveals an internal address: %s", method, path, r.detail)
	}
}

func (f *servicesFarm) unready(t *testing.T) {
	t.Helper()
	if r := f.ask("GET", "/readyz", nil); r.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz is %d: %s", r.status, r.body)
	}
	if r := f.ask("GET", "/healthz", nil); r.status != http.StatusOK {
		t.Errorf("/healthz is %d", r.status)
	}
}

func (f *servicesFarm) redisDown(t *testing.T, box string) {
	began := time.Now()
	f.down(t, "POST", "/v1/sandboxes/"+box+"/execute?wait=5", `{"code":"1"}`)
	if took := time.Since(began); took > 50*time.Second { // it must not wait for Redis to come back
		t.Errorf("the answer took %v", took)
	}
	f.down(t, "GET", "/v1/sandboxes/"+box, nil)
	f.unready(t)
}

func (f *servicesFarm) s3Down(t *testing.T, box string) {
	f.unready(t)
	f.down(t, "PUT", "/v1/sandboxes/"+box+"/files/large.bin", bytes.NewReader(make([]byte, 5<<20)))
}

func (f *servicesFarm) engineDown(t *testing.T, _ string) {
	until(t.Context(), t, "the farm has noticed the outage of its engine", time.Minute, func() bool {
		return f.ask("GET", "/readyz", nil).status == http.StatusServiceUnavailable
	})
	until(t.Context(), t, "creations are refused", time.Minute, func() bool { // images are cached for a moment
		return f.ask("POST", "/v1/sandboxes?wait=0", `{"ttl_seconds":5}`).status == http.StatusServiceUnavailable
	})
	f.down(t, "POST", "/v1/sandboxes", `{}`)
	f.down(t, "POST", "/v1/run", `{"code":"1"}`)
}

func (f *servicesFarm) killedUpload(t *testing.T) {
	const files = 600
	box := f.sandbox(wire.CreateRequest{}).ID
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: fmt.Sprintf("for n in range(%d): open(f'f{n}', 'w').write(str(n))", files)})
	testbed.Must(t, err)
	until(t.Context(), t, "some files are stored", time.Minute, func() bool {
		stored, err := filepath.Glob(filepath.Join(f.data, "s3", "sandfarm", "artifacts", "*", box, job.ID, "*"))
		return err == nil && len(stored) > 30
	})
	f.kill("worker", syscall.SIGKILL)
	if now, err := f.Job(t.Context(), job.ID); err != nil || now.State != "running" {
		t.Fatalf("the worker was not killed during the upload: %v, state %s", err, now.State)
	}
	f.startParts("worker")
	done, err := f.Wait(t.Context(), job.ID)
	if err != nil || done.State != "completed" || done.Attempt != 2 {
		t.Fatalf("after the kill: %v %+v", err, done)
	}
	ids := map[string]bool{}
	for _, a := range done.Result.Execute.Artifacts {
		ids[a.ID] = true
	}
	if len(ids) != files {
		t.Errorf("%d artifacts, want %d", len(ids), files)
	}
	until(t.Context(), t, "what the first attempt stored is removed", time.Minute, func() bool {
		stored, err := filepath.Glob(filepath.Join(f.data, "s3", "sandfarm", "artifacts", "*", box, job.ID, "*"))
		return err == nil && len(stored) == files
	})
}

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
	if got := done.Result.Execute.Stdout; got != want.String() {
		t.Errorf("output after the kill is incomplete: %q", got)
	}
	if done.Attempt != 2 {
		t.Errorf("attempt is %d, want 2: it was taken over once", done.Attempt)
	}
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
	if streamed.String() != want.String() {
		t.Errorf("events after the kill are incomplete: %q", streamed.String())
	}
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
