package api

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

// notebookRoutes are the routes of "LLM Python Code Sandbox" (compat.Notebook). docs/coming-from/llm-python-code-sandbox.md
// describes them; the OpenAPI document has only /v1.
func (s *Server) notebookRoutes() []route {
	const base = "/sandbox/{id}"
	all := []route{
		{method: "POST", path: "/sandbox/create", handler: s.notebookCreate},
		{method: "POST", path: base + "/install", handler: s.notebookInstall},
		{method: "POST", path: base + "/execute", handler: s.notebookExecute},
		{method: "POST", path: base + "/upload", handler: s.notebookUpload},
		{method: "GET", path: base + "/files", handler: s.notebookFiles},
		{method: "GET", path: base + "/download/{path}", handler: s.notebookDownload},
		{method: "POST", path: base + "/close", handler: s.notebookClose},
		{method: "GET", path: "/sandboxes", handler: s.notebookList},
		{method: "GET", path: "/health", open: true, handler: func(c *gin.Context) error {
			return rest.Reply(c, http.StatusOK, gin.H{"status": "healthy"})
		}},
	}
	for i := range all {
		all[i].hidden, all[i].refuse = true, s.failNotebook
	}
	return all
}

// failNotebook answers with an error in the original's shape: {"detail": …}.
func (s *Server) failNotebook(c *gin.Context, err error) {
	rest.FailAs(c, s.log, err, func(p wire.Problem) {
		rest.WriteJSON(c, p.Status, "application/json; charset=utf-8", gin.H{"detail": p.Detail})
	})
}

// notebook makes the service for the caller.
func (s *Server) notebook(c *gin.Context) *compat.Notebook {
	return compat.NewNotebook(&compat.Call{Farm: s.farmOf(c.Request.Context())})
}

// replyOrError answers with the value of a call. It answers a refusal in the original's words itself and returns any other error.
func replyOrError(c *gin.Context, v any, err error) error {
	if refusal, ok := errors.AsType[*compat.NotebookError](err); ok {
		return rest.Reply(c, refusal.Status, gin.H{"detail": refusal.Detail})
	}
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, v)
}
