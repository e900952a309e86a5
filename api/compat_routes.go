package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// servedToolset is a toolset of an older system with its handlers.
type servedToolset struct {
	set  *compat.Toolset
	http http.Handler
	sse  []stream
}

// stream is an SSE address of a toolset, with its address for messages.
type stream struct {
	path, messages string
	sse            *mcp.SSE
}

// toolsetEnv is the environment of the toolsets' tools.
func (s *Server) toolsetEnv() compat.Env {
	return compat.Env{
		Farm:   s.farmOf,
		Logger: s.log,
	}
}

// serveToolsets makes the handlers of all toolsets.
func (s *Server) serveToolsets() ([]servedToolset, error) {
	var all []servedToolset
	for _, set := range compat.Toolsets() {
		server, err := set.Serve(s.toolsetEnv(), s.version, s.mcpHTTP())
		if err != nil {
			return nil, err
		}
		one := servedToolset{set: set, http: server.Handler()}
		prefixes := []string{"/" + set.Name}
		if set.Name == compat.Bare {
			prefixes = append(prefixes, "")
		}
		for _, prefix := range prefixes {
			one.sse = append(one.sse, stream{path: prefix + "/sse", messages: prefix + "/messages/", sse: server.SSE(mcp.SSEOptions{
				Messages: prefix + "/messages/", Owner: ownerOf, Heartbeat: s.cfg.Heartbeat, Closing: s.closing,
			})})
		}
		all = append(all, one)
	}
	return all, nil
}

// compatRoutes are the routes of the older systems.
func (s *Server) compatRoutes() []route {
	all := s.sandboxToolRoutes()
	for _, one := range s.toolsets {
		all = append(all, slashed([]route{{
			method: http.MethodPost, path: mcpPath + "/" + one.set.Name, tag: "Toolsets", summary: "The toolset " + one.set.Name + " by the Model Context Protocol",
			detail: one.set.About + " Streamable HTTP, as at /mcp.", raw: []string{"application/json"}, browserCallable: true, scope: farm.ScopeRead,
			answers: []answer{
				{http.StatusOK, "the response", nil, "application/json"},
				{http.StatusAccepted, "the notification was taken", nil, ""},
			},
			handler: s.serve(one.http.ServeHTTP),
		}})...)
		for _, at := range one.sse {
			all = append(all, streamRoutes(s, one.set.Name, at)...)
		}
	}
	return all
}

func streamRoutes(s *Server, name string, at stream) []route {
	taken := []answer{{http.StatusAccepted, "the message was taken; its response comes over the stream", nil, "text/plain"}}
	id := []parameter{query("session_id", "of the stream", object{"type": "string"})}
	post := route{
		method: http.MethodPost, path: at.messages, tag: "Toolsets", summary: "Send a message of the toolset " + name, query: id,
		raw: []string{"application/json"}, answers: taken, browserCallable: true, scope: farm.ScopeRead, handler: s.serve(at.sse.Post),
	}
	plain := post
	plain.path, plain.hidden = at.messages[:len(at.messages)-1], true
	return append(slashed([]route{{
		method: http.MethodGet, path: at.path, tag: "Toolsets", summary: "Open a stream of the toolset " + name,
		detail:  "The older HTTP transport of the protocol: the first event, endpoint, tells where to post messages.",
		answers: []answer{{http.StatusOK, "the stream", nil, "text/event-stream"}}, browserCallable: true, handler: s.serve(at.sse.Stream),
	}}), post, plain)
}

// sandboxToolRoutes are the routes of the system with the toolset "sandbox", in addition to its MCP addresses.
func (s *Server) sandboxToolRoutes() []route {
	return []route{
		{
			method: http.MethodPost, path: mcpPath + "/tools/{tool}", tag: "Toolsets", summary: "Call a tool of the toolset sandbox",
			detail: "The body is an object with the tool's arguments, or nothing where it needs none; the answer is the tool's own.",
			body:   map[string]any{}, optional: true, answers: []answer{{http.StatusOK, "what the tool answers", map[string]any{}, ""}},
			scope: farm.ScopeRead, browserCallable: true, handler: s.callTool, refuse: s.failTool,
		}, {
			method: http.MethodGet, path: "/sandbox/file", tag: "Toolsets", summary: "Download a file of a sandbox by its id or its name",
			query: []parameter{
				query("sandbox_id", "id of the sandbox; this or sandbox_name", object{"type": "string"}),
				query("sandbox_name", "name of the sandbox", object{"type": "string"}),
				query("file_path", "path in /app/results, absolute or relative", object{"type": "string"}),
			},
			answers:         []answer{{http.StatusOK, "the file", nil, rest.AnyType}, {http.StatusPartialContent, "the part of the file that the Range header asks for", nil, rest.AnyType}},
			browserCallable: true, handler: s.sandboxFile,
		}, {
			method: http.MethodGet, path: "/check", tag: "Toolsets", summary: "Is the server alive?", open: true, browserCallable: true,
			answers: []answer{{http.StatusOK, `the text "success"`, "", ""}},
			handler: func(c *gin.Context) error { return rest.Reply(c, http.StatusOK, "success") },
		},
	}
}

// callTool calls one tool, with its arguments as the body.
func (s *Server) callTool(c *gin.Context) error {
	body, err := rest.ReadJSON(c, s.cfg.Limits.MaxBodyBytes)
	if err != nil {
		return err
	}
	given := map[string]any{}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &given); err != nil || given == nil {
			return rest.BadRequestf("the body must be a JSON object with the tool's arguments")
		}
	}
	for _, one := range s.toolsets {
		if one.set.Name != compat.SandboxName {
			continue
		}
		ctx := c.Request.Context()
		env := s.toolsetEnv()
		env.Logger = nil // the error is logged with the request
		answer, err := one.set.Call(ctx, env, c.Param("tool"), given)
		if err == nil {
			return rest.Reply(c, http.StatusOK, answer.Value)
		}
		c.Set(refusalKey, answer.Value)
		return err
	}
	return farm.NotFoundf("This farm does not serve the toolset %s.", compat.SandboxName)
}

// refusalKey is the context key of a refusal that already has a tool's own shape.
const refusalKey = "sandfarm.refusal"

// failTool answers with an error in the shape of the tools.
func (s *Server) failTool(c *gin.Context, err error) {
	rest.FailAs(c, s.log, err, func(p wire.Problem) {
		if p.Status == http.StatusUnprocessableEntity {
			p.Status = http.StatusBadRequest
		}
		refusal, ok := c.Get(refusalKey)
		if !ok {
			refusal = compat.SandboxRefusal{Error: true, Message: p.Detail}
		}
		rest.WriteJSON(c, p.Status, "application/json; charset=utf-8", refusal)
	})
}

// sandboxFile answers with a file of the sandbox with an id or a name.
func (s *Server) sandboxFile(c *gin.Context) error {
	id, name, file := strings.TrimSpace(c.Query("sandbox_id")), strings.TrimSpace(c.Query("sandbox_name")), c.Query("file_path")
	switch {
	case id == "" && name == "":
		return farm.Invalidf("sandbox_id is missing: give it, or sandbox_name.")
	case strings.TrimSpace(file) == "":
		return farm.Invalidf("file_path is missing: name a file in %s.", compat.Results)
	}
	if id == "" {
		box, err := compat.FindSandbox(c.Request.Context(), s.farmOf(c.Request.Context()), name)
		if err != nil {
			return err
		}
		id = box.ID
	}
	clean, err := compat.InResults(file)
	if err != nil {
		return err
	}
	return s.sendFile(c, id, clean, "inline")
}
