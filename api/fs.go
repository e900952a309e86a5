package api

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The routes of files anywhere in a sandbox need the scope run: what its user may read includes the variables of its programs (/proc).
func (s *Server) fsRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}/fs"
	anywhere := rest.Query("path", "absolute, or relative to the workspace", object{"type": "string", "default": ""})
	entry := []rest.Answer{{Status: http.StatusOK, Doc: "the file as it is now", Body: wire.FSEntry{}}}
	conditions := []rest.Parameter{
		{Name: "If-Match", In: "header", Doc: "only if the file is this version; * means any", Schema: text("an etag")},
		{Name: "If-None-Match", In: "header", Doc: "only if the file is not this version; * means that there is none", Schema: text("an etag")},
	}
	content := []rest.Answer{
		{Status: http.StatusOK, Doc: "the content", Media: rest.AnyType},
		{Status: http.StatusPartialContent, Doc: "the part that the Range header asks for", Media: rest.AnyType},
		{Status: http.StatusNotModified, Doc: "it is the version that If-None-Match names"},
	}
	return []rest.Route{
		{Method: "GET", Path: base, Tag: "Files", Summary: "List files anywhere", Detail: "Now, beside running jobs, as the sandbox's user sees them.", Scope: farm.ScopeRun, Query: []rest.Parameter{
			anywhere, rest.Query("depth", "how far below the path; 0 describes the path itself, and follows no link", object{"type": "integer", "minimum": 0, "maximum": farm.MaxFSDepth, "default": 1}),
			rest.Query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": farm.MaxFSEntries, "default": farm.MaxFSEntries}),
			rest.Query("cursor", "next_cursor of the page before", object{"type": "string"}),
		}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the entries", Body: wire.FSListing{}}}, Handler: s.listFS},
		{
			Method: "POST", Path: base, Tag: "Files", Summary: "Unpack a tar anywhere", Detail: "Into the directory path, all of it or nothing. It may be compressed (Content-Encoding: gzip).", Query: []rest.Parameter{anywhere},
			Raw: []string{"application/x-tar"}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the directory", Body: wire.FSEntry{}}}, Handler: s.unpackFS,
		},
		{Method: "POST", Path: base + "/copy", Tag: "Files", Summary: "Copy a file or directory", Body: wire.FSMove{}, Answers: entry, Handler: s.copyFS},
		{Method: "POST", Path: base + "/move", Tag: "Files", Summary: "Move a file or directory", Detail: "Also to another file system.", Body: wire.FSMove{}, Answers: entry, Handler: s.moveFS},
		{Method: "POST", Path: base + "/link", Tag: "Files", Summary: "Make a symbolic link", Body: wire.FSLink{}, Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the link", Body: wire.FSEntry{}}}, Handler: s.linkFS},
		{
			Method: "GET", Path: "/v1/sandboxes/{id}/watch", Tag: "Files", Summary: "Watch a directory or a file", Scope: farm.ScopeRun,
			Detail: "Events ready (it is watched from now on), created, changed, removed, renamed, and dropped: something happened that no event tells, so look again. The newest 4096 are kept for a minute, with Last-Event-ID from there on.",
			Query: []rest.Parameter{
				anywhere, rest.Query("recursive", "all directories below it, too", object{"type": "boolean", "default": false}),
				rest.Query("ignore", "pattern of names that are left out, such as *.pyc; may be repeated", object{"type": "string"}),
				rest.Query("after", "id of the last event that the caller has, as Last-Event-ID", object{"type": "string"}),
			},
			Answers: []rest.Answer{{Status: http.StatusOK, Doc: "server-sent events; data is WatchReady, FileChange or ChangesDropped", Media: "text/event-stream"}}, Handler: s.watchFiles,
		},
		{
			Method: "GET", Path: base + "/{path}", Tag: "Files", Summary: "Read a file anywhere", Detail: "The path is absolute: …/fs/etc/hosts is /etc/hosts. Ranges of one part, conditions and gzip are honoured. The trailer Sandfarm-Left-Out of a tar or a zip says how many files and directories could not be packed.", Scope: farm.ScopeRun,
			Query: append([]rest.Parameter{
				rest.Query("tar", "a directory, as a tar of its files, directories and symbolic links", object{"type": "boolean", "default": false}),
				rest.Query("zip", "a directory, as a zip of its files, directories and symbolic links", object{"type": "boolean", "default": false}),
				{Name: "Range", In: "header", Doc: "bytes=first-last", Schema: text("a part of the file")},
				{Name: "If-Range", In: "header", Doc: "the Range holds only for this version", Schema: text("an etag")},
			}, conditions...),
			Answers: content, Handler: s.readFS,
		},
		{Method: "HEAD", Path: base + "/{path}", Tag: "Files", Summary: "Describe a file anywhere", Detail: "A link is followed.", Scope: farm.ScopeRun, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "size, time, type, mode and owner in the headers"}}, Handler: s.statFS},
		{
			Method: "PUT", Path: base + "/{path}", Tag: "Files", Summary: "Write a file anywhere", Detail: "Replaced in one step, or written in place with append or offset. Of any size, streamed; it may be compressed (Content-Encoding: gzip). A path that ends in a slash makes a directory.",
			Raw: []string{rest.AnyType}, Query: append([]rest.Parameter{
				rest.Query("append", "write behind the end", object{"type": "boolean", "default": false}),
				rest.Query("offset", "write from this byte on and keep the rest", object{"type": "integer", "minimum": 0}),
				rest.Query("mode", "permissions in octal digits; default: those that the file has, or 0644", object{"type": "string"}),
			}, conditions...),
			Answers: []rest.Answer{{Status: http.StatusCreated, Doc: "the file", Body: wire.FSEntry{}}}, Handler: s.writeFS,
		},
		{Method: "PATCH", Path: base + "/{path}", Tag: "Files", Summary: "Set the permissions and the time of a file", Body: wire.FSChange{}, Answers: entry, Handler: s.changeFS},
		{Method: "DELETE", Path: base + "/{path}", Tag: "Files", Summary: "Delete a file or directory anywhere", Detail: "A directory with all that is in it.", Answers: []rest.Answer{{Status: http.StatusNoContent, Doc: "it is gone"}}, Handler: s.removeFS},
	}
}

