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
