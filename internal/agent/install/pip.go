package install

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pipTool installs with the image's pip in sandboxes without uv.
type pipTool struct{}

var _ pyTool = pipTool{}

// maxReportBytes bounds pip's report, which holds the metadata of every package.
const maxReportBytes = 16 << 20

// pipReport is the report of a dry run of pip.
type pipReport struct {
	Install []struct {
		Metadata struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"metadata"`
		Download struct {
			Archive struct {
				Hashes map[string]string `json:"hashes"`
			} `json:"archive_info"`
		} `json:"download_info"`
	} `json:"install"`
}

// resolve asks pip what it would install.
func (pipTool) resolve(in *installation, wanted []*requirement, _ map[string]distribution) (map[string]pin, *trouble) {
	ask, err := in.writeLines("wanted.txt", requirementLines(wanted))
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	answer := filepath.Join(in.work, "report.json")
	if t := in.pip("install", "--dry-run", "--report", answer, "--requirement", ask); t != nil {
		return nil, t
	}
	raw, err := readBounded(answer, maxReportBytes)
	var report pipReport
	if err == nil {
		err = json.Unmarshal(raw, &report)
	}
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	pins := map[string]pin{}
	for _, p := range report.Install {
		m := p.Metadata
		if m.Name == "" || !plainName(strings.ReplaceAll(m.Name, "-", "_")) || !plainName(m.Version) {
			continue
		}
		line := m.Name + "==" + m.Version
		if sum := p.Download.Archive.Hashes["sha256"]; plainName(sum) && sum != "" {
			line += " --hash=sha256:" + sum
		}
		pins[farm.NormalPackage(farm.ManagerPip, m.Name)] = pin{version: m.Version, line: line}
	}
	return pins, nil
}

// fetch installs what was resolved.
func (pipTool) fetch(in *installation, pins map[string]pin, target string) *trouble {
	list, err := in.writeLines("changes.txt", pinLines(pins))
	if err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	return in.pip("install", "--no-deps", "--no-compile", "--target", target, "--requirement", list)
}

func (in *installation) pip(args ...string) *trouble {
	argv := append([]string{in.s.cfg.Python.Interpreter(), "-m", "pip", "--quiet", "--no-input", "--cache-dir", filepath.Join(in.work, "cache")}, args...)
	return in.step(argv, in.s.toolEnv(in.Execution, map[string]string{
		"PIP_INDEX_URL": "http://" + in.s.cfg.IndexAddr + agent.PipPath, "PIP_TRUSTED_HOST": in.s.cfg.IndexAddr,
		"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "1", "NO_COLOR": "1", "PIP_ROOT_USER_ACTION": "ignore",
		"TMPDIR": filepath.Join(in.work, "tmp"), "PYTHONPATH": in.s.cfg.packageDir(),
	}))
}

// explain interprets the messages of pip.
func (pipTool) explain(in *installation, t *trouble, r *requirement) string {
	if text := in.common(t, r); text != "" {
		return text
	}
	out, python := t.output, in.s.cfg.Python.Version()
	switch {
	case strings.Contains(out, "No module named pip"):
		t.fatal = true
		return "This image has no pip, and the worker could not provide an installer."
	case strings.Contains(out, "DO NOT MATCH THE HASHES"):
		return fmt.Sprintf("The file from the index for %s does not match its published hash, so it was not installed.", r.name)
	case strings.Contains(out, "NewConnectionError"), strings.Contains(out, "Max retries exceeded"), strings.Contains(out, "503 "), strings.Contains(out, "Read timed out"):
		t.fatal = true
		return fmt.Sprintf("The package index is not reachable: the files for %s could not be downloaded. Try again later.", r.name)
	case strings.Contains(out, "ResolutionImpossible"), strings.Contains(out, "conflicting dependencies"):
		return fmt.Sprintf("%s conflicts with other required packages: %s", r.name, lastError(out, "ERROR: Cannot install "))
	case strings.Contains(out, "subprocess-exited-with-error"), strings.Contains(out, "Failed building wheel"), strings.Contains(out, "Failed to build"):
		return unbuilt(r.name, r.name, python, out)
	case strings.Contains(out, "Requires-Python") && strings.Contains(out, "from versions: none"):
		return fmt.Sprintf("%s needs another version of Python; this image has Python %s.", r.name, python)
	case strings.Contains(out, "from versions: none"):
		return fmt.Sprintf("%s was not found in the package index, or has no release for Python %s: check its name.", r.name, python) + in.orNode()
	case strings.Contains(out, "No matching distribution found"):
		return fmt.Sprintf("No version of %s fits %q.", r.name, r.asked)
	}
	return execution.Cut(fmt.Sprintf("%s could not be installed: %s", r.name, lastLines(out)), maxMessageBytes)
}

// lastError returns the last line of an output with a prefix, without the prefix.
func lastError(out, prefix string) string {
	text := ""
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			text = rest
		}
	}
	return execution.Cut(text, maxMessageBytes/2)
}

// uvTool installs with uv, which needs only Python from the image.
type uvTool struct{}

var _ pyTool = uvTool{}

// versionPattern matches the versions that uv can parse: others are not passed to it.
var versionPattern = regexp.MustCompile(`^(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?$`)

// resolve lets uv write a pinned list. uv prefers the pins that are already in the output file.
func (uvTool) resolve(in *installation, wanted []*requirement, there map[string]distribution) (map[string]pin, *trouble) {
	var preferred []string
	for name, d := range there {
		if versionPattern.MatchString(d.version) {
			preferred = append(preferred, name+"=="+d.version)
		}
	}
	slices.Sort(preferred)
	ask, err := in.writeLines("wanted.txt", requirementLines(wanted))
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	answer, err := in.writeLines("pinned.txt", preferred)
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	t := in.step([]string{
		in.s.cfg.UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
		"--python", in.s.cfg.Python.Interpreter(), "--output-file", answer, ask,
	}, in.uvEnv())
	if t != nil {
		return nil, t
	}
	raw, err := readBounded(answer, process.MaxOutputBytes)
	if err != nil {
		return nil, &trouble{text: in.fileTrouble(err)}
	}
	return parsePins(string(raw)), nil
}

// fetch lets uv install what was resolved; the files must match the hashes that the index published.
func (uvTool) fetch(in *installation, pins map[string]pin, target string) *trouble {
	list, err := in.writeLines("changes.txt", pinLines(pins))
	if err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	return in.step([]string{
		in.s.cfg.UV, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", in.s.cfg.Python.Interpreter(),
		"--target", target, "--requirements", list,
	}, in.uvEnv())
}

func (in *installation) uvEnv() []string {
	return in.s.toolEnv(in.Execution, map[string]string{
		"UV_DEFAULT_INDEX": "http://" + in.s.cfg.IndexAddr + agent.PipPath, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never",
		"UV_CACHE_DIR": filepath.Join(in.work, "cache"), "UV_NO_PROGRESS": "1", "UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "120",
		"UV_LINK_MODE": "hardlink", "UV_CONCURRENT_DOWNLOADS": "16", "NO_COLOR": "1", "TMPDIR": filepath.Join(in.work, "tmp"),
	})
}

const (
	// maxRecordBytes bounds the list of files of a distribution.
	maxRecordBytes = 8 << 20
	// maxPackageFiles bounds the files of a distribution, and of all Node packages together.
	maxPackageFiles = 200_000
)

// moveIn moves installed packages from target to the package directory. It removes an older version first, and moves last the metadata
// that marks a package as installed.
func (s *Installer) moveIn(target string) error {
	_ = os.Remove(filepath.Join(target, ".lock"))
	dir := s.cfg.packageDir()
	if err := s.cfg.MakePackageDir(); err != nil { // user code may have removed it
		return err
	}
	old := scanDistributions(dir)
	for name := range scanDistributions(target) {
		if d, ok := old[name]; ok {
			removeDistribution(dir, d.info)
		}
	}
	var last []string
	for _, name := range readNames(target) {
		if strings.HasSuffix(name, ".dist-info") {
			last = append(last, name)
			continue
		}
		if err := merge(filepath.Join(target, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("move packages in: %w", err)
		}
	}
	for _, name := range last {
		if err := merge(filepath.Join(target, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("move packages in: %w", err)
		}
	}
	return nil
}

// merge moves a file or directory. It merges directories and replaces files.
func merge(from, to string) error {
	there, err := os.Lstat(to)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	if err != nil {
		return err
	}
	come, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if there.IsDir() && come.IsDir() {
		for _, name := range readNames(from) {
			if err := merge(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
		return nil
	}
	if there.IsDir() || come.IsDir() {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	return os.Rename(from, to)
}

// removeDistribution removes the files of a distribution that are under dir, and directories that become empty.
func removeDistribution(dir, info string) {
	parents := map[string]bool{}
	for _, path := range recorded(info) {
		full := filepath.Join(dir, path)
		if !strings.HasPrefix(full, dir+"/") {
			continue
		}
		_ = os.Remove(full)
		parent := filepath.Dir(full)
		parents[parent] = true
		if stem, ok := strings.CutSuffix(filepath.Base(full), ".py"); ok {
			cache := filepath.Join(parent, "__pycache__")
			compiled, _ := filepath.Glob(filepath.Join(cache, stem) + ".*.pyc")
			for _, file := range compiled {
				_ = os.Remove(file)
			}
			parents[cache] = true
		}
	}
	_ = os.RemoveAll(info)
	for parent := range parents {
		for parent != dir && strings.HasPrefix(parent, dir+"/") && os.Remove(parent) == nil { // stops at a directory that is not empty
			parent = filepath.Dir(parent)
		}
	}
}

// recorded lists the files in a distribution's RECORD, relative to the directory that contains it.
func recorded(info string) []string {
	raw, err := readBounded(filepath.Join(info, "RECORD"), maxRecordBytes)
	if err != nil {
		return nil
	}
	r := csv.NewReader(strings.NewReader(string(raw)))
	r.FieldsPerRecord, r.LazyQuotes, r.ReuseRecord = -1, true, true
	var paths []string
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) || len(paths) > maxPackageFiles {
			return paths
		}
		if err == nil && len(row) > 0 {
			paths = append(paths, row[0])
		}
	}
}

// topModules are the top-level modules of a distribution.
func topModules(info string) []string {
	seen := map[string]bool{}
	var names []string
	for _, path := range recorded(info) {
		first, rest, nested := strings.Cut(path, "/")
		name := first
		if !nested {
			name, _, _ = strings.Cut(first, ".") // module.py, module.cpython-313-x86_64-linux-gnu.so
			if !strings.HasSuffix(first, ".py") && !strings.HasSuffix(first, ".so") {
				continue
			}
		} else if !strings.HasSuffix(rest, ".py") && !strings.HasSuffix(rest, ".so") {
			continue
		}
		if name != "" && !seen[name] && plainName(name) && len(names) < 64 {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
