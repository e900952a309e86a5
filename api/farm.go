package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) farmRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/images", tag: "Farm", summary: "List the images on offer", answers: []answer{{http.StatusOK, "the images", wire.Items[wire.Image]{}, ""}}, handler: s.images},
		{method: "GET", path: "/v1/workers", tag: "Farm", summary: "List the live workers", detail: "Keys without the scope admin see the workers of the nodes that have their sandboxes.", answers: []answer{{http.StatusOK, "the workers", wire.Items[wire.Worker]{}, ""}}, handler: s.workers},
		{method: "GET", path: "/v1/queues", tag: "Farm", summary: "List the queues", detail: "Keys without the scope admin see what they have in them.", answers: []answer{{http.StatusOK, "the queues", wire.Items[wire.Queue]{}, ""}}, handler: s.queues},
		{method: "GET", path: "/v1/activity", tag: "Farm", summary: "Show the last hour by the minute", detail: "The jobs that workers ended, how many of them failed, and how long they waited and ran. Workers report it every few seconds.", scope: farm.ScopeAdmin, answers: []answer{{http.StatusOK, "60 minutes, the oldest first", wire.Items[wire.Minute]{}, ""}}, handler: s.activity},
		{method: "GET", path: "/v1/events", tag: "Farm", summary: "List what happened to workers and nodes", detail: fmt.Sprintf("The newest first: workers that started, stopped, were lost or have a problem, nodes that ended or were drained. The farm keeps %d.", farm.MaxFleetEvents), scope: farm.ScopeAdmin, query: []parameter{query("limit", "events at most", object{"type": "integer", "minimum": 1, "maximum": farm.MaxFleetEvents, "default": farm.MaxFleetEvents})}, answers: []answer{{http.StatusOK, "the events", wire.Items[wire.FleetEvent]{}, ""}}, handler: s.fleetEvents},
		{method: "GET", path: "/v1/scale", tag: "Farm", summary: "Say how many nodes the farm needs", detail: "For an autoscaler, by kind of node: those without GPUs, and those with GPUs by model. wanted is how many nodes would take every create that has waited for 5 seconds, without those that are idle; the other numbers say why. The answer is up to 2 seconds old, and the nodes are as of their last heartbeats. See docs/operations.md.", scope: farm.ScopeAdmin, answers: []answer{{http.StatusOK, "the kinds, nodes without GPUs first", wire.Items[wire.NodeNeed]{}, ""}}, handler: s.scale},
		{method: "GET", path: "/v1/limits", tag: "Farm", summary: "Show the farm's limits", answers: []answer{{http.StatusOK, "the limits", wire.Limits{}, ""}}, handler: s.limits},
	}
}

func (s *Server) images(c *gin.Context) error {
	list, err := s.service.Images(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

// fleet reads a list of the fleet as the caller may see it: all of it, or what concerns its tenant.
func fleet[T any](c *gin.Context, all func(context.Context) (T, error), own func(context.Context, string) (T, error)) (T, error) {
	if caller := rest.Caller(c); !caller.Fleet {
		return own(c.Request.Context(), caller.Tenant)
	}
	return all(c.Request.Context())
}

func (s *Server) workers(c *gin.Context) error {
	list, err := fleet(c, s.service.Workers, s.service.OwnWorkers)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) queues(c *gin.Context) error {
	list, err := fleet(c, s.service.Queues, s.service.OwnQueues)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) activity(c *gin.Context) error {
	list, err := s.service.Activity(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) fleetEvents(c *gin.Context) error {
	limit, err := rest.Limit(c, farm.MaxFleetEvents, farm.MaxFleetEvents)
	if err != nil {
		return err
	}
	list, err := s.service.FleetEvents(c.Request.Context(), limit)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) scale(c *gin.Context) error {
	list, err := s.service.Scale(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) limits(c *gin.Context) error {
	return rest.Reply(c, http.StatusOK, s.service.Limits())
}

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
