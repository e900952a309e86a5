package server

import (
	"os"
	"path/filepath"
)

// appDir is the directory behind /app in images that have it as a link: older systems keep their files there.
const appDir = ".app"

// makeApp makes /app/results lead to the workspace. What is there from before stays.
func (s *Server) makeApp() {
	dir := filepath.Join(s.cfg.HomeDir, appDir)
	if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // user code's own
		_ = os.Symlink(s.cfg.Workspace, filepath.Join(dir, "results")) // code that wants it will say so
	}
}
