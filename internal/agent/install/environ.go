package install

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

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
