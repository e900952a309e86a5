//go:build integration

package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestCompatNotebook uses one farm as the users of Docker Code Sandbox MCP and of LLM Python Code Sandbox would. It uses only what
// goes over the wire.
func TestCompatNotebook(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for name, test := range map[string]func(*testing.T, *farmProcess){
		"DockerSandboxPage": dockerSandboxPage, "NotebookPage": notebookPage, "NotebookShell": notebookShell,
		"ProjectOverStdio": projectOverStdio, "WorkspacesAreApart": workspacesAreApart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

// printed returns the code of a page in a language, with the farm's address in place of the page's.
func printed(t *testing.T, f *farmProcess, page, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "coming-from", page))
	testbed.Must(t, err)
	var all strings.Builder
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(m[1], "http://localhost:8000") {
			all.WriteString(m[1])
		}
	}
	if all.Len() == 0 {
		t.Fatalf("%s has no %s that names the host", page, language)
	}
	return strings.ReplaceAll(all.String(), "http://localhost:8000", f.url)
}

// playPython runs the Python of a page in a directory and returns its lines.
func playPython(t *testing.T, f *farmProcess, page, dir string) []string {
	t.Helper()
	file, modules := filepath.Join(dir, "page.py"), t.TempDir()
	for name, text := range map[string]string{
		file:                               "import os\nos.chdir(os.environ['HERE'])\n" + printed(t, f, page, "python"),
		filepath.Join(modules, "httpx.py"): "import sys, httpx2\nsys.modules['httpx'] = httpx2\n", // the toolbox has it by this name
	} {
		testbed.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	sdk, err := filepath.Abs("../../sdk/python/src")
	testbed.Must(t, err)
	got := testbed.MCPRun(t, []string{"HERE=" + dir, "PYTHONPATH=" + modules + ":" + sdk, "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1"}, testbed.MCPPython, file)
	if got.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", page, got.Code, got.Stdout, got.Stderr)
	}
	return strings.Split(strings.TrimSpace(got.Stdout), "\n")
}

func dockerSandboxPage(t *testing.T, f *farmProcess) {
	lines := playPython(t, f, "docker-code-sandbox-mcp.md", t.TempDir())
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "数据均值: ") || !strings.HasPrefix(lines[1], "数据标准差: ") || lines[2] != "已保存直方图" ||
		lines[3] != "[('humanize', 'in requirements.txt')]" {
		t.Fatalf("printed %q", lines)
	}
	_, url, _ := strings.Cut(lines[4], " ")
	if image := string(download(t, url)); !strings.HasPrefix(image, "\x89PNG") {
		t.Errorf("the link leads to %.20q", image)
	}
}

func notebookPage(t *testing.T, f *farmProcess) {
	dir := t.TempDir()
	lines := playPython(t, f, "llm-python-code-sandbox.md", dir)
	printed := strings.Join(lines, "\n")
	if !strings.Contains(printed, "Hello, Sandbox!") || !strings.Contains(printed, "\nCSV文件已创建 1,234,567\n") || lines[len(lines)-1] != "False" {
		t.Errorf("printed %s", printed)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "example_data.csv")); err != nil || string(text) != "Name,Age\nJohn,28\nAnna,34\n" {
		t.Errorf("downloaded %q, %v", text, err)
	}
}

func notebookShell(t *testing.T, f *farmProcess) {
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("kept"), 0o600))
	shell := exec.CommandContext(t.Context(), "bash", "-eu", "-c", strings.ReplaceAll(printed(t, f, "llm-python-code-sandbox.md", "sh"), "\ncurl", "\necho; curl"))
	shell.Dir = dir
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{
		`{"stdout":"42\n","stderr":"","error":"","traceback":"","results":[]}`, `{"file_path":"data/notes.txt"}`,
		`[{"path":"data/notes.txt","size":4}]`, `kept`, `{"status":"success","message":"Sandbox closed"}`,
	}
	if got := strings.Fields(strings.ReplaceAll(string(out), "Sandbox closed", "Sandbox_closed")); strings.Join(got, "\n") != strings.ReplaceAll(strings.Join(want, "\n"), "Sandbox closed", "Sandbox_closed") {
		t.Errorf("printed\n%s", out)
	}
}

