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

func (s *Server) tenantRoutes() []rest.Route {
	const base = "/v1/tenants/{name}"
	days := []rest.Parameter{rest.Query("days", "of how many days, today included", object{"type": "integer", "minimum": 1, "maximum": s.cfg.Limits.UsageDays, "default": service.UsageDaysDefault})}
	usage := []rest.Answer{{Status: http.StatusOK, Doc: "quotas and usage", Body: wire.Usage{}}}
	one := []rest.Answer{{Status: http.StatusOK, Doc: "the tenant", Body: wire.Tenant{}}}
	return []rest.Route{
		{Method: "GET", Path: "/v1/usage", Tag: "Tenants", Summary: "Show your quotas and usage", Detail: "What is used of each quota now, and what was used on each of the last days.", Query: days, Answers: usage, Handler: s.ownUsage},
		{Method: "GET", Path: "/v1/tenants", Tag: "Tenants", Summary: "List the tenants", Detail: "By name: those that have had a job or have quotas of their own.", Scope: farm.ScopeAdmin, Query: paging(), Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of tenants", Body: wire.List[wire.Tenant]{}}}, Handler: s.tenants},
		{Method: "GET", Path: base, Tag: "Tenants", Summary: "Read a tenant's quotas", Scope: farm.ScopeAdmin, Answers: one, Handler: s.tenant},
		{Method: "PUT", Path: base, Tag: "Tenants", Summary: "Set a tenant's quotas", Detail: "Quotas that the body leaves out get the farm's default. What is in use stays, also beyond a quota: then new work is refused, or waits. The tenant need not exist before.", Scope: farm.ScopeAdmin, Body: wire.TenantRequest{}, Answers: one, Handler: s.setTenant},
		{Method: "PATCH", Path: base, Tag: "Tenants", Summary: "Change some of a tenant's quotas", Detail: "In one step. Quotas that the body does not name stay as they are. The tenant need not exist before.", Scope: farm.ScopeAdmin, Body: wire.TenantChange{}, Answers: one, Handler: s.changeTenant},
		{Method: "GET", Path: base + "/usage", Tag: "Tenants", Summary: "Show a tenant's quotas and usage", Scope: farm.ScopeAdmin, Query: days, Answers: usage, Handler: s.tenantUsage},
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
		if limit := s.cfg.Limits.UsageDays; err != nil || n < 1 || n > limit {
			return rest.BadRequestf("days must be a whole number from 1 to %d", limit)
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

func (s *Server) keyRoutes() []rest.Route {
	all := []rest.Route{
		{Method: "POST", Path: "/v1/keys", Summary: "Make an API key", Detail: "The key counts at once in every process of the farm. The answer is the only one that contains it. The first key of a farm is made on its host (sandfarm key create --local --tenant NAME --scope admin --scope run): a farm without keys answers 409.", Body: wire.KeyRequest{}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the key", Body: wire.NewKey{}}}, Handler: s.createKey},
		{Method: "GET", Path: "/v1/keys", Summary: "List the API keys", Detail: "Also those that have expired, for a week, and those of the farm's settings.", Query: append(paging(), rest.Query("tenant", "only of this tenant", object{"type": "string"})), Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of keys, newest first", Body: wire.List[wire.Key]{}}}, Handler: s.listKeys},
		{Method: "DELETE", Path: "/v1/keys/{id}", Summary: "Revoke an API key", Detail: "No process takes it after a second, and requests that are in progress with it end within five. Jobs that it started continue.", Answers: []rest.Answer{{Status: http.StatusNoContent, Doc: "it is revoked"}}, Handler: s.revokeKey},
	}
	for i := range all {
		all[i].Tag, all[i].Scope = "Keys", farm.ScopeAdmin
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
	makes(c, made.Key.ID)
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
