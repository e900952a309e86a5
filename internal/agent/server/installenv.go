package server

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// packageDir is where installed Python packages are.
func (s *Server) packageDir() string { return filepath.Join(s.cfg.HomeDir, ".packages") }

//go:embed sitecustomize.py
var siteCustomize []byte

// makePackageDir makes the directory of packages before any Python starts: one never again asks for a directory that it has once
// found missing.
func (s *Server) makePackageDir() error {
	if err := os.MkdirAll(s.packageDir(), 0o755); err != nil { //nolint:gosec // user code's own
		return fmt.Errorf("make package directory: %w", err)
	}
	return putFile(filepath.Join(s.packageDir(), "sitecustomize.py"), siteCustomize)
}

// nodeDir is npm's prefix.
func (s *Server) nodeDir() string { return filepath.Join(s.cfg.HomeDir, ".node") }

// nodeModules is where installed packages of Node are.
func (s *Server) nodeModules() string { return filepath.Join(s.nodeDir(), "node_modules") }

// withPackages adds to an environment what lets code use what is installed and, where there is an index, install by itself. What
// the sandbox's own environment says of installers stays.
func (s *Server) withPackages(env []string) []string {
	set := map[string]string{
		"PYTHONPATH": joinPaths(s.packageDir(), getenv(env, "PYTHONPATH")),
		"PATH":       joinPaths(filepath.Join(s.packageDir(), "bin"), filepath.Join(s.nodeModules(), ".bin"), getenv(env, "PATH")),
		"NODE_PATH":  joinPaths(s.nodeModules(), getenv(env, "NODE_PATH")),
	}
	if s.index != nil {
		for name, value := range s.installerEnv() {
			if getenv(env, name) == "" {
				set[name] = value
			}
		}
		if getenv(env, "PIP_TARGET") == "" {
			set["PIP_TARGET"] = s.packageDir() // a plain `pip install` brings what code can import
		}
	}
	return withEnv(env, set)
}

// installerEnv tells installers where the index is, and what they need not try.
func (s *Server) installerEnv() map[string]string {
	base := "http://" + s.IndexAddr()
	return map[string]string{
		"PIP_INDEX_URL":                 base + agent.PipPath,
		"PIP_TRUSTED_HOST":              s.IndexAddr(),
		"PIP_DISABLE_PIP_VERSION_CHECK": "1",
		"PIP_NO_CACHE_DIR":              "1", // the worker has a cache; one here would take the sandbox's memory
		"UV_DEFAULT_INDEX":              base + agent.PipPath,
		"npm_config_registry":           base + agent.NpmPath,
		"npm_config_audit":              "false", // the index answers no audits
		"npm_config_fund":               "false",
		"npm_config_update_notifier":    "false",
	}
}

// toolEnv is the environment of the agent's own installers: nothing of the sandbox's that speaks to installers, and set over it.
func (s *Server) toolEnv(e *execution, set map[string]string) []string {
	env := make([]string, 0, len(s.image)+len(set))
	for _, kv := range s.image {
		name, _, _ := strings.Cut(kv, "=")
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(lower, "pip_"), strings.HasPrefix(lower, "uv_"), strings.HasPrefix(lower, "npm_config_"),
			strings.HasSuffix(lower, "_proxy"), lower == "pythonpath", lower == "pythonhome", lower == "node_options":
		default:
			env = append(env, kv)
		}
	}
	set["SBX_EXEC"] = e.id
	return withEnv(env, set)
}

// getenv gives a variable of an environment; empty when it is not there.
func getenv(env []string, name string) string {
	value := ""
	for _, kv := range env {
		if rest, ok := strings.CutPrefix(kv, name+"="); ok {
			value = rest
		}
	}
	return value
}

// joinPaths makes a search path of what is not empty.
func joinPaths(paths ...string) string {
	kept := paths[:0:0]
	for _, path := range paths {
		if path != "" {
			kept = append(kept, path)
		}
	}
	return strings.Join(kept, ":")
}