// fsPath is the absolute path after …/fs/.
func fsPath(c *gin.Context) (string, error) {
	path, _, err := rest.PathAfter(c, "/fs/")
	return "/" + path, err
}

// fsCall is the call of a change without a job.
func fsCall(c *gin.Context, body rest.Decoded) service.Call {
	return service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}
}

func (s *Server) listFS(c *gin.Context) error {
	depth := 1
	if given, ok := c.GetQuery("depth"); ok {
		var err error
		if depth, err = strconv.Atoi(given); err != nil || depth < 0 || depth > farm.MaxFSDepth {
			return rest.BadRequestf("depth must be a whole number from 0 to %d", farm.MaxFSDepth)
		}
	}
	var page service.FilePage
	var err error
	if page.After, err = service.FileCursor(c.Query("cursor")); err != nil {
		return rest.BadRequestf("cursor is not valid: send next_cursor of a page")
	}
	if page.Limit, err = rest.Limit(c, farm.MaxFSEntries, farm.MaxFSEntries); err != nil {
		return err
	}
	found, err := s.service.ListFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Query("path"), depth, page)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, found)
}

// watchFiles streams the changes of a tree until the caller leaves.
func (s *Server) watchFiles(c *gin.Context) error {
	recursive, err := rest.Flag(c, "recursive")
	if err != nil {
		return err
	}
	what := service.Watching{Path: c.Query("path"), Recursive: recursive, Ignore: c.QueryArray("ignore")}
	ctx := c.Request.Context()
	reader, err := s.service.WatchFiles(ctx, rest.Tenant(c), c.Param("id"), what, lastEvent(c))
	if err != nil {
		return err
	}
	if err := s.sendEvents(c, reader, "changes"); err != nil {
		s.log.InfoContext(ctx, "a watch of files broke off", slog.String("request_id", rest.RequestID(c)), slog.Any("error", err))
		panic(http.ErrAbortHandler) // the caller reconnects with its last id, and learns why if it cannot
	}
	return nil
}

