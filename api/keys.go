package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
