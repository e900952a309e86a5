package kernel

import (
	_ "embed"
	"errors"
	"path/filepath"
	"sort"
	"sync"

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
