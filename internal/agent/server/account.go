package server

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

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
