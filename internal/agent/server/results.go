package server

import (
	"os"
	"path/filepath"
)

// appDir is the directory in the home that /app, a link in the images, points to: older systems keep their files in /app/results.
const appDir = ".app"

// makeResultsLink links /app/results to the workspace. It does not replace an existing file.
func (s *Server) makeResultsLink() {
	dir := filepath.Join(s.cfg.HomeDir, appDir)
	if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // user code's own
		_ = os.Symlink(s.cfg.Workspace, filepath.Join(dir, "results")) // best effort: code that needs it reports the error
	}
}
