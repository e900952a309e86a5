package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// watchName below the files of a sandbox is the stream of …/watch for who accepts one, and a file for everybody else.
const watchName = "watch"

func (s *Server) fileRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}/files"
	accepted := rest.Answer{Status: http.StatusAccepted, Doc: "the job, when it is not finished within the wait", Body: wire.Job{}}
	download := []rest.Answer{
		{Status: http.StatusOK, Doc: "the file", Media: "application/octet-stream"},
		{Status: http.StatusPartialContent, Doc: "the part of the file that the Range header asks for", Media: "application/octet-stream"},
		{Status: http.StatusFound, Doc: "a presigned link, with link=1", Body: wire.Link{}},
	}
	return []rest.Route{
		{Method: "GET", Path: base, Tag: "Files", Summary: "List files", Query: []rest.Parameter{
			rest.Query("path", "directory in the workspace", object{"type": "string", "default": ""}),
			rest.Query("recursive", "the whole tree", object{"type": "boolean", "default": false}),
			rest.Query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": farm.MaxListedFiles, "default": farm.MaxListedFiles}),
			rest.Query("cursor", "next_cursor of the page before", object{"type": "string"}),
		}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the entries", Body: wire.Files{}}}, Wait: true, Handler: s.listFiles},
		{
			Method: "POST", Path: base, Tag: "Files", Summary: "Upload many files", Detail: "A multipart form, each part stored under its file name, or a tar of a whole project, unpacked completely or not at all. A form has at most 10,000 files, with 2 MiB of paths together.",
			Query:   []rest.Parameter{rest.Query("path", "directory in the workspace", object{"type": "string", "default": ""})},
			Raw:     []string{"multipart/form-data", "application/x-tar"},
			Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "what was written", Body: wire.Files{}}, accepted}, Wait: true, Idempotent: true, Handler: s.uploadFiles,
		},
		{
			Method: "POST", Path: base + "/move", Tag: "Files", Summary: "Rename a file or directory", Body: wire.MoveRequest{},
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the entry in its new place", Body: wire.FileEntry{}}, accepted}, Wait: true, Idempotent: true, Handler: s.moveFile,
		},
		{
			Method: "PUT", Path: base + "/{path}", Tag: "Files", Summary: "Write a file", Detail: "Raw bytes of any size, streamed. A path that ends in a slash makes a directory.",
			Raw:     []string{"application/octet-stream"},
			Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the entry", Body: wire.FileEntry{}}, accepted}, Wait: true, Idempotent: true, Handler: s.writeFile,
		},
		{
			Method: "GET", Path: base + "/{path}", Tag: "Files", Summary: "Read a file", Detail: "Range headers of one part are honoured. With Accept: text/event-stream, …/files/watch is …/watch.",
			Query:   []rest.Parameter{rest.Query("link", "redirect to a presigned link", object{"type": "boolean", "default": false}), {Name: "Range", In: "header", Doc: "bytes=first-last", Schema: text("a part of the file")}},
			Answers: download, Wait: true, Handler: s.readFile,
		},
		{Method: "HEAD", Path: base + "/{path}", Tag: "Files", Summary: "Describe a file", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "size, time and type in the headers"}}, Wait: true, Handler: s.statFile},
		{
			Method: "DELETE", Path: base + "/{path}", Tag: "Files", Summary: "Delete a file or directory",
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the finished job", Body: wire.Job{}}, accepted}, Wait: true, Idempotent: true, Handler: s.deleteFile,
		},
	}
}

func (s *Server) listFiles(c *gin.Context) error {
	recursive, err := rest.Flag(c, "recursive")
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
	if err != nil {
		return err
	}
	var page service.FilePage
	if page.After, err = service.FileCursor(c.Query("cursor")); err != nil {
		return rest.BadRequestf("cursor is not valid: send next_cursor of a page")
	}
	if page.Limit, err = rest.Limit(c, farm.MaxListedFiles, farm.MaxListedFiles); err != nil {
		return err
	}
	found, err := s.service.ListFiles(c.Request.Context(), reading(call, s), c.Param("id"), c.Query("path"), recursive, page)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, found)
}

// reading makes the call of a read. Its answer is the content, so it always waits.
func reading(call service.Call, s *Server) service.Call {
	if call.Wait == 0 {
		call.Wait = s.fileWait()
	}
	return call
}

