package index

import (
	"bufio"
	"bytes"
	"context"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// projectMax is the longest name of a project; PyPI's longest have about 100 characters.
const projectMax = 200

// goodProject is what a name of a project looks like, normalised or not.
var goodProject = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// servePyPI serves simple/PROJECT/ and files/PROJECT/FILE.
func (x *Index) servePyPI(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) < 2 || len(parts[1]) > projectMax || !goodProject.MatchString(parts[1]) {
		x.fail(w, r, nothing())
		return
	}
	project := farm.NormalPackage(farm.ManagerPip, parts[1])
	switch {
	case parts[0] == "simple" && (len(parts) == 2 || len(parts) == 3 && parts[2] == ""):
		if project != parts[1] || len(parts) == 2 {
			w.Header().Set("Location", "/pypi/simple/"+project+"/")
			w.WriteHeader(http.StatusMovedPermanently)
			return
		}
		x.servePage(w, r, project)
	case parts[0] == "files" && len(parts) == 3 && goodName(parts[2]):
		want, err := x.pypiFile(r.Context(), project, parts[2])
		if err != nil {
			x.fail(w, r, err)
			return
		}
		x.serveFile(w, r, want)
	default:
		x.fail(w, r, nothing())
	}
}

// pypiPage returns a project's page, which the caller must drop; its name is normalised.
func (x *Index) pypiPage(ctx context.Context, project string) (*page, error) {
	return x.page(ctx, source{
		key: farm.IndexPrefix + "page/pypi/" + project, what: "project " + project, from: x.pypi,
		target: x.pypi.root.ResolveReference(&url.URL{Path: project + "/"}),
		accept: []string{typeJSON + ", " + typeHTML + ";q=0.2, text/html;q=0.1", "text/html"},
		parse:  parsePyPI,
		finish: func(p *page) (err error) {
			p.Name = project
			if p.body, err = p.rendered(); err != nil {
				return err
			}
			p.sum, p.html = sumOf(p.body), 0
			_ = renderHTML(&p.html, p) // it cannot fail
			return nil
		},
	})
}

// servePage serves a project's page in the requested form.
func (x *Index) servePage(w http.ResponseWriter, r *http.Request, project string) {
	p, err := x.pypiPage(r.Context(), project)
	if err != nil {
		x.fail(w, r, err)
		return
	}
	defer x.drop(p)
	defer limited(w)()
	w.Header().Set("Vary", "Accept")
	if wantsJSON(strings.Join(r.Header.Values("Accept"), ",")) {
		x.serveText(w, r, typeJSON, p.sum, p.body)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+p.sum+`-html"`)
	if r.Header.Get("If-None-Match") == h.Get("ETag") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.FormatInt(int64(p.html), 10))
	if r.Method != http.MethodHead {
		x.weigh(r, int64(p.html))
		ctx, hold := x.cfg.Memory.With(r.Context(), tenantOf(r.Context()), 0) // for its core
		defer hold.Release()
		_ = renderHTML(sentOffCore{ctx, w}, p) // the reader has everything, or has left
	}
}

// length counts bytes.
type length int64

// Write counts.
func (l *length) Write(p []byte) (int, error) {
	*l += length(len(p))
	return len(p), nil
}

