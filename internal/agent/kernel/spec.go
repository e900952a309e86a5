package kernel

import (
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/probe"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// Our own Python kernel, and the module that it imports.
var (
	//go:embed launcher.py
	launcher []byte
	//go:embed output.py
	outputSource []byte
)

// maxSpecBytes bounds the size of a kernel.json.
const maxSpecBytes = 1 << 20

// kernelSpec says how a kernel is started.
type kernelSpec struct {
	name               string
	language           string
	argv               []string
	dir                string
	env                map[string]string
	interruptByMessage bool
	own                bool // our own Python kernel
}

// command is the command line for a connection file.
func (k kernelSpec) command(file string) []string {
	argv := make([]string, len(k.argv))
	for i, arg := range k.argv {
		argv[i] = strings.NewReplacer("{connection_file}", file, "{resource_dir}", k.dir).Replace(arg)
	}
	return argv
}

// languages are the languages that the image supports. They are detected once, on first use.
type languages struct {
	once    sync.Once
	kernels map[string]kernelSpec // by language
	fresh   map[string]string     // language to interpreter, where there is no kernel
}

func (ks *Kernels) languages() *languages {
	ks.langs.once.Do(func() { ks.findLanguages(&ks.langs) })
	return &ks.langs
}

// Languages lists what can be executed in the sandbox, sorted: languages with a kernel, and those that run in a fresh process.
func (ks *Kernels) Languages() []string { return ks.languages().names() }

// names lists the languages, sorted.
func (l *languages) names() []string {
	names := []string{}
	for name := range l.kernels {
		names = append(names, name)
	}
	for name := range l.fresh {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (l *languages) known(language string) bool {
	_, kernel := l.kernels[language]
	_, fresh := l.fresh[language]
	return kernel || fresh
}

func (ks *Kernels) findLanguages(l *languages) {
	l.kernels, l.fresh = map[string]kernelSpec{}, map[string]string{}
	python := process.LookPath(ks.cfg.Image, "python3", "python")
	for _, dir := range ks.specDirs(python) {
		for _, spec := range readSpecs(dir) {
			if _, found := l.kernels[spec.language]; !found && spec.language != defaultLanguage {
				l.kernels[spec.language] = spec
			}
		}
	}
	if python != "" && ks.hasKernel(python) {
		l.kernels[defaultLanguage] = kernelSpec{
			name: "python3", language: defaultLanguage, own: true,
			argv: []string{python, ks.launcherPath(), "-f", "{connection_file}"},
		}
	} else if python != "" {
		l.fresh[defaultLanguage] = python
	}
	if shell := process.LookPath(ks.cfg.Image, "bash", "sh"); shell != "" && l.kernels["bash"].language == "" {
		l.fresh["bash"] = shell
	}
}

func (ks *Kernels) launcherPath() string { return filepath.Join(ks.cfg.RunDir, "launcher.py") }

// hasKernel reports whether an interpreter has ipykernel, and writes our launcher if so.
func (ks *Kernels) hasKernel(python string) bool {
	const question = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('ipykernel') and u.find_spec('zmq') else 3)"
	if _, err := ks.cfg.Reaper.Output([]string{python, "-c", question}, ks.cfg.Env, ks.cfg.TmpDir); err != nil {
		return false
	}
	return errors.Join(
		files.Put(ks.launcherPath(), launcher), probe.PutModule(ks.cfg.RunDir),
		files.Put(filepath.Join(ks.cfg.RunDir, "sandfarm_output.py"), outputSource),
	) == nil
}

// specDirs lists the usual directories of kernelspecs.
func (ks *Kernels) specDirs(python string) []string {
	dirs := []string{filepath.Join(ks.cfg.HomeDir, ".local/share/jupyter")}
	for _, kv := range ks.cfg.Env {
		if list, ok := strings.CutPrefix(kv, "JUPYTER_PATH="); ok {
			dirs = append(filepath.SplitList(list), dirs...)
		}
	}
	if python != "" {
		dirs = append(dirs, filepath.Join(filepath.Dir(filepath.Dir(python)), "share/jupyter"))
	}
	return append(dirs, "/opt/conda/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter")
}

// readSpecs reads the kernelspecs under a Jupyter directory. It skips malformed ones.
func readSpecs(dir string) []kernelSpec {
	paths, _ := filepath.Glob(filepath.Join(dir, "kernels", "*", "kernel.json"))
	var specs []kernelSpec
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSpecBytes {
			continue
		}
		raw, err := os.ReadFile(path) //nolint:gosec // found in a directory of kernelspecs
		if err != nil {
			continue
		}
		var file struct {
			Argv      []string          `json:"argv"`
			Language  string            `json:"language"`
			Env       map[string]string `json:"env"`
			Interrupt string            `json:"interrupt_mode"`
		}
		if json.Unmarshal(raw, &file) != nil || len(file.Argv) == 0 || file.Language == "" {
			continue
		}
		specs = append(specs, kernelSpec{
			name: filepath.Base(filepath.Dir(path)), language: strings.ToLower(file.Language), argv: file.Argv,
			dir: filepath.Dir(path), env: file.Env, interruptByMessage: file.Interrupt == "message",
		})
	}
	return specs
}
