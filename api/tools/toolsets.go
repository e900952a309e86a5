package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
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
		Tenant: func(ctx context.Context) string { return access.CallerOf(ctx).Tenant },
		Logger: s.Log,
		More: func(ctx context.Context) error {
			_, err := s.More(ctx, access.CallerOf(ctx).Tenant, 1)
			return err
		},
	}
}

// serveToolsets makes the handlers of all toolsets.
func (s *Server) serveToolsets() ([]servedToolset, error) {
	var all []servedToolset
	for _, set := range compat.Toolsets() {
		server, err := set.Serve(s.toolsetEnv(), s.Version, s.mcpHTTP())
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
				Messages: prefix + "/messages/", Owner: ownerOf, Outlast: access.Outlast, Heartbeat: s.Heartbeat, Closing: s.Closing,
			})})
		}
		all = append(all, one)
	}
	return all, nil
}

// compatRoutes are the routes of the older systems.
func (s *Server) compatRoutes() []rest.Route {
	all := s.sandboxToolRoutes()
	for _, one := range s.toolsets {
		all = append(all, slashed([]rest.Route{{
			Method: http.MethodPost, Path: mcpPath + "/" + one.set.Name, Tag: "Toolsets", Summary: "The toolset " + one.set.Name + " by the Model Context Protocol",
			Detail: one.set.About + " Streamable HTTP, as at /mcp.", Raw: []string{"application/json"}, BrowserCallable: true, Scope: farm.ScopeRead,
			Answers: []rest.Answer{
				{Status: http.StatusOK, Doc: "the response", Media: "application/json"},
				{Status: http.StatusAccepted, Doc: "the notification was taken"},
			},
			Handler: s.serve(one.http.ServeHTTP),
		}})...)
		for _, at := range one.sse {
			all = append(all, streamRoutes(s, one.set.Name, at)...)
		}
	}
	return all
}

func streamRoutes(s *Server, name string, at stream) []rest.Route {
	taken := []rest.Answer{{Status: http.StatusAccepted, Doc: "the message was taken; its response comes over the stream", Media: "text/plain"}}
	id := []rest.Parameter{rest.Query("session_id", "of the stream", map[string]any{"type": "string"})}
	post := rest.Route{
		Method: http.MethodPost, Path: at.messages, Tag: "Toolsets", Summary: "Send a message of the toolset " + name, Query: id,
		Raw: []string{"application/json"}, Answers: taken, BrowserCallable: true, Scope: farm.ScopeRead, Handler: s.serve(at.sse.Post),
	}
	plain := post
	plain.Path, plain.Hidden = at.messages[:len(at.messages)-1], true
	return append(slashed([]rest.Route{{
		Method: http.MethodGet, Path: at.path, Tag: "Toolsets", Summary: "Open a stream of the toolset " + name,
		Detail:  "The older HTTP transport of the protocol: the first event, endpoint, tells where to post messages.",
		Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the stream", Media: "text/event-stream"}}, BrowserCallable: true, Handler: s.serve(at.sse.Stream),
	}}), post, plain)
}

// sandboxToolRoutes are the routes of the system with the toolset "sandbox", in addition to its MCP addresses.
func (s *Server) sandboxToolRoutes() []rest.Route {
	return []rest.Route{
		{
			Method: http.MethodPost, Path: mcpPath + "/tools/{tool}", Tag: "Toolsets", Summary: "Call a tool of the toolset sandbox",
			Detail: "The body is an object with the tool's arguments, or nothing where it needs none; the answer is the tool's own.",
			Body:   map[string]any{}, Optional: true, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "what the tool answers", Body: map[string]any{}}},
			Scope: farm.ScopeRead, BrowserCallable: true, Handler: s.callTool, Refuse: s.failTool,
		}, {
			Method: http.MethodGet, Path: "/sandbox/file", Tag: "Toolsets", Summary: "Download a file of a sandbox by its id or its name",
			Query: []rest.Parameter{
				rest.Query("sandbox_id", "id of the sandbox; this or sandbox_name", map[string]any{"type": "string"}),
				rest.Query("sandbox_name", "name of the sandbox", map[string]any{"type": "string"}),
				rest.Query("file_path", "path in /app/results, absolute or relative", map[string]any{"type": "string"}),
			},
			Answers:         []rest.Answer{{Status: http.StatusOK, Doc: "the file", Media: rest.AnyType}, {Status: http.StatusPartialContent, Doc: "the part of the file that the Range header asks for", Media: rest.AnyType}},
			BrowserCallable: true, Handler: s.sandboxFile,
		}, {
			Method: http.MethodGet, Path: "/check", Tag: "Toolsets", Summary: "Is the server alive?", Open: true, BrowserCallable: true,
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: `the text "success"`, Body: ""}},
			Handler: func(c *gin.Context) error { return rest.Reply(c, http.StatusOK, "success") },
		},
	}
}

// callTool calls one tool, with its arguments as the body.
func (s *Server) callTool(c *gin.Context) error {
	given := map[string]any{}
	err := rest.DecodeJSON(c, s.Limits.MaxBodyBytes, func(body []byte) error {
		if len(bytes.TrimSpace(body)) > 0 && (json.Unmarshal(body, &given) != nil || given == nil) {
			return rest.BadRequestf("the body must be a JSON object with the tool's arguments")
		}
		return nil
	})
	if err != nil {
		return err
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
	rest.FailAs(c, s.Log, err, func(p wire.Problem) {
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
	return s.SendFile(c, id, clean, "inline")
}
