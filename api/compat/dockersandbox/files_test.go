package dockersandbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/compat/toolset/toolsettest"
	"github.com/sandfarm/sandfarm/api/wire"
)

func TestFilesAreInTheWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base, _ := b.made["workspace_path"].(string)
	for _, c := range []struct {
		tool string
		args map[string]any
		want string
	}{
		{"write_file_sandbox", map[string]any{"file_name": "a.txt", "file_contents": "1"}, "a.txt"},
		{"write_file_sandbox", map[string]any{"file_name": "a.txt", "file_contents": "2", "dest_dir": "/etc/in ner/"}, "etc/in ner/a.txt"},
		{"write_file_sandbox", map[string]any{"file_name": "/b/c.txt", "file_contents": "", "dest_dir": nil}, "b/c.txt"},
		{"copy_file", map[string]any{"local_src_file": `C:\me\in put.csv`, "content": "x"}, "in put.csv"},
		{"copy_file", map[string]any{"local_src_file": "x", "dest_path": "/d/y.bin", "content_base64": "AP8="}, "d/y.bin"},
		{"write_file_sandbox", map[string]any{"file_name": "in/../n.txt", "file_contents": "3", "dest_dir": base + "/told"}, "told/n.txt"},
		{"write_file_sandbox", map[string]any{"file_name": base + "/told.txt", "file_contents": "4"}, "told.txt"},
		{"copy_file", map[string]any{"local_src_file": "/me/f.txt", "dest_path": "dir/", "content": "5"}, "dir/f.txt"},
		{"copy_file", map[string]any{"local_src_file": "e", "dest_path": "$(touch x)/e", "content": ""}, "$(touch x)/e"},
	} {
		if out := b.call(c.tool, c.args); out["success"] != true || out["file_path"] != base+"/"+c.want {
			t.Errorf("%s %v: %v", c.tool, c.args, out)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"a.txt": "1", "etc/in ner/a.txt": "2", "b/c.txt": "", "in put.csv": "x", "d/y.bin": "\x00\xff", "$(touch x)/e": "",
		"told/n.txt": "3", "told.txt": "4", "dir/f.txt": "5",
	}, b.farm.Written()); diff != "" {
		t.Error(diff)
	}
	b.refused("write_file_sandbox", map[string]any{"file_name": "../x", "file_contents": ""}, "file_name")
	b.refused("write_file_sandbox", map[string]any{"file_name": "x", "file_contents": "", "dest_dir": "a/../../b"}, "dest_dir")
	b.refused("write_file_sandbox", map[string]any{"file_name": "x/", "file_contents": ""}, "file_name")
	b.refused("copy_file", map[string]any{"local_src_file": "x", "content_base64": "!"}, "base64")
	b.refused("copy_file", map[string]any{"local_src_file": "x", "content_base64": "", "content": ""}, "not both")
}

// TestAnyFileOfTheSandboxIsCopiedOut: the original accepts any absolute path.
func TestAnyFileOfTheSandboxIsCopiedOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base, _ := b.made["workspace_path"].(string)
	id, _ := b.made["container_id"].(string)
	b.farm.CommandFunc = func(ctx context.Context, r wire.CommandRequest) wire.Job {
		if r.Env["FROM"] == "/tmp/a b.txt" {
			if _, err := b.farm.WriteFile(ctx, id, r.Env["TO"], strings.NewReader("tmp"), 3); err != nil {
				t.Error(err)
			}
			return toolsettest.Completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{}}}})
		}
		return toolsettest.Completed(&wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{ExitCode: 1}}}})
	}
	b.call("write_file_sandbox", map[string]any{"file_name": "in.txt", "file_contents": "1"})
	for path, size := range map[string]float64{"in.txt": 1, "x/../in.txt": 1, base + "/in.txt": 1, "/app/in.txt": 1, "/workspace/in.txt": 1, "/tmp/a b.txt": 3} {
		if out := b.call("copy_file_from_sandbox", map[string]any{"container_src_path": path}); out["success"] != true || out["file_size"] != size || out["url"] == "" {
			t.Errorf("%s: %v", path, out)
		}
	}
	if diff := cmp.Diff(map[string]string{"in.txt": "1"}, b.farm.Written()); diff != "" {
		t.Errorf("a copy stays in the workspace: %s", diff)
	}
	for _, path := range []string{"/no/such", "/app/workspaces/11111111-2222-3333-4444-555555555555/../../../x", "../x", ""} {
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": path}, "container_src_path")
	}
	for _, path := range []string{"nope", "/app/nope", base + "/nope", "/workspace/nope"} {
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": path}, `"nope"`)
	}
}

// TestFileWithoutAWorkspaceHasTheReportedPath: /app is not the directory of a persistent sandbox.
func TestFileWithoutAWorkspaceHasTheReportedPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	args := map[string]any{"container_id": b.made["container_id"]}
	delete(b.made, "workspace_id")
	for tool, more := range map[string]map[string]any{
		"write_file_sandbox": {"file_name": "d/f.txt", "file_contents": ""}, "copy_project": {"local_src_dir": "d", "content": map[string]any{}},
	} {
		for name, value := range args {
			more[name] = value
		}
		out := b.call(tool, more)
		b.farm.mu.Lock()
		last := b.farm.commands[len(b.farm.commands)-1]
		b.farm.mu.Unlock()
		if out["success"] != true || last.Env["NAME"] != "d" || last.Command == nil || !strings.Contains(*last.Command, "ln -s") {
			t.Errorf("%s: %v, %+v", tool, out, last)
		}
	}
}

func TestPathsOfTheServersMachineAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{"/etc/passwd", "/no/such/file"} {
		b.refused("copy_file", map[string]any{"local_src_file": path}, "content_base64", "which this server cannot read")
		b.refused("copy_project", map[string]any{"local_src_dir": path}, "content_base64", "which this server cannot read")
		b.refused("copy_file_from_sandbox", map[string]any{"container_src_path": "x", "local_dest_path": path}, "local_dest_path", "url")
	}
}
