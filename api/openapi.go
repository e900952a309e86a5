package api

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// object is a JSON object of the OpenAPI document.
type object = map[string]any

// pathParameter finds the parameters in a path.
var pathParameter = regexp.MustCompile(`\{([a-z_]+)\}`)

// parameterDocs describe the path parameters.
func parameterDocs(path, name string) string {
	switch {
	case name == "path" && strings.Contains(path, "/fs/"):
		return "absolute path without its first slash; slashes need no escape"
	case name == "path":
		return "path in the workspace; slashes need no escape"
	case name == "name":
		return "name of a package"
	case name == "process":
		return "id of the process"
	case name == "tool":
		return "name of the tool"
	case strings.HasPrefix(path, "/v1/jobs"):
		return "id of the job"
	case strings.HasPrefix(path, "/v1/keys"):
		return "id of the key"
	case strings.HasPrefix(path, "/v1/artifacts"):
		return "id of the artifact"
	default:
		return "id of the sandbox"
	}
}

// document makes the OpenAPI document from the route table and the types of package wire.
func (s *Server) document() ([]byte, error) {
	sch := newSchemas(s.bounds())
	paths := object{}
	tags := []object{}
	seen := map[string]bool{}
	for _, r := range s.routes() {
		if r.Hidden {
			continue
		}
		item, _ := paths[r.Path].(object)
		if item == nil {
			item = object{}
			paths[r.Path] = item
		}
		item[strings.ToLower(r.Method)] = operation(r, sch, s.cfg.Limits.WaitMaxSeconds)
		if !seen[r.Tag] {
			seen[r.Tag] = true
			tags = append(tags, object{"name": r.Tag})
		}
	}
	sch.add("Problem", wire.Problem{})
	for _, data := range []any{wire.TextData{}, wire.DisplayData{}, wire.ClearData{}, wire.ProgressData{}, wire.StateData{}, wire.WatchReady{}, wire.FileChange{}, wire.ChangesDropped{}} {
		sch.of(data) // the data of events, which no answer references
	}
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Sandfarm", "version": s.version,
			"description": "A farm of sandboxes that run code. Requests that start work answer 202 with a job; wait holds the answer until the job is finished. Errors are problems by RFC 9457 with a code.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []object{{"url": "/"}},
		"tags":       tags,
		"paths":      paths,
		"webhooks":   webhooks(sch),
		"components": object{"schemas": sch.all, "responses": responses(), "headers": headers(), "securitySchemes": security()},
		"security":   []object{{"bearer": []string{}}, {"apiKey": []string{}}},
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI document: %w", err)
	}
	return text, nil
}

func security() object {
	return object{
		"bearer": object{"type": "http", "scheme": "bearer", "description": "Authorization: Bearer <key>. A farm without keys takes any."},
		"apiKey": object{"type": "apiKey", "in": "header", "name": "X-API-Key"},
	}
}

func responses() object {
	return object{"Problem": object{
		"description": "The request failed; code says how.",
		"headers":     references("X-Request-Id", "Retry-After", "WWW-Authenticate"),
		"content":     object{"application/problem+json": object{"schema": object{"$ref": "#/components/schemas/Problem"}}},
	}}
}

func operation(r rest.Route, sch *schemas, longest int) object {
	op := object{
		"operationId": operationID(r), "summary": r.Summary, "tags": []string{r.Tag},
		"responses": answers(r, sch),
	}
	op["description"] = r.Detail
	if !r.Open {
		op["description"] = strings.TrimSpace(r.Detail + " Needs a key with the scope " + string(r.Needs()) + ".")
	}
	if parameters := parametersOf(r, longest); len(parameters) > 0 {
		op["parameters"] = parameters
	}
	content := object{}
	if r.Body != nil {
		content["application/json"] = object{"schema": sch.of(r.Body)}
	}
	for _, media := range r.Raw {
		schema := object{"type": "string", "contentMediaType": media}
		if strings.HasPrefix(media, "multipart/") {
			schema = object{"type": "object", "additionalProperties": object{"type": "string", "contentMediaType": "application/octet-stream"}}
		}
		content[media] = object{"schema": schema}
	}
	if len(content) > 0 {
		op["requestBody"] = object{"required": !r.Optional, "content": content}
	}
	if r.Open {
		op["security"] = []object{}
	}
	return op
}

// operationID is a name for generated clients: getV1JobsId becomes get_jobs_id.
func operationID(r rest.Route) string {
	path := strings.NewReplacer("/v1", "", "{", "", "}", "", "/", "_", ".", "_").Replace(r.Path)
	return strings.ToLower(r.Method) + path
}

