package verbs_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestJupyterLeavesSignalsOfTheGroupToSandfarm: a server that gets SIGINT with its group, and then SIGTERM, would leave its sandboxes open.
func TestJupyterLeavesSignalsOfTheGroupToSandfarm(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/limits"] = func(w http.ResponseWriter, _ *http.Request) { f.answer(w, http.StatusOK, wire.Limits{}) }
	bin, mine := t.TempDir(), fmt.Sprint(syscall.Getpgrp())
	for _, name := range []string{"jupyter", "jupyter-lab", "jupyter-console"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\ncut -d' ' -f5 /proc/self/stat\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for app, own := range map[string]bool{"lab": true, "console": false} {
		var out, stderr testbed.Log
		code := program(t.Context(), strings.NewReader(""), &out, &stderr, map[string]string{"PATH": bin, "SANDFARM_URL": f.URL}, "jupyter", "--app", app)
		if group := strings.TrimSpace(out.String()); code != 0 || group == "" || (group != mine) != own {
			t.Errorf("%s: exit code %d, group %q, that of this program is %s: %s", app, code, group, mine, stderr.String())
		}
	}
}
