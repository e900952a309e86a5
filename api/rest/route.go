package rest

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Route is one row of the table from which the router and the OpenAPI document are made.
type Route struct {
	Method   string
	Path     string // in OpenAPI's form; {path} matches the rest, slashes included
	Tag      string
	Summary  string
	Detail   string
	Query    []Parameter
	Body     any      // example of the JSON body's type; nil: none
	Optional bool     // the body may be left out
	Raw      []string // media types of a body that is not JSON
	Answers  []Answer
	Wait     bool // takes wait and Prefer
	// Idempotent means that it honours Idempotency-Key.
	Idempotent bool
	Open       bool // needs no key
	Token      bool // it is open, and carries a token in place of a key: the audit follows it
	// Scope is what the caller's key must have. Default: read for GET and HEAD, run for everything else.
	Scope           farm.Scope
	Stream          bool // it carries pieces of a stream, such as keys that are typed, which the audit does not list one by one
	BrowserCallable bool // web pages of trusted origins may call it
	KeyOnly         bool // a session of a browser does not open it, since what answers is a sandbox
	Hidden          bool // not in the document
	Handler         func(*gin.Context) error
	// Present makes the key of a request what authenticate expects; nil: it is that already.
	Present func(*http.Request)
	// Refuse answers with an error in the shape of another API; nil: with a problem.
	Refuse func(*gin.Context, error)
}

// Parameter is a query parameter or header.
type Parameter struct {
	Name, In, Doc string
	Schema        map[string]any
}

// Answer is one answer of a route that succeeds. Problems are the same for all routes.
type Answer struct {
	Status int
	Doc    string
	Body   any    // example of its JSON type; nil: not JSON
	Media  string // media type where it is not JSON; empty with a nil body: no body
}

// Needs is the scope that the caller's key must have.
func (r Route) Needs() farm.Scope {
	switch {
	case r.Scope != "":
		return r.Scope
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return farm.ScopeRead
	default:
		return farm.ScopeRun
	}
}

// TakesSessions reports whether a session of a browser opens the route, as a key does.
func (r Route) TakesSessions() bool { return strings.HasPrefix(r.Path, "/v1/") && !r.KeyOnly }

// RouterPath is the path in gin's form.
func (r Route) RouterPath() string {
	path := strings.NewReplacer("/{path}", "/*path", "/packages/{name}", "/packages/*name").Replace(r.Path) // npm names contain slashes
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// Filters are the parameters of a list; none: it is not a list.
func (r Route) Filters() (known []string) {
	if !strings.HasPrefix(r.Path, "/v1/") || !slices.ContainsFunc(r.Query, func(p Parameter) bool { return p.Name == "cursor" }) {
		return nil
	}
	for _, p := range r.Query {
		known = append(known, p.Name)
	}
	if r.Wait {
		known = append(known, "wait")
	}
	return known
}

// CheckFilters refuses parameters that a list does not know: a filter with a wrong name would list everything.
func CheckFilters(request *http.Request, known []string) error {
	if len(known) == 0 {
		return nil
	}
	for name := range request.URL.Query() {
		if !slices.Contains(known, name) {
			return BadRequestf("%q is not a parameter of this list; it takes %s", farm.Shorten(name), strings.Join(known, ", "))
		}
	}
	return nil
}

// Query is a query parameter.
func Query(name, doc string, schema map[string]any) Parameter {
	return Parameter{Name: name, In: "query", Doc: doc, Schema: schema}
}