func (s *Server) statFS(c *gin.Context) error {
	path, err := fsPath(c)
	if err != nil {
		return err
	}
	entry, err := s.service.StatFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), path)
	if err != nil {
		return err
	}
	fsHeaders(c, entry)
	if err := rest.ReadConditions(c, entry.ETag); rest.IsNotModified(err) {
		c.Status(http.StatusNotModified)
		c.Writer.WriteHeaderNow()
		return nil
	} else if err != nil {
		return err
	}
	if entry.Type == "file" {
		c.Header("Content-Length", strconv.FormatInt(entry.Size, 10))
	}
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
	return nil
}

// fsHeaders describe a file.
func fsHeaders(c *gin.Context, e wire.FSEntry) {
	rest.FileHeaders(c, wire.FileEntry{Path: e.Path, ModifiedAt: e.ModifiedAt}, "attachment")
	c.Header("ETag", `"`+e.ETag+`"`)
	c.Header("X-File-Type", e.Type)
	c.Header("X-File-Mode", e.Mode)
	c.Header("X-File-Owner", fmt.Sprintf("%d:%d", e.UID, e.GID))
}

// readFS answers with a file, a part of it, or a directory as a tar or a zip.
func (s *Server) readFS(c *gin.Context) error {
	path, err := fsPath(c)
	if err != nil {
		return err
	}
	tar, err := rest.Flag(c, "tar")
	if err != nil {
		return err
	}
	zip, err := rest.Flag(c, "zip")
	if err != nil {
		return err
	}
	switch {
	case tar && zip:
		return rest.BadRequestf("tar and zip exclude each other: send one of them")
	case tar:
		return s.packFS(c, path, ".tar", rest.SendTar)
	case zip:
		return s.packFS(c, path, ".zip", rest.SendZip)
	}
	status := http.StatusOK
	content, part, err := s.service.ReadFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), path, func(e wire.FSEntry) (service.Range, error) {
		if err := rest.ReadConditions(c, e.ETag); err != nil {
			fsHeaders(c, e)
			return service.Range{}, err
		}
		offset, length, partial, err := rest.Part(c, e.Size, e.ETag)
		if err != nil || !partial {
			return service.Range{Length: e.Size}, err
		}
		status = http.StatusPartialContent
		return service.Range{Offset: offset, Length: length}, nil
	})
	if rest.IsNotModified(err) {
		c.Status(http.StatusNotModified)
		c.Writer.WriteHeaderNow()
		return nil
	}
	if err != nil {
		return err
	}
	defer content.Close()
	fsHeaders(c, content.Entry)
	if status == http.StatusPartialContent {
		c.Header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Offset, part.Offset+part.Length-1, content.Entry.Size))
		return rest.SendContent(c, status, content, part.Length)
	}
	return rest.SendWhole(c, content, part.Length)
}

// packFS answers with a directory as one file, which send makes of its tar.
func (s *Server) packFS(c *gin.Context, path, ending string, send func(c *gin.Context, tar io.Reader) error) error {
	content, err := s.service.PackFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), path)
	if err != nil {
		return err
	}
	defer content.Close()
	rest.FileHeaders(c, wire.FileEntry{Path: strings.TrimRight(path, "/") + ending}, "attachment")
	c.Writer.Header().Del("Accept-Ranges")
	c.Header("Trailer", wire.LeftOutTrailer)
	if err := send(c, content); err != nil {
		return err
	}
	c.Header(wire.LeftOutTrailer, strconv.Itoa(content.LeftOut))
	return nil
}

