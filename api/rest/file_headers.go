package rest

import (
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// FileHeaders describe a file. A browser must never run a file, because its origin would be the farm's: types that a
// browser would run are always downloaded. shown is "inline" or "attachment" for all other types.
func FileHeaders(c *gin.Context, e wire.FileEntry, shown string) {
	h := c.Writer.Header()
	name := path.Base(e.Path)
	kind, harmless := fileType(name)
	if !harmless {
		shown = "attachment"
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", disposition(shown, name))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Accept-Ranges", "bytes")
	if !e.ModifiedAt.IsZero() {
		h.Set("Last-Modified", e.ModifiedAt.UTC().Format(http.TimeFormat))
	}
}

// disposition makes the header of RFC 6266: an ASCII name for old clients, then the real name.
func disposition(shown, name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\%`, r) {
			return '_'
		}
		return r
	}, name)
	whole := strings.ReplaceAll(url.QueryEscape(name), "+", "%20") // QueryEscape has escaped any literal plus
	return shown + `; filename="` + plain + `"; filename*=UTF-8''` + whole
}

// AnyType is the media type of bytes of unknown type.
const AnyType = "application/octet-stream"

// fileType guesses a media type from a name. A type that a browser would run as a page or a script is replaced and
// reported as not harmless.
func fileType(name string) (kind string, harmless bool) {
	kind = mime.TypeByExtension(strings.ToLower(path.Ext(name)))
	base, _, _ := strings.Cut(kind, ";")
	family, sub, _ := strings.Cut(base, "/")
	switch family {
	case "":
		return AnyType, true
	case "image":
		harmless = !strings.Contains(sub, "xml")
	case "audio", "video", "font":
		harmless = true
	case "text":
		harmless = slices.Contains([]string{"plain", "csv", "markdown", "tab-separated-values", "x-log", "x-python"}, sub)
	case "application":
		harmless = slices.Contains([]string{"json", "pdf", "zip", "gzip", "x-tar", "x-ipynb+json", "msword", "octet-stream", "vnd.ms-excel", "vnd.ms-powerpoint"}, sub) ||
			strings.HasPrefix(sub, "vnd.openxmlformats-officedocument.")
	}
	if !harmless {
		return AnyType, false
	}
	return kind, true
}

// FilePath is the path of a file after …/files/. It is decoded once, here, because a file name may hold any character.
func FilePath(c *gin.Context) (string, error) {
	path, ok, err := PathAfter(c, "/files/")
	if err == nil && !ok {
		err = farm.Invalidf("path is empty: name a file in the workspace")
	}
	return path, err
}

// PathAfter is the rest of the request's path after a part, decoded. ok is false if the path does not contain the part.
func PathAfter(c *gin.Context, part string) (rest string, ok bool, err error) {
	_, escaped, ok := strings.Cut(c.Request.URL.EscapedPath(), part)
	if rest, err = url.PathUnescape(escaped); err != nil {
		return "", ok, BadRequestf("the path is not well escaped")
	}
	return rest, ok, nil
}
