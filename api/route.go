package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// route is one row of the table from which the router and the OpenAPI document are made.
type route struct {
	method   string
	path     string // in OpenAPI's form; {path} matches the rest, slashes included
	tag      string
	summary  string
	detail   string
	query    []parameter
	body     any      // example of the JSON body's type; nil: none
	optional bool     // the body may be left out
	raw      []string // media types of a body that is not JSON
	answers  []answer
	wait     bool // takes wait and Prefer
	// idempotent means that it honours Idempotency-Key.
	idempotent bool
	open       bool // needs no key
	token      bool // it is open, and carries a token in place of a key: the audit follows it
	// scope is what the caller's key must have. Default: read for GET and HEAD, run for everything else.
	scope           farm.Scope
	stream          bool // it carries pieces of a stream, such as keys that are typed, which the audit does not list one by one
	browserCallable bool // web pages of trusted origins may call it
	keyOnly         bool // a session of a browser does not open it, since what answers is a sandbox
	hidden          bool // not in the document
	handler         func(*gin.Context) error
	// present makes the key of a request what authenticate expects; nil: it is that already.
	present func(*http.Request)
	// refuse answers with an error in the shape of another API; nil: with a problem.
	refuse func(*gin.Context, error)
}

// parameter is a query parameter or header.
type parameter struct {
	name, in, doc string
	schema        object
}

// answer is one answer of a route that succeeds. Problems are the same for all routes.
type answer struct {
	status int
	doc    string
	body   any    // example of its JSON type; nil: not JSON
	media  string // media type where it is not JSON; empty with a nil body: no body
}

// needs is the scope that the caller's key must have.
func (r route) needs() farm.Scope {
	switch {
	case r.scope != "":
		return r.scope
	case r.method == http.MethodGet, r.method == http.MethodHead:
		return farm.ScopeRead
	default:
		return farm.ScopeRun
	}
}

// takesSessions reports whether a session of a browser opens the route, as a key does.
func (r route) takesSessions() bool { return strings.HasPrefix(r.path, "/v1/") && !r.keyOnly }

// ginPath is the path in gin's form.
func (r route) ginPath() string {
	path := strings.NewReplacer("/{path}", "/*path", "/packages/{name}", "/packages/*name").Replace(r.path) // npm names contain slashes
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// filters are the parameters of a list; none: it is not a list.
func (r route) filters() (known []string) {
	if !strings.HasPrefix(r.path, "/v1/") || !slices.ContainsFunc(r.query, func(p parameter) bool { return p.name == "cursor" }) {
		return nil
	}
	for _, p := range r.query {
		known = append(known, p.name)
	}
	if r.wait {
		known = append(known, "wait")
	}
	return known
}

// checkFilters refuses parameters that a list does not know: a filter with a wrong name would list everything.
func checkFilters(request *http.Request, known []string) error {
	if len(known) == 0 {
		return nil
	}
	for name := range request.URL.Query() {
		if !slices.Contains(known, name) {
			return rest.BadRequestf("%q is not a parameter of this list; it takes %s", farm.Shorten(name), strings.Join(known, ", "))
		}
	}
	return nil
}

func text(doc string) object { return object{"type": "string", "description": doc} }

func query(name, doc string, schema object) parameter {
	return parameter{name: name, in: "query", doc: doc, schema: schema}
}

func jobAnswers() []answer {
	return []answer{
		{http.StatusOK, "the finished job, when the caller waited for it", wire.Job{}, ""},
		{http.StatusAccepted, "the accepted job", wire.Job{}, ""},
	}
}

func paging() []parameter {
	return []parameter{
		query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": rest.PageMax, "default": rest.PageDefault}),
		query("cursor", "next_cursor of the page before", object{"type": "string"}),
	}
}

// created are the filters of lists by time.
func created() []parameter {
	return []parameter{
		query("created_after", "only what was created after this time (RFC 3339)", object{"type": "string", "format": "date-time"}),
		query("created_before", "only what was created before this time (RFC 3339)", object{"type": "string", "format": "date-time"}),
	}
}

func byOrigin() []parameter {
	return append(append(paging(), created()...), query("sandbox_id", "only of this sandbox", object{"type": "string"}), query("job_id", "only of this job", object{"type": "string"}))
}

// routes is the table. Its order is that of the document.
func (s *Server) routes() []route {
	return slices.Concat(
		s.sandboxRoutes(), s.workRoutes(), s.packageRoutes(), s.fileRoutes(), s.fsRoutes(), s.processRoutes(), s.portRoutes(), s.linkRoutes(), s.forwardRoutes(), s.jobRoutes(), s.artifactRoutes(), s.keyRoutes(), s.auditRoutes(),
		s.mcpRoutes(), s.notebookRoutes(), s.jupyterRoutes(), s.compatRoutes(), s.e2bRoutes(),
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
