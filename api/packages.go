package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
)

func (s *Server) packageRoutes() []route {
	const base = "/v1/sandboxes/{id}"
	return []route{
		{method: "POST", path: base + "/packages", tag: "Packages", summary: "Install packages", detail: "A job: poll it, or each package by its name. What cannot be had is told one by one, the rest is installed, and a kernel that runs can import it.", body: wire.PackagesRequest{}, answers: jobAnswers(), wait: true, idempotent: true, handler: s.install},
		{method: "GET", path: base + "/packages", tag: "Packages", summary: "List packages", detail: "What the image brought, what was installed, what is being installed, and what could not be.", answers: []answer{{http.StatusOK, "the packages, by name", wire.Items[wire.Package]{}, ""}}, handler: s.listPackages},
		{method: "GET", path: base + "/packages/{name}", tag: "Packages", summary: "Look a package up", detail: "Names are compared by PEP 503.", query: []parameter{
			query("manager", "whose package it is", object{"type": "string", "enum": []string{"pip", "npm"}, "default": "pip"}),
		}, answers: []answer{{http.StatusOK, "how it stands with the package", wire.Package{}, ""}}, handler: s.readPackage},
	}
}

func (s *Server) install(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.PackagesRequest) (service.Outcome, error) {
		return s.service.Install(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) listPackages(c *gin.Context) error {
	list, err := s.service.PackageList(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readPackage(c *gin.Context) error {
	name, _, err := rest.PathAfter(c, "/packages/")
	if err != nil {
		return err
	}
	p, err := s.service.Package(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Query("manager"), name)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}
