//go:build integration

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
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
	f := newFarm(t, "SANDFARM_API_ALLOW_PRIVATE_CALLBACKS=true")
	t.Run("Ids", f.badIDs)
	t.Run("Bodies", f.badBodies)
	t.Run("Names", f.badNames)
	t.Run("Code", f.badCode)
	t.Run("Files", f.oddFiles)
	t.Run("ManyFiles", f.manyFiles)
	t.Run("FullWorkspace", f.fullWorkspace)
	t.Run("FullMemory", f.fullMemory)
	t.Run("LongOutput", f.longOutput)
	t.Run("Callbacks", f.callbacks)
	t.Run("Many", f.many)
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

func (f *farmProcess) badIDs(t *testing.T) {
	const unknown = "00000000000000000000000000"
	for _, id := range []string{"sbx_" + unknown, "sbx_x", "job_" + unknown, "%00", "%F0%9F%8E%88", strings.Repeat("a", 3000)} {
		f.refused(t, http.StatusNotFound, farm.CodeNotFound, "GET", "/v1/sandboxes/"+id, nil)
		f.refused(t, http.StatusNotFound, farm.CodeNotFound, "POST", "/v1/sandboxes/"+id+"/execute", `{"code":"1"}`)
	}
	f.refused(t, http.StatusNotFound, farm.CodeNotFound, "GET", "/v1/jobs/job_"+unknown+"/events", nil)
	f.refused(t, http.StatusNotFound, farm.CodeNotFound, "GET", "/v1/artifacts/art_"+unknown, nil)
	expiring, closed := f.sandbox(wire.CreateRequest{}).ID, f.sandbox(wire.CreateRequest{}).ID
	if _, err := f.Update(t.Context(), expiring, wire.UpdateRequest{TTLSeconds: new(5)}); err != nil { // its life begins when it is ready
		t.Fatal(err)
	}
	_, err := f.Close(t.Context(), closed, client.WithWait(30*time.Second))
	testbed.Must(t, err)
	until(t.Context(), t, "the sandbox expires", time.Minute, func() bool {
		box, err := f.Sandbox(t.Context(), expiring)
		return err == nil && box.State == "expired"
	})
	for _, id := range []string{closed, expiring} {
		f.refused(t, http.StatusConflict, farm.CodeConflict, "POST", "/v1/sandboxes/"+id+"/execute", `{"code":"1"}`)
		f.refused(t, http.StatusConflict, farm.CodeConflict, "PUT", "/v1/sandboxes/"+id+"/files/x", strings.NewReader("x"))
		out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=sandfarm.sandbox="+id).Output()
		if err != nil || len(out) != 0 {
			t.Errorf("the container of %s still exists: %v %s", id, err, out)
		}
	}
}

func (f *farmProcess) badBodies(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	execute := "/v1/sandboxes/" + box + "/execute"
	for _, body := range []string{
		"", "null", "[]", `{"code": `, `{"code":"1"} x`, `{"code":"1","code":"2"}`, `{"code":1}`, `{"code":"1","zzz":2}`, "{}",
		"{\"code\":\"\xff\xfe\"}", "\x89PNG\r\n\x1a\n\x00", `{"code":` + strings.Repeat("[", 50_000) + "}", `{"code":"1","timeout_seconds":"5"}`, `{"code":"1","timeout_seconds":1.5}`,
	} {
		f.refused(t, http.StatusBadRequest, farm.CodeInvalid, "POST", execute, body)
	}
	for _, body := range []string{`{"code":""}`, `{"code":"1","timeout_seconds":0}`, `{"code":"1","timeout_seconds":-1}`, `{"code":"1","timeout_seconds":86401}`} {
		f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", execute, body)
	}
	for _, wait := range []string{"-1", "abc", "", "NaN"} {
		f.refused(t, http.StatusBadRequest, farm.CodeInvalid, "POST", execute+"?wait="+wait, `{"code":"1"}`)
	}
	for _, body := range []string{
		`{"image":"nope"}`, `{"image":"../x"}`, `{"ttl_seconds":0}`, `{"ttl_seconds":-1}`, `{"idle_seconds":1}`, `{"resources":{"memory_mb":1}}`,
		`{"name":"a\u0000b"}`, `{"env":{"A=B":"1"}}`, `{"network":"full"}`, `{"gpu":{"count":1}}`,
	} {
		f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", "/v1/sandboxes", body)
	}
	f.refused(t, http.StatusRequestEntityTooLarge, farm.CodeTooLarge, "POST", execute, `{"code":"`+strings.Repeat("#", 10<<20+1)+`"}`)
	f.refused(t, http.StatusRequestEntityTooLarge, farm.CodeTooLarge, "POST", execute, `{"code":"`+strings.Repeat("#", 64<<20)+`"}`)
	if got := f.run(box, "s = '''"+strings.Repeat("x", 10<<20-100)+"'''\nprint(len(s))").Stdout; got != fmt.Sprintln(10<<20-100) {
		t.Errorf("10 MiB of code: %q", got)
	}
	if jobs, err := f.Queues(t.Context()); err != nil || len(jobs) == 0 || jobs[0].Depth != 0 {
		t.Errorf("something is left in the queues: %v %+v", err, jobs)
	}
}

