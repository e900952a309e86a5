package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
)

// notebookRoutes are the routes of "LLM Python Code Sandbox" (compat.Notebook). docs/coming-from/llm-python-code-sandbox.md
// describes them; the OpenAPI document has only /v1.
func (s *Server) notebookRoutes() []rest.Route {
	const base = "/sandbox/{id}"
	all := []rest.Route{
		{Method: "POST", Path: "/sandbox/create", Handler: s.notebookCreate},
		{Method: "POST", Path: base + "/install", Handler: s.notebookInstall},
		{Method: "POST", Path: base + "/execute", Handler: s.notebookExecute},
		{Method: "POST", Path: base + "/upload", Handler: s.notebookUpload},
		{Method: "GET", Path: base + "/files", Handler: s.notebookFiles},
		{Method: "GET", Path: base + "/download/{path}", Handler: s.notebookDownload},
		{Method: "POST", Path: base + "/close", Handler: s.notebookClose},
		{Method: "GET", Path: "/sandboxes", Handler: s.notebookList},
		{Method: "GET", Path: "/health", Open: true, Handler: func(c *gin.Context) error {
			return rest.Reply(c, http.StatusOK, gin.H{"status": "healthy"})
		}},
	}
	for i := range all {
		all[i].Hidden, all[i].Refuse = true, s.failNotebook
	}
	return all
}

// failNotebook answers with an error in the original's shape: {"detail": …}.
func (s *Server) failNotebook(c *gin.Context, err error) {
	rest.FailAs(c, s.Log, err, func(p wire.Problem) {
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

func (s *Server) notebookCreate(c *gin.Context) error {
	made, err := s.notebook(c).Create(c.Request.Context())
	return replyOrError(c, made, err)
}

func (s *Server) notebookInstall(c *gin.Context) error {
	name, err := s.field(c, "package_name")
	if err != nil {
		return replyOrError(c, nil, err)
	}
	done, err := s.notebook(c).Install(c.Request.Context(), c.Param("id"), name)
	return replyOrError(c, done, err)
}

// notebookExecute takes code as the plain body or in JSON. The answer has the same form.
func (s *Server) notebookExecute(c *gin.Context) error {
	ctx, id := c.Request.Context(), c.Param("id")
	if kind, _, _ := rest.MediaType(c); kind == "application/json" {
		code, err := s.field(c, "code")
		if err != nil {
			return replyOrError(c, nil, err)
		}
		done, err := s.notebook(c).Execute(ctx, id, code)
		return replyOrError(c, done, err)
	}
	code, err := rest.ReadAll(c, s.Limits.MaxCodeBytes)
	if err == nil {
		code, err = text("code", code)
	}
	if err != nil {
		return replyOrError(c, nil, err)
	}
	done, err := s.notebook(c).Execute(ctx, id, string(code))
	return replyOrError(c, done.Print(), err)
}

// text is a body in UTF-8, without the byte order mark that editors of one system add.
func text(name string, body []byte) ([]byte, error) {
	if !utf8.Valid(body) {
		return nil, compat.WrongField(name, "The body is not UTF-8", "string_unicode")
	}
	return bytes.TrimPrefix(body, []byte("\uFEFF")), nil
}

// field reads a text field of a JSON body. It ignores other fields, as the original does.
func (s *Server) field(c *gin.Context, name string) (value string, err error) {
	err = rest.DecodeAnyJSON(c, s.Limits.MaxBodyBytes, func(body []byte) error {
		body, err := text(name, body)
		if err != nil {
			return err
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil {
			return compat.WrongField(name, "The body is not a JSON object", "json_invalid")
		}
		raw, ok := fields[name]
		if !ok {
			return compat.MissingField(name)
		}
		if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, &value) != nil {
			return compat.WrongField(name, "Input should be a valid string", "string_type")
		}
		return nil
	})
	return value, err
}

func (s *Server) notebookUpload(c *gin.Context) error {
	kind, params, err := rest.MediaType(c)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		_, _ = rest.ReadAll(c, rest.DiscardBytes) // so that a caller that is still sending receives the answer
		return replyOrError(c, nil, compat.MissingField("file"))
	}
	body := rest.HeldBody(c)
	put, err := s.notebook(c).Upload(c.Request.Context(), c.Param("id"), c.Query("file_path"), rest.NewParts(c.Request.Context(), body, params["boundary"]))
	if err != nil {
		rest.Discard(body)
	}
	return replyOrError(c, put, err)
}

func (s *Server) notebookFiles(c *gin.Context) error {
	files, err := s.notebook(c).Files(c.Request.Context(), c.Param("id"))
	return replyOrError(c, files, err)
}

// notebookDownload reads a file as /v1 does, with the original's errors.
func (s *Server) notebookDownload(c *gin.Context) error {
	ctx, id, n := c.Request.Context(), c.Param("id"), s.notebook(c)
	path, _, err := rest.PathAfter(c, "/download/")
	if err != nil {
		return err
	}
	if err := n.Readable(ctx, id, path); err != nil {
		return replyOrError(c, nil, err)
	}
	err = s.SendFile(c, id, path, "attachment")
	if status := rest.StatusOf(err); err != nil && (status == http.StatusNotFound || status == http.StatusUnprocessableEntity || status == http.StatusConflict) {
		err = n.Unreadable(ctx, id, err)
	}
	if err != nil {
		return replyOrError(c, nil, err)
	}
	return nil
}

func (s *Server) notebookClose(c *gin.Context) error {
	done, err := s.notebook(c).Close(c.Request.Context(), c.Param("id"))
	return replyOrError(c, done, err)
}

func (s *Server) notebookList(c *gin.Context) error {
	list, err := s.notebook(c).List(c.Request.Context())
	return replyOrError(c, list, err)
}
