//go:build integration

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// servicesFarm is a farm of separate services. A test can stop each.
type servicesFarm struct {
	*farmProcess
	commands map[string][]string
	procs    map[string]*exec.Cmd
}

func newServicesFarm(t *testing.T) *servicesFarm {
	t.Helper()
	dir, redis, s3, api := t.TempDir(), testbed.Address(t), testbed.Address(t), testbed.Address(t)
	namespace := "sandfarm-test-" + strings.ReplaceAll(api, ":", "-")
	f := &servicesFarm{
		farmProcess: &farmProcess{t: t, url: "http://" + api, data: dir, out: &testbed.Log{}},
		procs:       map[string]*exec.Cmd{},
	}
	f.env = append(os.Environ(),
		"SANDFARM_DATA="+dir, "SANDFARM_API_LISTEN="+api, "SANDFARM_METRICS_LISTEN=none", "SANDFARM_REDIS_URL=redis://"+redis,
		"SANDFARM_S3_ENDPOINT=http://"+s3, "SANDFARM_S3_ACCESS_KEY=sandfarm", "SANDFARM_S3_SECRET_KEY=sandfarm-secret",
		"MINIO_ROOT_USER=sandfarm", "MINIO_ROOT_PASSWORD=sandfarm-secret", "MINIO_BROWSER=off",
		"SANDFARM_ENGINE_NAMESPACE="+namespace, "SANDFARM_WORKER_STOP_GRACE=1s", "SANDFARM_WORKER_POOL=none",
		"SANDFARM_WORKER_MEMORY_OVERCOMMIT=1000", "SANDFARM_WORKER_CPU_OVERCOMMIT=1000")
	_, port, _ := net.SplitHostPort(redis)
	f.commands = map[string][]string{
		"redis":  {"redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--save", ""},
		"minio":  {minioBinary(t), "server", "--quiet", "--address", s3, filepath.Join(dir, "s3")},
		"worker": {program, "worker"}, "scheduler": {program, "scheduler"}, "api": {program, "api"},
	}
	var err error
	f.Client, err = client.New(f.url)
	testbed.Must(t, err)
	t.Cleanup(func() {
		for name := range f.procs {
			f.kill(name, syscall.SIGKILL)
		}
		removeAll(t, "label=sandfarm.namespace="+namespace)
		if t.Failed() {
			t.Logf("output of the farm:\n%s", f.out.Tail())
		}
	})
	f.startParts("redis", "minio")
	for _, address := range []string{redis, s3} {
		testbed.AwaitListener(t, address)
	}
	f.startParts("worker", "scheduler", "api")
	f.awaitReady()
	return f
}

// minioBinary is the MinIO server that `make test` builds.
func minioBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("SANDFARM_TEST_MINIO"); path != "" {
		return path
	}
	cache, err := os.UserCacheDir()
	testbed.Must(t, err)
	return filepath.Join(cache, "sandfarm", "bin", "minio")
}

// removeAll removes the containers and volumes of a filter from the engine. The engine refuses those that a killed worker was
// removing, until that is done.
func removeAll(t *testing.T, filter string) {
	t.Helper()
	for _, kind := range [][2][]string{{{"ps", "-aq"}, {"rm", "-f"}}, {{"volume", "ls", "-q"}, {"volume", "rm", "-f"}}} {
		until(context.WithoutCancel(t.Context()), t, fmt.Sprintf("docker %v leaves nothing", kind[1]), time.Minute, func() bool {
			ids, err := exec.Command("docker", append(kind[0], "--filter", filter)...).Output()
			if err == nil && len(ids) > 0 {
				_ = exec.Command("docker", append(kind[1], strings.Fields(string(ids))...)...).Run()
			}
			return err == nil && len(ids) == 0
		})
	}
}

func (f *servicesFarm) startParts(names ...string) {
	f.t.Helper()
	for _, name := range names {
		argv := f.commands[name]
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = f.env, f.out, f.out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		testbed.Must(f.t, cmd.Start())
		f.procs[name] = cmd
	}
}

// kill signals a process and waits until it has exited.
func (f *servicesFarm) kill(name string, s syscall.Signal) {
	_ = f.procs[name].Process.Signal(s)
	_ = f.procs[name].Wait()
	delete(f.procs, name)
}

func (f *servicesFarm) awaitReady() {
	f.t.Helper()
	until(f.t.Context(), f.t, "the farm is ready", time.Minute, func() bool { return f.ask("GET", "/readyz", nil).status == http.StatusOK })
}

// reply is an answer as the farm sent it, without retries of the client.
type reply struct {
	status int
	code   farm.Code
	detail string
	body   []byte
}

// ask sends a request. A string is sent as JSON, a reader unchanged.
func (f *farmProcess) ask(method, path string, body any) reply {
	var content io.Reader
	kind := "application/octet-stream"
	switch b := body.(type) {
	case string:
		content, kind = strings.NewReader(b), "application/json"
	case io.Reader:
		content = b
	}
	ctx, done := context.WithTimeout(f.t.Context(), 100*time.Second)
	defer done()
	request, err := http.NewRequestWithContext(ctx, method, f.url+path, content)
	testbed.Must(f.t, err)
	request.Header.Set("Content-Type", kind)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{detail: err.Error()}
	}
	defer func() { _ = answer.Body.Close() }()
	r := reply{status: answer.StatusCode}
	r.body, _ = io.ReadAll(answer.Body)
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
		var p wire.Problem
		if err := json.Unmarshal(r.body, &p); err != nil {
			f.t.Fatalf("%s %s: %v", method, path, err)
		}
		r.code, r.detail = farm.Code(p.Code), p.Detail
	}
	return r
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
