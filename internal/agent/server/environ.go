package server

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
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

// withoutMissingHome leaves code its own HOME where the image has no farm.UserHome.
func withoutMissingHome(env map[string]string) {
	if env["HOME"] != farm.UserHome {
		return
	}
	if info, err := os.Stat(farm.UserHome); err != nil || !info.IsDir() {
		delete(env, "HOME")
	}
}

// proxyEnvironment adds to an environment what makes programs use the proxy at an address. Variables that it has already are kept, whichever
// case they are written in: a program may prefer the other one.
func proxyEnvironment(env []string, addr string) []string {
	proxy, direct := "http://"+addr, "localhost,127.0.0.1,::1"
	set := map[string]string{}
	for name, value := range map[string]string{"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": direct} {
		small := strings.ToLower(name)
		if process.Getenv(env, name) == "" && process.Getenv(env, small) == "" {
			set[name], set[small] = value, value
		}
	}
	if process.Getenv(env, nodeProxy) == "" {
		set[nodeProxy] = "1"
	}
	return process.WithEnv(env, set)
}

// nodeProxy has Node.js 24 and newer use the proxy for fetch and http.
const nodeProxy = "NODE_USE_ENV_PROXY"
