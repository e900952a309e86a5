package verbs_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The Jupyter of this machine gets the address of the farm as an argument, and the key and the kernels' options in its environment.
func TestJupyter(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Key = "secret"
	f.Routes["GET /v1/limits"] = func(w http.ResponseWriter, _ *http.Request) { f.answer(w, http.StatusOK, wire.Limits{}) }
	bin := t.TempDir()
	stand := "#!/bin/sh\nprintf '%s\\n' \"$@\" \"$JUPYTER_GATEWAY_AUTH_TOKEN\" \"$KERNEL_PACKAGES\" \"$KERNEL_MEMORY_MB\"\nexit 3\n"
	for _, name := range []string{"jupyter", "jupyter-lab"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(stand), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	linked := t.TempDir()
	testbed.Must(t, os.Symlink(filepath.Join(bin, "jupyter"), filepath.Join(linked, "jupyter")))
	run := func(path, key string, args ...string) outputs {
		var out, stderr testbed.Log
		code := program(t.Context(), strings.NewReader(""), &out, &stderr, map[string]string{"PATH": path, "SANDFARM_URL": f.URL, "SANDFARM_API_KEY": key}, args...)
		return outputs{code, out.String(), stderr.String()}
	}
	got := run(bin, "secret", "jupyter", "--packages", "six,polars", "--memory", "512m", "--", "--no-browser")
	if want := "lab\n--gateway-url=" + f.URL + "/jupyter\n--no-browser\nsecret\nsix polars\n512\n"; got.code != 3 || got.out != want {
		t.Errorf("exit code %d, output %q, want 3 and %q: %s", got.code, got.out, want, got.stderr)
	}
	if got := run(t.TempDir(), "secret", "jupyter"); got.code != 1 || !strings.Contains(got.stderr, "pip install jupyterlab") {
		t.Errorf("without Jupyter: exit code %d: %s", got.code, got.stderr)
	}
	if got := run(linked, "secret", "jupyter"); got.code != 3 {
		t.Errorf("by a link: exit code %d: %s", got.code, got.stderr)
	}
	if got := run(bin, "secret", "jupyter", "--app", "notebook"); got.code != 1 || !strings.Contains(got.stderr, "not installed here: pip install notebook") || got.out != "" {
		t.Errorf("without the app: exit code %d, output %q: %s", got.code, got.out, got.stderr)
	}
	if got := run(bin, "wrong", "jupyter"); got.code != 1 || got.out != "" {
		t.Errorf("with a wrong key: exit code %d, output %q", got.code, got.out)
	}
}

func TestKernelInstall(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/images"] = func(w http.ResponseWriter, _ *http.Request) {
		f.answer(w, http.StatusOK, wire.List[wire.Image]{Items: []wire.Image{{Name: "python", Languages: []string{"python", "bash"}}, {Name: "node", Languages: []string{"javascript"}}}})
	}
	data, prefix, home := t.TempDir(), t.TempDir(), t.TempDir()
	python := func(path, script string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700)); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	run := func(args ...string) outputs {
		var out, stderr testbed.Log
		env := map[string]string{"SANDFARM_URL": f.URL, "PATH": home, "JUPYTER_DATA_DIR": data}
		code := program(t.Context(), strings.NewReader(""), &out, &stderr, env, append([]string{"kernel", "install"}, args...)...)
		return outputs{code, out.String(), stderr.String()}
	}
	spec := func(dir, name string) map[string]any {
		text, err := os.ReadFile(filepath.Join(dir, "kernels", name, "kernel.json"))
		var out map[string]any
		if err != nil || json.Unmarshal(text, &out) != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return out
	}
	if got := run(); got.code != 1 || !strings.Contains(got.stderr, "which is not on the PATH") {
		t.Errorf("without a Python: exit code %d: %s", got.code, got.stderr)
	}
	without := filepath.Join(home, "python3")
	python(without, "exit 1\n")
	if got := run(); got.code != 1 || !strings.Contains(got.stderr, "make sdk-python && "+without+` -m pip install "$(ls dist/sandfarm-*.whl)[kernel]"`) {
		t.Errorf("without the kernel: exit code %d: %s", got.code, got.stderr)
	}
	for _, path := range []string{filepath.Join(home, "python"), filepath.Join(prefix, "bin", "python")} {
		python(path, `case "$*" in "-c import sys; sys.path[:] = filter(None, sys.path); import sandfarm.kernel") ;; *) exit 1 ;; esac`)
	}
	if got := run(); got.code != 0 || !strings.Contains(got.out, filepath.Join(data, "kernels", "sandfarm")) {
		t.Errorf("exit code %d, output %q: %s", got.code, got.out, got.stderr)
	}
	first := spec(data, "sandfarm")
	argv, _ := first["argv"].([]any)
	if diff := cmp.Diff([]any{filepath.Join(home, "python"), "-c", "import sys; sys.path[:] = filter(None, sys.path); from sandfarm.kernel import main; main()", "-f", "{connection_file}"}, argv); diff != "" || first["language"] != "python" || first["interrupt_mode"] != "message" {
		t.Errorf("the kernelspec is %v (-want +got):\n%s", first, diff)
	}
	keyFile := filepath.Join(home, "key")
	testbed.Must(t, os.WriteFile(keyFile, []byte("secret"), 0o600))
	if got := run("--name", "js", "--image", "node", "--prefix", prefix, "--packages", "left,right", "--memory", "2g", "--idle", "10m", "--key-file", keyFile, "--url", f.URL); got.code != 0 {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	second := spec(filepath.Join(prefix, "share", "jupyter"), "js")
	argv, _ = second["argv"].([]any)
	if diff := cmp.Diff([]any{"--image", "node", "--url", f.URL, "--key-file", keyFile}, argv[5:]); argv[0] != filepath.Join(prefix, "bin", "python") || diff != "" || second["language"] != "javascript" {
		t.Errorf("the kernelspec is %v (-want +got):\n%s", second, diff)
	}
	testbed.Diff(t, "its variables", map[string]any{"KERNEL_PACKAGES": "left right", "KERNEL_MEMORY_MB": "2048", "KERNEL_IDLE_SECONDS": "600"}, second["env"])
	for _, c := range []struct {
		want string
		args []string
	}{
		{"use --key-file", []string{"--key", "secret"}},
		{"small letters", []string{"--name", "../x"}},
		{"small letters", []string{"--name", strings.Repeat("x", 101)}},
		{"the farm has the images python, node", []string{"--image", "cobol"}},
		{"memory", []string{"--memory", "much"}},
	} {
		if got := run(c.args...); got.code != 2 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%v: exit code %d, want 2 and %q: %s", c.args, got.code, c.want, got.stderr)
		}
	}
	if got := run("--python", filepath.Join(home, "none")); got.code != 1 || !strings.Contains(got.stderr, "there is no program") {
		t.Errorf("a Python that is missing: exit code %d: %s", got.code, got.stderr)
	}
	if got := run("--python", without); got.code != 1 || !strings.Contains(got.stderr, "is not installed in "+without) {
		t.Errorf("a Python without the kernel: exit code %d: %s", got.code, got.stderr)
	}
	if got := run("--name", strings.Repeat("x", 100)); got.code != 0 {
		t.Errorf("a name of 100 letters: exit code %d: %s", got.code, got.stderr)
	}
}
