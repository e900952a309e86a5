package api

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// route is one row of the table from which both the router and the OpenAPI document are made.
type route struct {
	method  string
	path    string // in OpenAPI's form; {path} takes the rest, slashes included
	tag     string
	summary string
	detail  string
	query   []parameter
	body    any // example of the JSON body's type; nil: none
	lax     bool
	raw     []string // media types of a body that is not JSON
	answers []answer
	wait    bool // takes wait and Prefer
	open    bool // needs no key
	pages   bool // takes calls of web pages on trusted origins, and tells their browsers so
	hidden  bool // not in the document
	handler func(*gin.Context) error
	// refuse tells of an error in another surface's shape; nil: a problem.
	refuse func(*gin.Context, error)
}

// parameter is a query parameter or header.
type parameter struct {
	name, in, doc string
	schema        object
}

// answer is one way a route answers when all is well. Problems are the same everywhere.
type answer struct {
	status int
	doc    string
	body   any    // example of its JSON type; nil: not JSON
	media  string // media type where it is not JSON; empty with a nil body: no body
}

func (r route) needsKey() bool { return !r.open }

// ginPath is the path in gin's form.
func (r route) ginPath() string {
	path := strings.NewReplacer("/{path}", "/*path", "/packages/{name}", "/packages/*name").Replace(r.path) // npm's names hold slashes
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

func text(doc string) object { return object{"type": "string", "description": doc} }

func query(name, doc string, schema object) parameter {
	return parameter{name: name, in: "query", doc: doc, schema: schema}
}

// Answers that many routes give.
func jobAnswers() []answer {
	return []answer{
		{http.StatusOK, "the finished job, when the caller waited for it", wire.Job{}, ""},
		{http.StatusAccepted, "the accepted job", wire.Job{}, ""},
	}
}

func paging() []parameter {
	return []parameter{
		query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": pageMax, "default": pageDefault}),
		query("cursor", "next_cursor of the page before", object{"type": "string"}),
	}
}

func byOrigin() []parameter {
	return append(paging(), query("sandbox_id", "only of this sandbox", object{"type": "string"}), query("job_id", "only of this job", object{"type": "string"}))
}

// routes is the table.
func (s *Server) routes() []route {
	all := s.sandboxRoutes()
	all = append(all, s.fileRoutes()...)
	all = append(all, s.jobRoutes()...)
	all = append(all, s.mcpRoutes()...)
	all = append(all, s.notebookRoutes()...)
	all = append(all, s.seedRoutes()...)
	return append(all, s.metaRoutes()...)
}

func (s *Server) sandboxRoutes() []route {
	const base = "/v1/sandboxes/{id}"
	created := []answer{
		{http.StatusCreated, "the ready sandbox and its finished job, when the caller waited", wire.Created{}, ""},
		{http.StatusOK, "the sandbox and its job, which ended otherwise while the caller waited", wire.Created{}, ""},
		{http.StatusAccepted, "the new sandbox and the job that creates it", wire.Created{}, ""},
	}
	one := []answer{{http.StatusOK, "the sandbox", wire.Sandbox{}, ""}}
	list := []answer{{http.StatusOK, "a page of sandboxes, newest first", wire.List[wire.Sandbox]{}, ""}}
	filters := append(paging(), query("state", "only in these states, separated by commas", stateSchema(farm.SandboxStates())),
		query("label", "key=value; may be repeated", object{"type": "array", "items": object{"type": "string"}}))
	return []route{
		{method: "POST", path: "/v1/sandboxes", tag: "Sandboxes", summary: "Create a sandbox", body: wire.CreateRequest{}, answers: created, wait: true, handler: s.createSandbox},
		{method: "GET", path: "/v1/sandboxes", tag: "Sandboxes", summary: "List sandboxes", query: filters, answers: list, handler: s.listSandboxes},
		{method: "GET", path: base, tag: "Sandboxes", summary: "Read a sandbox", detail: "Reading is not use: idleness goes on.", answers: one, handler: s.readSandbox},
		{method: "PATCH", path: base, tag: "Sandboxes", summary: "Keep a sandbox alive, rename or label it", body: wire.UpdateRequest{}, answers: one, handler: s.updateSandbox},
		{method: "DELETE", path: base, tag: "Sandboxes", summary: "Close a sandbox", detail: "Cancels what runs and waits in it, then closes it.", answers: jobAnswers(), wait: true, handler: s.closeSandbox},
		{method: "POST", path: base + "/execute", tag: "Work", summary: "Run code in a sandbox", detail: "The kernel of the context keeps its variables between calls.", body: wire.ExecuteRequest{}, answers: jobAnswers(), wait: true, handler: s.execute},
		{method: "POST", path: base + "/commands", tag: "Work", summary: "Run shell commands in a sandbox", body: wire.CommandRequest{}, answers: jobAnswers(), wait: true, handler: s.command},
		{method: "POST", path: base + "/packages", tag: "Packages", summary: "Install packages", detail: "A job: poll it, or each package by its name. What cannot be had is told one by one, the rest is installed, and a kernel that runs can import it.", body: wire.PackagesRequest{}, answers: jobAnswers(), wait: true, handler: s.install},
		{method: "GET", path: base + "/packages", tag: "Packages", summary: "List packages", detail: "What the image brought, what was installed, what is being installed, and what could not be.", answers: []answer{{http.StatusOK, "the packages, by name", wire.Items[wire.Package]{}, ""}}, handler: s.listPackages},
		{method: "GET", path: base + "/packages/{name}", tag: "Packages", summary: "Look a package up", detail: "Names are compared by PEP 503.", query: []parameter{
			query("manager", "whose package it is", object{"type": "string", "enum": []string{"pip", "npm"}, "default": "pip"}),
		}, answers: []answer{{http.StatusOK, "how it stands with the package", wire.Package{}, ""}}, handler: s.readPackage},
		{method: "POST", path: base + "/interrupt", tag: "Work", summary: "Interrupt what runs", body: wire.ControlRequest{}, lax: true, answers: jobAnswers(), wait: true, handler: s.control(farm.KindInterrupt)},
		{method: "POST", path: base + "/restart", tag: "Work", summary: "Start the kernels anew", detail: "Variables are gone, files stay.", body: wire.ControlRequest{}, lax: true, answers: jobAnswers(), wait: true, handler: s.control(farm.KindRestart)},
		{method: "POST", path: base + "/hibernate", tag: "Sandboxes", summary: "Freeze a sandbox to disk", detail: "Needs a runtime with checkpoints; elsewhere 409.", body: wire.ControlRequest{}, lax: true, answers: jobAnswers(), wait: true, handler: s.frozen},
		{method: "POST", path: base + "/resume", tag: "Sandboxes", summary: "Bring a frozen sandbox back", detail: "Needs a runtime with checkpoints; elsewhere 409.", body: wire.ControlRequest{}, lax: true, answers: jobAnswers(), wait: true, handler: s.frozen},
		{method: "POST", path: "/v1/run", tag: "Work", summary: "Run code in a fresh sandbox", detail: "The sandbox is closed afterwards.", body: wire.RunRequest{}, answers: jobAnswers(), wait: true, handler: s.run},
	}
}

func (s *Server) fileRoutes() []route {
	const base = "/v1/sandboxes/{id}/files"
	accepted := answer{http.StatusAccepted, "the job, when it is not finished within the wait", wire.Job{}, ""}
	download := []answer{
		{http.StatusOK, "the file", nil, "application/octet-stream"},
		{http.StatusPartialContent, "the part of the file that the Range header asks for", nil, "application/octet-stream"},
		{http.StatusFound, "a presigned link, with link=1", wire.Link{}, ""},
	}
	return []route{
		{method: "GET", path: base, tag: "Files", summary: "List files", query: []parameter{
			query("path", "directory in the workspace", object{"type": "string", "default": ""}),
			query("recursive", "the whole tree", object{"type": "boolean", "default": false}),
		}, answers: []answer{{http.StatusOK, "the entries", wire.Files{}, ""}}, wait: true, handler: s.listFiles},
		{
			method: "POST", path: base, tag: "Files", summary: "Upload many files", detail: "A multipart form, each part stored under its file name, or a tar of a whole project, taken as a whole or not at all.",
			query:   []parameter{query("path", "directory in the workspace", object{"type": "string", "default": ""})},
			raw:     []string{"multipart/form-data", "application/x-tar"},
			answers: []answer{{http.StatusCreated, "what was written", wire.Files{}, ""}, accepted}, wait: true, handler: s.uploadFiles,
		},
		{
			method: "POST", path: base + "/move", tag: "Files", summary: "Rename a file or directory", body: wire.MoveRequest{},
			answers: []answer{{http.StatusOK, "the entry in its new place", wire.FileEntry{}, ""}, accepted}, wait: true, handler: s.moveFile,
		},
		{
			method: "PUT", path: base + "/{path}", tag: "Files", summary: "Write a file", detail: "Raw bytes of any size, streamed. A path that ends in a slash makes a directory.",
			raw:     []string{"application/octet-stream"},
			answers: []answer{{http.StatusCreated, "the entry", wire.FileEntry{}, ""}, accepted}, wait: true, handler: s.writeFile,
		},
		{
			method: "GET", path: base + "/{path}", tag: "Files", summary: "Read a file", detail: "Range headers of one part are honoured.",
			query:   []parameter{query("link", "redirect to a presigned link", object{"type": "boolean", "default": false}), {"Range", "header", "bytes=first-last", text("a part of the file")}},
			answers: download, wait: true, handler: s.readFile,
		},
		{method: "HEAD", path: base + "/{path}", tag: "Files", summary: "Describe a file", answers: []answer{{http.StatusOK, "size, time and type in the headers", nil, ""}}, wait: true, handler: s.statFile},
		{
			method: "DELETE", path: base + "/{path}", tag: "Files", summary: "Delete a file or directory",
			answers: []answer{{http.StatusOK, "the finished job", wire.Job{}, ""}, accepted}, wait: true, handler: s.deleteFile,
		},
	}
}

func (s *Server) jobRoutes() []route {
	filters := append(byOrigin(), query("state", "only in this state", stateSchema(farm.JobStates())), query("kind", "only of this kind", object{"type": "string"}))
	after := parameter{"Last-Event-ID", "header", "id of the last event that was seen", object{"type": "string"}}
	return []route{
		{method: "GET", path: "/v1/jobs", tag: "Jobs", summary: "List jobs", query: filters, answers: []answer{{http.StatusOK, "a page of jobs, newest first", wire.List[wire.Job]{}, ""}}, handler: s.listJobs},
		{method: "POST", path: "/v1/jobs/batch", tag: "Jobs", summary: "Start many jobs at once", body: wire.BatchRequest{}, answers: []answer{{http.StatusMultiStatus, "one outcome for each entry, in order", wire.BatchResult{}, ""}}, handler: s.batch},
		{method: "GET", path: "/v1/jobs/{id}", tag: "Jobs", summary: "Read a job, or wait for it", answers: []answer{
			{http.StatusOK, "the job", wire.Job{}, ""},
			{http.StatusAccepted, "the job, which did not end within the wait", wire.Job{}, ""},
		}, wait: true, handler: s.readJob},
		{method: "DELETE", path: "/v1/jobs/{id}", tag: "Jobs", summary: "Cancel a job", detail: "A finished job stays as it is.", answers: []answer{
			{http.StatusOK, "the job, which has ended", wire.Job{}, ""},
			{http.StatusAccepted, "the job, which is being canceled", wire.Job{}, ""},
		}, wait: true, handler: s.cancelJob},
		{
			method: "GET", path: "/v1/jobs/{id}/events", tag: "Jobs", summary: "Follow a job", detail: "Server-sent events stdout, stderr, display, progress, artifact and state; from the start or behind the given id, also after the end. The final state is last.",
			query:   []parameter{after, query("after", "the same as Last-Event-ID", object{"type": "string"})},
			answers: []answer{{http.StatusOK, "the events", nil, "text/event-stream"}}, handler: s.events,
		},
		{method: "GET", path: "/v1/artifacts", tag: "Artifacts", summary: "List artifacts", query: byOrigin(), answers: []answer{{http.StatusOK, "a page of artifacts, newest first", wire.List[wire.Artifact]{}, ""}}, handler: s.listArtifacts},
		{method: "GET", path: "/v1/artifacts/{id}", tag: "Artifacts", summary: "Download an artifact", answers: []answer{{http.StatusFound, "a fresh presigned link in Location, the artifact in the body", wire.Artifact{}, ""}}, handler: s.readArtifact},
	}
}

func (s *Server) metaRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/images", tag: "Farm", summary: "List the images on offer", answers: []answer{{http.StatusOK, "the images", wire.Items[wire.Image]{}, ""}}, handler: s.images},
		{method: "GET", path: "/v1/workers", tag: "Farm", summary: "List the live workers", answers: []answer{{http.StatusOK, "the workers", wire.Items[wire.Worker]{}, ""}}, handler: s.workers},
		{method: "GET", path: "/v1/queues", tag: "Farm", summary: "List the queues", answers: []answer{{http.StatusOK, "the queues", wire.Items[wire.Queue]{}, ""}}, handler: s.queues},
		{method: "GET", path: "/v1/limits", tag: "Farm", summary: "Show the farm's limits", answers: []answer{{http.StatusOK, "the limits", wire.Limits{}, ""}}, handler: s.limits},
		{method: "GET", path: "/healthz", tag: "Operation", summary: "Is the server alive?", open: true, answers: []answer{{http.StatusOK, "it is", wire.Health{}, ""}}, handler: s.health},
		{method: "GET", path: "/readyz", tag: "Operation", summary: "Can the farm do work?", detail: "Looks at Redis, the object store and the workers.", open: true, answers: []answer{
			{http.StatusOK, "it can", wire.Ready{}, ""}, {http.StatusServiceUnavailable, "it cannot, and which part is missing", wire.Ready{}, ""},
		}, handler: s.ready},
		{method: "GET", path: "/metrics", tag: "Operation", summary: "Prometheus metrics", answers: []answer{{http.StatusOK, "the metrics", nil, "text/plain"}}, handler: s.showMetrics},
		{method: "GET", path: "/openapi.json", tag: "Operation", summary: "This document", open: true, answers: []answer{{http.StatusOK, "OpenAPI 3.1", map[string]any{}, ""}}, handler: s.openapi},
		{method: "GET", path: "/docs", tag: "Operation", summary: "Interactive documentation", open: true, answers: []answer{{http.StatusOK, "a page", nil, "text/html"}}, handler: s.page("index.html")},
		{method: "GET", path: "/docs/app.js", open: true, hidden: true, handler: s.page("app.js")},
		{method: "GET", path: "/docs/style.css", open: true, hidden: true, handler: s.page("style.css")},
	}
}

func stateSchema[S ~string](states []S) object {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	return object{"type": "string", "description": "one of " + strings.Join(names, ", ")}
}
