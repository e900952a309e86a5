// Package ports serves ports of sandboxes over HTTP: the routes that pass requests on to servers there, links that open a port without a key,
// the hosts that ports have of their own, and the WebSocket that carries any TCP connection. It owns what must not pass: the farm's keys and
// cookies on the way in, and on the way out what would act on the farm's own origin, since the code of a sandbox writes the answers.
//
// Server has the routes (routes.go). Proxy knows neither keys nor records: who calls it has found out who asks, and gives it a connection to the
// port.
package ports

import (
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Deps are what a Server works with.
type Deps struct {
	Service *service.Service
	Signer  *access.Signer // of links
	Keys    *access.Keys
	Gate    *access.Gate
	Memory  *budget.Budget // of requests without a key; nil: without limit
	E2B     *e2b.Gateway   // its tokens open ports, too
	Log     *slog.Logger
	Now     func() time.Time
	// ActFor serves a request for the caller whose token it carries, and says so in the audit. subject is what the token is for.
	ActFor func(c *gin.Context, caller access.Caller, subject string)
	// MaxBody bounds a JSON body, in bytes.
	MaxBody int64
	// Heartbeat is the time between two pings of a WebSocket, and Stall how long a transfer may stall.
	Heartbeat, Stall time.Duration
	Closing          <-chan struct{} // closed when the server stops
	Hosts            []string        // names of the farm, beside loopback names, whose pages may connect to ports
	// PreviewDomain is below which each port has an origin of its own; "": below localhost for callers on this machine; NoPreviews: nowhere.
	PreviewDomain string
}

// Server serves ports of sandboxes, and links to them. Create it with NewServer.
type Server struct {
	Deps
	proxy    *Proxy
	links    *Links
	forwards sync.WaitGroup // WebSockets
}

// NewServer makes a Server.
func NewServer(deps Deps) *Server {
	return &Server{Deps: deps, proxy: New(deps.Closing, deps.Stall), links: NewLinks(deps.Signer, deps.Keys.IDs, deps.Now)}
}

// Close waits for the WebSockets to end, which they do once Closing is closed, and closes the connections that are not in use.
func (s *Server) Close() {
	s.forwards.Wait()
	s.proxy.Close()
}

// Routes are the routes of ports and of links to them.
func (s *Server) Routes() []rest.Route {
	return slices.Concat(s.portRoutes(), s.linkRoutes(), s.forwardRoutes())
}

// HostRoutes are those of the hosts that ports have of their own.
func (s *Server) HostRoutes() (all []rest.Route) {
	for _, method := range portMethods {
		all = append(all, rest.Route{Method: method, Path: "/{path}", Open: true, Token: true, Stream: true, Handler: s.preview, Refuse: s.refuse})
	}
	return all
}

// portMethods are the methods that are passed on to servers in sandboxes.
var portMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}

func (s *Server) portRoutes() []rest.Route {
	const one = "/v1/sandboxes/{id}/ports/{port}"
	var out []rest.Route
	for _, method := range portMethods {
		out = append(out,
			rest.Route{
				Method: method, Path: one + "/{path}", Tag: "Ports", Summary: "Send a request to a server in the sandbox",
				Detail: "Every method, with WebSocket and streams both ways, to a port of the sandbox's loopback. The server gets the path after the port, its own name as Host, and X-Forwarded-*. Its redirects and cookies lead back here, unless Sandfarm-Rewrite is off. It does not get the farm's key. POST …/ports/{port}/link is the farm's own: …/port-links for this port.",
				Scope:  farm.ScopeRun, Stream: true, KeyOnly: true, Hidden: method != http.MethodGet,
				Answers: []rest.Answer{{Status: http.StatusOK, Doc: "what the server answers, with its status", Media: "*/*"}},
				Handler: s.passToPort, Refuse: s.refuse,
			},
			rest.Route{Method: method, Path: one, Scope: farm.ScopeRun, Stream: true, KeyOnly: true, Hidden: true, Handler: addSlash, Refuse: s.refuse},
		)
	}
	return out
}

func (s *Server) linkRoutes() []rest.Route {
	const box = "/v1/sandboxes/{id}"
	out := []rest.Route{
		{Method: "GET", Path: box + "/ports", Tag: "Ports", Summary: "List the ports on which programs listen", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the ports", Body: wire.Ports{}}}, Handler: s.listPorts},
		{Method: "POST", Path: box + "/port-links", Tag: "Ports", Summary: "Make a link to a port", Detail: "Whoever has the link uses the port without a key, until it expires, the sandbox closes, or the key that made it is revoked. With api.preview_domain the port has an origin of its own there; then pages work that need one.", Body: wire.PortLinkRequest{}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the link", Body: wire.PortLink{}}}, Handler: s.linkPort},
	}
	for _, method := range portMethods {
		out = append(out,
			rest.Route{Method: method, Path: linkPath + "/{path}", Open: true, Token: true, Stream: true, Hidden: true, Handler: s.followLink, Refuse: s.refuse},
			rest.Route{Method: method, Path: linkPath, Open: true, Hidden: true, Handler: addSlash, Refuse: s.refuse})
	}
	return out
}

func (s *Server) forwardRoutes() []rest.Route {
	return []rest.Route{{
		Method: "GET", Path: "/v1/sandboxes/{id}/tcp/{port}", Tag: "Ports", Summary: "Connect to a port by a WebSocket",
		Detail: "Binary messages of up to 64 KiB carry the bytes of one TCP connection; an empty one ends a direction. For protocols that are not HTTP.",
		Scope:  farm.ScopeRun, Stream: true, KeyOnly: true, Answers: []rest.Answer{{Status: http.StatusSwitchingProtocols, Doc: "the WebSocket"}}, Handler: s.forwardPort,
	}}
}

// addSlash leads to the root of a port, so that the links of its page are below it.
func addSlash(c *gin.Context) error {
	to := c.Request.URL.EscapedPath() + "/"
	if c.Request.URL.RawQuery != "" {
		to += "?" + c.Request.URL.RawQuery
	}
	c.Redirect(http.StatusPermanentRedirect, to)
	return nil
}

// portSegments are the segments of a path up to the number of a port, from an empty one on.
const portSegments = 6

// splitPath splits a path after some segments, as it was escaped. The second part begins with a slash.
func splitPath(u *url.URL, segments int) (prefix, path string, err error) {
	parts := strings.SplitN(u.EscapedPath(), "/", segments+1)
	if len(parts) <= segments || strings.Contains(strings.ToLower(strings.Join(parts[:segments], "/")), "%2f") { // an escaped slash ends a segment for the router
		return "", "", rest.BadRequestf("the path is not well escaped")
	}
	return strings.Join(parts[:segments], "/"), "/" + parts[segments], nil
}

// refuse answers with a page if a browser asks for one, and with a problem otherwise.
func (s *Server) refuse(c *gin.Context, err error) {
	if !WantsPage(c.Request) {
		rest.Fail(c, s.Log, err)
		return
	}
	rest.FailAs(c, s.Log, err, func(p wire.Problem) { _ = WritePage(c.Writer, p.Status, p.Detail, p.RequestID) })
}
