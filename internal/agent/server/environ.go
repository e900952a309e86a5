package server

import (
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
)

// environment is what everything starts with: the sandbox's own, and where things are.
func environment(cfg Config) []string {
	home := cfg.HomeDir
	own := map[string]string{
		"HOME": home, "USER": account, "LOGNAME": account, "TMPDIR": cfg.TmpDir, "LANG": "C.UTF-8",
		"MPLCONFIGDIR":        filepath.Join(home, ".config", "matplotlib"),
		"IPYTHONDIR":          filepath.Join(home, ".ipython"),
		"JUPYTER_CONFIG_DIR":  filepath.Join(home, ".jupyter"),
		"JUPYTER_DATA_DIR":    filepath.Join(home, ".local", "share", "jupyter"),
		"JUPYTER_RUNTIME_DIR": filepath.Join(home, ".local", "share", "jupyter", "runtime"),
	}
	if !slices.ContainsFunc(cfg.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		own["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	return withEnv(cfg.Env, own)
}

// withEnv gives env with values set over it; names that no environment can hold are left out.
func withEnv(env []string, set map[string]string) []string {
	out := make([]string, 0, len(env)+len(set))
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if _, replaced := set[name]; ok && !replaced {
			out = append(out, kv)
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		if name != "" && !strings.ContainsAny(name, "=\x00") && !strings.Contains(set[name], "\x00") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		out = append(out, name+"="+set[name])
	}
	return out
}

// lookPath finds a program in the PATH of an environment. "" means that there is none.
func lookPath(env []string, names ...string) string {
	for _, name := range names {
		for _, kv := range env {
			list, ok := strings.CutPrefix(kv, "PATH=")
			if !ok {
				continue
			}
			for _, dir := range filepath.SplitList(list) {
				path := filepath.Join(dir, name)
				if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(path) {
					return path
				}
			}
		}
	}
	return ""
}

// openNull opens the empty input of a child.
func openNull() (int, error) {
	return syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
}

func closeFD(fd int) { _ = syscall.Close(fd) }
