package api

import (
	"encoding/hex"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func tenants(keys []KeyConfig) rest.Tenants {
	out := make(rest.Tenants, len(keys))
	for _, key := range keys {
		sum, _ := hex.DecodeString(key.SHA256) // checked by validate
		out[[32]byte(sum)] = key.Tenant
	}
	return out
}

// trusted returns the hosts and origins that the operator trusts.
func (s *Server) trusted() guard.Guard {
	return guard.Guard{Hosts: s.cfg.TrustedHosts, Origins: s.cfg.TrustedOrigins}
}

// guardPages keeps web pages away from a server without keys: those that point their own name at it (DNS rebinding), and
// those of other origins.
func (s *Server) guardPages(c *gin.Context) {
	if len(s.tenants) > 0 {
		c.Next()
		return
	}
	if !s.trusted().Host(c.Request.Host) {
		s.fail(c, rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "This farm has no API keys, so it answers only under a loopback name. Use http://127.0.0.1, or add this host to api.trusted_hosts."))
		return
	}
	if s.browserCallable[c.FullPath()] {
		c.Next() // handle checks the origin
		return
	}
	if err := s.origins.Check(c.Request); err != nil {
		s.fail(c, rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "This farm has no API keys, so pages of other origins may not call it."))
		return
	}
	c.Next()
}

// fail answers with a problem.
func (s *Server) fail(c *gin.Context, err error) { rest.Fail(c, s.log, err) }