// parametersOf are the parameters of a route. longest is the largest wait, in seconds.
func parametersOf(r rest.Route, longest int) []object {
	var out []object
	for _, match := range pathParameter.FindAllStringSubmatch(r.Path, -1) {
		out = append(out, object{
			"name": match[1], "in": "path", "required": true, "description": parameterDocs(r.Path, match[1]), "schema": object{"type": "string"},
		})
	}
	for _, p := range r.Query {
		out = append(out, object{"name": p.Name, "in": p.In, "description": p.Doc, "schema": p.Schema})
	}
	if r.Wait {
		out = append(out,
			object{"name": "wait", "in": "query", "description": "seconds to hold the answer until the job is finished; more counts as the maximum", "schema": object{"type": "number", "minimum": 0, "maximum": longest}},
			object{"name": "Prefer", "in": "header", "description": "wait=N, the same as the query parameter", "schema": object{"type": "string"}})
	}
	if r.Idempotent {
		out = append(out, object{"name": "Idempotency-Key", "in": "header", "description": "the same key and body give the same job (or process); another body is 409", "schema": object{"type": "string", "maxLength": 255}})
	}
	return out
}

func answers(r rest.Route, sch *schemas) object {
	out := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, a := range r.Answers {
		response := object{"description": a.Doc, "headers": headersOf(r, a)}
		switch {
		case a.Body != nil:
			response["content"] = object{"application/json": object{"schema": sch.of(a.Body)}}
		case a.Media != "":
			response["content"] = object{a.Media: object{"schema": object{"type": "string"}}}
		}
		out[strconv.Itoa(a.Status)] = response
	}
	return out
}

// bounds are the limits of fields, by type and field name. They are settings, so struct tags cannot contain them.
func (s *Server) bounds() map[string]object {
	l := s.cfg.Limits
	whole := func(low, high, standard int) object {
		return object{"minimum": low, "maximum": high, "default": standard}
	}
	timeout := whole(1, l.TimeoutMaxSeconds, l.TimeoutDefaultSeconds)
	ttl := whole(l.TTLMinSeconds, l.TTLMaxSeconds, l.TTLDefaultSeconds)
	idle := whole(0, l.TTLMaxSeconds, l.IdleDefaultSeconds)
	code := object{"minLength": 1, "maxLength": l.MaxCodeBytes}
	return map[string]object{
		"ExecuteRequest.timeout_seconds": timeout, "CommandRequest.timeout_seconds": timeout, "RunRequest.timeout_seconds": timeout,
		"CreateRequest.ttl_seconds": ttl, "CreateRequest.idle_seconds": idle,
		"UpdateRequest.ttl_seconds":  {"minimum": l.TTLMinSeconds, "maximum": l.TTLMaxSeconds},
		"UpdateRequest.idle_seconds": {"minimum": 0, "maximum": l.TTLMaxSeconds},
		"ExecuteRequest.code":        code, "RunRequest.code": code,
		"CreateRequest.name":         {"maxLength": l.MaxNameBytes},
		"UpdateRequest.name":         {"maxLength": l.MaxNameBytes},
		"CommandRequest.commands":    {"minItems": 1, "maxItems": l.MaxCommands},
		"BatchRequest.jobs":          {"minItems": 1, "maxItems": l.MaxBatch, "items": batchEntry()},
		"PackagesRequest.packages":   {"minItems": 1},
		"ResourcesRequest.memory_mb": whole(l.Memory.Min, l.Memory.Max, l.Memory.Default),
		"ResourcesRequest.pids":      whole(l.PIDs.Min, l.PIDs.Max, l.PIDs.Default),
		"ResourcesRequest.disk_mb":   whole(l.Disk.Min, l.Disk.Max, l.Disk.Default),
		"ResourcesRequest.cpus":      {"minimum": l.CPUs.Min, "maximum": l.CPUs.Max, "default": l.CPUs.Default},
		"GPURequest.count":           {"minimum": 0, "maximum": farm.MaxGPUs},
	}
}

// batchEntry describes an entry of a batch, whose other fields are those of the body of its kind's route.
func batchEntry() object {
	kinds := make([]string, 0, len(service.BatchKinds()))
	for _, kind := range service.BatchKinds() {
		kinds = append(kinds, string(kind))
	}
	return object{
		"type": "object", "required": []string{"kind"}, "description": "the body of the kind's route, plus kind and sandbox_id",
		"properties": object{
			"kind":       object{"type": "string", "enum": kinds, "description": "what the job does"},
			"sandbox_id": object{"type": "string", "description": "the sandbox it works in; not with create and run"},
		},
	}
}

// headers are the components of the headers of answers.
func headers() object {
	out := object{}
	for name, doc := range map[string]string{
		"X-Request-Id":        "id of the request, found in the server's log",
		"Location":            "where to continue: the job, or the file behind a link",
		"Preference-Applied":  "the wait of the Prefer header, as it was applied",
		"Retry-After":         "seconds after which to try again; with 429 and 503",
		"RateLimit-Policy":    "requests_per_minute of the caller's tenant, by draft-ietf-httpapi-ratelimit-headers; absent without this quota",
		"RateLimit":           "how many requests are allowed at once now, and seconds until all are again; absent without this quota",
		"WWW-Authenticate":    "how to authenticate; with 401",
		"Content-Disposition": "name of the file",
		"Content-Range":       "which bytes of how many these are",
		"Accept-Ranges":       "bytes",
		"Last-Modified":       "last change of the file",
		"X-File-Type":         "what it is: file, dir, symlink or other",
		"X-File-Mode":         "its permissions, four octal digits",
	} {
		out[name] = object{"description": doc, "schema": object{"type": "string"}}
	}
	return out
}

