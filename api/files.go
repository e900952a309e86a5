package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) listFiles(c *gin.Context) error {
	recursive, err := flag(c, "recursive")
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	found, err := s.service.ListFiles(c.Request.Context(), reading(call, s), c.Param("id"), c.Query("path"), recursive)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, wire.Files{Items: found.Entries, Note: strings.Join(found.Notes, " ")})
}

// reading makes a call of a read: its answer is the content, so it waits whatever the caller said.
func reading(call service.Call, s *Server) service.Call {
	if call.Wait == 0 {
		call.Wait = s.fileWait()
	}
	return call
}

func (s *Server) writeFile(c *gin.Context) error {
	file, err := filePath(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	out, err := s.service.WriteFile(c.Request.Context(), call, c.Param("id"), file, s.body(c), c.Request.ContentLength)
	if err != nil {
		return s.refuseUpload(c, err)
	}
	return s.written(c, call, out, http.StatusCreated, first(out))
}

// refuseUpload reads on what the caller is still sending, where that is little, so that the answer is seen.
func (s *Server) refuseUpload(c *gin.Context, err error) error {
	if c.Request.ContentLength >= 0 && c.Request.ContentLength <= discardBytes {
		discard(s.body(c))
	}
	return err
}

// written answers a change of files: with what it made, or with the job while it goes on.
func (s *Server) written(c *gin.Context, call service.Call, out service.Outcome, status int, body any) error {
	if !out.Done() || call.Wait == 0 {
		return accepted(c, call, out, status, out.Job)
	}
	return reply(c, status, body)
}

// first is the one entry that a change made, or the job where there is none to show.
func first(out service.Outcome) any {
	if len(out.Entries) > 0 {
		return out.Entries[0]
	}
	return out.Job
}

func (s *Server) deleteFile(c *gin.Context) error {
	file, err := filePath(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	out, err := s.service.DeleteFile(c.Request.Context(), call, c.Param("id"), file)
	if err != nil {
		return err
	}
	return s.written(c, call, out, http.StatusOK, out.Job)
}

func (s *Server) moveFile(c *gin.Context) error {
	var r wire.MoveRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), body)
	if err != nil {
		return err
	}
	out, err := s.service.MoveFile(c.Request.Context(), call, c.Param("id"), r)
	if err != nil {
		return err
	}
	return s.written(c, call, out, http.StatusOK, first(out))
}

// uploadFiles takes a multipart form or a tar.
func (s *Server) uploadFiles(c *gin.Context) error {
	kind, params, err := mediaType(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	ctx, id, under := c.Request.Context(), c.Param("id"), c.Query("path")
	var out service.Outcome
	switch kind {
	case "application/x-tar", "application/tar":
		out, err = s.service.WriteTar(ctx, call, id, under, s.body(c), c.Request.ContentLength)
	case "multipart/form-data":
		if params["boundary"] == "" {
			return badf("the Content-Type multipart/form-data has no boundary")
		}
		body := s.body(c)
		form := &form{body: body, reader: multipart.NewReader(body, params["boundary"])}
		out, err = s.service.WriteFiles(ctx, call, id, under, form.next)
	default:
		err = refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type must be multipart/form-data or application/x-tar")
	}
	if err != nil {
		return s.refuseUpload(c, err)
	}
	return s.written(c, call, out, http.StatusCreated, wire.Files{Items: out.Entries})
}

// form reads the files of a multipart body. A field "path" before a file names the directory it goes to.
type form struct {
	body   io.Reader
	reader *multipart.Reader
	under  string
}

// fieldBytes is the largest plain field.
const fieldBytes = farm.MaxPathBytes

func (f *form) next() (service.Part, error) {
	for {
		part, err := f.reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			discard(f.body) // what lies behind the last boundary
			return service.Part{}, io.EOF
		}
		if err != nil {
			if _, ours := errors.AsType[*refusal](err); ours {
				return service.Part{}, err //nolint:wrapcheck // a sentence of our own
			}
			return service.Part{}, badf("the multipart body cannot be read: it is broken or ends too early")
		}
		// FileName would keep the last element only; the service judges the whole.
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			return service.Part{}, badf("a part of the body has no readable Content-Disposition")
		}
		name, isFile := params["filename"]
		switch {
		case isFile:
			if f.under == "" {
				return service.Part{Path: name, Content: part}, nil
			}
			clean, err := farm.CleanFilePath(name)
			return service.Part{Path: f.under + "/" + clean, Content: part}, err //nolint:wrapcheck // a sentence of the domain
		case params["name"] == "path":
			text, err := io.ReadAll(io.LimitReader(part, fieldBytes+1))
			if err != nil || len(text) > fieldBytes {
				return service.Part{}, badf("the field path is too long or broken")
			}
			f.under = string(text)
		default:
			return service.Part{}, badf("the field %s is not a file: send each part with a file name", strconv.QuoteToASCII(params["name"]))
		}
	}
}

