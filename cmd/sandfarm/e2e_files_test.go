//go:build integration

package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What a caller reaches by the routes of files is what code in the sandbox reaches, also where the agent could reach more.
func TestFilesAnywhereAreThoseOfUserCode(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{})
	fs := f.FS(box.ID)
	reads := []string{
		"/etc/passwd", "/etc/shadow", "/proc/1/status", "/proc/1/cmdline", "/proc/1/environ", "/proc/1/maps", "/proc/1/mem", "/proc/1/task/1/environ",
		"/proc/1/root/etc/passwd", "/proc/1/cwd/etc/passwd", "/proc/1/fd/0", "/proc/1/fd/5", "/proc/1/exe", "/sandfarm/agent", "/sandfarm/uv", "/root/.bashrc",
		"/proc/kmsg", "/proc/kcore", "/proc/sys/kernel/core_pattern", "/sys/kernel/notes", "/no/such/file",
	}
	writes := []string{
		"/etc/sandfarm-test", "/proc/1/comm", "/proc/1/oom_score_adj", "/proc/sys/kernel/core_pattern", "/sandfarm/x", "/sys/x", "/root/x", "/tmp/x", "/dev/shm/x",
		"/home/sandbox/x", "/workspace/x", "/run/sandfarm/x",
	}
	byCode := func(paths []string, mode string) map[string]bool {
		t.Helper()
		list, err := json.Marshal(paths)
		testbed.Must(t, err)
		code := fmt.Sprintf(`
import json, os, stat
out = {}
for path in json.loads(%q):
    try:
        with open(path, %q) as file:
            out[path] = stat.S_ISREG(os.fstat(file.fileno()).st_mode) and (file.write(b"x") > 0 if %q == "wb" else file.read(0) == b"")
            if %q == "rb":
                file.read(1)
    except OSError:
        out[path] = False
print(json.dumps(out))`, list, mode, mode, mode)
		can := map[string]bool{}
		out := f.run(box.ID, code)
		if err := json.Unmarshal([]byte(out.Stdout), &can); err != nil {
			t.Fatalf("%v: %+v", err, out)
		}
		return can
	}
	seen := map[bool]int{}
	for path, can := range byCode(reads, "rb") {
		content, err := fs.Open(t.Context(), path)
		if err == nil {
			_, err = io.ReadAll(io.LimitReader(content, 1))
			_ = content.Close()
		}
		if seen[can]++; (err == nil) != can {
			t.Errorf("code can read %s: %v; the route says %v", path, can, err)
		}
	}
	for path, can := range byCode(writes, "wb") {
		_, err := fs.Write(t.Context(), path, strings.NewReader("x"), client.WriteIf{})
		if seen[can]++; (err == nil) != can {
			t.Errorf("code can write %s: %v; the route says %v", path, can, err)
		}
	}
	if seen[true] < 5 || seen[false] < 10 {
		t.Errorf("%v", seen)
	}
	content, err := fs.Open(t.Context(), "/proc/self/cmdline")
	testbed.Must(t, err)
	defer func() { _ = content.Close() }()
	if raw, err := io.ReadAll(content); err != nil || !strings.HasSuffix(string(raw), "\x00files\x00") {
		t.Errorf("files are served by %q, %v", raw, err)
	}
}

