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
		{method: "POST", path: base + "/packages", tag: "Packages", summary: "Install packages", detail: "A job: poll it, or poll each package by its name. Failures are reported for each package; the others are installed, and running kernels can import them at once.", body: wire.PackagesRequest{}, answers: jobAnswers(), wait: true, idempotent: true, handler: s.install},
		{method: "GET", path: base + "/packages", tag: "Packages", summary: "List packages", detail: "Packages of the image, installed packages, running installs and failed installs.", answers: []answer{{http.StatusOK, "the packages, by name", wire.Items[wire.Package]{}, ""}}, handler: s.listPackages},
		{method: "GET", path: base + "/packages/{name}", tag: "Packages", summary: "Look a package up", detail: "Names are compared by PEP 503.", query: []parameter{
			query("manager", "package manager", object{"type": "string", "enum": []string{"pip", "npm"}, "default": "pip"}),
		}, answers: []answer{{http.StatusOK, "the status of the package", wire.Package{}, ""}}, handler: s.readPackage},
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
