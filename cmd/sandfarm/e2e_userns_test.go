//go:build integration && userns

package main_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestUserNamespace uses a farm on an engine with userns-remap: every user of a container is one that the host has given nothing. The engine
// makes the user dockremap if the machine has none.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t, enginetest.Options{Args: []string{"--userns-remap", "default"}})
	engine.Load("sandfarm/python")
	f := newFarm(t, "SANDFARM_ENGINE_HOST="+engine.Host)
	box := f.sandbox(wire.CreateRequest{}).ID
	says := func(code, want string) {
		t.Helper()
		testbed.Diff(t, code, want, strings.TrimSpace(f.run(box, code).Stdout))
	}
	says(`
import os
first, host, count = map(int, open("/proc/self/uid_map").read().split())
print(first, host > 0, count, 0 < os.getuid() < count)`, "0 True 65536 True")
	says("x = 41", "")
	says("print(x + 1)", "42")

	if r := f.ask("PUT", "/v1/sandboxes/"+box+"/files/a.txt?wait=60", strings.NewReader("file")); r.status != http.StatusOK && r.status != http.StatusCreated {
		t.Errorf("write a file: %d %s", r.status, r.body)
	}
	says("print(open('a.txt').read())", "file")
	if r := f.ask("GET", "/v1/sandboxes/"+box+"/fs/proc/self/uid_map", nil); r.status != http.StatusOK {
		t.Errorf("read a file anywhere: %d %s", r.status, r.body)
	}
	f.ended(f.Install(t.Context(), box, wire.PackagesRequest{Packages: []string{"six==1.17.0"}}))
	says("import six; print(six.__version__)", "1.17.0")

	if _, err := f.StartProcess(t.Context(), box, wire.ProcessRequest{Argv: []string{"python3", "-m", "http.server", "8123"}}); err != nil {
		t.Errorf("start a process: %v", err)
	}
	until(t.Context(), t, "the server in the sandbox answers", 2*time.Minute, func() bool {
		r := f.ask("GET", "/v1/sandboxes/"+box+"/ports/8123/a.txt", nil)
		return r.status == http.StatusOK && string(r.body) == "file"
	})

	// Limits of memory and processes hold, and the kernel that comes back works.
	job := f.ended(f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "x = bytearray(4 << 30)"}))
	if job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Error == nil || job.Result.Execute.Error.Name != "OutOfMemory" {
		t.Errorf("4 GiB: %+v %+v", job, job.Result)
	}
	says(`
import subprocess
held = []
try:
    for n in range(1000):
        held.append(subprocess.Popen(["sleep", "60"]))
except BlockingIOError:
    pass
print(100 < len(held) < 300)
for p in held:
    p.kill(); p.wait()`, "True")
}
