package server

import (
	"fmt"
	"os"
	"path/filepath"
)

// account is the name of the user that code runs as.
const account = "sandbox"

// accountsDir is where images whose name service has the module "extrausers" look for accounts: each sandbox has a user id of its
// own, so no image can name it. Without a name whoami, ssh and Python's pwd give up.
const accountsDir = "accounts"

// makeAccount names the user. Nothing depends on it but programs that ask.
func (s *Server) makeAccount() {
	dir := filepath.Join(s.cfg.RunDir, accountsDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) { //nolint:gosec // the sandbox is one user's
		return
	}
	uid, gid := os.Getuid(), os.Getgid()
	shell := lookPath(s.image, "bash", "sh")
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("%s:x:%d:%d:%s:%s:%s\n", account, uid, gid, account, s.cfg.HomeDir, shell),
		"group":  fmt.Sprintf("%s:x:%d:\n", account, gid),
	} {
		_ = putFile(filepath.Join(dir, name), []byte(line)) // what asks for a name says so
	}
}
