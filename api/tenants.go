package api

import (
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) tenantRoutes() []route {
	const base = "/v1/tenants/{name}"
	days := []parameter{query("days", "of how many days, today included", object{"type": "integer", "minimum": 1, "maximum": s.cfg.Limits.UsageDays, "default": service.UsageDaysDefault})}
	usage := []answer{{http.StatusOK, "quotas and usage", wire.Usage{}, ""}}
	one := []answer{{http.StatusOK, "the tenant", wire.Tenant{}, ""}}
	return []route{
		{method: "GET", path: "/v1/usage", tag: "Tenants", summary: "Show your quotas and usage", detail: "What is used of each quota now, and what was used on each of the last days.", query: days, answers: usage, handler: s.ownUsage},
		{method: "GET", path: "/v1/tenants", tag: "Tenants", summary: "List the tenants", detail: "By name: those that have had a job or have quotas of their own.", scope: farm.ScopeAdmin, query: paging(), answers: []answer{{http.StatusOK, "a page of tenants", wire.List[wire.Tenant]{}, ""}}, handler: s.tenants},
		{method: "GET", path: base, tag: "Tenants", summary: "Read a tenant's quotas", scope: farm.ScopeAdmin, answers: one, handler: s.tenant},
		{method: "PUT", path: base, tag: "Tenants", summary: "Set a tenant's quotas", detail: "Quotas that the body leaves out get the farm's default. What is in use stays, also beyond a quota: then new work is refused, or waits. The tenant need not exist before.", scope: farm.ScopeAdmin, body: wire.TenantRequest{}, answers: one, handler: s.setTenant},
		{method: "PATCH", path: base, tag: "Tenants", summary: "Change some of a tenant's quotas", detail: "In one step. Quotas that the body does not name stay as they are. The tenant need not exist before.", scope: farm.ScopeAdmin, body: wire.TenantChange{}, answers: one, handler: s.changeTenant},
		{method: "GET", path: base + "/usage", tag: "Tenants", summary: "Show a tenant's quotas and usage", scope: farm.ScopeAdmin, query: days, answers: usage, handler: s.tenantUsage},
	}
}

func (s *Server) ownUsage(c *gin.Context) error { return s.usage(c, rest.Tenant(c)) }

func (s *Server) tenantUsage(c *gin.Context) error {
	name := c.Param("name")
	if err := s.service.Store.Tenant(c.Request.Context(), name); err != nil {
		return err
	}
	return s.usage(c, name)
}

func (s *Server) usage(c *gin.Context, tenant string) error {
	days := service.UsageDaysDefault
	if text, ok := c.GetQuery("days"); ok {
		n, err := strconv.Atoi(text)
		if most := s.cfg.Limits.UsageDays; err != nil || n < 1 || n > most {
			return rest.BadRequestf("days must be a whole number from 1 to %d", most)
		}
		days = n
	}
	out, err := s.service.Usage(c.Request.Context(), tenant, min(days, s.cfg.Limits.UsageDays))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

func (s *Server) tenants(c *gin.Context) error {
	p, err := rest.Page(c)
	if err != nil {
		return err
	}
	list, err := s.service.TenantPage(c.Request.Context(), p)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) tenant(c *gin.Context) error {
	out, err := s.service.Tenant(c.Request.Context(), c.Param("name"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

func (s *Server) setTenant(c *gin.Context) error {
	var r wire.TenantRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	if err := checkOwnBounds(c, r); err != nil {
		return err
	}
	out, err := s.service.SetTenant(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("name"), r)
	return s.quotasSet(c, out, err)
}

func (s *Server) changeTenant(c *gin.Context) error {
	var r wire.TenantChange
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	if err := checkOwnBounds(c, r.Set); err != nil {
		return err
	}
	out, err := s.service.ChangeTenant(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("name"), r)
	return s.quotasSet(c, out, err)
}

// checkOwnBounds refuses quotas with which one request to a farm without keys would shut everybody out: all its callers are one tenant.
func checkOwnBounds(c *gin.Context, r wire.TenantRequest) error {
	if rest.Caller(c).KeyID != "" || c.Param("name") != access.DefaultTenant {
		return nil
	}
	for name, value := range map[string]*int{"requests_per_minute": r.RequestsPerMinute, "max_connections": r.MaxConnections} {
		if value != nil && *value == 0 {
			return farm.Conflictf("This farm has no keys, so all its callers are the tenant %s: %s must not be 0.", access.DefaultTenant, name)
		}
	}
	return nil
}

// quotasSet answers with a tenant whose quotas were set. They count at once in this process.
func (s *Server) quotasSet(c *gin.Context, tenant wire.Tenant, err error) error {
	if err != nil {
		return err
	}
	s.gate.Forget(tenant.Name)
	return rest.Reply(c, http.StatusOK, tenant)
}

func (s *Server) keyRoutes() []route {
	all := []route{
		{method: "POST", path: "/v1/keys", summary: "Make an API key", detail: "The key counts at once in every process of the farm. The answer is the only one that contains it. The first key of a farm is made on its host (sandfarm key create --local): a farm without keys answers 409.", body: wire.KeyRequest{}, answers: []answer{{http.StatusCreated, "the key", wire.NewKey{}, ""}}, handler: s.createKey},
		{method: "GET", path: "/v1/keys", summary: "List the API keys", detail: "Also those that have expired, for a week, and those of the farm's settings.", query: append(paging(), query("tenant", "only of this tenant", object{"type": "string"})), answers: []answer{{http.StatusOK, "a page of keys, newest first", wire.List[wire.Key]{}, ""}}, handler: s.listKeys},
		{method: "DELETE", path: "/v1/keys/{id}", summary: "Revoke an API key", detail: "No process takes it after a second, and requests that are in progress with it end within five. Jobs that it started continue.", answers: []answer{{http.StatusNoContent, "it is revoked", nil, ""}}, handler: s.revokeKey},
	}
	for i := range all {
		all[i].tag, all[i].scope = "Keys", farm.ScopeAdmin
	}
	return all
}

// errFirstKey refuses to make the first key for whoever can reach the API: its owner would be the only one whom the farm lets in.
func errFirstKey() error {
	return farm.Conflictf("This farm has no keys, and its first one is made on its host: sandfarm key create --local --tenant NAME --scope admin --scope run")
}

func (s *Server) createKey(c *gin.Context) error {
	if rest.Caller(c).KeyID == "" {
		return errFirstKey()
	}
	var r wire.KeyRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	made, err := s.service.CreateKey(c.Request.Context(), service.Call{Problems: body.Problems}, r)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusCreated, made)
}

func (s *Server) listKeys(c *gin.Context) error {
	p, err := rest.Page(c)
	if err != nil {
		return err
	}
	list, err := s.service.Keys(c.Request.Context(), c.Query("tenant"), p)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) revokeKey(c *gin.Context) error {
	if err := s.service.RevokeKey(c.Request.Context(), c.Param("id")); err != nil {
		return err
	}
	return rest.NoContent(c)
}
