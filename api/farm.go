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

func (s *Server) farmRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v1/images", Tag: "Farm", Summary: "List the images on offer", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the images", Body: wire.Items[wire.Image]{}}}, Handler: s.images},
		{Method: "GET", Path: "/v1/workers", Tag: "Farm", Summary: "List the live workers", Detail: "Keys without the scope admin see the workers of the nodes that have their sandboxes, without hosts, capacities, devices and counts of others.", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the workers", Body: wire.Items[wire.Worker]{}}}, Handler: s.workers},
		{Method: "GET", Path: "/v1/queues", Tag: "Farm", Summary: "List the queues", Detail: "Keys without the scope admin see what they have in them.", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the queues", Body: wire.Items[wire.Queue]{}}}, Handler: s.queues},
		{Method: "GET", Path: "/v1/activity", Tag: "Farm", Summary: "Show the last hour by the minute", Detail: "The jobs that workers ended, how many of them failed, and how long they waited and ran. Workers report it every few seconds.", Scope: farm.ScopeAdmin, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "60 minutes, the oldest first", Body: wire.Items[wire.Minute]{}}}, Handler: s.activity},
		{Method: "GET", Path: "/v1/events", Tag: "Farm", Summary: "List what happened to workers and nodes", Detail: fmt.Sprintf("The newest first: workers that started, stopped, were lost or have a problem, nodes that ended or were drained. The farm keeps %d.", farm.MaxFleetEvents), Scope: farm.ScopeAdmin, Query: []rest.Parameter{rest.Query("limit", "events at most", object{"type": "integer", "minimum": 1, "maximum": farm.MaxFleetEvents, "default": farm.MaxFleetEvents})}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the events", Body: wire.Items[wire.FleetEvent]{}}}, Handler: s.fleetEvents},
		{Method: "GET", Path: "/v1/scale", Tag: "Farm", Summary: "Say how many nodes the farm needs", Detail: "For an autoscaler, by kind of node: those without GPUs, and those with GPUs by model. wanted is how many nodes would take every create that has waited for 5 seconds, without those that are idle; the other numbers say why. The answer is up to 2 seconds old, and the nodes are as of their last heartbeats. See docs/operations.md.", Scope: farm.ScopeAdmin, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the kinds, nodes without GPUs first", Body: wire.Items[wire.NodeNeed]{}}}, Handler: s.scale},
		{Method: "GET", Path: "/v1/limits", Tag: "Farm", Summary: "Show the farm's limits", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the limits", Body: wire.Limits{}}}, Handler: s.limits},
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

func (s *Server) nodeRoutes() []rest.Route {
	const base = "/v1/nodes/{id}/drain"
	drain := []rest.Answer{{Status: http.StatusOK, Doc: "the drain", Body: wire.Drain{}}}
	all := []rest.Route{
		{Method: "POST", Path: base, Summary: "Drain a node", Detail: "Within some seconds the node takes no new sandboxes, and its warm pool is removed; creations that wait go to other nodes. Its sandboxes continue, and take work. state says when the host may be restarted or removed. A node that is drained already keeps since and gets the new value of idle. The drain ends with DELETE, or when the node has had no worker for scheduler.node_timeout.", Body: wire.DrainRequest{}, Optional: true, Answers: drain, Handler: s.drainNode},
		{Method: "GET", Path: base, Summary: "Show the drain of a node", Detail: "404 if the node is not drained.", Answers: drain, Handler: s.showDrain},
		{Method: "DELETE", Path: base, Summary: "End the drain of a node", Detail: "The node takes new sandboxes again.", Answers: []rest.Answer{{Status: http.StatusNoContent, Doc: "it has ended"}}, Handler: s.endDrain},
	}
	for i := range all {
		all[i].Tag, all[i].Scope = "Farm", farm.ScopeAdmin
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
