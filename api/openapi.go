package api

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

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
		if r.hidden {
			continue
		}
		item, _ := paths[r.path].(object)
		if item == nil {
			item = object{}
			paths[r.path] = item
		}
		item[strings.ToLower(r.method)] = operation(r, sch, s.cfg.Limits.WaitMaxSeconds)
		if !seen[r.tag] {
			seen[r.tag] = true
			tags = append(tags, object{"name": r.tag})
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

func operation(r route, sch *schemas, longest int) object {
	op := object{
		"operationId": operationID(r), "summary": r.summary, "tags": []string{r.tag},
		"responses": answers(r, sch),
	}
	op["description"] = r.detail
	if !r.open {
		op["description"] = strings.TrimSpace(r.detail + " Needs a key with the scope " + string(r.needs()) + ".")
	}
	if parameters := parametersOf(r, longest); len(parameters) > 0 {
		op["parameters"] = parameters
	}
	content := object{}
	if r.body != nil {
		content["application/json"] = object{"schema": sch.of(r.body)}
	}
	for _, media := range r.raw {
		schema := object{"type": "string", "contentMediaType": media}
		if strings.HasPrefix(media, "multipart/") {
			schema = object{"type": "object", "additionalProperties": object{"type": "string", "contentMediaType": "application/octet-stream"}}
		}
		content[media] = object{"schema": schema}
	}
	if len(content) > 0 {
		op["requestBody"] = object{"required": !r.optional, "content": content}
	}
	if r.open {
		op["security"] = []object{}
	}
	return op
}

// operationID is a name for generated clients: getV1JobsId becomes get_jobs_id.
func operationID(r route) string {
	path := strings.NewReplacer("/v1", "", "{", "", "}", "", "/", "_", ".", "_").Replace(r.path)
	return strings.ToLower(r.method) + path
}

// parametersOf are the parameters of a route. longest is the largest wait, in seconds.
func parametersOf(r route, longest int) []object {
	var out []object
	for _, match := range pathParameter.FindAllStringSubmatch(r.path, -1) {
		out = append(out, object{
			"name": match[1], "in": "path", "required": true, "description": parameterDocs(r.path, match[1]), "schema": object{"type": "string"},
		})
	}
	for _, p := range r.query {
		out = append(out, object{"name": p.name, "in": p.in, "description": p.doc, "schema": p.schema})
	}
	if r.wait {
		out = append(out,
			object{"name": "wait", "in": "query", "description": "seconds to hold the answer until the job is finished; more counts as the maximum", "schema": object{"type": "number", "minimum": 0, "maximum": longest}},
			object{"name": "Prefer", "in": "header", "description": "wait=N, the same as the query parameter", "schema": object{"type": "string"}})
	}
	if r.idempotent {
		out = append(out, object{"name": "Idempotency-Key", "in": "header", "description": "the same key and body give the same job (or process); another body is 409", "schema": object{"type": "string", "maxLength": 255}})
	}
	return out
}

func answers(r route, sch *schemas) object {
	out := object{"default": object{"$ref": "#/components/responses/Problem"}}
	for _, a := range r.answers {
		response := object{"description": a.doc, "headers": headersOf(r, a)}
		switch {
		case a.body != nil:
			response["content"] = object{"application/json": object{"schema": sch.of(a.body)}}
		case a.media != "":
			response["content"] = object{a.media: object{"schema": object{"type": "string"}}}
		}
		out[strconv.Itoa(a.status)] = response
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
