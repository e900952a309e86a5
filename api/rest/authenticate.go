package rest

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Authenticate finds out who the caller is and leaves it in the context of the request.
func Authenticate(c *gin.Context, ring *access.Keys) error {
	caller := Caller(c) // set only for the operator, see api.Server.Operator
	if caller.KeyID == "" {
		var err error
		if caller, err = ring.Find(c.Request.Context(), keyOf(c)); err != nil {
			return err
		}
	}
	ActFor(c, caller)
	return nil
}

// ActFor serves a request for a caller whose link, token or session it carries. A caller without scopes may nothing else.
func ActFor(c *gin.Context, caller access.Caller) {
	c.Set(tenantKey, caller.Tenant)
	c.Request = c.Request.WithContext(access.WithCaller(c.Request.Context(), caller))
}

// keyOf is the key that a request carries; "" if it has none.
func keyOf(c *gin.Context) string {
	header := c.GetHeader("Authorization")
	if header == "" {
		return c.GetHeader("X-API-Key")
	}
	scheme, key, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// Caller is who sends an authenticated request.
func Caller(c *gin.Context) access.Caller { return access.CallerOf(c.Request.Context()) }

// Allow refuses a caller whose key lacks a scope: 403.
func Allow(c *gin.Context, scope farm.Scope) error {
	if Caller(c).May(scope) {
		return nil
	}
	return Refusef(http.StatusForbidden, farm.CodeUnauthorized, "This needs an API key with the scope %s; yours has %s.", scope, scopeNames(Caller(c).Scopes))
}

func scopeNames(scopes []farm.Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}
