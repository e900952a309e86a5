package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// linkPath is where links lead that have no host of their own.
	linkPath = "/p/{token}"
	// linkName is the path below a port that makes a link to it. A server's own is reached by such a link.
	linkName = "/link"
	// linkRoute is the same in the router.
	linkRoute = "/p/:token/*path"
	// linkSegments are the segments of a path up to the token, from an empty one on.
	linkSegments = 3
	// previewLocal is the domain of previews for callers on this machine: browsers know that it is the machine itself.
	previewLocal = "localhost"
)

func (s *Server) linkRoutes() []rest.Route {
	const box = "/v1/sandboxes/{id}"
	out := []rest.Route{
		{Method: "GET", Path: box + "/ports", Tag: "Ports", Summary: "List the ports on which programs listen", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the ports", Body: wire.Ports{}}}, Handler: s.listPorts},
		{Method: "POST", Path: box + "/port-links", Tag: "Ports", Summary: "Make a link to a port", Detail: "Whoever has the link uses the port without a key, until it expires or the sandbox closes. With api.preview_domain the port has an origin of its own there; then pages work that need one.", Body: wire.PortLinkRequest{}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the link", Body: wire.PortLink{}}}, Handler: s.linkPort},
	}
	for _, method := range portMethods {
		out = append(out,
			rest.Route{Method: method, Path: linkPath + "/{path}", Open: true, Token: true, Stream: true, Hidden: true, Handler: s.followLink, Refuse: s.failPort},
			rest.Route{Method: method, Path: linkPath, Open: true, Hidden: true, Handler: addSlash, Refuse: s.failPort})
	}
	return out
}

func (s *Server) listPorts(c *gin.Context) error {
	list, err := s.service.Ports(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) linkPort(c *gin.Context) error {
	var r wire.PortLinkRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	return s.replyLink(c, r, body)
}

// linkThisPort is linkPort for POST …/ports/{port}/link, whose body may be left out.
func (s *Server) linkThisPort(c *gin.Context) error {
	var r wire.ThisPortLinkRequest
	body, err := s.bindOptional(c, &r)
	if err != nil {
		return err
	}
	port, err := farm.ParsePort(c.Param("port"))
	if err != nil {
		return err
	}
	return s.replyLink(c, wire.PortLinkRequest{Port: int(port), ExpiresSeconds: r.ExpiresSeconds, PathStyle: r.PathStyle}, body)
}

func (s *Server) replyLink(c *gin.Context, r wire.PortLinkRequest, body rest.Decoded) error {
	link, err := s.makeLink(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("id"), r, addressOf(c.Request))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusCreated, link)
}

// address is how the caller of a request reaches this server.
type address struct{ scheme, host string }

type addressKey struct{}

func addressOf(r *http.Request) address { return address{guard.Scheme(r), r.Host} }

// linkFor makes a link for the caller of a tool, whose request put its address into ctx.
func (s *Server) linkFor(ctx context.Context, tenant, id string, r wire.PortLinkRequest) (wire.PortLink, error) {
	at, ok := ctx.Value(addressKey{}).(address)
	if !ok {
		return wire.PortLink{}, errors.New("make a link: the call has no address")
	}
	return s.makeLink(ctx, service.Call{Tenant: tenant}, id, r, at)
}

func (s *Server) makeLink(ctx context.Context, c service.Call, id string, r wire.PortLinkRequest, at address) (wire.PortLink, error) {
	life, err := s.service.CheckLink(ctx, c, id, r)
	if err != nil {
		return wire.PortLink{}, err
	}
	link := ports.Link{Tenant: c.Tenant, Sandbox: id, Port: r.Port, Expires: s.audit.now().UTC().Add(life).Truncate(time.Second)}
	token, err := s.links.Sign(ctx, link)
	return wire.PortLink{URL: s.linkURL(at, link, token, r.PathStyle), Port: link.Port, ExpiresAt: link.Expires}, err
}

// linkURL is the address of a link, as a caller reaches it: a host of its own, or a path if there is none or the caller wants one.
func (s *Server) linkURL(at address, link ports.Link, token string, pathStyle bool) string {
	scheme, domain := s.portDomain(at)
	if domain == "" || pathStyle {
		return at.scheme + "://" + at.host + strings.Replace(linkPath, "{token}", token, 1) + "/"
	}
	return scheme + "://" + ports.Host(link.Port, link.Sandbox, domain) + "/?" + ports.LinkName + "=" + token
}

// portDomain is below which a caller reaches the hosts of ports, with a port where that is not the scheme's; "": there are no such hosts.
func (s *Server) portDomain(at address) (scheme, domain string) {
	domain = s.cfg.PreviewDomain
	name, port, err := net.SplitHostPort(at.host)
	if err != nil {
		name = at.host
	}
	if domain == "" && guard.Loopback(name) {
		domain = previewLocal
	}
	switch {
	case domain == "" || domain == previewNone:
		return "", ""
	case !guard.Loopback(domain):
		return "https", domain
	case port != "":
		domain = net.JoinHostPort(domain, port)
	}
	return at.scheme, domain
}

// followLink passes a request to a link below the farm's own address on.
func (s *Server) followLink(c *gin.Context) error {
	prefix, path, err := splitPath(c.Request.URL, linkSegments)
	if err != nil {
		return err
	}
	link, err := s.links.Open(c.Request.Context(), c.Param("token"))
	if err != nil {
		return err
	}
	return s.serveLink(c, link, ports.View{Path: path, Prefix: prefix, Public: true})
}

// serveLink passes a request on for as long as its link works, the zero time for as long as its sandbox lives. It counts against the quotas of
// the link's tenant.
func (s *Server) serveLink(c *gin.Context, link ports.Link, v ports.View) error {
	s.actFor(c, access.Caller{Tenant: link.Tenant}, link.Sandbox)
	ctx, done := context.WithCancel(c.Request.Context())
	if !link.Expires.IsZero() {
		ctx, done = context.WithDeadline(c.Request.Context(), link.Expires)
	}
	defer done()
	leave, err := s.gate.Enter(ctx, link.Tenant, rest.RequestID(c), c.Writer.Header())
	if err != nil {
		return err
	}
	defer leave()
	ctx, memory := s.memory.With(ctx, link.Tenant, memoryPatience)
	defer memory.Release()
	defer func(before *http.Request) { c.Request = before }(c.Request) // an error is not answered in a context that has ended
	c.Request = c.Request.WithContext(ctx)
	port, err := s.service.Port(ctx, link.Tenant, link.Sandbox, strconv.Itoa(link.Port))
	if err != nil {
		return err
	}
	v.Hide = s.hideKeys
	s.servePort(c, port, v)
	return nil
}

// byHost serves the hosts of ports apart from the farm's own. Those of E2B's services are no ports, unless a link says so.
func (s *Server) byHost(w http.ResponseWriter, r *http.Request) {
	number, sandbox, ok, below := ports.ParseHost(r.Host, s.previewDomain())
	link, _, _ := ports.TakeToken(r)
	switch {
	case ok && link == "" && e2b.IsService(number):
		e2b.Name(r, number, sandbox)
		s.boxes.ServeHTTP(w, r)
	case ok || below && s.cfg.PreviewDomain != "" && s.cfg.PreviewDomain != previewNone:
		s.previews.ServeHTTP(w, r)
	default:
		s.engine.ServeHTTP(w, r)
	}
}

// previewDomain is below which the hosts of ports are.
func (s *Server) previewDomain() string {
	if s.cfg.PreviewDomain == "" {
		return previewLocal
	}
	return s.cfg.PreviewDomain
}

// hostRouter makes an engine without routes for hosts of ports.
func (s *Server) hostRouter() *gin.Engine {
	e := gin.New()
	e.RedirectTrailingSlash, e.RedirectFixedPath, e.RemoveExtraSlash = false, false, false
	e.UseRawPath, e.UnescapePathValues = false, false
	_ = e.SetTrustedProxies(nil) // nil cannot be wrong
	e.Use(rest.Identify(s.cfg.StallTimeout), rest.Log(s.log), s.metrics.observe, rest.Recover(s.log))
	return e
}

// previewRouter makes the engine that serves the hosts of ports. None of the farm's routes is there.
func (s *Server) previewRouter() http.Handler {
	e := s.hostRouter()
	for _, method := range portMethods {
		r := rest.Route{Method: method, Path: "/{path}", Open: true, Token: true, Stream: true, Handler: s.preview, Refuse: s.failPort}
		e.Handle(method, r.RouterPath(), s.handle(r))
	}
	return e
}

// preview serves a request to the host of a port. A link brings its token in the query; a cookie of this host alone keeps it. Clients of E2B
// bring the token of the sandbox in a header.
func (s *Server) preview(c *gin.Context) error {
	number, sandbox, ok, _ := ports.ParseHost(c.Request.Host, s.previewDomain())
	if !ok {
		return farm.NotFoundf("There is no such address. Links to ports of sandboxes begin with https://{port}-sbx-….")
	}
	token, query, fromQuery := ports.TakeToken(c.Request)
	switch {
	case token == "" && e2b.HasToken(c.Request.Header):
		e2b.Name(c.Request, number, sandbox)
		box, err := s.e2b.Open(c.Request, true)
		if err != nil {
			return err
		}
		if err := s.e2b.Running(c.Request.Context(), box); err != nil {
			s.failE2B(c, err)
			return nil
		}
		return s.serveLink(c, ports.Link{Tenant: box.Tenant, Sandbox: box.ID, Port: number}, ports.View{Path: c.Request.URL.EscapedPath()})
	case token == "" && strings.Contains(c.Request.Host, "-"+e2b.ShownID(sandbox)+"."): // get_host of E2B's SDKs
		return farm.Errorf(farm.CodeUnauthorized, "This address needs the header %s (sandbox.traffic_access_token), or a link: ask for one with POST /v1/sandboxes/{id}/port-links.", e2b.HeaderTraffic)
	case token == "":
		return farm.Errorf(farm.CodeUnauthorized, "This address needs a link. Ask for one with POST /v1/sandboxes/{id}/port-links.")
	}
	link, err := s.links.Open(c.Request.Context(), token)
	switch {
	case err != nil:
		return err
	case link.Sandbox != sandbox || link.Port != number:
		return farm.Errorf(farm.CodeUnauthorized, "This link is for another port or another sandbox.")
	case !fromQuery && ports.Foreign(c.Request):
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not call this one.")
	}
	if fromQuery {
		ports.Keep(c.Writer, c.Request, token, link.Expires)
		if ports.WantsPage(c.Request) { // its address without the token can be shown and sent on
			to := "/" + strings.TrimLeft(c.Request.URL.EscapedPath(), "/")
			if query != "" {
				to += "?" + query
			}
			c.Header("Location", to) // c.Redirect would change the path
			c.Status(http.StatusSeeOther)
			c.Writer.WriteHeaderNow()
			return nil
		}
		c.Request.URL.RawQuery = query
	}
	return s.serveLink(c, link, ports.View{Path: c.Request.URL.EscapedPath()})
}
