//go:build integration

package main_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// One farm gets all of the bad input, in sequence, and still works afterwards.
func TestBadInput(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	t.Run("Code", f.badCode)
	t.Run("Files", f.oddFiles)
	t.Run("FullWorkspace", f.fullWorkspace)
	t.Run("FullMemory", f.fullMemory)
	t.Run("LongOutput", f.longOutput)
}

// refused expects an error with this status and code, and returns its text.
func (f *farmProcess) refused(t *testing.T, status int, code farm.Code, method, path string, body any) string {
	t.Helper()
	r := f.ask(method, path, body)
	if r.status != status || r.code != code || r.detail == "" {
		t.Errorf("%s %.80s %.80v: status %d, code %q, %.200s; want %d %s", method, path, body, r.status, r.code, r.detail, status, code)
	}
	return r.detail
}

// ended runs code and returns its job after the end, in whatever state.
func (f *farmProcess) ended(t *testing.T, box, code string, timeout int) (wire.Job, *wire.ExecuteResult) {
	t.Helper()
	request := wire.ExecuteRequest{Code: code}
	if timeout > 0 {
		request.TimeoutSeconds = &timeout
	}
	job, err := f.Execute(t.Context(), box, request, client.WithWait(60*time.Second))
	if err == nil && job.Result == nil {
		job, err = f.Wait(t.Context(), job.ID)
	}
	if err != nil || job.Result == nil || job.Result.Execute == nil {
		t.Fatalf("execute %.60q: %v %+v", code, err, job)
	}
	return job, job.Result.Execute
}

// badCode runs code that breaks what it can reach, in one sandbox; the code after it works.
func (f *farmProcess) badCode(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	for _, c := range []struct {
		code, state, err string
		exit, timeout    int
		restarted        bool
	}{
		{"print(1)\x00", "completed", "SyntaxError", 1, 0, false},
		{"import ctypes; ctypes.string_at(0)", "completed", farm.ErrorKernelDied, 139, 0, true},
		{"import os, subprocess; subprocess.Popen(['sleep', '60']); os.kill(-1, 9)", "completed", "", 0, 0, false},
		{"import sys; sys.stdin.read()", "completed", "", 0, 0, false},
		{"import os; n = os.open('/dev/null', os.O_WRONLY); os.dup2(n, 1); os.dup2(n, 2)", "completed", "", 0, 0, false},
		{"import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)", "timed_out", farm.ErrorKernelDied, 137, 1, true},
		{"x = bytearray(8 << 30)", "completed", farm.ErrorOutOfMemory, 137, 0, true},
	} {
		job, r := f.ended(t, box, c.code, c.timeout)
		name := ""
		if r.Error != nil {
			name = r.Error.Name
		}
		if job.State != c.state || r.ExitCode != c.exit || name != c.err || r.KernelRestarted != c.restarted {
			t.Errorf("%q: %s, exit %d, error %q, restarted %v; want %+v", c.code, job.State, r.ExitCode, name, r.KernelRestarted, c)
		}
		_, next := f.ended(t, box, "import sys, time; time.sleep(0.4); print('out'); print('err', file=sys.stderr)", 30)
		if next.Stdout != "out\n" || next.Stderr != "err\n" || next.Error != nil {
			t.Errorf("after %q: %+v", c.code, next)
		}
	}
	testbed.Diff(t, "10 MiB of code", fmt.Sprintln(10<<20-100), f.run(box, "s = '''"+strings.Repeat("x", 10<<20-100)+"'''\nprint(len(s))").Stdout)
}

func (f *farmProcess) oddFiles(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	_, r := f.ended(t, box, `
import os, socket, threading, time
os.mkfifo('fifo'); s = socket.socket(socket.AF_UNIX); s.bind('sock')
os.symlink('/etc/passwd', 'passwd'); os.symlink('/etc', 'etc'); os.symlink('nowhere', 'dangling'); os.symlink('loop', 'loop')
def churn():
    end = time.time() + 1.5
    while time.time() < end:
        for n in range(20):
            open(f'v{n}', 'w').write('x' * 100_000); os.remove(f'v{n}')
threading.Thread(target=churn).start()
open('kept.txt', 'w').write('kept')
None`, 0)
	for _, a := range r.Artifacts {
		if a.Path != "kept.txt" && !strings.HasPrefix(a.Path, "v") {
			t.Errorf("%s became an artifact", a.Path)
		}
	}
	if len(r.Artifacts) == 0 || r.Artifacts[0].Path != "kept.txt" {
		t.Errorf("artifacts: %+v", r.Artifacts)
	}
}

