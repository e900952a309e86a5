package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
)

func (s *Server) artifactRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/artifacts", tag: "Artifacts", summary: "List artifacts", query: byOrigin(), answers: []answer{{http.StatusOK, "a page of artifacts, newest first", wire.List[wire.Artifact]{}, ""}}, handler: s.listArtifacts},
		{method: "GET", path: "/v1/artifacts/{id}", tag: "Artifacts", summary: "Download an artifact", answers: []answer{{http.StatusFound, "a fresh presigned link in Location, the artifact in the body", wire.Artifact{}, ""}}, handler: s.readArtifact},
	}
}

func (s *Server) listArtifacts(c *gin.Context) error {
	p, err := rest.Page(c)
	if err != nil {
		return err
	}
	list, err := s.service.Artifacts(c.Request.Context(), rest.Tenant(c), service.ArtifactQuery{
		SandboxID: c.Query("sandbox_id"), JobID: c.Query("job_id"), Page: p,
	})
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readArtifact(c *gin.Context) error {
	a, err := s.service.Artifact(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	c.Header("Location", a.URL)
	return rest.Reply(c, http.StatusFound, a)
}
