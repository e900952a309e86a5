package verbs_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if err := os.Symlink(filepath.Join(bin, "jupyter"), filepath.Join(linked, "jupyter")); err != nil {
		t.Fatal(err)
	}
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
