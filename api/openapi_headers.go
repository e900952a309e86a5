package api

import (
	"net/http"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
func headersOf(r route, a answer) object {
	names := []string{"X-Request-Id"}
	if r.wait {
		names = append(names, "Preference-Applied")
	}
	if !r.open && r.needs() != farm.ScopeAdmin && r.needs() != farm.ScopeMetrics {
		names = append(names, "RateLimit", "RateLimit-Policy")
	}
	_, job := a.body.(wire.Job)
	_, created := a.body.(wire.Created)
	if a.status == http.StatusFound || a.status == http.StatusAccepted && r.method != http.MethodGet && (job || created) {
		names = append(names, "Location")
	}
	if a.media == rest.AnyType || r.method == http.MethodHead {
		names = append(names, "Content-Disposition", "Accept-Ranges", "Last-Modified")
	}
	if a.status == http.StatusPartialContent {
		names = append(names, "Content-Range")
	}
	if r.method == http.MethodHead {
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
