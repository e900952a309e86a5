package rest

import (
	"crypto/sha256"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// DefaultTenant owns everything on a server without keys.
const DefaultTenant = "default"

// Tenants maps the SHA-256 of an API key to the tenant that owns it. Empty: every caller is DefaultTenant.
type Tenants map[[32]byte]string

// Authenticate finds the tenant of a caller and leaves it in the context. Keys are compared by their hash, so the time of
// the comparison reveals nothing.
func (t Tenants) Authenticate(c *gin.Context) error {
	if len(t) == 0 {
		c.Set(tenantKey, DefaultTenant)
		return nil
	}
	key := c.GetHeader("X-API-Key")
	if header := c.GetHeader("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			rest = ""
		}
		key = strings.TrimSpace(rest)
	}
	tenant, ok := t[sha256.Sum256([]byte(key))]
	if key == "" || !ok {
		return farm.Errorf(farm.CodeUnauthorized, "A valid API key is needed: send Authorization: Bearer <key>, or X-API-Key.")
	}
	c.Set(tenantKey, tenant)
	return nil
}