// writeFS writes the body to a file, or makes a directory.
func (s *Server) writeFS(c *gin.Context) error {
	path, err := fsPath(c)
	if err != nil {
		return err
	}
	ctx, tenant, id := c.Request.Context(), rest.Tenant(c), c.Param("id")
	if strings.HasSuffix(path, "/") {
		if err := errors.Join(rest.NoConditions(c), rest.NoContentOf(c)); err != nil {
			return err
		}
		made, err := s.service.MkdirFS(ctx, tenant, id, path, c.Query("mode"))
		if err != nil {
			return err
		}
		return rest.Reply(c, http.StatusCreated, made)
	}
	how := farm.FSWrite{How: farm.FSReplace}
	if how.Mode, err = service.FSMode(c.Query("mode")); err != nil {
		return err
	}
	behind, err := rest.Flag(c, "append")
	if err != nil {
		return err
	}
	if behind {
		how.How = farm.FSAppend
	}
	if given, ok := c.GetQuery("offset"); ok {
		if how.Offset, err = strconv.ParseInt(given, 10, 64); err != nil || how.Offset < 0 || behind {
			return rest.BadRequestf("offset must be a number of bytes from 0 on, and not be given with append")
		}
		how.How = farm.FSAt
	}
	if how.Match, how.NoMatch, err = rest.WriteConditions(c); err != nil {
		return err
	}
	body, size, err := rest.Unpacked(c, rest.Body(c))
	if err != nil {
		return err
	}
	written, err := s.service.WriteFS(ctx, tenant, id, path, how, body, size)
	if err != nil {
		rest.DiscardShort(c)
		return rest.AsUnmet(err)
	}
	c.Header("ETag", `"`+written.ETag+`"`)
	return rest.Reply(c, http.StatusCreated, written)
}

func (s *Server) unpackFS(c *gin.Context) error {
	kind, _, err := rest.MediaType(c)
	if err == nil {
		err = s.service.ReachFS(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	}
	if err != nil {
		return err
	}
	if kind != "application/x-tar" {
		return rest.Refusef(http.StatusUnsupportedMediaType, farm.CodeInvalid, "the Content-Type must be application/x-tar")
	}
	body, size, err := rest.Unpacked(c, rest.Body(c))
	if err != nil {
		return err
	}
	made, err := s.service.UnpackFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Query("path"), body, size)
	if err != nil {
		rest.DiscardShort(c)
		return err
	}
	return rest.Reply(c, http.StatusCreated, made)
}

func (s *Server) changeFS(c *gin.Context) error {
	path, err := fsPath(c)
	if err != nil {
		return err
	}
	return fsChange(c, s, http.StatusOK, func(call service.Call, r wire.FSChange) (wire.FSEntry, error) {
		return s.service.ChangeFS(c.Request.Context(), call, c.Param("id"), path, r)
	})
}

func (s *Server) copyFS(c *gin.Context) error {
	return fsChange(c, s, http.StatusOK, func(call service.Call, r wire.FSMove) (wire.FSEntry, error) {
		return s.service.CopyFS(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) moveFS(c *gin.Context) error {
	return fsChange(c, s, http.StatusOK, func(call service.Call, r wire.FSMove) (wire.FSEntry, error) {
		return s.service.MoveFS(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) linkFS(c *gin.Context) error {
	return fsChange(c, s, http.StatusCreated, func(call service.Call, r wire.FSLink) (wire.FSEntry, error) {
		return s.service.LinkFS(c.Request.Context(), call, c.Param("id"), r)
	})
}

// fsChange decodes the body of a change, makes it, and answers with the file.
func fsChange[R any](c *gin.Context, s *Server, status int, change func(service.Call, R) (wire.FSEntry, error)) error {
	var r R
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	out, err := change(fsCall(c, body), r)
	if err != nil {
		return err
	}
	return rest.Reply(c, status, out)
}

func (s *Server) removeFS(c *gin.Context) error {
	path, err := fsPath(c)
	if err == nil {
		err = rest.NoConditions(c)
	}
	if err != nil {
		return err
	}
	if err := s.service.RemoveFS(c.Request.Context(), rest.Tenant(c), c.Param("id"), path); err != nil {
		return err
	}
	return rest.NoContent(c)
}
