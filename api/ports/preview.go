package ports

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
	// LinkRoute is the same in the router.
	LinkRoute = "/p/:token/*path"
	// linkSegments are the segments of a path up to the token, from an empty one on.
	linkSegments = 3
	// previewLocal is the domain of previews for callers on this machine: browsers know that it is the machine itself.
	previewLocal = "localhost"
)

func (s *Server) listPorts(c *gin.Context) error {
	list, err := s.Service.Ports(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) linkPort(c *gin.Context) error {
	var r wire.PortLinkRequest
	body, err := rest.Bind(c, s.MaxBody, &r)
	if err != nil {
		return err
	}
	return s.replyLink(c, r, body)
}

// linkThisPort is linkPort for POST …/ports/{port}/link, whose body may be left out.
func (s *Server) linkThisPort(c *gin.Context) error {
	var r wire.ThisPortLinkRequest
	body, err := rest.BindOptional(c, s.MaxBody, &r)
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

// WithAddress adds to a context how the sender of a request reaches this server, which LinkFor needs.
func WithAddress(ctx context.Context, r *http.Request) context.Context {
	return context.WithValue(ctx, addressKey{}, addressOf(r))
}

// LinkFor makes a link for the caller of a tool. Its context is of WithAddress.
func (s *Server) LinkFor(ctx context.Context, tenant, id string, r wire.PortLinkRequest) (wire.PortLink, error) {
	at, ok := ctx.Value(addressKey{}).(address)
	if !ok {
		return wire.PortLink{}, errors.New("make a link: the call has no address")
	}
	return s.makeLink(ctx, service.Call{Tenant: tenant}, id, r, at)
}

func (s *Server) makeLink(ctx context.Context, c service.Call, id string, r wire.PortLinkRequest, at address) (wire.PortLink, error) {
	life, err := s.Service.CheckLink(ctx, c, id, r)
	if err != nil {
		return wire.PortLink{}, err
	}
	link := Link{Tenant: c.Tenant, Sandbox: id, Key: access.CallerOf(ctx).KeyID, Port: r.Port, Expires: s.Now().UTC().Add(life).Truncate(time.Second)}
	token, err := s.links.Sign(ctx, link)
	return wire.PortLink{URL: s.linkURL(at, link, token, r.PathStyle), Port: link.Port, ExpiresAt: link.Expires}, err
}

// linkURL is the address of a link, as a caller reaches it: a host of its own, or a path if there is none or the caller wants one.
func (s *Server) linkURL(at address, link Link, token string, pathStyle bool) string {
	scheme, domain := s.portDomain(at)
	if domain == "" || pathStyle {
		return at.scheme + "://" + at.host + strings.Replace(linkPath, "{token}", token, 1) + "/"
	}
	return scheme + "://" + Host(link.Port, link.Sandbox, domain) + "/?" + LinkName + "=" + token
}

// NoPreviews as PreviewDomain means that no port has an origin of its own.
const NoPreviews = "none"

// DomainFor is below which the sender of a request reaches the hosts of ports, with a port where that is not the scheme's; "": there are no such
// hosts.
func (s *Server) DomainFor(r *http.Request) string {
	_, domain := s.portDomain(addressOf(r))
	return domain
}

// portDomain is below which a caller reaches the hosts of ports, with a port where that is not the scheme's; "": there are no such hosts.
func (s *Server) portDomain(at address) (scheme, domain string) {
	domain = s.PreviewDomain
	name, port, err := net.SplitHostPort(at.host)
	if err != nil {
		name = at.host
	}
	if domain == "" && guard.Loopback(name) {
		domain = previewLocal
	}
	switch {
	case domain == "" || domain == NoPreviews:
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
	return s.serveLink(c, link, View{Path: path, Prefix: prefix, Public: true})
}

// serveLink passes a request on for as long as its link and its key work, the zero time for as long as its sandbox lives. It counts against the quotas of
// the link's tenant.
func (s *Server) serveLink(c *gin.Context, link Link, v View) error {
	caller := access.Caller{Tenant: link.Tenant, KeyID: link.Key}
	s.ActFor(c, caller, link.Sandbox)
	ctx, done := context.WithCancel(c.Request.Context())
	if !link.Expires.IsZero() {
		ctx, done = context.WithDeadline(c.Request.Context(), link.Expires)
	}
	defer done()
	ctx, release := s.Keys.Hold(ctx, caller)
	defer release()
	leave, err := s.Gate.Enter(ctx, link.Tenant, rest.RequestID(c), c.Writer.Header())
	if err != nil {
		return err
	}
	defer leave()
	ctx, memory := s.Memory.With(ctx, link.Tenant, rest.MemoryTimeout)
	defer memory.Release()
	defer func(before *http.Request) { c.Request = before }(c.Request) // an error is not answered in a context that has ended
	c.Request = c.Request.WithContext(ctx)
	port, err := s.Service.Port(ctx, link.Tenant, link.Sandbox, strconv.Itoa(link.Port))
	if err != nil {
		return err
	}
	v.Hide = s.hideKeys
	s.servePort(c, port, v)
	return nil
}

// previewDomain is below which the hosts of ports are.
func (s *Server) previewDomain() string {
	if s.PreviewDomain == "" {
		return previewLocal
	}
	return s.PreviewDomain
}

// ParseHost is the function ParseHost for the domain of this farm. below says that the host is below a domain that is for ports alone.
func (s *Server) ParseHost(host string) (number int, sandbox string, ok, below bool) {
	number, sandbox, ok, below = ParseHost(host, s.previewDomain())
	return number, sandbox, ok, below && s.PreviewDomain != "" && s.PreviewDomain != NoPreviews
}

// preview serves a request to the host of a port. A link brings its token in the query; a cookie of this host alone keeps it. Clients of E2B
// bring the token of the sandbox in a header.
func (s *Server) preview(c *gin.Context) error {
	number, sandbox, ok, _ := s.ParseHost(c.Request.Host)
	if !ok {
		return farm.NotFoundf("There is no such address. Links to ports of sandboxes begin with https://{port}-sbx-….")
	}
	token, query, fromQuery := TakeToken(c.Request)
	switch {
	case token == "" && e2b.HasToken(c.Request.Header):
		e2b.Name(c.Request, number, sandbox)
		box, err := s.E2B.Open(c.Request, true)
		if err != nil {
			return err
		}
		if err := s.E2B.Running(c.Request.Context(), box); err != nil {
			s.E2B.Refuse(c, err)
			return nil
		}
		return s.serveLink(c, Link{Tenant: box.Tenant, Sandbox: box.ID, Key: box.Key, Port: number}, View{Path: c.Request.URL.EscapedPath()})
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
	case !fromQuery && Foreign(c.Request):
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not call this one.")
	}
	if fromQuery {
		Keep(c.Writer, c.Request, token, link.Expires)
		if WantsPage(c.Request) { // its address without the token can be shown and sent on
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
	return s.serveLink(c, link, View{Path: c.Request.URL.EscapedPath()})
}
