package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

func (s *Server) farmRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/images", tag: "Farm", summary: "List the images on offer", answers: []answer{{http.StatusOK, "the images", wire.Items[wire.Image]{}, ""}}, handler: s.images},
		{method: "GET", path: "/v1/workers", tag: "Farm", summary: "List the live workers", answers: []answer{{http.StatusOK, "the workers", wire.Items[wire.Worker]{}, ""}}, handler: s.workers},
		{method: "GET", path: "/v1/queues", tag: "Farm", summary: "List the queues", answers: []answer{{http.StatusOK, "the queues", wire.Items[wire.Queue]{}, ""}}, handler: s.queues},
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

func (s *Server) workers(c *gin.Context) error {
	list, err := s.service.Workers(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) queues(c *gin.Context) error {
	list, err := s.service.Queues(c.Request.Context())
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) limits(c *gin.Context) error {
	return rest.Reply(c, http.StatusOK, s.service.Limits())
}