// tools calls tools that answer with JSON.
type tools struct {
	t      *testing.T
	client *mcpclient.Client
}

func (s tools) call(name string, args map[string]any) (map[string]any, *mcp.CallToolResult) {
	s.t.Helper()
	r := mcp.CallToolRequest{}
	r.Params.Name, r.Params.Arguments = name, args
	result, err := s.client.CallTool(s.t.Context(), r)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	text, _ := result.Content[0].(mcp.TextContent)
	var out map[string]any
	if err := json.Unmarshal([]byte(text.Text), &out); err != nil && !result.IsError {
		s.t.Fatalf("%s answers %q", name, text.Text)
	}
	return out, result
}

// must is call for a tool that must succeed by the original's own status.
func (s tools) must(name string, args map[string]any) map[string]any {
	s.t.Helper()
	out, _ := s.call(name, args)
	if out["success"] != true {
		s.t.Fatalf("%s: %v", name, out)
	}
	return out
}

// in returns arguments for an existing sandbox.
func in(made map[string]any, more map[string]any) map[string]any {
	args := map[string]any{"container_id": made["container_id"], "workspace_id": made["workspace_id"]}
	for name, value := range more {
		args[name] = value
	}
	return args
}

func opened(t *testing.T, client *mcpclient.Client, err error) tools {
	t.Helper()
	testbed.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Start(t.Context()); err != nil && !strings.Contains(err.Error(), "already") {
		t.Fatal(err)
	}
	_, err = client.Initialize(t.Context(), mcp.InitializeRequest{})
	testbed.Must(t, err)
	return tools{t: t, client: client}
}

func overHTTP(t *testing.T, f *farmProcess, toolset string) tools {
	t.Helper()
	client, err := mcpclient.NewStreamableHttpClient(f.url + "/mcp/" + toolset)
	return opened(t, client, err)
}

// stdout returns the output of each command.
func (s tools) stdout(made map[string]any, commands ...string) []string {
	s.t.Helper()
	out := s.must("sandbox_exec", in(made, map[string]any{"commands": commands}))
	var all []string
	results, _ := out["results"].([]any)
	for _, one := range results {
		text, _ := one.(map[string]any)["stdout"].(string)
		all = append(all, text)
	}
	return all
}

func projectOverStdio(t *testing.T, f *farmProcess) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"proj/tool.sh": "#!/bin/sh\nwc -c < nested/data.bin\n", "proj/nested/data.bin": strings.Repeat("\x00\xff", 128), "proj/.git/config": "x", "proj/.env": "SECRET=1",
		"proj/node_modules/m/i.js": "x", "proj/requirements.txt": "humanize\n", "proj/main.py": "import humanize\nfrom pkg.part import name\nprint(humanize.intcomma(12345), name)\n",
		"proj/pkg/__init__.py": "", "proj/pkg/part.py": "name = '好'\n", "proj/py313/pyvenv.cfg": "", "proj/py313/lib.py": "",
	} {
		path := filepath.Join(dir, name)
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o750))
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "proj/nested/empty"), 0o750), os.Chmod(filepath.Join(dir, "proj/tool.sh"), 0o700), //nolint:gosec // a program
		os.Symlink("/etc/passwd", filepath.Join(dir, "proj/link")), os.Symlink("nested/data.bin", filepath.Join(dir, "proj/same.bin")),
		os.Symlink(".env", filepath.Join(dir, "proj/env.txt")),
	} {
		testbed.Must(t, err)
	}
	client, err := mcpclient.NewStdioMCPClient(program, []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY="}, "mcp", "--toolset", "docker-sandbox", "--root", dir)
	s := opened(t, client, err)
	made := s.must("sandbox_initialize", map[string]any{})
	copied := s.must("copy_project", in(made, map[string]any{"local_src_dir": "proj", "dest_dir": "work"}))
	if skipped, _ := json.Marshal(copied["skipped"]); string(skipped) != `[".env","env.txt","link"]` {
		t.Errorf("skipped %s", skipped)
	}
	got := s.stdout(made, "cd work/proj && ./tool.sh && cmp same.bin nested/data.bin", "cd work/proj && find . | sort | tr '\\n' ' '", "cd work/proj && python main.py")
	want := []string{"256\n", ". ./main.py ./nested ./nested/data.bin ./nested/empty ./pkg ./pkg/__init__.py ./pkg/part.py ./requirements.txt ./same.bin ./tool.sh ", "12,345 好\n"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the project is\n%q, want\n%q", got, want)
	}
	back := s.must("copy_file_from_sandbox", in(made, map[string]any{"container_src_path": "work/proj/nested/data.bin", "local_dest_path": "out/back.bin"}))
	text, err := os.ReadFile(filepath.Join(dir, "out/back.bin"))
	if err != nil || len(text) != 256 || back["local_path"] != "out/back.bin" || back["file_size"] != 256.0 {
		t.Errorf("back came %v, %d bytes, %v", back, len(text), err)
	}
	s.must("clean_workspace", in(made, nil))
}

