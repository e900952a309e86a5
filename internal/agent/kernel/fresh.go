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
	env, argv := process.ExecutionEnv(ks.cfg.Env, e), []string{interpreter, file}
	if at.language == defaultLanguage {
		env = process.WithEnv(env, map[string]string{"PYTHONPATH": ks.pythonPath(env)})
		if name := ks.file(e); name != "" {
			argv = []string{interpreter, "-c", runAs, file, name}
		}
	}
	var tail process.Tail
	p, err := ks.cfg.Reaper.StartLogged(e, argv, env, at.cwd, process.Streams{Tee: tail.Add})
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

// runAs is a Python program that runs the code of its first argument as that of the file of its second.
const runAs = `__code, __file__ = __import__("sys").argv[1:]
__import__("sys").argv = [__file__]
with open(__code, "rb") as __code:
    __code = compile(__code.read(), __file__, "exec")
exec(__code)
`

// file is the path of the file that the code of an execution is from; empty if there is none.
func (ks *Kernels) file(e *execution.Execution) string {
	if e.Spec.Filename == "" {
		return ""
	}
	return filepath.Join(ks.cfg.Workspace, e.Spec.Filename)
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
