package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) nodeRoutes() []route {
	const base = "/v1/nodes/{id}/drain"
	drain := []answer{{http.StatusOK, "the drain", wire.Drain{}, ""}}
	all := []route{
		{method: "POST", path: base, summary: "Drain a node", detail: "Within some seconds the node takes no new sandboxes, and its warm pool is removed; creations that wait go to other nodes. Its sandboxes continue, and take work. state says when the host may be restarted or removed. A node that is drained already keeps since and gets the new value of idle. The drain ends with DELETE, or when the node has had no worker for scheduler.node_patience.", body: wire.DrainRequest{}, optional: true, answers: drain, handler: s.drainNode},
		{method: "GET", path: base, summary: "Show the drain of a node", detail: "404 if the node is not drained.", answers: drain, handler: s.showDrain},
		{method: "DELETE", path: base, summary: "End the drain of a node", detail: "The node takes new sandboxes again.", answers: []answer{{http.StatusNoContent, "it has ended", nil, ""}}, handler: s.endDrain},
	}
	for i := range all {
		all[i].tag, all[i].scope = "Farm", farm.ScopeAdmin
	}
	return all
}

func (s *Server) drainNode(c *gin.Context) error {
	var r wire.DrainRequest
	body, err := s.bindOptional(c, &r)
	if err != nil {
		return err
	}
	out, err := s.service.DrainNode(c.Request.Context(), service.Call{Problems: body.Problems}, c.Param("id"), r)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

func (s *Server) showDrain(c *gin.Context) error {
	out, err := s.service.NodeDrain(c.Request.Context(), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, out)
}

func (s *Server) endDrain(c *gin.Context) error {
	if err := s.service.EndNodeDrain(c.Request.Context(), c.Param("id")); err != nil {
		return err
	}
	return rest.NoContent(c)
}
