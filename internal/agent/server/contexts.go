package server

import (
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) getContexts(http.ResponseWriter, *http.Request) (any, error) {
	return s.kernels.Contexts(), nil
}

func (s *Server) putContext(w http.ResponseWriter, r *http.Request) (any, error) {
	var c farm.CodeContext
	if err := readJSON(w, r, &c); err != nil {
		return nil, err
	}
	c.Name = r.PathValue("context")
	return s.kernels.Create(c)
}

func (s *Server) deleteContext(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.kernels.Remove(r.PathValue("context"), r.URL.Query().Get("language"))
}
