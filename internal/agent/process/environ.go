package process

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

// WithEnv returns a copy of an environment with variables set. Invalid names and values are left out.
func WithEnv(env []string, set map[string]string) []string {
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

// Getenv returns a variable of an environment; empty if it is not set.
func Getenv(env []string, name string) string {
	value := ""
	for _, kv := range env {
		if rest, ok := strings.CutPrefix(kv, name+"="); ok {
			value = rest
		}
	}
	return value
}

// LookPath finds the first of the named programs in the PATH of an environment; empty if there is none.
func LookPath(env []string, names ...string) string {
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

// OpenNull opens /dev/null as the input or output of a child. The caller closes the descriptor.
func OpenNull() (int, error) {
	return syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
}
