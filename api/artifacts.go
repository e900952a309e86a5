package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func (s *Server) artifactRoutes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v1/artifacts", Tag: "Artifacts", Summary: "List artifacts", Query: append(byOrigin(), rest.Query("name", "only of exactly this name, the last element of the path", object{"type": "string"}), rest.Query("state", "only of jobs in these states, separated by commas", stateSchema(farm.JobStates()))), Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of artifacts, newest first", Body: wire.List[wire.Artifact]{}}}, Handler: s.listArtifacts},
		{Method: "GET", Path: "/v1/artifacts/{id}", Tag: "Artifacts", Summary: "Download an artifact", Answers: []rest.Answer{{Status: http.StatusFound, Doc: "a fresh presigned link in Location, the artifact in the body", Body: wire.Artifact{}}}, Handler: s.readArtifact},
		{Method: "GET", Path: "/v1/artifacts/{id}/meta", Tag: "Artifacts", Summary: "Describe an artifact", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the artifact, with a fresh link", Body: wire.Artifact{}}}, Handler: s.describeArtifact},
		{Method: "DELETE", Path: "/v1/artifacts/{id}", Tag: "Artifacts", Summary: "Delete an artifact", Detail: "Links to it no longer work. Its job no longer lists it.", Answers: []rest.Answer{{Status: http.StatusNoContent, Doc: "it is deleted"}}, Handler: s.deleteArtifact},
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

// uploadFiles takes a multipart form or a tar.
func (s *Server) uploadFiles(c *gin.Context) error {
	kind, params, err := rest.MediaType(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
	if err != nil {
		return err
	}
	ctx, id, under := c.Request.Context(), c.Param("id"), c.Query("path")
	var out service.Outcome
	switch kind {
	case "application/x-tar", "application/tar":
		body, size, failed := rest.Unpacked(c, rest.HeldBody(c))
		if failed != nil {
			return failed
		}
		out, err = s.service.WriteTar(ctx, call, id, under, body, size)
	case "multipart/form-data":
		if params["boundary"] == "" {
			return rest.BadRequestf("the Content-Type multipart/form-data has no boundary")
		}
		body := rest.HeldBody(c)
		form := &form{body: body, reader: rest.NewParts(c.Request.Context(), body, params["boundary"])}
		out, err = s.service.WriteFiles(ctx, call, id, under, form.next)
	default:
		err = rest.Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type must be multipart/form-data or application/x-tar")
	}
	if err != nil {
		rest.DiscardShort(c)
		return err
	}
	return s.written(c, call, out, http.StatusCreated, wire.Files{Items: out.Entries})
}

// form reads the files of a multipart body. A field "path" before a file names the directory it goes to.
type form struct {
	body   io.Reader
	reader *rest.Parts
	under  string
}

// fieldBytes is the largest plain field.
const fieldBytes = farm.MaxPathBytes

func (f *form) next() (service.Part, error) {
	for {
		part, err := f.reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			rest.Discard(f.body) // what lies behind the last boundary
			return service.Part{}, io.EOF
		}
		if err != nil {
			if _, ours := errors.AsType[*rest.Refusal](err); ours {
				return service.Part{}, err
			}
			return service.Part{}, rest.BadRequestf("the multipart body cannot be read: it is broken or ends too early")
		}
		// FileName would keep the last element only; the service judges the whole.
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			return service.Part{}, rest.BadRequestf("a part of the body has no readable Content-Disposition")
		}
		name, isFile := params["filename"]
		switch {
		case isFile:
			if f.under == "" {
				return service.Part{Path: name, Content: part}, nil
			}
			clean, err := farm.CleanFilePath(name)
			return service.Part{Path: f.under + "/" + clean, Content: part}, err
		case params["name"] == "path":
			text, err := io.ReadAll(io.LimitReader(part, fieldBytes+1))
			if err != nil || len(text) > fieldBytes {
				return service.Part{}, rest.BadRequestf("the field path is too long or broken")
			}
			f.under = string(text)
		default:
			return service.Part{}, rest.BadRequestf("the field %s is not a file: send each part with a file name", strconv.QuoteToASCII(params["name"]))
		}
	}
}