func workspacesAreApart(t *testing.T, f *farmProcess) {
	s := overHTTP(t, f, "docker-sandbox")
	one, other := s.must("sandbox_initialize", map[string]any{}), s.must("sandbox_initialize", map[string]any{"image": "no-such:1"})
	path := s.must("write_file_sandbox", in(one, map[string]any{"file_name": "secret.txt", "file_contents": "only mine"}))["file_path"].(string)
	testbed.Diff(t, "the file", "/app/workspaces/"+one["workspace_id"].(string)+"/secret.txt", path)
	if got := s.stdout(one, "cat "+path); got[0] != "only mine" {
		t.Errorf("read %q", got)
	}
	if got := s.stdout(one, "pwd", "python3 -c 'import os; print(os.environ[\"PWD\"])'", "printf x > '/tmp/a b'; ln -s /tmp/'a b' link"); got[0] != one["workspace_path"].(string)+"\n" || got[1] != got[0] {
		t.Errorf("commands run in %q", got)
	}
	for _, path := range []string{"/tmp/a b", "link", "/etc/hostname"} {
		got := s.must("copy_file_from_sandbox", in(one, map[string]any{"container_src_path": path}))
		if text := string(download(t, got["url"].(string))); float64(len(text)) != got["file_size"] || path != "/etc/hostname" && text != "x" {
			t.Errorf("%s: %q, %v", path, text, got)
		}
	}
	if got := s.stdout(one, "ls -A"); got[0] != "link\nsecret.txt\n" {
		t.Errorf("copies stay: %q", got)
	}
	file := s.must("write_file_sandbox", map[string]any{"container_id": one["container_id"], "file_name": "d/bare.txt", "file_contents": "bare"})["file_path"]
	if out := s.must("sandbox_exec", map[string]any{"container_id": one["container_id"], "commands": []string{"cat " + file.(string) + " d/bare.txt"}}); file != "/app/d/bare.txt" || out["results"].([]any)[0].(map[string]any)["stdout"] != "barebare" {
		t.Errorf("without a workspace_id: %v, %v", file, out)
	}
	if got := s.stdout(other, "cat "+path+" 2>/dev/null || echo hidden", "ls /sys/class/net", "id -u"); got[0] != "hidden\n" || got[1] != "lo\n" || got[2] == "0\n" {
		t.Errorf("another one sees %q", got)
	}
	s.must("sandbox_stop", map[string]any{"container_id": one["container_id"]})
	if got := s.stdout(one, "cat secret.txt"); got[0] != "only mine" {
		t.Errorf("after a stop: %q", got)
	}
	for _, made := range []map[string]any{one, other} {
		s.must("clean_workspace", in(made, nil))
	}
	if out, _ := s.call("sandbox_exec", in(one, map[string]any{"commands": []string{"true"}})); out["success"] != false {
		t.Errorf("after the end: %v", out)
	}
}
