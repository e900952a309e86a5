package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pin is one package of a solution.
type pin struct {
	version string
	line    string // the line for the installer: name, version and hashes
}

// pyTool is an installer of Python packages.
type pyTool interface {
	// resolve finds a solution for all requirements together, and keeps installed versions where possible.
	resolve(in *installation, wanted []*requirement, there map[string]distribution) (map[string]pin, *trouble)
	// fetch installs exactly these packages into a directory.
	fetch(in *installation, pins map[string]pin, target string) *trouble
	// explain returns a sentence on why a requirement cannot be installed.
	explain(in *installation, t *trouble, r *requirement) string
}

// trouble is the reason why a step failed.
type trouble struct {
	text   string // a sentence; empty: explain derives it from the output
	output string
	memory bool // the sandbox's memory ran out
	index  bool // the index failed to deliver; set by explain
	reason string
	took   time.Duration
	fatal  bool // trying other packages is pointless; also set by explain
}

const (
	// maxIndexTroubles is how often the index may fail before the install gives up on it.
	maxIndexTroubles = 3
	// slowTrouble is how long a download may take before its failure counts as a failure of the index.
	slowTrouble = 20 * time.Second
)

// explainAll sets the problem of one and, if the failure is fatal, of the rest. It reports whether to give up.
func (in *installation) explainAll(tool pyTool, t *trouble, one *requirement, rest []*requirement) bool {
	one.problem = tool.explain(in, t, one)
	if t.index {
		if in.indexTroubles++; in.indexTroubles >= maxIndexTroubles {
			t.fatal = true
		}
	}
	if t.fatal {
		for _, r := range open(rest) {
			r.problem = tool.explain(in, t, r)
		}
	}
	return t.fatal
}

// installPython installs missing packages and returns the versions installed afterwards. A package that fails does not prevent the
// others.
func (in *installation) installPython(wanted []*requirement) map[string]string {
	good := open(wanted)
	if len(good) == 0 {
		return nil
	}
	if err := in.s.cfg.Python.Find(); err != nil {
		fail(good, "The installer could not be started: "+process.OutOfProcesses)
		return nil
	}
	if in.s.cfg.Python.Interpreter() == "" {
		fail(good, "This image has no Python.")
		return nil
	}
	before := in.s.distributions()
	in.before = before
	missing := unmet(good, before)
	if len(missing) > 0 {
		if in.s.cfg.IndexAddr == "" {
			fail(missing, noIndex)
		} else if err := in.ready(); err != nil {
			fail(missing, in.fileTrouble(err))
		} else {
			// An installed package that was requested by name alone puts no constraint on the solution.
			in.bring(slices.DeleteFunc(slices.Clone(good), func(r *requirement) bool { return r.bare && r.met(before) }), before)
		}
	}
	after := before
	if in.work != "" {
		after = in.s.distributions()
		in.noteLoaded(wanted, before, after)
	}
	versions := make(map[string]string, len(good))
	for _, r := range good {
		versions[r.name] = after[r.name].version
	}
	return versions
}

// unmet lists the requirements that the installed packages may not meet.
func unmet(list []*requirement, there map[string]distribution) []*requirement {
	return slices.DeleteFunc(slices.Clone(list), func(r *requirement) bool { return r.met(there) })
}

// bring resolves and installs all requirements together, or one by one if that fails.
func (in *installation) bring(good []*requirement, before map[string]distribution) {
	tool := in.s.pyTool()
	pins, accepted := in.solve(tool, good, before)
	pending := unmet(accepted, before)
	if len(pending) == 0 {
		return
	}
	t := in.put(tool, pins, before)
	switch {
	case t == nil:
	case t.fatal || len(pending) == 1:
		in.explainAll(tool, t, pending[0], pending[1:])
	default:
		in.bringEach(tool, accepted, pending)
	}
}

