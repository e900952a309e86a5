//go:build integration

package main_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	mcpclient "github.com/mark3labs/mcp-go/client"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestCompatNotebook uses one farm as the users of Docker Code Sandbox MCP and of LLM Python Code Sandbox would. It uses only what
// goes over the wire.
func TestCompatNotebook(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for name, test := range map[string]func(*testing.T, *farmProcess){
		"DockerSandboxPage": dockerSandboxPage, "NotebookPage": notebookPage, "NotebookShell": notebookShell, "ProjectOverStdio": projectOverStdio,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

// onlyInMirror is a package that no other index has.
const onlyInMirror = "sandfarm-only-in-the-mirror"

// TestCompatSandbox does the same, with settings imported from those of an older system, as the clients of MCP Sandbox and of Python MCP Sandbox.
func TestCompatSandbox(t *testing.T) {
	t.Parallel()
	mirror := newUpstream(t)
	mirror.wheel(onlyInMirror, "1.0")
	for _, name := range []string{"humanize", "pandas"} {
		mirror.fail("/simple/"+name+"/", leads(realIndex()+name+"/"))
	}
	f := newFarm(t, imported(t, mirror)...)
	t.Run("SandboxPage", func(t *testing.T) { sandboxPage(t, f) })
	t.Run("PythonEnvPage", func(t *testing.T) { pythonEnvPage(t, f) })
	t.Run("Mirror", func(t *testing.T) { mirrorIsUsed(t, f, mirror) })
}

// imported turns a config.toml into the environment of a farm.
func imported(t *testing.T, mirror *upstream) []string {
	t.Helper()
	dir := t.TempDir()
	old, file := filepath.Join(dir, "config.toml"), filepath.Join(dir, "sandfarm.toml")
	text := block(t, "mcp-sandbox.md", "toml")[0]
	text = strings.Replace(text, "https://pypi.tuna.tsinghua.edu.cn/simple", "http://"+mirror.addr+"/simple", 1)
	testbed.Must(t, os.WriteFile(old, []byte(text), 0o600))
	out, err := exec.Command(program, "import-config", old).Output()
	testbed.Must(t, err)
	if line := `pypi_url = "http://` + mirror.addr + `/simple/"`; !strings.Contains(string(out), line) {
		t.Fatalf("the mirror is not in\n%s", out)
	}
	testbed.Must(t, os.WriteFile(file, out, 0o600))
	env := append(mirror.env()[2:], "SANDFARM_CONFIG="+file)
	if os.Getenv("SANDFARM_PYPI_INDEX_URL") != "" { // the environment takes precedence over the file
		env = append(env, "SANDFARM_PYPI_INDEX_URL=http://"+mirror.addr+"/simple/")
	}
	return env
}

// block returns the code blocks of a language in a page of docs/coming-from.
func block(t *testing.T, page, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "coming-from", page))
	testbed.Must(t, err)
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	if len(out) == 0 {
		t.Fatalf("%s has no %s", page, language)
	}
	return out
}

// printed is the code of a page that names the host, with the farm's address in place of the page's.
func printed(t *testing.T, f *farmProcess, page, language string) (code string) {
	t.Helper()
	for _, one := range block(t, page, language) {
		if strings.Contains(one, "http://localhost:8000") {
			code += one
		}
	}
	if code == "" {
		t.Fatalf("%s has no %s that names the host", page, language)
	}
	return strings.ReplaceAll(code, "http://localhost:8000", f.url)
}

// requests is the part of the library of that name that the pages use.
const requests = `
import json as _json, urllib.request

class Response:
    def __init__(self, answer):
        self.content, self.status_code = answer.read(), answer.status
    def json(self):
        return _json.loads(self.content)

def get(url):
    return Response(urllib.request.urlopen(url))

def post(url, json=None):
    data = b"" if json is None else _json.dumps(json).encode()
    headers = {} if json is None else {"Content-Type": "application/json"}
    return Response(urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers, method="POST")))
`

// runPage runs the Python of a page as it is printed, except for the host, and some code after it. It returns the output and the directory in which it
// ran.
func runPage(t *testing.T, f *farmProcess, page, more string) (out, dir string) {
	t.Helper()
	dir, modules := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"page.py":     "import os\nos.chdir(os.environ['HERE'])\n" + printed(t, f, page, "python") + more,
		"requests.py": requests,
		"httpx.py":    "import sys, httpx2\nsys.modules['httpx'] = httpx2\n", // the toolbox has it by this name
	} {
		testbed.Must(t, os.WriteFile(filepath.Join(modules, name), []byte(text), 0o600))
	}
	env := []string{"HERE=" + dir, "PYTHONPATH=" + modules + ":" + absolute(t, "../../sdk/python/src"), "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1"}
	got := testbed.MCPRun(t, env, testbed.MCPPython, filepath.Join(modules, "page.py"))
	if got.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", page, got.Code, got.Stdout, got.Stderr)
	}
	return got.Stdout, dir
}