func references(names ...string) object {
	out := object{}
	for _, name := range names {
		out[name] = object{"$ref": "#/components/headers/" + name}
	}
	return out
}

// headersOf returns the headers of an answer of a route.
func headersOf(r rest.Route, a rest.Answer) object {
	names := []string{"X-Request-Id"}
	if r.Wait {
		names = append(names, "Preference-Applied")
	}
	if !r.Open && r.Needs() != farm.ScopeAdmin && r.Needs() != farm.ScopeMetrics {
		names = append(names, "RateLimit", "RateLimit-Policy")
	}
	_, job := a.Body.(wire.Job)
	_, created := a.Body.(wire.Created)
	if a.Status == http.StatusFound || a.Status == http.StatusAccepted && r.Method != http.MethodGet && (job || created) {
		names = append(names, "Location")
	}
	if a.Media == rest.AnyType || r.Method == http.MethodHead {
		names = append(names, "Content-Disposition", "Accept-Ranges", "Last-Modified")
	}
	if a.Status == http.StatusPartialContent {
		names = append(names, "Content-Range")
	}
	if r.Method == http.MethodHead {
		names = append(names, "X-File-Type", "X-File-Mode")
	}
	return references(names...)
}

// webhooks describes the request that the farm sends to the callback_url of a job.
func webhooks(sch *schemas) object {
	var parameters []object
	for _, h := range [][2]string{
		{"webhook-id", "id of the job; the same at every attempt"},
		{"webhook-timestamp", "seconds since 1970 of this attempt"},
		{"webhook-signature", "v1, and the base64 of the HMAC-SHA256 over id.timestamp.body with the tenant's key"},
	} {
		parameters = append(parameters, object{"name": h[0], "in": "header", "required": true, "description": h[1], "schema": object{"type": "string"}})
	}
	return object{"job_finished": object{"post": object{
		"operationId": "job_finished", "summary": "A job with a callback_url has ended", "tags": []string{"Jobs"},
		"description": "Signed by Standard Webhooks. It is sent again, with growing pauses, until the receiver answers 2xx or 410.",
		"parameters":  parameters, "security": []object{},
		"requestBody": object{"required": true, "content": object{"application/json": object{"schema": sch.of(wire.Job{})}}},
		"responses": object{
			"2XX": object{"description": "the receiver took it"},
			"410": object{"description": "the receiver wants no callback of this job any more"},
		},
	}}}
}

//go:embed docs/index.html docs/app.js docs/style.css
var docsPage embed.FS

// pagePolicy lets the documentation page run its own script and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *Server) operationRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/healthz", Tag: "Operation", Summary: "Is the server alive?", Open: true, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "it is", Body: wire.Health{}}}, Handler: s.health},
		{Method: "GET", Path: "/readyz", Tag: "Operation", Summary: "Can the farm do work?", Detail: "Looks at Redis, the object store and the workers.", Open: true, Answers: []rest.Answer{
			{Status: http.StatusOK, Doc: "it can", Body: wire.Ready{}}, {Status: http.StatusServiceUnavailable, Doc: "it cannot, and which part is missing", Body: wire.Ready{}},
		}, Handler: s.ready},
		{Method: "GET", Path: "/metrics", Tag: "Operation", Summary: "Prometheus metrics", Scope: farm.ScopeMetrics, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the metrics", Media: "text/plain"}}, Handler: s.showMetrics},
		{Method: "GET", Path: "/openapi.json", Tag: "Operation", Summary: "This document", Open: true, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "OpenAPI 3.1", Body: map[string]any{}}}, Handler: s.openapi},
		{Method: "GET", Path: "/docs", Tag: "Operation", Summary: "Interactive documentation", Open: true, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page", Media: "text/html"}}, Handler: s.page("index.html")},
		{Method: "GET", Path: "/docs/app.js", Open: true, Hidden: true, Handler: s.page("app.js")},
		{Method: "GET", Path: "/docs/style.css", Open: true, Hidden: true, Handler: s.page("style.css")},
	}
}

func (s *Server) health(c *gin.Context) error {
	return rest.Reply(c, http.StatusOK, wire.Health{Status: "ok", Version: s.version})
}

func (s *Server) ready(c *gin.Context) error {
	state := s.service.Ready(c.Request.Context())
	status := http.StatusOK
	if state.Status != "ready" {
		status = http.StatusServiceUnavailable
		c.Header("Retry-After", rest.RetryUnavailable)
	}
	return rest.Reply(c, status, state)
}

func (s *Server) openapi(c *gin.Context) error {
	c.Header("Cache-Control", "no-cache")
	c.Data(http.StatusOK, "application/json; charset=utf-8", s.spec)
	return nil
}

// page makes the handler of a file of the documentation page.
func (s *Server) page(name string) func(*gin.Context) error {
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
	return func(c *gin.Context) error {
		content, err := docsPage.ReadFile("docs/" + name)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		c.Header("Content-Security-Policy", pagePolicy)
		c.Header("Cache-Control", "no-cache")
		c.Data(http.StatusOK, types[path.Ext(name)], content)
		return nil
	}
}
