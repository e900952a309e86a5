package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func (s *Server) artifactRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/artifacts", tag: "Artifacts", summary: "List artifacts", query: append(byOrigin(), query("name", "only of exactly this name, the last element of the path", object{"type": "string"}), query("state", "only of jobs in these states, separated by commas", stateSchema(farm.JobStates()))), answers: []answer{{http.StatusOK, "a page of artifacts, newest first", wire.List[wire.Artifact]{}, ""}}, handler: s.listArtifacts},
		{method: "GET", path: "/v1/artifacts/{id}", tag: "Artifacts", summary: "Download an artifact", answers: []answer{{http.StatusFound, "a fresh presigned link in Location, the artifact in the body", wire.Artifact{}, ""}}, handler: s.readArtifact},
		{method: "GET", path: "/v1/artifacts/{id}/meta", tag: "Artifacts", summary: "Describe an artifact", answers: []answer{{http.StatusOK, "the artifact, with a fresh link", wire.Artifact{}, ""}}, handler: s.describeArtifact},
		{method: "DELETE", path: "/v1/artifacts/{id}", tag: "Artifacts", summary: "Delete an artifact", detail: "Links to it no longer work. Its job no longer lists it.", answers: []answer{{http.StatusNoContent, "it is deleted", nil, ""}}, handler: s.deleteArtifact},
	}
}

func (s *Server) listArtifacts(c *gin.Context) error {
	p, created, err := rest.PageOf(c)
	if err != nil {
		return err
	}
	list, err := s.service.Artifacts(c.Request.Context(), rest.Tenant(c), store.ArtifactFilter{
		SandboxID: c.Query("sandbox_id"), JobID: c.Query("job_id"), Name: c.Query("name"), Created: created,
	}, rest.List(c, "state"), p)
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

func (s *Server) describeArtifact(c *gin.Context) error {
	a, err := s.service.Artifact(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, a)
}

func (s *Server) deleteArtifact(c *gin.Context) error {
	if err := s.service.DeleteArtifact(c.Request.Context(), rest.Tenant(c), c.Param("id")); err != nil {
		return err
	}
	return rest.NoContent(c)
}
