package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// The limits of a page.
const (
	CoreFree    = coreFree
	PageFree    = pageFree
	PageStep    = pageStep
	ReadWeighed = readWeighed
	ValueWeight = valueWeight
	ValueMax    = valueMax
	ValuesMax   = valuesMax
	FilesMax    = filesMax
)

// Page is the result of the parsers, for their tests.
type Page struct {
	p *page
	c *capped
}

// ParsePyPI and ParsePackument are the parsers.
func ParsePyPI(body io.Reader, contentType string, at *url.URL) (Page, error) {
	p := newPage(body)
	return p, parsePyPI(p.p, p.c, contentType, at)
}

// ParsePackument reads the document of a package.
func ParsePackument(body io.Reader, name string, root *url.URL, short bool) (Page, error) {
	p := newPage(body)
	return p, parsePackument(p.p, p.c, name, root, short)
}

func newPage(body io.Reader) Page {
	c := &capped{r: body, max: pageMax, charge: func(int64) error { return nil }}
	return Page{&page{grows: c}, c}
}

// Charged is how much was charged while the page was read.
func (p Page) Charged() int64 { return p.c.charged }

// Render writes a page in both forms.
func (p Page) Render(name string) (json, html []byte, err error) {
	p.p.Name = name
	p.p.arrange()
	json, err = p.p.rendered()
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

// Cost is what the page is charged with.
func (p Page) Cost() int64 { return p.p.cost() }

// Files returns what the page says of its files.
func (p Page) Files() (files []string) {
	for _, f := range p.p.Files {
		files = append(files, fmt.Sprintf("%s %s %s %s", f.Name, f.URL, f.Hash, f.Metadata))
	}
	return files
}

// Encode writes the page as the cache has it.
func (p Page) Encode(w io.Writer) error { return p.p.encode(w) }

// Decode reads a page of the cache.
func Decode(text string) (Page, error) {
	p := newPage(strings.NewReader(text))
	return p, p.p.decode(p.c, int64(len(text)))
}

// Beyond returns how many pages may be beyond the budget, and what memory each of them may take.
func (x *Index) Beyond() (places int, each int64) {
	for asked := 0; ; asked++ {
		place := tryAcquire(fmt.Sprint(asked), x.beyond)
		if place == nil {
			return asked, x.beyondMax
		}
		defer place.Leave()
	}
}

// Need charges n bytes for a page that is being read, and gives them back.
func (x *Index) Need(ctx context.Context, n int64) error {
	c := x.newCharge()
	if err := x.need(ctx, c, n); err != nil {
		return err
	}
	x.discharge(c)
	return nil
}

// Capped reads a page and returns how many bytes of it were read, and how many were charged at its end. charge may refuse them.
func Capped(r io.Reader, charge func(bytes int64) error) (n, charged int64, err error) {
	c := &capped{r: r, max: pageMax, charge: charge}
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