// sandfarm sync copies and deletes both ways, once or while it watches. Conflicts are tested with package verbs.
func TestSync(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	box := f.sandbox(wire.CreateRequest{})
	dir, memory := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		testbed.Must(t, os.MkdirAll(filepath.Dir(at(name)), 0o750))
		testbed.Must(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	local := func(name string) string {
		text, _ := os.ReadFile(at(name))
		return string(text)
	}
	command := func(args ...string) *exec.Cmd {
		verb := exec.CommandContext(t.Context(), program, append([]string{"sync", dir, box.ID + ":project", "--memory", memory, "--delete"}, args...)...)
		verb.Env = append(os.Environ(), "SANDFARM_URL="+f.url)
		return verb
	}
	once := func() {
		t.Helper()
		if out, err := command("--once").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	write("a/b/local.txt", "from here")
	once()
	if out := f.run(box.ID, `
import os
print(open("project/a/b/local.txt").read())
open("project/remote.txt", "w").write("from there")
os.remove("project/a/b/local.txt")`); out.Stdout != "from here\n" {
		t.Fatalf("the sandbox has %+v", out)
	}
	once()
	testbed.Diff(t, "here", "from there", local("remote.txt"))
	if _, err := os.Stat(at("a/b/local.txt")); !os.IsNotExist(err) {
		t.Errorf("what was deleted there: %v", err)
	}
	watching := command()
	testbed.Must(t, watching.Start())
	write("later.txt", "while it watches")
	testbed.Until(t, "a change here is there", func() bool {
		return f.run(box.ID, `import os; print(os.path.exists("project/later.txt") and open("project/later.txt").read())`).Stdout == "while it watches\n"
	})
	f.run(box.ID, `open("project/answer.txt", "w").write("42")`)
	testbed.Until(t, "a change there is here", func() bool { return local("answer.txt") == "42" })
	testbed.Must(t, watching.Process.Signal(os.Interrupt))
	if err := watching.Wait(); err != nil {
		if end, ok := errors.AsType[*exec.ExitError](err); !ok || end.ExitCode() != 130 {
			t.Errorf("after Ctrl-C: %v", err)
		}
	}
}

// sandfarm run FILE runs the code as the file that it is: it finds what is beside it, and so do its child processes; errors name its lines. The
// file itself comes back only if the code has changed it.
func TestRunOfAFile(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	dir := t.TempDir()
	files := map[string]string{"data.txt": "data", "plot.py": `
import multiprocessing, sys
from pathlib import Path

def double(x):
    return 2 * x

if __name__ == "__main__":
    here = Path(__file__)
    print(here, sys.argv, (here.parent / "data.txt").read_text())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
    (here.parent / "made.txt").write_text("made")
    1 / 0
`}
	for name, text := range files {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var out, printed bytes.Buffer
	verb := exec.CommandContext(t.Context(), program, "run", filepath.Join(dir, "plot.py"), "--file", filepath.Join(dir, "data.txt"))
	verb.Env, verb.Stdout, verb.Stderr = append(os.Environ(), "SANDFARM_URL="+f.url), &out, &printed
	if err := verb.Run(); err == nil || verb.ProcessState.ExitCode() != 1 || out.String() != "/workspace/plot.py ['/workspace/plot.py'] data\n[42]\n" || !strings.Contains(printed.String(), "File /workspace/plot.py:14") {
		t.Errorf("%v, stdout %q, stderr:\n%s", err, out.String(), printed.String())
	}
	files["made.txt"] = "made"
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != len(files) {
		t.Errorf("%v: the folder has %v", err, left)
	}
	for name, text := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestFullSandbox fills the disk of a sandbox, and the memory of another one, with files: what no longer fits is refused with the reason, and works
// again when there is room.
func TestFullSandbox(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	disk, memory := 64, 256
	box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{DiskMB: &disk}}).ID
	files := "/v1/sandboxes/" + box + "/files/"
	content := bytes.Repeat([]byte("0123456789abcdef"), 48<<16)
	if r := f.ask("PUT", files+"fits.bin", bytes.NewReader(content)); r.status != http.StatusCreated {
		t.Errorf("48 MiB: %d %s", r.status, r.detail)
	}
	if r := f.ask("GET", files+"fits.bin", nil); !bytes.Equal(r.body, content) {
		t.Errorf("48 MiB came back as %d bytes, status %d", len(r.body), r.status)
	}
	// It is smaller than the disk, but what is there leaves no room for it.
	if r := f.ask("PUT", files+"second.bin", bytes.NewReader(content)); r.status != http.StatusRequestEntityTooLarge || r.code != farm.CodeTooLarge || !strings.Contains(r.detail, "no space left") {
		t.Errorf("48 MiB more: %+v", r)
	}
	if list, err := f.Files(box).List(t.Context(), "", true); err != nil || len(list) != 1 {
		t.Errorf("a second file that did not fit left %+v, %v", list, err)
	}

	disk = 512
	box = f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory, DiskMB: &disk}}).ID
	ended := func(request wire.ExecuteRequest) *wire.ExecuteResult {
		t.Helper()
		job := f.ended(f.Execute(t.Context(), box, request))
		if job.Result == nil || job.Result.Execute == nil {
			t.Fatalf("%q: %+v", request.Code, job)
		}
		return job.Result.Execute
	}
	if r := ended(wire.ExecuteRequest{Code: "dd if=/dev/zero of=large.bin bs=1M", Language: new("bash")}); r.ExitCode != 137 {
		t.Errorf("a file that fills the memory: %+v", r)
	}
	if r := ended(wire.ExecuteRequest{Code: "print('ran')"}); r.Error == nil || r.Error.Name != "KernelStartError" || !strings.Contains(r.Error.Value, "of the sandbox's 256 MiB of memory (/workspace 2") {
		t.Errorf("in a full sandbox: %+v, %q", r.Error, r.Stdout)
	}
	testbed.Must(t, f.Files(box).Delete(t.Context(), "large.bin"))
	testbed.Diff(t, "afterwards", "ran\n", f.run(box, "print('ran')").Stdout)
}