func dockerSandboxPage(t *testing.T, f *farmProcess) {
	out, _ := runPage(t, f, "docker-code-sandbox-mcp.md", "")
	lines := strings.Split(strings.TrimSpace(out), "\n")
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
	out, dir := runPage(t, f, "llm-python-code-sandbox.md", "")
	if !strings.Contains(out, "Hello, Sandbox!") || !strings.Contains(out, "\nCSV文件已创建 1,234,567\n") || !strings.HasSuffix(strings.TrimSpace(out), "\nFalse") {
		t.Errorf("printed %s", out)
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
	testbed.Must(t, err)
	want := strings.Fields(`{"stdout":"42\n","stderr":"","error":"","traceback":"","results":[]} {"file_path":"data/notes.txt"}
		[{"path":"data/notes.txt","size":4}] kept {"status":"success","message":"Sandbox closed"}`)
	testbed.Diff(t, "printed", want, strings.Fields(string(out)))
}

func sandboxPage(t *testing.T, f *farmProcess) {
	t.Parallel()
	out, dir := runPage(t, f, "mcp-sandbox.md", "\nprint(result['stdout'], result['files'], requests.get(result['file_links'][0]).content[:4])\n")
	testbed.Diff(t, "printed", "图表已生成\n ['/app/results/sine_wave.png'] b'\\x89PNG'\n", out)
	picture, err := os.ReadFile(filepath.Join(dir, "downloaded_sine_wave.png"))
	if err != nil || !bytes.HasPrefix(picture, []byte("\x89PNG")) || len(picture) < 5000 {
		t.Errorf("the picture has %d bytes: %v", len(picture), err)
	}
}

func pythonEnvPage(t *testing.T, f *farmProcess) {
	t.Parallel()
	out, _ := runPage(t, f, "python-mcp-sandbox.md", "")
	if !strings.HasPrefix(out, "4,600\nsales.csv http") {
		t.Errorf("it printed %q", out)
	}
}

// mirrorIsUsed installs a package that only the imported mirror has, over the older transport.
func mirrorIsUsed(t *testing.T, f *farmProcess, mirror *upstream) {
	t.Parallel()
	c, err := mcpclient.NewSSEMCPClient(f.url + "/sandbox/sse")
	u := newMCPUser(t, c, err)
	id := u.json("create_sandbox", nil)["sandbox_id"]
	asked := map[string]any{"sandbox_id": id, "package_names": []string{onlyInMirror}}
	if got := u.json("install_packages_in_sandbox", asked); got["status"] != "success" || mirror.count("/simple/"+onlyInMirror+"/") == 0 {
		t.Errorf("%v", got)
	}
	there := u.json("check_packages_installation_status", asked)
	packages, _ := there["packages"].(map[string]any)
	if one, _ := packages[onlyInMirror].(map[string]any); one["installed"] != true || one["version"] != "1.0" {
		t.Errorf("%v", there)
	}
}

// projectOverStdio copies a project of this machine into a sandbox, runs it there, and copies a file back.
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
	c, err := mcpclient.NewStdioMCPClient(program, []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY="}, "mcp", "--toolset", "docker-sandbox", "--root", dir)
	u := newMCPUser(t, c, err)
	made := u.json("sandbox_initialize", map[string]any{})
	must := func(tool string, args map[string]any) map[string]any {
		t.Helper()
		args["container_id"], args["workspace_id"] = made["container_id"], made["workspace_id"]
		out := u.json(tool, args)
		if out["success"] != true {
			t.Fatalf("%s: %v", tool, out)
		}
		return out
	}
	copied := must("copy_project", map[string]any{"local_src_dir": "proj", "dest_dir": "work"})
	testbed.Diff(t, "skipped", []any{".env", "env.txt", "link"}, copied["skipped"].([]any))
	ran := must("sandbox_exec", map[string]any{"commands": []string{"cd work/proj && ./tool.sh && cmp same.bin nested/data.bin", "cd work/proj && find . | sort | tr '\\n' ' '", "cd work/proj && python main.py"}})
	results, _ := ran["results"].([]any)
	for i, want := range []string{"256\n", ". ./main.py ./nested ./nested/data.bin ./nested/empty ./pkg ./pkg/__init__.py ./pkg/part.py ./requirements.txt ./same.bin ./tool.sh ", "12,345 好\n"} {
		testbed.Diff(t, "stdout", any(want), results[i].(map[string]any)["stdout"])
	}
	back := must("copy_file_from_sandbox", map[string]any{"container_src_path": "work/proj/nested/data.bin", "local_dest_path": "out/back.bin"})
	text, err := os.ReadFile(filepath.Join(dir, "out/back.bin"))
	if err != nil || len(text) != 256 || back["local_path"] != "out/back.bin" || back["file_size"] != 256.0 {
		t.Errorf("back came %v, %d bytes, %v", back, len(text), err)
	}
	must("clean_workspace", map[string]any{})
}

// json calls a tool whose answer is a text of JSON.
func (u *mcpUser) json(tool string, args map[string]any) (out map[string]any) {
	u.t.Helper()
	text := textOf(u.ask(tool, args))
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		u.t.Fatalf("%s: %v in %q", tool, err, text)
	}
	return out
}
