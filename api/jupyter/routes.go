package jupyter

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Base is where the routes are.
const Base = "/jupyter"

// Routes are the routes for clients of Jupyter. docs/jupyter.md describes them; the OpenAPI document has only /v1.
func (s *Server) Routes() []rest.Route {
	const (
		kernels, kernel   = Base + "/api/kernels", Base + "/api/kernels/{id}"
		sessions, session = Base + "/api/sessions", Base + "/api/sessions/{id}"
	)
	read, run := farm.ScopeRead, farm.ScopeRun
	all := []rest.Route{
		{Method: http.MethodGet, Path: Base + "/api", Open: true, Handler: s.version},
		{Method: http.MethodGet, Path: Base + "/api/status", Scope: read, Handler: s.status},
		{Method: http.MethodGet, Path: Base + "/api/kernelspecs", Scope: read, Handler: s.listSpecs},
		{Method: http.MethodGet, Path: Base + "/api/kernelspecs/{name}", Scope: read, Handler: s.readSpec},
		{Method: http.MethodGet, Path: kernels, Scope: read, Handler: s.listKernels},
		{Method: http.MethodPost, Path: kernels, Scope: run, Handler: s.createKernel},
		{Method: http.MethodGet, Path: kernel, Scope: read, Handler: s.readKernel},
		{Method: http.MethodDelete, Path: kernel, Scope: run, Handler: s.deleteKernel},
		{Method: http.MethodPost, Path: kernel + "/interrupt", Scope: run, Handler: s.interruptKernel},
		{Method: http.MethodPost, Path: kernel + "/restart", Scope: run, Handler: s.restartKernel},
		{Method: http.MethodGet, Path: kernel + "/channels", Scope: run, Stream: true, Handler: s.channels},
		{Method: http.MethodGet, Path: sessions, Scope: read, Handler: s.listSessions},
		{Method: http.MethodPost, Path: sessions, Scope: run, Handler: s.createSession},
		{Method: http.MethodGet, Path: session, Scope: read, Handler: s.readSession},
		{Method: http.MethodPatch, Path: session, Scope: run, Handler: s.changeSession},
		{Method: http.MethodDelete, Path: session, Scope: run, Handler: s.deleteSession},
	}
	for i := range all {
		all[i].Hidden, all[i].Present, all[i].Refuse = true, present, s.refuse
	}
	return all
}

// refuse answers with an error in the form that Jupyter's clients read.
func (s *Server) refuse(c *gin.Context, err error) {
	rest.FailAs(c, s.cfg.Log, err, func(p wire.Problem) {
		rest.WriteJSON(c, p.Status, "application/json; charset=utf-8", errorModel{Problem: p, Message: p.Detail, Reason: p.Title})
	})
}

// present makes the key of a request what the farm's other routes expect: Jupyter's clients send it as "Authorization: token KEY" or as
// ?token=KEY, and an empty one where they have none.
func present(r *http.Request) {
	scheme, key, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	scheme, key = strings.ToLower(scheme), strings.TrimSpace(key)
	if scheme == "token" {
		r.Header.Del("Authorization")
	}
	if scheme != "" && scheme != "token" || r.Header.Get("X-Api-Key") != "" {
		return
	}
	if key == "" {
		key = r.URL.Query().Get("token")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
}
