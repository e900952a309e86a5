package install

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
