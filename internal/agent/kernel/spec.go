package kernel

import (
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// The Python kernel, and the modules that it imports.
var (
	//go:embed launcher.py
	launcher []byte
	//go:embed shell.py
	shellSource []byte
	//go:embed display.py
	displaySource []byte
	//go:embed jupyter.py
	jupyterSource []byte
	//go:embed data.py
	dataSource []byte
	//go:embed chart.py
	chartSource []byte
	//go:embed output.py
	outputSource []byte
)

// freshSource is the Python program that runs code where there is no kernel.
//
//go:embed fresh.py
var freshSource string

// languages are the languages that the image supports. They are detected once, on first use.
type languages struct {
	once   sync.Once
	python string            // the interpreter of kernels; empty: Python has none here
	fresh  map[string]string // language to interpreter, where there is no kernel
}

func (ks *Kernels) languages() *languages {
	ks.langs.once.Do(func() { ks.findLanguages(&ks.langs) })
	return &ks.langs
}

// Languages lists what can be executed in the sandbox, sorted: Python, which has kernels, and those that run in a fresh process.
func (ks *Kernels) Languages() []string { return ks.languages().names() }

// names lists the languages, sorted.
func (l *languages) names() []string {
	names := []string{}
	if l.python != "" {
		names = append(names, defaultLanguage)
	}
	for name := range l.fresh {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (l *languages) known(language string) bool {
	_, fresh := l.fresh[language]
	return fresh || language == defaultLanguage && l.python != ""
}

func (ks *Kernels) findLanguages(l *languages) {
	l.fresh = map[string]string{}
	python := process.LookPath(ks.cfg.Image, "python3", "python")
	if python != "" && ks.hasKernel(python) {
		l.python = python
	} else if python != "" {
		l.fresh[defaultLanguage] = python
	}
	if shell := process.LookPath(ks.cfg.Image, "bash", "sh"); shell != "" {
		l.fresh["bash"] = shell
	}
}

func (ks *Kernels) launcherPath() string { return filepath.Join(ks.cfg.RunDir, "launcher.py") }

// hasKernel reports whether an interpreter has IPython, and writes the kernel if so.
func (ks *Kernels) hasKernel(python string) bool {
	const question = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('IPython') else 3)"
	if _, err := ks.cfg.Reaper.Output([]string{python, "-c", question}, ks.cfg.Env, ks.cfg.TmpDir); err != nil {
		return false
	}
	return errors.Join(
		files.Put(ks.launcherPath(), launcher), PutModule(ks.cfg.RunDir),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_shell.py"), shellSource),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_display.py"), displaySource),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_jupyter.py"), jupyterSource),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_output.py"), outputSource),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_data.py"), dataSource),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_chart.py"), chartSource),
	) == nil
}

// maxNamedValues bounds the displayed values of one execution whose names are remembered: the newest.
const maxNamedValues = 10_000

// values numbers the displayed values of one execution. The zero value has none.
type values struct {
	count int
	named map[string]int // numbers by name
	names []string       // in the order in which they came, from oldest on
	first int            // index of the oldest name, once there are maxNamedValues
}

// number returns the number of a value, from 1, and the name under which it is known. An update of a value that this execution has
// displayed has that value's number; everything else is a new value. A name that is too long is left out.
func (v *values) number(id string, update bool) (number int, name string) {
	if len(id) > agent.MaxDisplayID {
		id = ""
	}
	if n, ok := v.named[id]; ok && update {
		return n, id
	}
	v.count++
	v.remember(id)
	return v.count, id
}

// remember gives the newest value a name, in place of the oldest name if there are too many.
func (v *values) remember(id string) {
	if id == "" {
		return
	}
	if v.named == nil {
		v.named = map[string]int{}
	}
	if _, known := v.named[id]; !known {
		if len(v.names) < maxNamedValues {
			v.names = append(v.names, id)
		} else {
			delete(v.named, v.names[v.first])
			v.names[v.first] = id
			v.first = (v.first + 1) % maxNamedValues
		}
	}
	v.named[id] = v.count
}

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

// Runner runs a program and returns what it prints. *process.Reaper does it.
type Runner interface {
	Output(argv, env []string, dir string) ([]byte, error)
}

// ProberConfig holds paths and environments.
type ProberConfig struct {
	RunDir, HomeDir, Workspace string
	Reaper                     Runner
	Image                      []string // the environment of the image, in which its Python is found
	Env                        []string // the environment of user code, in which questions are answered
}

// Prober asks the image's Python what code needs: which imports are missing, which programs shell commands start, and which modules are loaded. A
// running kernel answers these questions about itself, see Kernels.Ask. It starts no process before its first use. NewProber makes it.
type Prober struct {
	cfg  ProberConfig
	mu   sync.Mutex
	done bool // the interpreter was looked for
	info struct {
		Version string   `json:"version"`
		Path    []string `json:"path"`
	}
	path string
}

// NewProber creates a Python.
func NewProber(cfg ProberConfig) *Prober { return &Prober{cfg: cfg} }

// Find looks for the interpreter, once. An error means that no process can be started for now; the next call tries again.
func (p *Prober) Find() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return nil
	}
	if path := process.LookPath(p.cfg.Image, "python3", "python"); path != "" {
		const question = `import json, sys; print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "path": [p for p in sys.path if p.startswith("/")]}))`
		raw, err := p.cfg.Reaper.Output([]string{path, "-c", question}, p.cfg.Image, p.cfg.HomeDir)
		if errors.Is(err, syscall.EAGAIN) {
			return err
		}
		if err == nil && json.Unmarshal(raw, &p.info) == nil {
			p.path = path
		}
	}
	p.done = true
	return nil
}

// Interpreter is the path of the interpreter; empty: the image has no Python.
func (p *Prober) Interpreter() string {
	_ = p.Find()
	return p.path
}

// Version is its version, such as 3.13; empty: the image has no Python.
func (p *Prober) Version() string {
	_ = p.Find()
	return p.info.Version
}

// SearchPath is its sys.path, without the directory of the script.
func (p *Prober) SearchPath() []string {
	_ = p.Find()
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
