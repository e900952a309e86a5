package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// byHost serves the hosts of ports apart from the farm's own. Those of E2B's services are no ports, unless a link says so.
func (s *Server) byHost(w http.ResponseWriter, r *http.Request) {
	number, sandbox, ok, below := s.ports.ParseHost(r.Host)
	link, _, _ := ports.TakeToken(r)
	switch {
	case ok && link == "" && e2b.IsService(number):
		e2b.Name(r, number, sandbox)
		s.boxes.ServeHTTP(w, r)
	case ok || below:
		s.previews.ServeHTTP(w, r)
	default:
		s.engine.ServeHTTP(w, r)
	}
}

// hostRouter makes an engine for hosts of ports. None of the farm's other routes is there.
func (s *Server) hostRouter(routes []rest.Route) *gin.Engine {
	e := gin.New()
	e.RedirectTrailingSlash, e.RedirectFixedPath, e.RemoveExtraSlash = false, false, false
	e.UseRawPath, e.UnescapePathValues = false, false
	_ = e.SetTrustedProxies(nil) // nil cannot be wrong
	e.Use(rest.Identify(s.cfg.StallTimeout), rest.Log(s.log), s.metrics.observe, rest.Recover(s.log))
	for _, r := range routes {
		e.Handle(r.Method, r.RouterPath(), s.handle(r))
	}
	return e
}

// boxRouter makes the engine of the hosts that a sandbox has for E2B's services.
func (s *Server) boxRouter() http.Handler {
	e := s.hostRouter(s.e2b.BoxRoutes(""))
	e.NoRoute(func(c *gin.Context) { s.e2b.Refuse(c, farm.NotFoundf("There is no such path.")) })
	return e
}
