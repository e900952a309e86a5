package server

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// environment returns the variables that every process starts with: the image's, and the agent's paths.
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
	return process.WithEnv(cfg.Env, own)
}
