package probe

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// Config holds paths and environments.
type Config struct {
	RunDir, HomeDir, Workspace string
	Reaper                     *process.Reaper
	Image                      []string // the environment of the image, in which its Python is found
	Env                        []string // the environment of user code, in which questions are answered
}

// Python is the Python of the image, which kernels use. Create it with New. It starts no process before its first use.
type Python struct {
	cfg  Config
	once sync.Once
	info struct {
		Version string   `json:"version"`
		Path    []string `json:"path"`
	}
	path string
}

// New creates a Python.
func New(cfg Config) *Python { return &Python{cfg: cfg} }

// find finds the interpreter once.
func (p *Python) find() {
	p.once.Do(func() {
		path := process.LookPath(p.cfg.Image, "python3", "python")
		if path == "" {
			return
		}
		const question = `import json, sys; print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "path": [p for p in sys.path if p.startswith("/")]}))`
		raw, err := p.cfg.Reaper.Output([]string{path, "-c", question}, p.cfg.Image, p.cfg.HomeDir)
		if err == nil && json.Unmarshal(raw, &p.info) == nil {
			p.path = path
		}
	})
}

// Interpreter is the path of the interpreter; empty: the image has no Python.
func (p *Python) Interpreter() string {
	p.find()
	return p.path
}

// Version is its version, such as 3.13; empty: the image has no Python.
func (p *Python) Version() string {
	p.find()
	return p.info.Version
}

// SearchPath is its sys.path, without the directory of the script.
func (p *Python) SearchPath() []string {
	p.find()
	return p.info.Path
}

// MissingImports lists the imports of code that are not installed. It starts a process, but runs none of the code.
func (p *Python) MissingImports(code string) []string {
	var answer Answer
	if err := p.ask(moduleFile, []byte(code), &answer); err != nil {
		return nil
	}
	return answer.Missing
}

// errNoPython means that the image has no Python.
var errNoPython = errors.New("ask Python: the image has none")

// ask runs one of the programs with an input file and decodes its answer.
func (p *Python) ask(program string, input []byte, answer any) error {
	if p.Interpreter() == "" {
		return errNoPython
	}
	file := filepath.Join(p.cfg.RunDir, "question-"+rand.Text())
	defer func() { _ = os.Remove(file) }()
	if err := errors.Join(
		PutModule(p.cfg.RunDir), files.Put(filepath.Join(p.cfg.RunDir, programsFile), programsSource), os.WriteFile(file, input, 0o600),
	); err != nil {
		return err
	}
	raw, err := p.cfg.Reaper.Output([]string{p.path, filepath.Join(p.cfg.RunDir, program), file}, p.cfg.Env, p.cfg.Workspace)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, answer)
}
