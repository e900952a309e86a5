//go:build integration

package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = content.Close() }()
	if raw, err := io.ReadAll(content); err != nil || !strings.HasSuffix(string(raw), "\x00files\x00") {
		t.Errorf("files are served by %q, %v", raw, err)
	}
}
