// Package probe asks the image's Python what code needs: which of its imports are missing, which programs shell commands start,
// and which modules are loaded. A kernel answers such questions about itself; where none runs, a Python process does.
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

// Question is what a Python is asked.
type Question struct {
	Code    string   `json:"code,omitempty"`
	Modules []string `json:"modules,omitempty"`
	Warm    []string `json:"warm,omitempty"` // imported first, where they are installed
}

// Timeout is how long a kernel that runs nothing may take to answer.
func (q Question) Timeout() time.Duration {
	if len(q.Warm) > 0 {
		return warmTimeout
	}
	return answerTimeout
}

// Answer is what it says.
type Answer struct {
	Missing []string          `json:"missing"` // imports of Code that are not installed
	Loaded  map[string]string `json:"loaded"`  // versions of those of Modules that are loaded; empty: unknown
}

// PutModule writes the Python module that answers questions into a directory, from which a kernel imports it by ModuleName.
func PutModule(dir string) error { return files.Put(filepath.Join(dir, moduleFile), probeSource) }
