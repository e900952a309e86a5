package server

import (
	"net/http"
	"path/filepath"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// packageDir is where installed Python packages are.
func (s *Server) packageDir() string { return filepath.Join(s.cfg.HomeDir, ".packages") }

// nodeDir is where npm installs.
func (s *Server) nodeDir() string { return filepath.Join(s.cfg.HomeDir, ".node") }

func (s *Server) getPackages(http.ResponseWriter, *http.Request) (any, error) {
	return []farm.Package{}, nil
}
