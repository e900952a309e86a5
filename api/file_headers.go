package api

import (
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/wire"
)

// fileHeaders describe a file. It never runs in a browser, since its origin is the farm's own: what a browser would run
// downloads, however it is to be shown.
func fileHeaders(c *gin.Context, e wire.FileEntry, shown string) {
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

// disposition makes the header of RFC 6266: a plain ASCII name for old clients, and the real one behind it.
func disposition(shown, name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\%`, r) {
			return '_'
		}
		return r
	}, name)
	whole := strings.ReplaceAll(url.QueryEscape(name), "+", "%20") // a plus itself is escaped
	return shown + `; filename="` + plain + `"; filename*=UTF-8''` + whole
}

// anyType is the media type of bytes that nothing is known of.
const anyType = "application/octet-stream"

// fileType guesses a media type from a name. One that a browser would run as a page or a script is not told, and not
// harmless.
func fileType(name string) (kind string, harmless bool) {
	kind = mime.TypeByExtension(strings.ToLower(path.Ext(name)))
	base, _, _ := strings.Cut(kind, ";")
	family, sub, _ := strings.Cut(base, "/")
	switch family {
	case "":
		return anyType, true
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
		return anyType, false
	}
	return kind, true
}
