package index

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// pathMax is the longest path that is accepted; real ones have under 300 bytes.
const pathMax = 2048

// ServeHTTP serves pages and files below /pypi/ and /npm/. Of a request it uses only the method, the path, the Host and the headers
// for content negotiation, ranges and conditions.
func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.count.requests.Add(1)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "Packages are read with GET and HEAD.", http.StatusMethodNotAllowed)
		return
	}
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // its body is not read
		http.Error(w, "A request for a package has no body.", http.StatusBadRequest)
		return
	}
	if r.URL.Host != "" || r.URL.Opaque != "" {
		http.Error(w, "This is a package index, not a proxy.", http.StatusBadRequest)
		return
	}
	parts, ok := split(r.URL.EscapedPath())
	if !ok || len(parts) < 2 {
		x.fail(w, r, nothing())
		return
	}
	switch parts[0] {
	case "pypi":
		x.servePyPI(w, r, parts[1:])
	case "npm":
		x.serveNpm(w, r, parts[1:])
	default:
		x.fail(w, r, nothing())
	}
}

func nothing() error {
	return farm.NotFoundf("There is nothing here: this is a package index with /pypi/simple/PROJECT/ and /npm/PACKAGE.")
}

// split splits a path. A part may contain an escaped slash, as npm writes scoped names, but no "..".
func split(escaped string) ([]string, bool) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok || len(escaped) > pathMax {
		return nil, false
	}
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		plain, err := url.PathUnescape(part)
		if err != nil || strings.ContainsFunc(plain, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
			return nil, false
		}
		for step := range strings.SplitSeq(plain, "/") {
			if step == "." || step == ".." {
				return nil, false
			}
		}
		parts[i] = plain
	}
	return parts, true
}
