package install

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// requirementsFile is the file of the workspace that lists requirements.
	requirementsFile = "requirements.txt"
	// maxRequirementsBytes bounds its size.
	maxRequirementsBytes = 256 << 10
	// maxLeftOut bounds the ignored lines that notes list.
	maxLeftOut = 5
	// maxImportBytes bounds the name of an import.
	maxImportBytes = 200
)

// requirementsSeen holds a hash of each requirements file that has been installed.
type requirementsSeen map[string][sha256.Size]byte

var (
	importPattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	commentPattern = regexp.MustCompile(`(^|\s)#.*$`)
	lineHash       = regexp.MustCompile(`\s--hash=\S+`)
)

// findWanted lists the missing imports of code or commands, and the requirements of files that have not been installed yet.
func (in *installation) findWanted() []*requirement {
	spec := in.Spec.Install
	need := in.need()
	var wanted []*requirement
	for _, file := range need.Requirements {
		for _, r := range in.listed(file, maxRequirements-len(wanted)) {
			if !wants(wanted, r.name) {
				wanted = append(wanted, r)
			}
		}
	}
	for _, name := range need.Missing {
		if len(name) > maxImportBytes || !importPattern.MatchString(name) || len(wanted) >= maxRequirements {
			continue
		}
		r := parseRequirement(farm.ManagerPip, farm.DistributionOf(name))
		if wants(wanted, r.name) {
			continue
		}
		r.asked, r.why = name, "imported as "+name
		wanted = append(wanted, r)
	}
	for _, r := range wanted {
		if slices.Contains(spec.Deny, r.name) || len(spec.Only) > 0 && !slices.Contains(spec.Only, r.name) {
			r.problem = fmt.Sprintf("The operator does not allow %s to be installed automatically: install it by name (packages).", r.name)
		}
	}
	return wanted
}

func wants(wanted []*requirement, name string) bool {
	return slices.ContainsFunc(wanted, func(r *requirement) bool { return r.name == name })
}

// need finds what an automatic install must install: missing imports, and requirements files.
func (in *installation) need() kernel.Needs {
	spec := in.Spec.Install
	if spec.Manager != farm.ManagerPip {
		return kernel.Needs{}
	}
	if len(spec.Commands) > 0 {
		return in.s.cfg.Python.NeedsOfCommands(spec.Commands, spec.Cwd)
	}
	return kernel.Needs{Missing: in.missing(), Requirements: []string{requirementsFile}}
}

// missing lists the imports of the code that are not installed.
func (in *installation) missing() []string {
	if !strings.Contains(in.Spec.Install.Code, "import") {
		return nil
	}
	code := in.Spec.Install.Code
	for _, answer := range in.s.cfg.Kernels.Ask(cmp.Or(in.Spec.Context, kernel.DefaultContext), kernel.Question{Code: code}) {
		return answer.Missing
	}
	return in.s.cfg.Python.MissingImports(code)
}

// resolve finds a solution. It refuses one for an automatic install that contains a package the operator does not allow.
func (in *installation) resolve(tool pyTool, wanted []*requirement, there map[string]distribution) (map[string]pin, *trouble) {
	pins, t := tool.resolve(in, wanted, there)
	if t != nil || !in.Spec.Install.Auto {
		return pins, t
	}
	for _, name := range in.Spec.Install.Deny {
		if p, ok := pins[name]; ok && there[name].version != p.version {
			return nil, &trouble{text: fmt.Sprintf("It needs %s, which the operator does not allow to be installed automatically: install that by name (packages).", name)}
		}
	}
	return pins, nil
}

// listed reads a requirements file in the workspace, unless it was installed before.
func (in *installation) listed(file string, limit int) []*requirement {
	f, entry, err := in.s.cfg.Files.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if entry.Size > maxRequirementsBytes {
		in.notes = append(in.notes, fmt.Sprintf("%s was not read: it has more than %d KiB.", file, maxRequirementsBytes>>10))
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxRequirementsBytes))
	sum := sha256.Sum256(raw)
	if err != nil || sum == in.s.listed[file] {
		return nil
	}
	in.seen[file] = sum
	var wanted []*requirement
	leftOut := 0
	for line := range strings.Lines(strings.ReplaceAll(strings.ReplaceAll(string(raw), "\r\n", "\n"), "\\\n", " ")) {
		line = strings.TrimSpace(lineHash.ReplaceAllString(commentPattern.ReplaceAllString(strings.TrimSpace(line), ""), ""))
		if line == "" {
			continue
		}
		r := parseRequirement(farm.ManagerPip, line)
		if r.problem != "" || len(wanted) >= limit {
			if leftOut++; leftOut <= maxLeftOut {
				in.notes = append(in.notes, fmt.Sprintf("%s: %q was left out; only names with versions are installed.", file, execution.Cut(line, 100)))
			}
			continue
		}
		r.why = "in " + file
		wanted = append(wanted, r)
	}
	if leftOut > maxLeftOut {
		in.notes = append(in.notes, fmt.Sprintf("%s: %s left out.", file, farm.Plural(leftOut-maxLeftOut, "more line")))
	}
	return wanted
}

// noteLoaded adds notes about replaced packages whose old version is still loaded in a kernel.
func (in *installation) noteLoaded(wanted []*requirement, before, after map[string]distribution) {
	changed, modules := map[string][]string{}, []string{}
	for name, d := range after {
		if old, ok := before[name]; ok && old.version != d.version {
			changed[name] = topModules(d.info)
			modules = append(modules, changed[name]...)
		}
	}
	if len(modules) == 0 {
		return
	}
	for _, answer := range in.s.cfg.Kernels.Ask(kernel.All, kernel.Question{Modules: modules}) {
		for _, name := range slices.Sorted(maps.Keys(changed)) {
			i := slices.IndexFunc(changed[name], func(module string) bool { _, ok := answer.Loaded[module]; return ok })
			if i < 0 {
				continue
			}
			has := answer.Loaded[changed[name][i]]
			if !plainName(has) || has == "" || len(has) > maxVersionBytes {
				has = before[name].version
			}
			if has == after[name].version {
				continue
			}
			note := fmt.Sprintf("%s %s is installed, but the kernel %q still has %s loaded: restart the kernel to use it (POST /v1/sandboxes/{id}/restart).",
				name, after[name].version, answer.Context, has)
			in.notes = append(in.notes, note)
			for _, r := range wanted {
				if r.name == name && r.fine == "" {
					r.fine = note
				}
			}
		}
	}
}
