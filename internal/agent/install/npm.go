package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// installNode installs Node packages and returns the versions installed afterwards. npm works on a copy that replaces the
// original in one step, so a stop leaves the original intact.
func (in *installation) installNode(wanted []*requirement) map[string]string {
	good := open(wanted)
	if len(good) == 0 {
		return nil
	}
	before := nodePackages(in.s.cfg.nodeModules())
	missing := slices.DeleteFunc(slices.Clone(good), func(r *requirement) bool {
		version := before[r.name]
		return version != "" && (r.bare || r.line == r.name+"@"+version)
	})
	if len(missing) == 0 {
		return before
	}
	npm := process.LookPath(in.s.cfg.Image, "npm")
	switch {
	case npm == "":
		fail(missing, "This image has no npm: create a sandbox with the image node.")
	case in.s.cfg.IndexAddr == "":
		fail(missing, noIndex)
	default:
		if err := in.ready(); err != nil {
			fail(missing, in.fileTrouble(err))
		} else {
			in.bringNode(npm, missing)
		}
	}
	return nodePackages(in.s.cfg.nodeModules())
}

// bringNode installs all packages together, or one by one if that fails.
func (in *installation) bringNode(npm string, missing []*requirement) {
	t := in.putNode(npm, missing)
	switch {
	case t == nil:
	case t.fatal || len(missing) == 1:
		for _, r := range missing {
			r.problem = in.explainNode(t, r)
		}
	default:
		for i, r := range missing {
			if t := in.putNode(npm, missing[i:i+1]); t != nil {
				r.problem = in.explainNode(t, r)
				if t.fatal {
					fail(missing[i:], r.problem)
					return
				}
			}
		}
	}
}

// putNode lets npm install into a copy and swaps it with the original. Install scripts run, as builds of Python packages do:
// they have no more rights here than the code that uses them, and some packages need them.
func (in *installation) putNode(npm string, wanted []*requirement) *trouble {
	prefix := filepath.Join(in.work, "node")
	_ = os.RemoveAll(prefix)
	if err := cloneTree(in.s.cfg.nodeDir(), prefix); err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	argv := append([]string{npm, "install", "--prefix", prefix, "--no-audit", "--no-fund", "--loglevel", "error", "--"}, requirementLines(wanted)...)
	t := in.step(argv, in.s.toolEnv(in.Execution, map[string]string{
		"npm_config_registry": "http://" + in.s.cfg.IndexAddr + agent.NpmPath, "npm_config_cache": filepath.Join(in.work, "npm-cache"),
		"npm_config_userconfig": "/dev/null", "npm_config_globalconfig": filepath.Join(in.work, "npmrc"), "npm_config_update_notifier": "false",
		"npm_config_fetch_retries": "1", "npm_config_color": "false", "npm_config_progress": "false", "TMPDIR": filepath.Join(in.work, "tmp"),
	}))
	if t != nil {
		return t
	}
	if err := exchange(prefix, in.s.cfg.nodeDir()); err != nil {
		return &trouble{text: in.fileTrouble(err)}
	}
	return nil
}

// explainNode interprets the messages of npm.
func (in *installation) explainNode(t *trouble, r *requirement) string {
	if text := in.common(t, r); text != "" {
		return text
	}
	code := ""
	var printed []string
	for line := range strings.Lines(t.output) {
		line = strings.TrimSpace(line)
		rest, ok := strings.CutPrefix(line, "npm error ")
		if !ok {
			rest, ok = strings.CutPrefix(line, "npm ERR! ")
		}
		switch {
		case !ok:
		case strings.HasPrefix(rest, "code ") && code == "":
			code = strings.TrimPrefix(rest, "code ")
		case !strings.HasPrefix(rest, "A complete log of this run"):
			printed = append(printed, rest)
		}
	}
	switch code {
	case "E404":
		return r.name + " was not found in the npm registry: check its name."
	case "ETARGET":
		return fmt.Sprintf("No version of %s fits %q.", r.name, r.asked)
	case "ERESOLVE":
		return execution.Cut(fmt.Sprintf("%s conflicts with other required packages: %s", r.name, flat(strings.Join(printed, " "))), maxMessageBytes)
	case "EINTEGRITY":
		return fmt.Sprintf("The file from the registry for %s does not match its published hash, so it was not installed.", r.name)
	case "EBADENGINE", "EBADPLATFORM":
		return execution.Cut(fmt.Sprintf("%s does not work with this image's Node or platform: %s", r.name, flat(strings.Join(printed, " "))), maxMessageBytes)
	case "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENOTFOUND", "E503", "E502", "E504":
		t.fatal = code != "E502"
		return fmt.Sprintf("The npm registry is not reachable: the files for %s could not be downloaded. Try again later.", r.name)
	}
	return execution.Cut(fmt.Sprintf("%s could not be installed: %s", r.name, lastLines(strings.Join(printed, "\n"))), maxMessageBytes)
}

// cloneTree copies a directory: files of packages become hard links, npm's own lists are copied. A missing directory becomes an
// empty one.
func cloneTree(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil { //nolint:gosec // user code's own
		return err
	}
	count := 0
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == from:
			return nil
		}
		if count++; count > maxPackageFiles {
			return errors.New("copy packages: there are too many files")
		}
		target := filepath.Join(to, path[len(from)+1:])
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o755) //nolint:gosec // user code's own
		case entry.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case entry.Type().IsRegular() && (filepath.Dir(path) == from || entry.Name() == ".package-lock.json"):
			raw, err := readBounded(path, maxReportBytes)
			if err != nil {
				return err
			}
			return os.WriteFile(target, raw, 0o644) //nolint:gosec // user code's own
		case entry.Type().IsRegular():
			return os.Link(path, target)
		}
		return nil
	})
}

// exchange swaps two directories atomically, or renames from if to does not exist.
func exchange(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		return os.Rename(from, to)
	}
	return err
}
