package kernel

import (
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
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

// ProbeAnswer is the answer to a Question.
type ProbeAnswer struct {
	Missing []string          `json:"missing"` // imports of Code that are not installed
	Loaded  map[string]string `json:"loaded"`  // versions of those of Modules that are loaded; empty: unknown
}

// PutModule writes the Python module that answers questions into a directory, from which a kernel imports it by ModuleName.
func PutModule(dir string) error { return files.Put(filepath.Join(dir, moduleFile), probeSource) }

// ProberConfig holds paths and environments.
type ProberConfig struct {
	RunDir, HomeDir, Workspace string
	Reaper                     *process.Reaper
	Image                      []string // the environment of the image, in which its Python is found
	Env                        []string // the environment of user code, in which questions are answered
}

// Prober asks the image's Python what code needs: which imports are missing, which programs shell commands start, and which modules are loaded. A
// running kernel answers these questions about itself, see Kernels.Ask. It starts no process before its first use. NewProber makes it.
type Prober struct {
	cfg  ProberConfig
	once sync.Once
	info struct {
		Version string   `json:"version"`
		Path    []string `json:"path"`
	}
	path string
}

// NewProber creates a Python.
func NewProber(cfg ProberConfig) *Prober { return &Prober{cfg: cfg} }

// find finds the interpreter once.
func (p *Prober) find() {
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
func (p *Prober) Interpreter() string {
	p.find()
	return p.path
}

// Version is its version, such as 3.13; empty: the image has no Python.
func (p *Prober) Version() string {
	p.find()
	return p.info.Version
}

// SearchPath is its sys.path, without the directory of the script.
func (p *Prober) SearchPath() []string {
	p.find()
	return p.info.Path
}

// MissingImports lists the imports of code that are not installed. It starts a process, but runs none of the code.
func (p *Prober) MissingImports(code string) []string {
	var answer ProbeAnswer
	if err := p.ask(moduleFile, []byte(code), &answer); err != nil {
		return nil
	}
	return answer.Missing
}

// errNoPython means that the image has no Python.
var errNoPython = errors.New("ask Python: the image has none")

// ask runs one of the programs with an input file and decodes its answer.
func (p *Prober) ask(program string, input []byte, answer any) error {
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

// maxRequirementsFiles bounds the requirements files of one answer.
const maxRequirementsFiles = 10

// programsQuestion is the input of programs.py.
type programsQuestion struct {
	Commands  []string `json:"commands"`
	Cwd       string   `json:"cwd"`
	Workspace string   `json:"workspace"`
}

// Needs is what programs need.
type Needs struct {
	Missing      []string `json:"missing"`      // imports that are not installed
	Requirements []string `json:"requirements"` // files of the workspace that list requirements
}

// NeedsOfCommands returns what the Python programs started by shell commands need. cwd is that of agent.Spec. Nothing is executed.
// It returns nothing if the image has no Python.
func (p *Prober) NeedsOfCommands(commands []string, cwd string) Needs {
	question := programsQuestion{Commands: commands, Cwd: process.Directory(p.cfg.Workspace, cwd), Workspace: p.cfg.Workspace}
	input, err := json.Marshal(question)
	if err != nil {
		return Needs{}
	}
	var needs Needs
	if p.ask(programsFile, input, &needs) != nil {
		return Needs{}
	}
	needs.Requirements = needs.Requirements[:min(len(needs.Requirements), maxRequirementsFiles)]
	return needs
}