func (s *Server) writeFile(c *gin.Context) error {
	file, err := rest.FilePath(c)
	if err == nil {
		err = rest.NoConditions(c)
	}
	if err == nil && strings.HasSuffix(file, "/") {
		err = rest.NoContentOf(c)
	}
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
	if err != nil {
		return err
	}
	body, size, err := rest.Unpacked(c, rest.HeldBody(c))
	if err != nil {
		return err
	}
	out, err := s.service.WriteFile(c.Request.Context(), call, c.Param("id"), file, body, size)
	if err != nil {
		rest.DiscardShort(c)
		return err
	}
	return s.written(c, call, out, http.StatusCreated, first(out))
}

// written answers a file change: with its result, or with the job if it is still running.
func (s *Server) written(c *gin.Context, call service.Call, out service.Outcome, status int, body any) error {
	if !out.Done() || call.Wait == 0 {
		return accepted(c, call, out, status, out.Job)
	}
	return rest.Reply(c, status, body)
}

// first answers with the entry that a change made, or with the job if there is no entry.
func first(out service.Outcome) any {
	if len(out.Entries) > 0 {
		return out.Entries[0]
	}
	return out.Job
}

func (s *Server) deleteFile(c *gin.Context) error {
	file, err := rest.FilePath(c)
	if err == nil {
		err = rest.NoConditions(c)
	}
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
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

// statFile answers HEAD.
func (s *Server) statFile(c *gin.Context) error {
	file, err := rest.FilePath(c)
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
	if err != nil {
		return err
	}
	entry, err := s.service.StatFile(c.Request.Context(), reading(call, s), c.Param("id"), file)
	if err != nil {
		return err
	}
	rest.FileHeaders(c, entry, "attachment")
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
	file, err := rest.FilePath(c)
	if err != nil {
		return err
	}
	if file == watchName && strings.Contains(c.GetHeader("Accept"), "text/event-stream") {
		if err := rest.Allow(c, farm.ScopeRun); err != nil {
			return err
		}
		return s.watchFiles(c)
	}
	return s.sendFile(c, c.Param("id"), file, "attachment")
}

// sendFile answers with a file, as the request's headers and query ask. shown is the disposition for a harmless type:
// attachment or inline.
func (s *Server) sendFile(c *gin.Context, id, file, shown string) error {
	link, err := rest.Flag(c, "link")
	if err != nil {
		return err
	}
	call, err := s.call(c, s.fileWait(), rest.Decoded{})
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
		return rest.Reply(c, http.StatusFound, wire.Link{URL: url})
	}
	part, status := service.Range{}, http.StatusOK
	if wanted, ok := rest.ParseRange(c.GetHeader("Range")); ok && c.GetHeader("If-Range") == "" {
		if part, err = s.partOf(c, call, id, file, wanted); err != nil {
			return err
		}
		status = http.StatusPartialContent
	}
	f, err := s.service.ReadFile(c.Request.Context(), call, id, file, part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Content.Close() }() // everything was read, or the caller has left
	return s.send(c, status, f, shown)
}

// partOf reads the size of the file first, so that a range beyond its end can be answered with 416.
func (s *Server) partOf(c *gin.Context, call service.Call, id, file string, wanted rest.ByteRange) (service.Range, error) {
	entry, err := s.service.StatFile(c.Request.Context(), call, id, file)
	if err != nil {
		return service.Range{}, err
	}
	if entry.Type != "file" {
		return service.Range{}, farm.Invalidf("%s is a %s, not a file.", entry.Path, entry.Type)
	}
	offset, length, ok := wanted.Within(entry.Size)
	if !ok {
		c.Header("Content-Range", fmt.Sprintf("bytes */%d", entry.Size))
		return service.Range{}, rest.Refusef(http.StatusRequestedRangeNotSatisfiable, farm.CodeInvalid, "The range holds no byte of the file, which has %d.", entry.Size)
	}
	return service.Range{Offset: offset, Length: length}, nil
}

// send sends a file, compressed if it is whole and the caller takes that, or a part as it is.
func (s *Server) send(c *gin.Context, status int, f service.File, shown string) error {
	rest.FileHeaders(c, f.Entry, shown)
	if status != http.StatusPartialContent {
		return rest.SendWhole(c, f.Content, f.Length)
	}
	c.Header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", f.Offset, f.Offset+f.Length-1, f.Size))
	return rest.SendContent(c, status, f.Content, f.Length)
}

// fileWait is how long file routes wait by default.
func (s *Server) fileWait() time.Duration { return s.service.FileWait() }
