//go:build integration || kubernetes

package main_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// program is the built binary, made once by TestMain.
var program string

// TestMain builds the program as its users do.
func TestMain(m *testing.M) {
	root, err := filepath.Abs("../..")
	if err == nil {
		program = filepath.Join(root, "bin", "sandfarm")
		build := exec.Command("make", "-s", "-C", root, "build")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// farmProcess is a running `sandfarm up` with a data directory of its own.
type farmProcess struct {
	*client.Client
	t    testing.TB
	url  string
	data string
	env  []string
	by   []string // a command that runs the program with its arguments; empty: none
	cmd  *exec.Cmd
	out  *testbed.Log
}

// newFarm starts a farm and removes it, with everything that it made in the engine, after the test.
func newFarm(t testing.TB, env ...string) *farmProcess {
	t.Helper()
	return newFarmBy(t, nil, env...)
}

// newFarmWithKey starts a farm that has one key, of the tenant acme, which its client has.
func newFarmWithKey(t testing.TB, env ...string) (f *farmProcess, key string) {
	t.Helper()
	key = "key-of-acme"
	f = newFarm(t, append(env, "SANDFARM_API_KEYS=acme:"+hashOf(key))...)
	var err error
	f.Client, err = client.New(f.url, client.WithKey(key))
	testbed.Must(t, err)
	return f, key
}

// hashOf is how a setting names a key.
func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// newFarmBy is newFarm with a command that starts the program.
func newFarmBy(t testing.TB, by []string, env ...string) *farmProcess {
	t.Helper()
	f := &farmProcess{t: t, data: t.TempDir(), url: "http://" + testbed.Address(t), by: by}
	f.env = append(os.Environ(),
		"SANDFARM_DATA="+f.data, "SANDFARM_API_LISTEN="+strings.TrimPrefix(f.url, "http://"),
		"SANDFARM_S3_LISTEN="+testbed.Address(t), "SANDFARM_METRICS_LISTEN=none", "SANDFARM_WORKER_STOP_GRACE=1s",
		"SANDFARM_WORKER_POOL=none", "SANDFARM_WORKER_MEMORY_OVERCOMMIT=1000", "SANDFARM_WORKER_CPU_OVERCOMMIT=1000") // waiting for resources has its own tests
	f.env = append(f.env, env...)
	var err error
	f.Client, err = client.New(f.url)
	testbed.Must(t, err)
	t.Cleanup(func() {
		f.stop(syscall.SIGTERM)
		down := exec.Command(program, "down")
		down.Env = f.env
		if out, err := down.CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
		if t.Failed() {
			t.Logf("output of the farm:\n%s", f.out.Tail())
		}
	})
	f.start()
	return f
}

// start starts the process and waits until it is ready.
func (f *farmProcess) start() {
	f.t.Helper()
	f.out = &testbed.Log{}
	argv := append(slices.Clone(f.by), program, "up")
	f.cmd = exec.Command(argv[0], argv[1:]...)
	f.cmd.Env, f.cmd.Stdout, f.cmd.Stderr = f.env, f.out, f.out
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testbed.Must(f.t, f.cmd.Start())
	exited := make(chan error, 1)
	go func(cmd *exec.Cmd) { exited <- cmd.Wait() }(f.cmd)
	for end := time.Now().Add(10 * time.Minute); ; {
		if answer, err := http.Get(f.url + "/readyz"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case err := <-exited:
			f.t.Fatalf("the farm ended: %v\n%s", err, f.out.Tail())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			f.t.Fatalf("the farm is not ready\n%s", f.out.Tail())
		}
	}
}

// stop sends a signal and waits for the end.
func (f *farmProcess) stop(signal syscall.Signal) {
	f.t.Helper()
	_ = f.cmd.Process.Signal(signal)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := f.cmd.Process.Signal(syscall.Signal(0)); err != nil {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("the farm does not stop\n%s", f.out.Tail())
		}
	}
}

// sandbox creates a sandbox and waits until it is ready.
func (f *farmProcess) sandbox(request wire.CreateRequest) wire.Sandbox {
	f.t.Helper()
	made, err := f.CreateSandbox(f.t.Context(), request, client.WithWait(60*time.Second))
	if err != nil || made.Job.State != "completed" {
		f.t.Fatalf("create: %v %+v", err, made.Job)
	}
	return made.Sandbox
}

// run executes code, which must succeed, and returns its result.
func (f *farmProcess) run(sandbox, code string) *wire.ExecuteResult {
	f.t.Helper()
	job, err := f.Execute(f.t.Context(), sandbox, wire.ExecuteRequest{Code: code}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Error != nil {
		f.t.Fatalf("execute %q: %v %+v %+v", code, err, job, job.Result)
	}
	return job.Result.Execute
}

// ended waits for the end of a job that a call has returned.
func (f *farmProcess) ended(job wire.Job, err error) wire.Job {
	f.t.Helper()
	if err == nil && !job.Final() {
		job, err = f.Wait(f.t.Context(), job.ID)
	}
	testbed.Must(f.t, err)
	return job
}

// until polls a condition until it holds; after the deadline the test fails.
func until(ctx context.Context, t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

func download(t testing.TB, url string) []byte {
	t.Helper()
	answer, err := http.Get(url)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("download: %v, status %d: %.300s", err, answer.StatusCode, body)
	}
	return body
}
