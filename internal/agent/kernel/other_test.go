//go:build integration

package kernel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// other returns an agent with a third-party kernel: a plain ipykernel under another language's name.
func other(t *testing.T, interrupt string) (*agenttest.Agent, func(string) agent.Spec) {
	t.Helper()
	path := agenttest.KernelPath(t)
	a := agenttest.Start(t, path, func(c *server.Config) {
		dir := filepath.Join(c.HomeDir, ".local/share/jupyter/kernels/other")
		agenttest.Must(t, os.MkdirAll(dir, 0o755)) //nolint:gosec // a test's own
		python := strings.SplitN(path, ":", 2)[0] + "/python3"
		raw, err := json.Marshal(map[string]any{
			"argv": []string{python, "-m", "ipykernel_launcher", "-f", "{connection_file}"}, "language": "Other",
			"interrupt_mode": interrupt, "env": map[string]string{"KIND": "{other}"},
		})
		agenttest.Must(t, err)
		agenttest.Must(t, os.WriteFile(filepath.Join(dir, "kernel.json"), raw, 0o600))
	})
	return a, func(code string) agent.Spec {
		return agent.Spec{Kind: farm.KindExecute, Language: "other", Code: code}
	}
}

func TestOtherKernels(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"signal", "message"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			a, code := other(t, mode)
			info, err := a.Info(t.Context())
			agenttest.Must(t, err)
			if strings.Join(info.Languages, " ") != "bash other python" {
				t.Errorf("languages = %v", info.Languages)
			}
			ran := agenttest.Run(t, a.Client, code("import os, sys\nx = 1\nprint('out', os.environ['KIND'])\nprint('err', file=sys.stderr)\nx"))
			if ran.Stdout != "out {other}\n" || ran.Stderr != "err\n" || len(ran.Displays) != 1 || ran.Displays[0].Data["text/plain"] != "1" {
				t.Errorf("ran = %+v", ran)
			}
			ran = agenttest.Run(t, a.Client, code("h = display('a', display_id=True)\ndisplay('b')\nh.update('c')\n'd'"))
			if diff := cmp.Diff(map[int][]string{1: {"'a'", "'c'"}, 2: {"'b'"}, 3: {"'d'"}}, numbers(ran.Displays)); diff != "" {
				t.Errorf("displayed values (-want +got):\n%s", diff)
			}
			ran = agenttest.Run(t, a.Client, code("1/0"))
			if ran.Outcome.ExitCode != 1 || ran.Outcome.Error == nil || ran.Outcome.Error.Name != "ZeroDivisionError" ||
				strings.Contains(strings.Join(ran.Outcome.Error.Traceback, ""), "\x1b") {
				t.Errorf("error = %+v", ran.Outcome.Error)
			}
			spec := code("print('begun')\nimport time; time.sleep(999)")
			spec.Timeout, spec.Grace = 500*time.Millisecond, 20*time.Second
			if ran := agenttest.Run(t, a.Client, spec); !ran.Outcome.TimedOut || ran.Outcome.Restarted || ran.Stdout != "begun\n" {
				t.Errorf("timeout = %+v", ran)
			}
			ran = agenttest.Run(t, a.Client, code("import os; os._exit(5)"))
			if ran.Outcome.ExitCode != 5 || !ran.Outcome.Restarted {
				t.Errorf("exit = %+v", ran.Outcome)
			}
			if ran := agenttest.Run(t, a.Client, code("print('x' in globals())")); ran.Stdout != "False\n" {
				t.Errorf("next = %+v", ran)
			}
		})
	}
}
