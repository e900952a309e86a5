package api

import (
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/store"
)

// settingsKeys are the keys of the settings, by their hashes.
func settingsKeys(keys []KeyConfig) map[store.KeySum]access.Caller {
	out := make(map[store.KeySum]access.Caller, len(keys))
	for _, key := range keys {
		sum, _ := hex.DecodeString(key.SHA256) // checked by validate
		out[store.KeySum(sum)] = access.FromSettings(key.record())
	}
	return out
}

// records are the keys of the settings as records.
func records(keys []KeyConfig) []farm.Key {
	out := make([]farm.Key, len(keys))
	for i, key := range keys {
		out[i] = key.record()
	}
	return out
}

// admit authenticates the caller, checks the scope of its key and counts the request against the quotas of its tenant. While the request
// lasts, its context ends when the key is revoked or expires. The caller of admit calls release at the end of the request. What operators
// need is not counted, so that a quota cannot lock them out.
func (s *Server) admit(c *gin.Context, r rest.Route) (release func(), err error) {
	scope := r.Needs()
	if err := s.authenticate(c, r.TakesSessions()); err != nil {
		return func() {}, err
	}
	refusal := rest.Allow(c, scope)
	leave := func() {}
	if refusal == nil && (scope == farm.ScopeAdmin || scope == farm.ScopeMetrics) {
		httpserver.Known(c.Request.Context(), "", nil)
	} else if leave, err = s.gate.Enter(c.Request.Context(), rest.Tenant(c), rest.RequestID(c), c.Writer.Header()); err != nil {
		return func() {}, err
	}
	if refusal != nil {
		leave()
		return func() {}, refusal
	}
	ctx, leave := access.WithLease(c.Request.Context(), leave)
	ctx, drop := s.keys.Hold(ctx, rest.Caller(c))
	c.Request = c.Request.WithContext(ctx)
	return func() { drop(); leave() }, nil
}

// trusted returns the hosts and origins that the operator trusts.
func (s *Server) trusted() guard.Guard {
	return guard.Guard{Hosts: s.cfg.TrustedHosts, Origins: s.cfg.TrustedOrigins}
}

// guardPages keeps web pages away from a server without keys: those that point their own name at it (DNS rebinding), and
// those of other origins.
func (s *Server) guardPages(c *gin.Context) {
	if !s.keys.Open() {
		c.Next()
		return
	}
	var refusal string
	sockets := s.trusted() // for WebSockets, which browsers let any page open
	if strings.HasPrefix(c.FullPath(), "/v1/") {
		sockets.Origins = nil // such as those to ports
	}
	switch {
	case !s.trusted().Host(c.Request.Host):
		refusal = "This farm has no API keys, so it answers only under a loopback name. Use http://127.0.0.1, or add this host to api.trusted_hosts (SANDFARM_API_TRUSTED_HOSTS)."
	case s.browserCallable[c.FullPath()]: // handle checks the origin
	case c.FullPath() == ports.LinkRoute: // a page of the sandbox has no origin, and its address is what lets it call
	case s.origins.Check(c.Request) != nil, c.GetHeader("Upgrade") != "" && !sockets.Origin(c.Request):
		refusal = "This farm has no API keys, so pages of other origins may not call it."
	}
	if refusal == "" || !s.keys.StillOpen(c.Request.Context()) {
		c.Next()
		return
	}
	s.fail(c, rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "%s", refusal))
}

// fail answers with a problem.
func (s *Server) fail(c *gin.Context, err error) { rest.Fail(c, s.log, err) }