func (f *farmProcess) fullWorkspace(t *testing.T) {
	disk := 64
	box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{DiskMB: &disk}}).ID
	files := "/v1/sandboxes/" + box + "/files/"
	detail := f.refused(t, http.StatusRequestEntityTooLarge, farm.CodeTooLarge, "PUT", files+"large.bin", io.LimitReader(zeros{}, 100<<20))
	if !strings.Contains(detail, "disk_mb") {
		t.Errorf("the text does not say why: %s", detail)
	}
	if list, err := f.Files(box).List(t.Context(), "", true); err != nil || len(list) != 0 {
		t.Errorf("a file that did not fit left %+v, %v", list, err)
	}
	_, r := f.ended(t, box, "f = open('large.bin', 'wb')\nfor n in range(100): f.write(b'x' * (1 << 20))", 0)
	if r.Error == nil || r.Error.Name != "OSError" || !strings.Contains(r.Error.Value, "No space left") {
		t.Errorf("writing too much: %+v", r.Error)
	}
	f.run(box, "f.close(); import os; os.remove('large.bin'); print('ok')")
	content := bytes.Repeat([]byte("0123456789abcdef"), 48<<16)
	if r := f.ask("PUT", files+"fits.bin", bytes.NewReader(content)); r.status != http.StatusCreated {
		t.Errorf("48 MiB: %d %s", r.status, r.detail)
	}
	if r := f.ask("GET", files+"fits.bin", nil); !bytes.Equal(r.body, content) {
		t.Errorf("48 MiB came back as %d bytes, status %d", len(r.body), r.status)
	}
	// It is smaller than the disk, but what is there leaves no room for it.
	detail = f.refused(t, http.StatusRequestEntityTooLarge, farm.CodeTooLarge, "PUT", files+"second.bin", bytes.NewReader(content))
	if !strings.Contains(detail, "full") {
		t.Errorf("the text does not say why: %s", detail)
	}
	if list, err := f.Files(box).List(t.Context(), "", true); err != nil || len(list) != 1 {
		t.Errorf("a second file that did not fit left %+v, %v", list, err)
	}
}

// fullMemory fills a sandbox's memory with files: no kernel starts, its error says why, and one starts when they are deleted.
func (f *farmProcess) fullMemory(t *testing.T) {
	memory, disk := 256, 512
	box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory, DiskMB: &disk}}).ID
	bash := "bash"
	if job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "dd if=/dev/zero of=large.bin bs=1M", Language: &bash}, client.WithWait(60*time.Second)); err != nil || job.Result == nil || job.Result.Execute.ExitCode != 137 {
		t.Errorf("a file that fills the memory: %+v, %v", job, err)
	}
	_, r := f.ended(t, box, "print('ran')", 0)
	if r.Error == nil || r.Error.Name != "KernelStartError" || !strings.Contains(r.Error.Value, "of the sandbox's 256 MiB of memory (/workspace 2") {
		t.Errorf("in a full sandbox: %+v, %q", r.Error, r.Stdout)
	}
	if r := f.ask("DELETE", "/v1/sandboxes/"+box+"/files/large.bin", nil); r.status/100 != 2 {
		t.Errorf("the deletion: %d %s", r.status, r.detail)
	}
	if _, r := f.ended(t, box, "print('ran')", 0); r.Stdout != "ran\n" {
		t.Errorf("afterwards: %+v, %q", r.Error, r.Stdout)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// longOutput prints 256 MiB: the artifact is complete, and the farm's memory does not grow.
func (f *farmProcess) longOutput(t *testing.T) {
	const size = 256 << 20
	box := f.sandbox(wire.CreateRequest{}).ID
	before := f.peak(t)
	job, r := f.ended(t, box, fmt.Sprintf("import sys\nblock = ('x' * 1023 + '\\n') * 1024\nfor n in range(%d): sys.stdout.write(block)\nNone", size>>20), 0)
	if grown := f.peak(t) - before; grown > 150<<10 {
		t.Errorf("the farm grew by %d MiB", grown>>10)
	}
	if job.State != "completed" || !r.Truncated.Stdout || len(r.Stdout) > 2<<20 || len(r.Artifacts) != 1 {
		t.Fatalf("%s: %d bytes inline, truncated %v, artifacts %+v", job.State, len(r.Stdout), r.Truncated, r.Artifacts)
	}
	// The artifact is as long as limits.max_output_mb allows. What is missing is counted, and a line stands for it.
	const limit = 100 << 20
	kept, dropped := r.Artifacts[0].Size, r.DroppedBytes.Stdout
	if line := kept + dropped - size; kept > limit || kept < limit-4096 || line <= 0 || line > 256 {
		t.Fatalf("%d bytes kept, %d dropped of %d", kept, dropped, size)
	}
	answer, err := http.Get(r.Artifacts[0].URL)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	if n, err := io.Copy(io.Discard, answer.Body); err != nil || n != kept {
		t.Errorf("downloaded %d bytes: %v", n, err)
	}
}

// peak is the most memory that the farm's process has had, in KiB.
func (f *farmProcess) peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(f.cmd.Process.Pid), "status"))
	testbed.Must(t, err)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	testbed.Must(t, err)
	return n
}
