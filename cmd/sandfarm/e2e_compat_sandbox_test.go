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
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// onlyInMirror is a package that no other index has.
const onlyInMirror = "sandfarm-only-in-the-mirror"

// TestCompatSandbox uses one farm, with settings imported from an older system's, as the clients of such systems would. It uses
// only what goes over the wire.
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
	t.Run("SandboxTools", func(t *testing.T) { sandboxTools(t, f) })
	t.Run("Mirror", func(t *testing.T) { mirrorIsUsed(t, f, mirror) })
}

func realIndex() string {
	if real := os.Getenv("SANDFARM_PYPI_INDEX_URL"); real != "" {
		return strings.TrimRight(real, "/") + "/"
	}
	return publicIndex
}

// imported turns a config.toml into the environment of a farm.
func imported(t *testing.T, mirror *upstream) []string {
	t.Helper()
	dir := t.TempDir()
	old, file := filepath.Join(dir, "config.toml"), filepath.Join(dir, "sandfarm.toml")
	text := block(t, "mcp-sandbox.md", "toml")[0]
	text = strings.Replace(text, "https://pypi.tuna.tsinghua.edu.cn/simple", "http://"+mirror.addr+"/simple", 1)
	testbed.Must(t, os.WriteFile(old, []byte(text), 0o600))
	var out, log bytes.Buffer
	c := exec.Command(program, "import-config", old)
	c.Stdout, c.Stderr = &out, &log
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	line := `pypi_url = "http://` + mirror.addr + `/simple/"`
	if !strings.Contains(out.String(), line) {
		t.Fatalf("the mirror is not in\n%s", &out)
	}
	testbed.Must(t, os.WriteFile(file, out.Bytes(), 0o600))
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

// runPage runs the Python of a page as it is printed, except for the host, and some code after it. It returns the output
// and the directory in which it ran.
func runPage(t *testing.T, f *farmProcess, page, more string) (out, dir string) {
	t.Helper()
	dir = t.TempDir()
	code := strings.Join(block(t, page, "python"), "\n")
	if !strings.Contains(code, "http://localhost:8000") {
		t.Fatalf("%s does not name the host", page)
	}
	code = "import os\nos.chdir(os.environ['HERE'])\n" + strings.ReplaceAll(code, "http://localhost:8000", f.url) + more
	for name, text := range map[string]string{"page.py": code, "requests.py": requests} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	got := testbed.MCPRun(t, []string{"HERE=" + dir, "PYTHONPATH=" + dir, "PYTHONUTF8=1"}, testbed.MCPPython, filepath.Join(dir, "page.py"))
	if got.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", page, got.Code, got.Stdout, got.Stderr)
	}
	return got.Stdout, dir
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

// toolsetClient is a client of a toolset.
type toolsetClient struct {
	t *testing.T
	c *mcpclient.Client
}

func overSSE(t *testing.T, url string) toolsetClient {
	t.Helper()
	c, err := mcpclient.NewSSEMCPClient(url)
	testbed.Must(t, err)
	testbed.Must(t, c.Start(t.Context()))
	t.Cleanup(func() { _ = c.Close() })
	initialize(t, c)
	return toolsetClient{t, c}
}

// text calls a tool and gives the text of its answer.
func (s toolsetClient) text(tool string, args map[string]any) string {
	s.t.Helper()
	r, err := caller(s.c)(s.t.Context(), tool, args)
	if err != nil || len(r.Content) != 1 {
		s.t.Fatalf("%s: %+v %v", tool, r, err)
	}
	block, _ := r.Content[0].(mcp.TextContent)
	return block.Text
}

// call is text for answers in JSON.
func (s toolsetClient) call(tool string, args map[string]any) map[string]any {
	s.t.Helper()
	text := s.text(tool, args)
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		s.t.Fatalf("%s: %v in %q", tool, err, text)
	}
	return out
}

func sandboxTools(t *testing.T, f *farmProcess) {
	t.Parallel()
	s := overSSE(t, f.url+"/sandbox/sse")
	made := s.call("create_sandbox", map[string]any{"name": "e2e"})
	id, _ := made["sandbox_id"].(string)
	if box, err := f.Sandbox(t.Context(), id); err != nil || box.Name != "python-sandbox-e2e" || made["name"] != box.Name || box.Resources.MemoryMB != 2048 {
		t.Fatalf("%v is %+v, %v", made, box, err)
	}
	in := func(more map[string]any) map[string]any { more["sandbox_id"] = id; return more }
	ran := s.call("execute_python_code", in(map[string]any{"code": "import os\nos.makedirs('a b/图')\nopen('a b/图/x.txt', 'w').write('x')\nprint(1)\n1/0"}))
	stderr, _ := ran["stderr"].(string)
	if ran["stdout"] != "1\n" || ran["exit_code"] != 1.0 || !strings.Contains(stderr, "ZeroDivisionError: division by zero") {
		t.Errorf("it ran: %v", ran)
	}
	files, _ := ran["files"].([]any)
	links, _ := ran["file_links"].([]any)
	if len(files) != 1 || files[0] != "/app/results/a b/图/x.txt" || len(links) != 1 {
		t.Fatalf("its files: %v", ran)
	}
	testbed.Diff(t, "the link", "x", string(download(t, links[0].(string))))
	testbed.Diff(t, "by name it", "x", string(download(t, f.url+"/sandbox/file?sandbox_name=python-sandbox-e2e&file_path=a+b/%E5%9B%BE/x.txt")))
	if got := s.call("execute_terminal_command", in(map[string]any{"command": "cat /app/results/*/*/x.txt | tr x y; exit 3"})); got["stdout"] != "y" || got["exit_code"] != 3.0 {
		t.Errorf("the command: %v", got)
	}
	const names = `whoami; id -gn; python -c "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_dir)"; echo ~user`
	if got := s.call("execute_terminal_command", in(map[string]any{"command": names})); got["stdout"] != "user\nuser\n/home/sandbox\n/home/sandbox\n" {
		t.Errorf("the user's name: %v", got)
	}
}

func mirrorIsUsed(t *testing.T, f *farmProcess, mirror *upstream) {
	t.Parallel()
	s := overSSE(t, f.url+"/sandbox/sse")
	id, _ := s.call("create_sandbox", nil)["sandbox_id"].(string)
	got := s.call("install_packages_in_sandbox", map[string]any{"sandbox_id": id, "package_names": []string{onlyInMirror}})
	if got["status"] != "success" || mirror.count("/simple/"+onlyInMirror+"/") == 0 {
		t.Errorf("%v", got)
	}
	there := s.call("check_packages_installation_status", map[string]any{"sandbox_id": id, "package_names": []string{onlyInMirror}})
	packages, _ := there["packages"].(map[string]any)
	if one, _ := packages[onlyInMirror].(map[string]any); one["installed"] != true || one["version"] != "1.0" {
		t.Errorf("%v", there)
	}
}
