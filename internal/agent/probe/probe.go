// Package probe uses the image's Python to find out what code needs: which imports are missing, which programs shell commands start,
// and which modules are loaded. A running kernel answers these questions about itself; otherwise a Python process does.
package probe

import (
	_ "embed"
	"path/filepath"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/files"
)

// The file names of the Python programs. They import each other.
const (
	ModuleName = "sandfarm_probe"

	moduleFile   = ModuleName + ".py"
	programsFile = "sandfarm_programs.py"
)

var (
	//go:embed probe.py
	probeSource []byte
	//go:embed programs.py
	programsSource []byte
)

// warmTimeout bounds imports: from a cold disk, in a sandbox with little CPU. answerTimeout bounds everything else.
const (
	warmTimeout   = 2 * time.Minute
	answerTimeout = 2 * time.Second
)

// Question is a question to a Python process.
type Question struct {
	Code    string   `json:"code,omitempty"`
	Modules []string `json:"modules,omitempty"`
	Warm    []string `json:"warm,omitempty"` // imported first, if installed
}

// Timeout is how long an idle kernel may take to answer.
func (q Question) Timeout() time.Duration {
	if len(q.Warm) > 0 {
		return warmTimeout
	}
	return answerTimeout
}

// Answer is the answer to a Question.
type Answer struct {
	Missing []string          `json:"missing"` // imports of Code that are not installed
	Loaded  map[string]string `json:"loaded"`  // versions of those of Modules that are loaded; empty: unknown
}

// PutModule writes the Python module that answers questions into a directory, from which a kernel imports it by ModuleName.
func PutModule(dir string) error { return files.Put(filepath.Join(dir, moduleFile), probeSource) }
