package server

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/files"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

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