func (f *farmProcess) badNames(t *testing.T) {
	files := "/v1/sandboxes/" + f.sandbox(wire.CreateRequest{}).ID + "/files/"
	long := strings.Repeat("x", 300)
	for _, name := range []string{"../x", "a/../../x", "%2e%2e/x", "..%2fx", "%2Fetc%2Fpasswd", "a%00b", ".", "%ff%fe", long, strings.Repeat("a/", 2100) + "x"} {
		f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "PUT", files+name, strings.NewReader("x"))
	}
	f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "POST", strings.TrimSuffix(files, "/")+"/move", `{"from":"a","to":"../x"}`)
	for _, name := range []string{strings.Repeat("x", 255), "%E6%B5%8B%E8%AF%95%20%F0%9F%8E%88.txt", "-rf", "a%0Ab", "%252e%252e"} {
		if r := f.ask("PUT", files+name, strings.NewReader("content of "+name)); r.status != http.StatusCreated {
			t.Errorf("PUT %s: %d %s", name, r.status, r.detail)
		}
		if r := f.ask("GET", files+name, nil); string(r.body) != "content of "+name {
			t.Errorf("GET %s: %d %.100s", name, r.status, r.body)
		}
	}
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
		{"import os; os._exit(3)", "completed", farm.ErrorKernelDied, 3, 0, true},
		{"import os; os.kill(os.getpid(), 9)", "completed", farm.ErrorKernelDied, 137, 0, true},
		{"import ctypes; ctypes.string_at(0)", "completed", farm.ErrorKernelDied, 139, 0, true},
		{"import os, subprocess; subprocess.Popen(['sleep', '60']); os.kill(-1, 9)", "completed", "", 0, 0, false},
		{"import sys; sys.exit(7)", "completed", "", 7, 0, false},
		{"input()", "completed", "StdinNotImplementedError", 1, 0, false},
		{"import sys; sys.stdin.read()", "completed", "", 0, 0, false},
		{"import sys; sys.stdout.close()", "completed", "", 0, 0, false},
		{"import sys; sys.stdout = None", "completed", "", 0, 0, false},
		{"import io, sys\nwith io.StringIO() as s: sys.stdout = s", "completed", "", 0, 0, false},
		{"import os; os.close(1); os.close(2)", "completed", "", 0, 0, false},
		{"import os; n = os.open('/dev/null', os.O_WRONLY); os.dup2(n, 1); os.dup2(n, 2)", "completed", "", 0, 0, false},
		{"import subprocess, threading, time\ndef late():\n  time.sleep(0.3); print('LATE')\nthreading.Thread(target=late).start()\nsubprocess.Popen(['sh', '-c', 'sleep 0.3; echo LATE'])\nNone", "completed", "", 0, 0, false},
		{"import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)", "timed_out", farm.ErrorKernelDied, 137, 1, true},
		{"while True: pass", "timed_out", "KeyboardInterrupt", 1, 1, false},
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
	files := "/v1/sandboxes/" + box + "/files/"
	for _, name := range []string{"fifo", "sock", "passwd", "etc", "etc/passwd", "loop"} {
		f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "GET", files+name, nil)
	}
	f.refused(t, http.StatusNotFound, farm.CodeNotFound, "GET", files+"dangling", nil)
	f.refused(t, http.StatusUnprocessableEntity, farm.CodeInvalid, "PUT", files+"etc/x", strings.NewReader("x"))
	if r := f.ask("PUT", files+"passwd", strings.NewReader("mine")); r.status != http.StatusCreated {
		t.Errorf("PUT over a link: %d %s", r.status, r.detail)
	}
	if got := f.run(box, "print(open('/etc/passwd').read(4))").Stdout; got != "root\n" {
		t.Errorf("/etc/passwd was written through a link: %q", got)
	}
}

func (f *farmProcess) manyFiles(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	job, r := f.ended(t, box, "for n in range(10_001): open(f'f{n:05}', 'w').write(str(n))", 0)
	if job.State != "completed" || len(r.Artifacts) != 10_000 || r.ArtifactsSkipped != 1 {
		t.Fatalf("%s %+v: %d artifacts, %d skipped", job.State, job.Error, len(r.Artifacts), r.ArtifactsSkipped)
	}
	if got := string(download(t, r.Artifacts[9_999].URL)); got != "9999" {
		t.Errorf("the last artifact holds %q", got)
	}
	if got := f.run(box, "import os; print(len(os.listdir()))").Stdout; got != "10001\n" {
		t.Errorf("files in the workspace: %q", got)
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

func decode[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("status %d, %.300s: %v", r.status, r.body, err)
	}
	return v
}
