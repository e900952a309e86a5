package index

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// packageMax is the longest name of an npm package.
const packageMax = 214

var (
	// goodPackage is what a name of a package looks like. Names of the registry's own pages begin with - or _.
	goodPackage = regexp.MustCompile(`^(?:@[A-Za-z0-9~_-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*$`)
	// goodHost is what a Host header looks like that is written into documents.
	goodHost = regexp.MustCompile(`^[A-Za-z0-9._:\[\]-]{1,255}$`)
)

// serveNpm serves PACKAGE, @SCOPE/PACKAGE and their tarballs PACKAGE/-/FILE.
func (x *Index) serveNpm(w http.ResponseWriter, r *http.Request, parts []string) {
	name, rest := parts[0], parts[1:]
	if strings.HasPrefix(name, "@") && !strings.Contains(name, "/") && len(rest) > 0 {
		name, rest = name+"/"+rest[0], rest[1:]
	}
	if len(name) > packageMax || !goodPackage.MatchString(name) {
		x.fail(w, r, nothing())
		return
	}
	switch {
	case len(rest) == 0 || len(rest) == 1 && rest[0] == "":
		x.servePackument(w, r, name)
	case len(rest) == 2 && rest[0] == "-" && goodName(rest[1]):
		want, err := x.tarball(r.Context(), name, rest[1])
		if err != nil {
			x.fail(w, r, err)
			return
		}
		x.serveFile(w, r, want)
	default:
		x.fail(w, r, nothing())
	}
}

// packument returns a package's document.
func (x *Index) packument(ctx context.Context, name string, short bool) (*page, error) {
	form, accept := "full", "application/json"
	if short {
		form, accept = "short", typeAbbreviated+", application/json;q=0.8"
	}
	return x.page(ctx, source{
		key: farm.IndexPrefix + "page/npm/" + form + "/" + name, what: "package " + name, from: x.npm,
		target: x.npm.root.ResolveReference(&url.URL{Path: name, RawPath: strings.ReplaceAll(name, "/", "%2f")}),
		accept: []string{accept},
		parse: func(body io.Reader, contentType string, _ *url.URL) (*page, error) {
			kind, _, err := mime.ParseMediaType(contentType)
			if err != nil || kind != "application/json" && kind != typeAbbreviated {
				return nil, fmt.Errorf("its type is %q, not JSON", contentType)
			}
			return parsePackument(body, name, x.npm.root, short)
		},
		finish: func(p *page) error {
			p.sum = sumOf(p.doc)
			return nil
		},
	})
}

// tarball looks a file up in its package's document.
func (x *Index) tarball(ctx context.Context, name, filename string) (wanted, error) {
	p, err := x.packument(ctx, name, true)
	if err != nil {
		return wanted{}, err
	}
	f := p.find(filename)
	if f == nil {
		return wanted{}, farm.NotFoundf("The %s lists no file %s of package %s.", x.npm.name, filename, name)
	}
	return x.npm.want(f.Name, f.URL, f.Hashes, f.Size)
}

// servePackument serves a package's document with the addresses of tarballs under the Host that was asked.
func (x *Index) servePackument(w http.ResponseWriter, r *http.Request, name string) {
	if !goodHost.MatchString(r.Host) {
		x.fail(w, r, farm.Invalidf("The Host header is not a host name."))
		return
	}
	short, full := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		switch kind, q := preference(part); kind {
		case typeAbbreviated:
			short = q
		case "application/json":
			full = q
		}
	}
	abbreviated := short > 0 && short >= full
	p, err := x.packument(r.Context(), name, abbreviated)
	if err != nil {
		x.fail(w, r, err)
		return
	}
	done, err := x.serving(r.Context(), w, p)
	if err != nil {
		x.fail(w, r, err)
		return
	}
	defer done()
	address := []byte("http://" + r.Host + "/npm")
	size := len(p.doc) + bytes.Count(p.doc, []byte{0})*(len(address)-1)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if abbreviated {
		h.Set("Content-Type", typeAbbreviated)
	}
	h.Set("Vary", "Accept")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+p.sum+"-"+sumOf(address)[:8]+`"`)
	if r.Header.Get("If-None-Match") == h.Get("ETag") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	for rest := p.doc; ; {
		text, after, more := bytes.Cut(rest, []byte{0})
		if _, err := w.Write(text); err != nil || !more {
			return // the reader has everything, or has left
		}
		if _, err := w.Write(address); err != nil {
			return
		}
		rest = after
	}
}
