package kernel

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// runFresh runs code in its own process, for languages that have no kernel in the image.
func (ks *Kernels) runFresh(e *execution.Execution, at *slot, interpreter string) agent.Outcome {
	file := filepath.Join(ks.cfg.RunDir, "code-"+rand.Text())
	if err := os.WriteFile(file, []byte(e.Spec.Code), 0o600); err != nil {
		return execution.Failed("AgentError", "the code could not be written to the sandbox: "+err.Error())
	}
	defer func() { _ = os.Remove(file) }()
	env := process.ExecutionEnv(ks.cfg.Env, e)
	if at.language == defaultLanguage {
		env = process.WithEnv(env, map[string]string{"PYTHONPATH": ks.pythonPath(env)})
	}
	var tail process.Tail
	p, err := ks.cfg.Reaper.StartLogged(e, []string{interpreter, file}, env, at.cwd, process.Streams{Tee: tail.Add})
	if err != nil {
		return execution.Failed("StartError", err.Error())
	}
	ks.cfg.Reaper.Wait(e, p)
	out := agent.Outcome{ExitCode: p.ExitCode(), FreshProcess: true}
	if at.language == defaultLanguage && out.ExitCode != 0 {
		out.Error = exceptionIn(tail.String())
	}
	return out
}

// pythonPath lets a Python process import from the workspace, as a kernel does.
func (ks *Kernels) pythonPath(env []string) string {
	for _, kv := range env {
		if old, ok := strings.CutPrefix(kv, "PYTHONPATH="); ok && old != "" {
			return ks.cfg.Workspace + ":" + old
		}
	}
	return ks.cfg.Workspace
}

// exceptionIn parses Python's traceback at the end of standard error; nil if there is none.
func exceptionIn(text string) *farm.CodeError {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	last := lines[len(lines)-1]
	name, value, _ := strings.Cut(last, ": ")
	if !strings.Contains(text, "Traceback (most recent call last):") && !strings.Contains(text, "  File \"") {
		return nil
	}
	if name == "" || strings.ContainsAny(name, " \t'\"()") {
		return nil
	}
	from := 0
	for i, row := range lines {
		if row == "Traceback (most recent call last):" {
			from = i
		}
	}
	return &farm.CodeError{Name: name, Value: value, Traceback: lines[from:]}
}
