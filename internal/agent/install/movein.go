package install

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

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