// solve finds a solution for as many requirements as fit together, in the order of the request.
func (in *installation) solve(tool pyTool, good []*requirement, before map[string]distribution) (map[string]pin, []*requirement) {
	missing := unmet(good, before)
	if len(missing) > 1 { // what is wrong is said again for each
		in.unshown = execution.NewRollingLog(0)
	}
	pins, t := in.resolve(tool, good, before)
	in.unshown = nil
	if t == nil {
		return pins, good
	}
	if t.fatal || len(missing) == 1 {
		in.explainAll(tool, t, missing[0], missing[1:])
		return nil, nil
	}
	accepted := slices.DeleteFunc(slices.Clone(good), func(r *requirement) bool { return !r.met(before) })
	for i, r := range missing {
		more, t := in.resolve(tool, append(slices.Clip(accepted), r), before)
		if t != nil {
			if in.explainAll(tool, t, r, missing[i+1:]) {
				return pins, accepted
			}
			continue
		}
		pins, accepted = more, append(accepted, r)
	}
	return pins, accepted
}

// bringEach installs one by one, each with its dependencies.
func (in *installation) bringEach(tool pyTool, accepted, pending []*requirement) {
	done := slices.DeleteFunc(slices.Clone(accepted), func(r *requirement) bool { return slices.Contains(pending, r) })
	for i, r := range pending {
		there := in.s.distributions()
		pins, t := in.resolve(tool, append(slices.Clip(done), r), there)
		if t == nil {
			t = in.put(tool, pins, there)
		}
		if t == nil {
			done = append(done, r)
			continue
		}
		if in.explainAll(tool, t, r, pending[i+1:]) {
			return
		}
	}
}

// put installs the missing packages of a solution into a separate directory and then moves them in, so that a stop leaves no package
// half installed.
func (in *installation) put(tool pyTool, pins map[string]pin, there map[string]distribution) *trouble {
	changes := map[string]pin{}
	for name, p := range pins {
		if there[name].version != p.version {
			changes[name] = p
		}
	}
	if len(changes) == 0 {
		return nil
	}
	target := filepath.Join(in.work, "target")
	_ = os.RemoveAll(target)
	in.Log.Append(agent.FrameStderr, []byte(agent.Installing+strings.Join(pinNames(changes), ", ")+"\n"))
	if t := tool.fetch(in, changes, target); t != nil {
		return t
	}
	if err := in.s.moveIn(target); err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	in.s.cfg.Installed()
	return nil
}

// pyTool chooses the installer: uv if the worker has provided it and it runs on this image, else the image's pip.
func (s *Installer) pyTool() pyTool {
	if !s.uvRuns { // its failure may pass
		if info, err := os.Stat(s.cfg.UV); err == nil && info.Mode().IsRegular() {
			_, err := s.cfg.Reaper.Output([]string{s.cfg.UV, "--version"}, s.cfg.Image, s.cfg.HomeDir)
			s.uvRuns = err == nil
			if err != nil && strings.HasSuffix(err.Error(), "exit code 101") { // it panics without a thread: its install says why
				return uvTool{}
			}
		}
	}
	if s.uvRuns {
		return uvTool{}
	}
	return pipTool{}
}

// writeLines writes a file of the working directory.
func (in *installation) writeLines(name string, lines []string) (string, error) {
	path := filepath.Join(in.work, name)
	return path, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// pinLines are the lines of a solution, sorted.
func pinLines(pins map[string]pin) []string {
	lines := make([]string, 0, len(pins))
	for _, p := range pins {
		lines = append(lines, p.line)
	}
	slices.Sort(lines)
	return lines
}

// pinNames are the names and versions of pins.
func pinNames(pins map[string]pin) []string {
	names := make([]string, 0, len(pins))
	for name, p := range pins {
		names = append(names, name+" "+p.version)
	}
	slices.Sort(names)
	return names
}

// requirementLines are the lines of requirements, each once.
func requirementLines(wanted []*requirement) []string {
	lines := make([]string, 0, len(wanted))
	for _, r := range wanted {
		if !slices.Contains(lines, r.line) {
			lines = append(lines, r.line)
		}
	}
	return lines
}

// parsePins parses a list of pinned requirements with hashes, which may span several lines.
func parsePins(text string) map[string]pin {
	pins := map[string]pin{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, version, ok := strings.Cut(first, "==")
		if ok && name != "" && name[0] != '#' {
			pins[farm.NormalPackage(farm.ManagerPip, name)] = pin{version: version, line: strings.Join(strings.Fields(line), " ")}
		}
	}
	return pins
}
