package api

import (
	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

// jupyterRoutes are the routes for clients of Jupyter. docs/jupyter.md describes them; the OpenAPI document has only /v1.
func (s *Server) jupyterRoutes() []rest.Route {
	var all []rest.Route
	for _, r := range s.jupyter.Routes() {
		all = append(all, rest.Route{
			Method: r.Method, Path: r.Path, Scope: r.Scope, Open: r.Open, Stream: r.Stream, Hidden: true, Handler: r.Handler, Refuse: s.failJupyter,
			Present: jupyter.Present,
		})
	}
	return all
}

// failJupyter answers with an error in the form that Jupyter's clients read.
func (s *Server) failJupyter(c *gin.Context, err error) {
	rest.FailAs(c, s.log, err, func(p wire.Problem) {
		rest.WriteJSON(c, p.Status, "application/json; charset=utf-8", jupyter.ErrorOf(p))
	})
}

// newJupyter makes the server of kernels.
func (s *Server) newJupyter() *jupyter.Server {
	return jupyter.New(jupyter.Config{
		Service: s.service, Version: s.version, Heartbeat: s.cfg.Heartbeat, Stall: s.cfg.StallTimeout, Guard: s.trusted(), Log: s.log,
		Closing: s.closing, Opened: s.opened, More: s.gate.More, Now: s.audit.now,
	})
}
