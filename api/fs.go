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
func (s *Server) fsRoutes() []route {
	const base = "/v1/sandboxes/{id}/fs"
	anywhere := query("path", "absolute, or relative to the workspace", object{"type": "string", "default": ""})
	entry := []answer{{http.StatusOK, "the file as it is now", wire.FSEntry{}, ""}}
	conditions := []parameter{
		{"If-Match", "header", "only if the file is this version; * means any", text("an etag")},
		{"If-None-Match", "header", "only if the file is not this version; * means that there is none", text("an etag")},
	}
	content := []answer{
		{http.StatusOK, "the content", nil, rest.AnyType},
		{http.StatusPartialContent, "the part that the Range header asks for", nil, rest.AnyType},
		{http.StatusNotModified, "it is the version that If-None-Match names", nil, ""},
	}
	return []route{
		{method: "GET", path: base, tag: "Files", summary: "List files anywhere", detail: "Now, beside running jobs, as the sandbox's user sees them.", scope: farm.ScopeRun, query: []parameter{
			anywhere, query("depth", "how far below the path; 0 describes the path itself, and follows no link", object{"type": "integer", "minimum": 0, "maximum": farm.MaxFSDepth, "default": 1}),
			query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": farm.MaxFSEntries, "default": farm.MaxFSEntries}),
			query("cursor", "next_cursor of the page before", object{"type": "string"}),
		}, answers: []answer{{http.StatusOK, "the entries", wire.FSListing{}, ""}}, handler: s.listFS},
		{
			method: "POST", path: base, tag: "Files", summary: "Unpack a tar anywhere", detail: "Into the directory path, all of it or nothing. It may be compressed (Content-Encoding: gzip).", query: []parameter{anywhere},
			raw: []string{"application/x-tar"}, answers: []answer{{http.StatusCreated, "the directory", wire.FSEntry{}, ""}}, handler: s.unpackFS,
		},
		{method: "POST", path: base + "/copy", tag: "Files", summary: "Copy a file or directory", body: wire.FSMove{}, answers: entry, handler: s.copyFS},
		{method: "POST", path: base + "/move", tag: "Files", summary: "Move a file or directory", detail: "Also to another file system.", body: wire.FSMove{}, answers: entry, handler: s.moveFS},
		{method: "POST", path: base + "/link", tag: "Files", summary: "Make a symbolic link", body: wire.FSLink{}, answers: []answer{{http.StatusCreated, "the link", wire.FSEntry{}, ""}}, handler: s.linkFS},
		{
			method: "GET", path: "/v1/sandboxes/{id}/watch", tag: "Files", summary: "Watch a directory or a file", scope: farm.ScopeRun,
			detail: "Events ready (it is watched from now on), created, changed, removed, renamed, and dropped: something happened that no event tells, so look again. The newest 4096 are kept for a minute, with Last-Event-ID from there on.",
			query: []parameter{
				anywhere, query("recursive", "all directories below it, too", object{"type": "boolean", "default": false}),
				query("ignore", "pattern of names that are left out, such as *.pyc; may be repeated", object{"type": "string"}),
				query("after", "id of the last event that the caller has, as Last-Event-ID", object{"type": "string"}),
			},
			answers: []answer{{http.StatusOK, "server-sent events; data is WatchReady, FileChange or ChangesDropped", nil, "text/event-stream"}}, handler: s.watchFiles,
		},
		{
			method: "GET", path: base + "/{path}", tag: "Files", summary: "Read a file anywhere", detail: "The path is absolute: …/fs/etc/hosts is /etc/hosts. Ranges of one part, conditions and gzip are honoured. The trailer Sandfarm-Left-Out of a tar or a zip says how many files and directories could not be packed.", scope: farm.ScopeRun,
			query: append([]parameter{
				query("tar", "a directory, as a tar of its files, directories and symbolic links", object{"type": "boolean", "default": false}),
				query("zip", "a directory, as a zip of its files, directories and symbolic links", object{"type": "boolean", "default": false}),
				{"Range", "header", "bytes=first-last", text("a part of the file")},
				{"If-Range", "header", "the Range holds only for this version", text("an etag")},
			}, conditions...),
			answers: content, handler: s.readFS,
		},
		{method: "HEAD", path: base + "/{path}", tag: "Files", summary: "Describe a file anywhere", detail: "A link is followed.", scope: farm.ScopeRun, answers: []answer{{http.StatusOK, "size, time, type, mode and owner in the headers", nil, ""}}, handler: s.statFS},
		{
			method: "PUT", path: base + "/{path}", tag: "Files", summary: "Write a file anywhere", detail: "Replaced in one step, or written in place with append or offset. Of any size, streamed; it may be compressed (Content-Encoding: gzip). A path that ends in a slash makes a directory.",
			raw: []string{rest.AnyType}, query: append([]parameter{
				query("append", "write behind the end", object{"type": "boolean", "default": false}),
				query("offset", "write from this byte on and keep the rest", object{"type": "integer", "minimum": 0}),
				query("mode", "permissions in octal digits; default: those that the file has, or 0644", object{"type": "string"}),
			}, conditions...),
			answers: []answer{{http.StatusCreated, "the file", wire.FSEntry{}, ""}}, handler: s.writeFS,
		},
		{method: "PATCH", path: base + "/{path}", tag: "Files", summary: "Set the permissions and the time of a file", body: wire.FSChange{}, answers: entry, handler: s.changeFS},
		{method: "DELETE", path: base + "/{path}", tag: "Files", summary: "Delete a file or directory anywhere", detail: "A directory with all that is in it.", answers: []answer{{http.StatusNoContent, "it is gone", nil, ""}}, handler: s.removeFS},
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
	body, size, err := rest.Unpacked(c)
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
	body, size, err := rest.Unpacked(c)
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
