package index

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// The limits of a page.
const (
	CoreFree  = coreFree
	PageFree  = pageFree
	PageStep  = pageStep
	ValueMax  = valueMax
	ValuesMax = valuesMax
	FilesMax  = filesMax
)

// Page is the result of the parsers, for their tests.
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
	var text bytes.Buffer
	err = errors.Join(err, renderHTML(&text, p.p))
	return json, text.Bytes(), err
}

// Document is the text of a packument.
func (p Page) Document() []byte { return p.p.doc }

// Names returns the names of the files.
func (p Page) Names() (names []string) {
	for _, f := range p.p.Files {
		names = append(names, f.Name)
	}
	return names
}

// Links returns the addresses of the files.
func (p Page) Links() (links []string) {
	for _, f := range p.p.Files {
		links = append(links, f.URL)
	}
	return links
}

// Wake ends the pause after a failure of the cache.
func (x *Index) Wake() {
	x.cache.mu.Lock()
	defer x.cache.mu.Unlock()
	x.cache.rest = time.Time{}
}

// Spooled returns how many bytes are in spool files.
func (x *Index) Spooled() int64 { return x.spooled.Load() }

// Capped reads a page and returns how many bytes of it were read, and how many were charged at its end. charge may refuse them.
func Capped(r io.Reader, charge func(bytes int64) error) (n, charged int64, err error) {
	c := &capped{r: r, charge: charge}
	n, err = io.Copy(io.Discard, c)
	return n, c.charged, err
}

// Users returns how many users all pages in memory have, and how many pages have a place beyond the budget.
func (x *Index) Users() (users, beyond int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for e := x.pages.order.Front(); e != nil; e = e.Next() {
		c := e.Value.(*entry[*page]).value.charge
		users += c.users
		if c.place != nil {
			beyond++
		}
	}
	return users, beyond
}

// Memory returns the memory budget.
func (x *Index) Memory() *budget.Budget { return x.cfg.Memory }

// Works returns how many downloads and pages wait, run or linger.
func (x *Index) Works() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.flights) + len(x.lookups.running) + len(x.refreshes.running)
}
