package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

func text(doc string) object { return object{"type": "string", "description": doc} }

func jobAnswers() []rest.Answer {
	return []rest.Answer{
		{Status: http.StatusOK, Doc: "the finished job, when the caller waited for it", Body: wire.Job{}},
		{Status: http.StatusAccepted, Doc: "the accepted job", Body: wire.Job{}},
	}
}

func paging() []rest.Parameter {
	return []rest.Parameter{
		rest.Query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": rest.PageMax, "default": rest.PageDefault}),
		rest.Query("cursor", "next_cursor of the page before", object{"type": "string"}),
	}
}

// created are the filters of lists by time.
func created() []rest.Parameter {
	return []rest.Parameter{
		rest.Query("created_after", "only what was created after this time (RFC 3339)", object{"type": "string", "format": "date-time"}),
		rest.Query("created_before", "only what was created before this time (RFC 3339)", object{"type": "string", "format": "date-time"}),
	}
}

func byOrigin() []rest.Parameter {
	return append(append(paging(), created()...), rest.Query("sandbox_id", "only of this sandbox", object{"type": "string"}), rest.Query("job_id", "only of this job", object{"type": "string"}))
}

// routes is the table. Its order is that of the document.
func (s *Server) routes() []rest.Route {
	return slices.Concat(
		s.sandboxRoutes(), s.workRoutes(), s.packageRoutes(), s.fileRoutes(), s.fsRoutes(), s.processRoutes(), s.ports.Routes(), s.jobRoutes(), s.artifactRoutes(), s.keyRoutes(), s.auditRoutes(),
		s.tools.Routes(), s.jupyter.Routes(), s.e2b.Routes(),
		s.farmRoutes(), s.nodeRoutes(), s.tenantRoutes(), s.operationRoutes(), s.dashboardRoutes(),
	)
}

// stateSchema is the schema of a query parameter for states.
func stateSchema[S ~string](states []S) object {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	return object{"type": "string", "description": "one of " + strings.Join(names, ", ")}
}