// serveText serves a page, which callers may cache and must revalidate.
func (x *Index) serveText(w http.ResponseWriter, r *http.Request, kind, sum string, text []byte) {
	if r.Method != http.MethodHead && r.Header.Get("If-None-Match") != `"`+sum+`"` {
		x.weigh(r, int64(len(text)))
	}
	httpserver.OneRange(r)
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

// pypiFile looks a file up in its project's page; with ".metadata" after its name, the metadata of the file.
func (x *Index) pypiFile(ctx context.Context, project, name string) (wanted, error) {
	p, err := x.pypiPage(ctx, project)
	if err != nil {
		return wanted{}, err
	}
	defer x.drop(p)
	if f := p.find(name); f != nil {
		return x.pypi.want(f.Name, f.URL, f.Hash, f.Size)
	}
	of, ok := strings.CutSuffix(name, ".metadata")
	if f := p.find(of); ok && f != nil && f.Metadata != "" {
		want, err := x.pypi.want(name, f.URL+".metadata", f.Metadata, 0)
		if algorithm, value := f.Hash.split(); want.key == "" && value != "" {
			// It belongs to that file and never changes. Its own hash is unknown, so it is not shared with another page that
			// lists the same hash of the file.
			want.key = farm.IndexPrefix + "metadata/" + algorithm + "/" + value + "/" + sumOf([]byte(f.URL))
		}
		return want, err
	}
	return wanted{}, farm.NotFoundf("The %s lists no file %s of project %s.", x.pypi.name, name, project)
}

// fileURL is where this index serves a file of a project.
func fileURL(project, name string) string {
	return "/pypi/files/" + project + "/" + url.PathEscape(name)
}

// rendered is the page as JSON. Its length is counted first: a text that grows is in memory up to three times.
func (p *page) rendered() ([]byte, error) {
	var n length
	_ = renderJSON(&n, p) // it cannot fail
	if err := p.grow(int64(n)); err != nil {
		return nil, err
	}
	text := bytes.NewBuffer(make([]byte, 0, n))
	err := renderJSON(text, p)
	return text.Bytes(), err
}

// renderJSON writes a page in the form of PEP 691, piece by piece. Version 1.1 requires every size, which HTML pages lack.
func renderJSON(to io.Writer, p *page) error {
	w := newJSONWriter(to)
	version := "1.1"
	if len(p.Versions) == 0 || slices.ContainsFunc(p.Files, func(f file) bool { return f.Size <= 0 }) {
		version = "1.0"
	}
	w.raw(`{"meta":{"api-version":"` + version + `"},"name":`).text(p.Name)
	for i, version := range p.Versions {
		w.raw([]string{`,"versions":[`, ","}[min(i, 1)]).text(version)
	}
	if len(p.Versions) > 0 {
		w.raw("]")
	}
	w.raw(`,"files":[`)
	for i := range p.Files {
		f := &p.Files[i]
		w.comma(i).raw(`{"filename":`).text(f.Name).raw(`,"url":`).text(fileURL(p.Name, f.Name)).raw(`,"hashes":`).digest(f.Hash)
		if f.RequiresPython != "" {
			w.raw(`,"requires-python":`).text(f.RequiresPython)
		}
		if f.Size > 0 {
			w.raw(`,"size":` + strconv.FormatInt(f.Size, 10))
		}
		if f.UploadTime != "" {
			w.raw(`,"upload-time":`).text(f.UploadTime)
		}
		switch {
		case f.Yanked == nil:
		case *f.Yanked == "":
			w.raw(`,"yanked":true`)
		default:
			w.raw(`,"yanked":`).text(*f.Yanked)
		}
		if f.Metadata != "" {
			for _, key := range []string{`,"core-metadata":`, `,"data-dist-info-metadata":`} { // the latter is its old name
				if w.raw(key); f.Metadata == unknown {
					w.raw("true")
				} else {
					w.digest(f.Metadata)
				}
			}
		}
		w.raw("}")
	}
	w.raw("]}")
	return w.Flush()
}

// htmlPiece is how much of a page is written at once.
const htmlPiece = 32 << 10

// renderHTML writes a page in the form of PEP 503, piece by piece, without holding all of it in memory.
func renderHTML(w io.Writer, p *page) error {
	b := bufio.NewWriterSize(w, htmlPiece)
	write := func(text string) { _, _ = b.WriteString(text) } // Flush returns its error
	write("<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.1\"><title>Links for ")
	write(p.Name + "</title></head><body>\n<h1>Links for " + p.Name + "</h1>\n")
	attribute := func(name, value string) { write(" " + name + `="` + html.EscapeString(value) + `"`) }
	for i := range p.Files {
		f := &p.Files[i]
		write(`<a href="` + html.EscapeString(fileURL(p.Name, f.Name)))
		if algorithm, value := f.Hash.split(); value != "" {
			write("#" + algorithm + "=" + value)
		}
		write(`"`)
		if f.RequiresPython != "" {
			attribute("data-requires-python", f.RequiresPython)
		}
		if f.UploadTime != "" {
			attribute("data-upload-time", f.UploadTime)
		}
		if f.Yanked != nil {
			attribute("data-yanked", *f.Yanked)
		}
		if f.Metadata != "" {
			attribute("data-core-metadata", string(f.Metadata))
			attribute("data-dist-info-metadata", string(f.Metadata))
		}
		write(">" + html.EscapeString(f.Name) + "</a><br/>\n")
		if b.Buffered() > htmlPiece/2 {
			if err := b.Flush(); err != nil {
				return err
			}
		}
	}
	write("</body></html>\n")
	return b.Flush()
}

// wantsJSON reads an Accept header: JSON must be requested explicitly.
func wantsJSON(accept string) bool {
	json, page := 0.0, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		kind, q := preference(part)
		switch kind {
		case typeJSON, "application/vnd.pypi.simple.latest+json":
			json = max(json, q)
		case typeHTML, "text/html", "application/vnd.pypi.simple.latest+html":
			page = max(page, q)
		}
	}
	return json > 0 && json >= page
}
