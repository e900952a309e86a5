package index

import (
	"bufio"
	"html"
	"io"
	"net/url"
	"strings"
)

// simple is the page that callers get, in JSON.
type simple struct {
	Meta struct {
		Version string `json:"api-version"`
	} `json:"meta"`
	Name     string     `json:"name"`
	Versions []string   `json:"versions,omitempty"`
	Files    []jsonFile `json:"files"`
}

// fileURL is where this index serves a file of a project.
func fileURL(project, name string) string {
	return "/pypi/files/" + project + "/" + url.PathEscape(name)
}

// renderJSON writes a page in the form of PEP 691. Version 1.1 requires every size, which HTML pages lack.
func renderJSON(p *page) ([]byte, error) {
	out := simple{Name: p.Name, Versions: p.Versions, Files: make([]jsonFile, 0, len(p.Files))}
	out.Meta.Version = "1.1"
	if len(p.Versions) == 0 {
		out.Meta.Version = "1.0"
	}
	for i := range p.Files {
		f := &p.Files[i]
		j := jsonFile{Filename: f.Name, URL: fileURL(p.Name, f.Name), Hashes: f.Hashes, UploadTime: f.UploadTime}
		if j.Hashes == nil {
			j.Hashes = map[string]string{}
		}
		if f.RequiresPython != "" {
			j.RequiresPython = &f.RequiresPython
		}
		if f.Size > 0 {
			j.Size = &f.Size
		} else {
			out.Meta.Version = "1.0"
		}
		if f.Yanked != nil {
			j.Yanked = any(*f.Yanked)
			if *f.Yanked == "" {
				j.Yanked = true
			}
		}
		if f.Metadata != nil {
			j.CoreMetadata = any(f.Metadata)
			if len(f.Metadata) == 0 {
				j.CoreMetadata = true
			}
			j.DistInfo = j.CoreMetadata
		}
		out.Files = append(out.Files, j)
	}
	return compact(out)
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
		if algorithm, value := bestHash(f.Hashes); value != "" {
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
		if f.Metadata != nil {
			value := "true"
			if algorithm, hash := bestHash(f.Metadata); hash != "" {
				value = algorithm + "=" + hash
			}
			attribute("data-core-metadata", value)
			attribute("data-dist-info-metadata", value)
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
