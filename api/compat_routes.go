package api

import (
	"net/http"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/mcp"
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
