package e2b

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxUploads is how many files one upload has.
const maxUploads = 1000

// metadataPrefix begins the headers with metadata of the files of an upload. Keys are what follows it, in lower case.
const metadataPrefix = "X-Metadata-"

// uploaded is one entry of the answer to an upload.
type uploaded struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// Download answers with a file, or the part that the Range header asks for.
func (d *Door) Download(c *gin.Context, box Box) error {
	if err := checkUser(c.Query("username")); err != nil {
		return err
	}
	status := http.StatusOK
	at := placeOf(c.Query("path"))
	content, part, err := d.Service.ReadFS(c.Request.Context(), box.Tenant, box.ID, at.real, func(e wire.FSEntry) (service.Range, error) {
		offset, length, partial, err := rest.Part(c, e.Size, e.ETag)
		if partial {
			status = http.StatusPartialContent
		}
		return service.Range{Offset: offset, Length: length}, err
	})
	if err != nil {
		return fileError(err)
	}
	defer content.Close()
	rest.FileHeaders(c, wire.FileEntry{Path: content.Entry.Path, ModifiedAt: content.Entry.ModifiedAt}, "inline")
	if status == http.StatusPartialContent {
		c.Header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Offset, part.Offset+part.Length-1, content.Entry.Size))
		return rest.SendContent(c, status, content, part.Length)
	}
	return rest.SendWhole(c, content, part.Length)
}

// fileError is an error of a file as envd answers with it: 507 if there is no space.
func fileError(err error) error {
	if farm.CodeOf(err) == farm.CodeTooLarge {
		return rest.Refusef(http.StatusInsufficientStorage, farm.CodeTooLarge, "%s", farm.MessageOf(err))
	}
	return err
}

// Upload writes files: one from the body as it is, or those of a multipart body, whose names are their paths unless the query has one.
func (d *Door) Upload(c *gin.Context, box Box) error {
	if err := checkUser(c.Query("username")); err != nil {
		return err
	}
	metadata := map[string]string{}
	for name, values := range c.Request.Header {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			metadata[strings.ToLower(key)] = strings.Join(values, ", ")
		}
	}
	if err := farm.CheckMetadata(metadata); err != nil {
		return err
	}
	kind, params, err := rest.MediaType(c)
	if err != nil {
		return err
	}
	body, size, err := rest.Unpacked(c, rest.Body(c))
	if err != nil {
		return err
	}
	u := &upload{Door: d, c: c, box: box, metadata: metadata, seen: map[string]bool{}, out: []uploaded{}}
	switch {
	case kind == "multipart/form-data" && params["boundary"] != "":
		err = parts(rest.NewParts(body, params["boundary"]), c.Query("path"), u.write)
	case kind == "application/octet-stream" && c.Query("path") == "":
		return rest.BadRequestf("path is missing: where the body is written.")
	case kind == "application/octet-stream":
		err = u.write(c.Query("path"), body, size)
	default:
		return rest.BadRequestf("the Content-Type must be multipart/form-data or application/octet-stream")
	}
	if err != nil {
		rest.DiscardShort(c)
		return fileError(err)
	}
	return rest.Reply(c, http.StatusOK, u.out)
}

// upload is one upload.
type upload struct {
	*Door
	c        *gin.Context
	box      Box
	metadata map[string]string // of each file
	seen     map[string]bool
	out      []uploaded
}

// parts writes the parts named "file" of a multipart body as they come, where at says or, if it is empty, where their names say.
func parts(r *rest.Parts, at string, write func(to string, content io.Reader, size int64) error) error {
	for files := 0; ; {
		part, err := r.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return rest.BadRequestf("the multipart body cannot be read: %s", err)
		case part.FormName() != "file":
			continue
		case files == maxUploads:
			return rest.BadRequestf("an upload has at most %d files", maxUploads)
		}
		to := at
		if to == "" {
			to = filename(part.Header.Get("Content-Disposition"))
		}
		if to == "" {
			return rest.BadRequestf("a part has no filename, and there is no path in the query")
		}
		if err := write(to, part, -1); err != nil {
			return err
		}
		files++
	}
}

// filename is the name of a part, with the directories that multipart.Part leaves out.
func filename(disposition string) string {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return ""
	}
	return params["filename"]
}

// write writes one file where it is, so that who watches it sees what envd would show.
func (u *upload) write(to string, content io.Reader, size int64) error {
	at := placeOf(to)
	if u.seen[at.real] {
		return rest.BadRequestf("the upload has %s twice", farm.Shorten(to))
	}
	u.seen[at.real] = true
	written, err := u.Service.WriteFS(u.c.Request.Context(), u.box.Tenant, u.box.ID, at.real, farm.FSWrite{How: farm.FSOverwrite, Mode: -1, Metadata: u.metadata}, content, size)
	if err != nil {
		return err
	}
	u.out = append(u.out, uploaded{Name: path.Base(written.Path), Path: at.shown(at.real), Type: "file", Metadata: written.Metadata})
	return nil
}
