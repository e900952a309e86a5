package server

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// tailBytes is how much of the standard error of a fresh process is kept to find its exception in.
const tailBytes = 64 << 10

// runFresh runs code in a process of its own, for languages that have no kernel in the image.
func (s *Server) runFresh(e *execution, language, interpreter string) agent.Outcome {
	file := filepath.Join(s.cfg.RunDir, "code-"+randomHex())
	if err := os.WriteFile(file, []byte(e.spec.Code), 0o600); err != nil {
		return failed("AgentError", "the code could not be put into the sandbox: "+err.Error())
	}
	defer func() { _ = os.Remove(file) }()
	env := s.executionEnv(e)
	if language == defaultLanguage {
		env = withEnv(env, map[string]string{"PYTHONPATH": s.pythonPath(env)})
	}
	var tail stderrTail
	p, err := s.spawn(e, []string{interpreter, file}, env, s.cfg.Workspace, tail.add)
	if err != nil {
		return failed("StartError", err.Error())
	}
	s.wait(e, p)
	out := agent.Outcome{ExitCode: p.code(), FreshProcess: true}
	if language == defaultLanguage && out.ExitCode != 0 {
		out.Error = tail.exception()
	}
	return out
}

// pythonPath lets fresh Python processes import from the workspace, as a kernel does.
func (s *Server) pythonPath(env []string) string {
	for _, kv := range env {
		if old, ok := strings.CutPrefix(kv, "PYTHONPATH="); ok && old != "" {
			return s.cfg.Workspace + ":" + old
		}
	}
	return s.cfg.Workspace
}

// stderrTail keeps the end of a stream.
type stderrTail struct {
	mu   sync.Mutex
	data []byte
}

func (t *stderrTail) add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append([]byte(nil), t.data[over:]...)
	}
}

// exception reads Python's traceback at the end of the stream; nil when there is none.
func (t *stderrTail) exception() *farm.CodeError {
	t.mu.Lock()
	text := stripANSI(strings.ToValidUTF8(string(t.data), "\uFFFD"))
	t.mu.Unlock()
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
