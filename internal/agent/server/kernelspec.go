package server

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
)

// Our own Python kernel, and what it imports from beside it.
var (
	//go:embed launcher.py
	launcher []byte
	//go:embed output.py
	outputSource []byte
)

// maxSpecBytes bounds a kernel.json.
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

// languages is what can be executed in the sandbox's image. It is found out once, when it is first asked for.
type languages struct {
	once    sync.Once
	kernels map[string]kernelSpec // by language
	fresh   map[string]string     // language to interpreter, where there is no kernel
}

func (s *Server) languages() *languages {
	s.langs.once.Do(func() { s.findLanguages(&s.langs) })
	return &s.langs
}

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

func (s *Server) findLanguages(l *languages) {
	l.kernels, l.fresh = map[string]kernelSpec{}, map[string]string{}
	python := lookPath(s.image, "python3", "python")
	for _, dir := range s.specDirs(python) {
		for _, spec := range readSpecs(dir) {
			if _, found := l.kernels[spec.language]; !found && spec.language != defaultLanguage {
				l.kernels[spec.language] = spec
			}
		}
	}
	if python != "" && s.hasKernel(python) {
		l.kernels[defaultLanguage] = kernelSpec{
			name: "python3", language: defaultLanguage, own: true,
			argv: []string{python, s.launcherPath(), "-f", "{connection_file}"},
		}
	} else if python != "" {
		l.fresh[defaultLanguage] = python
	}
	if shell := lookPath(s.image, "bash", "sh"); shell != "" && l.kernels["bash"].language == "" {
		l.fresh["bash"] = shell
	}
}

func (s *Server) launcherPath() string { return filepath.Join(s.cfg.RunDir, "launcher.py") }

// hasKernel asks an interpreter whether it has ipykernel, and puts our launcher in place when it has.
func (s *Server) hasKernel(python string) bool {
	null, err := openNull()
	if err != nil {
		return false
	}
	fds := []uintptr{uintptr(null), uintptr(null), uintptr(null)} //nolint:gosec // a descriptor is small
	const question = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('ipykernel') and u.find_spec('zmq') else 3)"
	p, err := s.reaper.start([]string{python, "-c", question}, s.env, s.cfg.TmpDir, fds)
	closeFD(null)
	if err != nil {
		return false
	}
	<-p.done
	return p.code() == 0 && putFile(s.launcherPath(), launcher) == nil && putFile(s.probePath(), probeSource) == nil &&
		putFile(filepath.Join(s.cfg.RunDir, "sandfarm_output.py"), outputSource) == nil
}

// putFile makes a file in a directory that user code may write to: a new one, so never through a link and never into a pipe.
func putFile(path string, data []byte) error {
	temp := path + "-" + randomHex()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // a path of our own
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// specDirs lists the usual places of kernelspecs.
func (s *Server) specDirs(python string) []string {
	dirs := []string{filepath.Join(s.cfg.HomeDir, ".local/share/jupyter")}
	for _, kv := range s.env {
		if list, ok := strings.CutPrefix(kv, "JUPYTER_PATH="); ok {
			dirs = append(filepath.SplitList(list), dirs...)
		}
	}
	if python != "" {
		dirs = append(dirs, filepath.Join(filepath.Dir(filepath.Dir(python)), "share/jupyter"))
	}
	return append(dirs, "/opt/conda/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter")
}

// readSpecs reads the kernelspecs under a Jupyter directory. What is malformed is left out.
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