// statFile answers HEAD.
func (s *Server) statFile(c *gin.Context) error {
	file, err := filePath(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	entry, err := s.service.StatFile(c.Request.Context(), reading(call, s), c.Param("id"), file)
	if err != nil {
		return err
	}
	fileHeaders(c, entry, "attachment")
	c.Header("X-File-Type", entry.Type)
	c.Header("X-File-Mode", entry.Mode)
	if entry.Type == "file" {
		c.Header("Content-Length", strconv.FormatInt(entry.Size, 10))
	}
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
	return nil
}

// readFile answers GET: the whole file, a part of it, or a link to it.
func (s *Server) readFile(c *gin.Context) error {
	file, err := filePath(c)
	if err != nil {
		return err
	}
	return s.sendFile(c, c.Param("id"), file, "attachment")
}

// sendFile answers with a file, as the request's headers and query want it. Shown is how a browser takes it where it is of a
// kind that does no harm: as attachment or inline.
func (s *Server) sendFile(c *gin.Context, id, file, shown string) error {
	link, err := flag(c, "link")
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), nil)
	if err != nil {
		return err
	}
	call = reading(call, s)
	if link {
		url, err := s.service.LinkFile(c.Request.Context(), call, id, file)
		if err != nil {
			return err
		}
		c.Header("Location", url)
		return reply(c, http.StatusFound, wire.Link{URL: url})
	}
	part, status := service.Range{}, http.StatusOK
	if wanted, ok := parseRange(c.GetHeader("Range")); ok && c.GetHeader("If-Range") == "" {
		if part, err = s.partOf(c, call, id, file, wanted); err != nil {
			return err
		}
		status = http.StatusPartialContent
	}
	f, err := s.service.ReadFile(c.Request.Context(), call, id, file, part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Content.Close() }() // everything was read, or the caller has gone
	return s.send(c, status, f, shown)
}

// partOf looks at the file's size first, so that a range beyond its end is told as such.
func (s *Server) partOf(c *gin.Context, call service.Call, id, file string, wanted byteRange) (service.Range, error) {
	entry, err := s.service.StatFile(c.Request.Context(), call, id, file)
	if err != nil {
		return service.Range{}, err
	}
	if entry.Type != "file" {
		return service.Range{}, farm.Invalidf("%s is no file but a %s.", entry.Path, entry.Type)
	}
	part, ok := wanted.within(entry.Size)
	if !ok {
		c.Header("Content-Range", fmt.Sprintf("bytes */%d", entry.Size))
		return part, refusef(http.StatusRequestedRangeNotSatisfiable, farm.CodeInvalid, "The range holds no byte of the file, which has %d.", entry.Size)
	}
	return part, nil
}

func (s *Server) send(c *gin.Context, status int, f service.File, shown string) error {
	fileHeaders(c, f.Entry, shown)
	c.Header("Content-Length", strconv.FormatInt(f.Length, 10))
	if status == http.StatusPartialContent {
		c.Header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", f.Offset, f.Offset+f.Length-1, f.Size))
	}
	c.Status(status)
	out := newPatient(c)
	n, err := io.Copy(out, f.Content)
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return fmt.Errorf("send file: %w", err)
	}
	if n != f.Length {
		return fmt.Errorf("send file: %d bytes instead of %d", n, f.Length)
	}
	return nil
}
