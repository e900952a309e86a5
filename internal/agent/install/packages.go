package install

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxScanned bounds the number of listed packages.
	maxScanned = 20_000
	// maxManifestBytes bounds a package.json.
	maxManifestBytes = 256 << 10
	// maxVersionBytes bounds names and versions.
	maxVersionBytes = 256
)

// Packages lists the installed packages by manager and name.
func (s *Installer) Packages() []farm.Package {
	list := []farm.Package{}
	for name, d := range s.distributions() {
		list = append(list, farm.Package{Name: name, Version: d.version, Manager: farm.ManagerPip})
	}
	for name, version := range nodePackages(s.cfg.nodeModules()) {
		list = append(list, farm.Package{Name: name, Version: version, Manager: farm.ManagerNpm})
	}
	slices.SortFunc(list, func(a, b farm.Package) int {
		return cmp.Or(-strings.Compare(a.Manager, b.Manager), strings.Compare(a.Name, b.Name)) // pip first
	})
	return list[:min(len(list), maxScanned)]
}

// distribution is an installed Python package.
type distribution struct {
	version string
	info    string // its dist-info, absolute
}

// distributions returns the Python packages by normalised name: the image's, overridden by those installed here.
func (s *Installer) distributions() map[string]distribution {
	found := map[string]distribution{}
	for _, dir := range slices.Backward(s.cfg.Python.SearchPath()) { // the first directory of the path wins
		maps.Copy(found, scanDistributions(dir))
	}
	maps.Copy(found, scanDistributions(s.cfg.packageDir()))
	return found
}

// scanDistributions reads name and version from the names of the dist-info directories in a directory.
func scanDistributions(dir string) map[string]distribution {
	found := map[string]distribution{}
	for _, entry := range readNames(dir) {
		base, ok := strings.CutSuffix(entry, ".dist-info")
		if !ok {
			if base, ok = strings.CutSuffix(entry, ".egg-info"); !ok {
				continue
			}
		}
		name, version, ok := strings.Cut(base, "-")
		version, _, _ = strings.Cut(version, "-") // an egg's Python
		if !ok || name == "" || version == "" || len(entry) > maxVersionBytes || !plainName(name) || !plainName(version) {
			continue
		}
		found[farm.NormalPackage(farm.ManagerPip, name)] = distribution{version: version, info: filepath.Join(dir, entry)}
	}
	return found
}

// plainName reports whether a text has only characters allowed in names and versions of Python packages.
func plainName(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("._+!", r)
	})
}

// readNames lists a directory, at most maxScanned names. A missing directory is empty.
func readNames(dir string) []string {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0) //nolint:gosec // in the sandbox's own file system
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(maxScanned)
	return names
}

// nodePackages returns the packages in a node_modules directory.
func nodePackages(dir string) map[string]string {
	found := map[string]string{}
	add := func(name string) {
		raw, err := readBounded(filepath.Join(dir, name, "package.json"), maxManifestBytes)
		var manifest struct {
			Version string `json:"version"`
		}
		if err == nil && json.Unmarshal(raw, &manifest) == nil && len(name)+len(manifest.Version) <= maxVersionBytes {
			found[name] = manifest.Version
		}
	}
	for _, entry := range readNames(dir) {
		switch {
		case strings.HasPrefix(entry, "."):
		case strings.HasPrefix(entry, "@"):
			for _, name := range readNames(filepath.Join(dir, entry)) {
				add(entry + "/" + name)
			}
		default:
			add(entry)
		}
	}
	return found
}

// readBounded reads a regular file of at most limit bytes. It never waits for a pipe's other end.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // in the sandbox's own file system
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, syscall.EFBIG
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

const (
	// maxRequirements bounds the packages of one install.
	maxRequirements = 1000
	// maxRequirementBytes bounds one requirement.
	maxRequirementBytes = 1 << 10
)

// The grammar of requirements: PEP 508 without URLs, so nothing that an installer would read as a flag, a path or a URL.
const (
	specifier  = `(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9_.*+!-]+`
	markerTerm = `(?:[a-z_]+|"[A-Za-z0-9_.+ -]*"|'[A-Za-z0-9_.+ -]*')`
	comparison = `\(*\s*` + markerTerm + `\s*(?:===|==|~=|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)\s*` + markerTerm + `\s*\)*`
)

var (
	pipPattern = regexp.MustCompile(`^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[A-Za-z0-9._, -]*\])?\s*` +
		`(?:\(\s*)?(` + specifier + `(?:\s*,\s*` + specifier + `)*)?\s*\)?\s*` +
		`(;\s*` + comparison + `(?:\s*\b(?:and|or)\b\s*` + comparison + `)*)?\s*$`)
	npmPattern   = regexp.MustCompile(`^((?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9_][A-Za-z0-9._-]*)(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9._^~<>=*+ |-]*))?$`)
	exactPattern = regexp.MustCompile(`^==\s*([A-Za-z0-9_.+!-]+)$`)
)

// requirement is one requested package.
type requirement struct {
	line    string // the line for the installer
	name    string // normalised
	bare    bool   // nothing but a name
	exact   string // the version of name==version
	marked  bool   // it has a condition (an environment marker)
	asked   string // as written in the request
	why     string
	problem string // why it cannot be installed, in a sentence
	fine    string // a note about a successful install, in a sentence
}

