package server

import (
	"os"
	"path/filepath"
)

// appDir is the directory in the home to which /app leads, a link in the images: older systems keep their files in /app/results.
const appDir = ".app"

// makeResultsLink makes /app/results lead to the workspace. It leaves alone what is there already.
func (s *Server) makeResultsLink() {
	dir := filepath.Join(s.cfg.HomeDir, appDir)
	if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // user code's own
		_ = os.Symlink(s.cfg.Workspace, filepath.Join(dir, "results")) // code that needs it says so
	}
}
