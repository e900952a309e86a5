package server

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/files"
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

// account is the name of the user that code runs as: the one that code written for E2B expects.
const account = "user"

// accountsDir is where images whose name service has the module "extrausers" look for accounts. Each sandbox has its own user
// id, so no image can name it; without a name, whoami, ssh and Python's pwd fail.
const accountsDir = "accounts"

// makeAccount gives the sandbox's user a name. The agent itself does not need it. image is the environment of the image.
func (s *Server) makeAccount(image []string) {
	dir := filepath.Join(s.cfg.RunDir, accountsDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) { //nolint:gosec // the sandbox is one user's
		return
	}
	uid, gid := os.Getuid(), os.Getgid()
	shell := process.LookPath(image, "bash", "sh")
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("%s:x:%d:%d:%s:%s:%s\n", account, uid, gid, account, s.cfg.HomeDir, shell),
		"group":  fmt.Sprintf("%s:x:%d:\n", account, gid),
	} {
		_ = files.Put(filepath.Join(dir, name), []byte(line)) // best effort: programs that need it report the error
	}
}

// profileFile is what /etc/profile of the farm's images reads, whatever HOME is.
const profileFile = "profile"

// makeProfile has login shells start with the PATH of the sandbox: the /etc/profile of Debian sets another one, without the image's Python. A
// profile of the image is kept.
func (s *Server) makeProfile(env []string) {
	path := process.Getenv(env, "PATH")
	text := "# Login shells have the PATH of the sandbox, which /etc/profile has replaced.\nPATH='" + strings.ReplaceAll(path, "'", `'\''`) + "'\n"
	_ = files.Put(filepath.Join(s.cfg.RunDir, profileFile), []byte(text))                                        // best effort, as below
	file, err := os.OpenFile(filepath.Join(s.cfg.HomeDir, ".profile"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // user code's own
	if err != nil {
		return // there is one, or the home cannot be written: login shells work all the same
	}
	_, _ = file.WriteString(text)
	_ = file.Close()
}

// appDir is the directory in the home that /app, a link in the images, points to: older systems keep their files in /app/results.
const appDir = ".app"

// makeResultsLink links /app/results to the workspace. It does not replace an existing file.
func (s *Server) makeResultsLink() {
	dir := filepath.Join(s.cfg.HomeDir, appDir)
	if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // user code's own
		_ = os.Symlink(s.cfg.Workspace, filepath.Join(dir, "results")) // best effort: code that needs it reports the error
	}
}

// storeFiles are where images have the certificates that they trust: the system's, and those that Python packages bring.
var storeFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	"/usr/local/lib/python3*/site-packages/certifi/cacert.pem", "/usr/local/lib/python3*/site-packages/pip/_vendor/certifi/cacert.pem",
	"/usr/lib/python3/dist-packages/certifi/cacert.pem",
}

// maxStoreBytes bounds what is read of an image's store, which is user code's if the image is.
const maxStoreBytes = 4 << 20

// trustEnvironment writes the certificates that programs trust, if the sandbox has an authority of its own, and adds the variables by which
// programs find them. Variables that the environment has already are kept.
func trustEnvironment(env []string, cfg Config) ([]string, error) {
	if len(cfg.Authority) == 0 {
		return env, nil
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cfg.Authority})
	authority, bundle := filepath.Join(cfg.RunDir, "authority.pem"), filepath.Join(cfg.RunDir, "trusted.pem")
	for path, text := range map[string][]byte{authority: own, bundle: append(imageStore(), own...)} {
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // certificates are public
			return nil, fmt.Errorf("write trusted certificates: %w", err)
		}
	}
	set := map[string]string{}
	for name, path := range map[string]string{
		"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "CURL_CA_BUNDLE": bundle, "PIP_CERT": bundle, "GIT_SSL_CAINFO": bundle,
		"NODE_EXTRA_CA_CERTS": authority, // Node.js has a store of its own, to which it adds these
	} {
		if process.Getenv(env, name) == "" {
			set[name] = path
		}
	}
	return process.WithEnv(env, set), nil
}

// imageStore is the first store that the image has, ready for more certificates behind it; empty if it has none.
func imageStore() []byte {
	for _, pattern := range storeFiles {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() || info.Size() > maxStoreBytes {
				continue
			}
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
				return append(bytes.TrimRight(text, "\n"), '\n')
			}
		}
	}
	return nil
}
