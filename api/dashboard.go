package api

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/ui"
)

func (s *Server) dashboardRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/", Open: true, Hidden: true, Handler: func(c *gin.Context) error { return s.dashboard(c, ui.Index) }},
		{Method: "GET", Path: "/ui", Open: true, Hidden: true, Handler: func(c *gin.Context) error { return leadTo(c, "./") }},
		{Method: "GET", Path: "/ui/{path}", Open: true, Hidden: true, Handler: s.dashboardFile},
		{Method: "GET", Path: "/session", Open: true, Hidden: true, Handler: s.showSession},
		{Method: "POST", Path: "/session", Open: true, Hidden: true, Handler: s.openSession},
		{Method: "DELETE", Path: "/session", Open: true, Token: true, Hidden: true, Handler: s.closeSession},
	}
}

// dashboardFile answers with the file that the path names. The folder itself leads to the page.
func (s *Server) dashboardFile(c *gin.Context) error {
	name := strings.TrimPrefix(c.Param("path"), "/")
	if name == "" {
		return leadTo(c, "../")
	}
	return s.dashboard(c, name)
}

// leadTo sends the browser to a relative address, which holds behind a proxy's prefix. c.Redirect would make it absolute.
func leadTo(c *gin.Context, to string) error {
	c.Header("Location", to)
	c.Status(http.StatusFound)
	c.Writer.WriteHeaderNow()
	return nil
}

// dashboard answers with a file of the dashboard.
func (s *Server) dashboard(c *gin.Context, name string) error {
	if !s.ui.Serve(c.Writer, c.Request, name, s.storeOrigin(c)) {
		return farm.NotFoundf("The dashboard has no such file.")
	}
	return nil
}

// storeOrigin is the origin that presigned links lead to, with a space before it; "" if there is none.
func (s *Server) storeOrigin(c *gin.Context) string {
	if s.service.Blobs == nil {
		return ""
	}
	link, err := s.service.Blobs.Presign(c.Request.Context(), "ui", blob.PresignOptions{Expiry: time.Minute}) // it makes no call
	if err != nil {
		return ""
	}
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsAny(u.Host, "; ,'\"") {
		return ""
	}
	return " " + u.Scheme + "://" + u.Host
}
