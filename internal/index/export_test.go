package index

import (
	"io"
	"net/url"
)

// Page is what the parsers give, for tests of theirs.
type Page struct{ p *page }

// ParsePyPI and ParsePackument are the parsers.
func ParsePyPI(body io.Reader, contentType string, at *url.URL) (Page, error) {
	p, err := parsePyPI(body, contentType, at)
	return Page{p}, err
}

// ParsePackument reads the document of a package.
func ParsePackument(body io.Reader, name string, root *url.URL, short bool) (Page, error) {
	p, err := parsePackument(body, name, root, short)
	return Page{p}, err
}

// Render writes a page in both forms.
func (p Page) Render(name string) (json, html []byte, err error) {
	p.p.Name = name
	p.p.arrange()
	json, err = renderJSON(p.p)
	return json, renderHTML(p.p), err
}

// Document is the text of a packument.
func (p Page) Document() []byte { return p.p.doc }

// Names gives the files.
func (p Page) Names() (names []string) {
	for _, f := range p.p.Files {
		names = append(names, f.Name)
	}
	return names
}