// parseRequirement checks a requirement. One that must not reach an installer has a problem.
func parseRequirement(manager, text string) *requirement {
	r := &requirement{asked: execution.Cut(text, maxRequirementBytes), line: strings.TrimSpace(text)}
	if manager == farm.ManagerNpm {
		m := npmPattern.FindStringSubmatch(r.line)
		if m == nil || len(text) > maxRequirementBytes || strings.HasPrefix(r.line, "-") {
			r.problem = "This is not the name of an npm package: a name, or name@version."
			return r
		}
		r.name, r.bare = m[1], m[2] == ""
		return r
	}
	m := pipPattern.FindStringSubmatch(text)
	if m == nil || len(text) > maxRequirementBytes || strings.ContainsAny(text, "\r\n\x00") {
		r.problem = "This is not a requirement that can be installed: a name, with a version as in name==1.2 or name>=1,<2 when one is needed. Flags, paths and URLs are not accepted."
		return r
	}
	r.name = farm.NormalPackage(farm.ManagerPip, m[1])
	r.marked = m[4] != ""
	r.bare = m[2] == "" && m[3] == "" && !r.marked
	if e := exactPattern.FindStringSubmatch(m[3]); e != nil && m[2] == "" && !r.marked && !strings.HasSuffix(e[1], "*") {
		r.exact = e[1]
	}
	return r
}

// met reports whether an installed package is known, without an installer, to meet the requirement.
func (r *requirement) met(there map[string]distribution) bool {
	d, ok := there[r.name]
	return ok && (r.bare || r.exact != "" && r.exact == d.version)
}

// outcome returns the report on the requirement.
func (r *requirement) outcome(version string) farm.PackageOutcome {
	out := farm.PackageOutcome{Name: r.name, Requested: r.asked, Version: version, Status: farm.PackageInstalled, Message: r.fine, Why: r.why}
	if r.problem != "" {
		out.Status, out.Message, out.Version = farm.PackageFailed, r.problem, ""
	}
	if out.Name == "" {
		out.Name = out.Requested
	}
	return out
}

//go:embed sitecustomize.py
var siteCustomize []byte

// MakePackageDir creates the directory of Python packages. It must be called before any Python starts: if a directory of
// its search path does not exist, a Python process never looks for it again.
func (c Config) MakePackageDir() error {
	if err := os.MkdirAll(c.packageDir(), 0o755); err != nil { //nolint:gosec // user code's own
		return fmt.Errorf("make package directory: %w", err)
	}
	return files.Put(filepath.Join(c.packageDir(), "sitecustomize.py"), siteCustomize)
}

// Environment is the environment of user code: the image's, plus variables that let code import installed packages and, with an
// index, run installers itself. Variables that the image sets for installers are kept.
func (c Config) Environment() []string {
	env := c.Image
	set := map[string]string{
		"PYTHONPATH": joinPaths(c.packageDir(), process.Getenv(env, "PYTHONPATH")),
		"PATH":       joinPaths(filepath.Join(c.packageDir(), "bin"), filepath.Join(c.nodeModules(), ".bin"), process.Getenv(env, "PATH")),
		"NODE_PATH":  joinPaths(c.nodeModules(), process.Getenv(env, "NODE_PATH")),
	}
	if process.Getenv(env, "PYTHONUNBUFFERED") == "" {
		set["PYTHONUNBUFFERED"] = "1" // or a program that prints to a pipe shows nothing until it ends, and nothing at all after a timeout
	}
	if c.IndexAddr != "" {
		for name, value := range c.installerEnv() {
			if process.Getenv(env, name) == "" {
				set[name] = value
			}
		}
		if process.Getenv(env, "PIP_TARGET") == "" {
			set["PIP_TARGET"] = c.packageDir() // for a plain `pip install`; see adopt in sitecustomize.py
		}
	}
	return process.WithEnv(env, set)
}

// installerEnv are the variables that point installers at the index and turn off features it does not support.
func (c Config) installerEnv() map[string]string {
	base := "http://" + c.IndexAddr
	return map[string]string{
		"PIP_INDEX_URL":                 base + agent.PipPath,
		"PIP_TRUSTED_HOST":              c.IndexAddr,
		"PIP_DISABLE_PIP_VERSION_CHECK": "1",
		"PIP_NO_COLOR":                  "1", // IPython runs `!pip` on a terminal, and its output is read elsewhere
		"PIP_PROGRESS_BAR":              "off",
		"PIP_NO_CACHE_DIR":              "1", // the worker has a cache; one here would use the sandbox's memory
		"UV_DEFAULT_INDEX":              base + agent.PipPath,
		"npm_config_registry":           base + agent.NpmPath,
		"npm_config_audit":              "false", // the index does not support audits
		"npm_config_fund":               "false",
		"npm_config_update_notifier":    "false",
	}
}

// toolEnv is the environment of an installer that the agent runs: the image's without its installer settings, plus set.
func (s *Installer) toolEnv(e *execution.Execution, set map[string]string) []string {
	env := make([]string, 0, len(s.cfg.Image)+len(set))
	for _, kv := range s.cfg.Image {
		name, _, _ := strings.Cut(kv, "=")
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(lower, "pip_"), strings.HasPrefix(lower, "uv_"), strings.HasPrefix(lower, "npm_config_"),
			strings.HasSuffix(lower, "_proxy"), lower == "pythonpath", lower == "pythonhome", lower == "node_options":
		default:
			env = append(env, kv)
		}
	}
	set[execution.EnvName] = e.ID
	return process.WithEnv(env, set)
}

// joinPaths joins the non-empty paths to a search path.
func joinPaths(paths ...string) string {
	kept := paths[:0:0]
	for _, path := range paths {
		if path != "" {
			kept = append(kept, path)
		}
	}
	return strings.Join(kept, ":")
}
