package index

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pageMax is the largest page that is read, unpacked: the largest of the public indexes have 10 to 40 MiB.
const pageMax = 64 << 20

const (
	// pageFree is the size up to which pages are not charged to the memory budget, neither what is read of one nor what is kept; most are smaller.
	pageFree = 256 << 10
	// pageStep is how much more of a page is charged at once.
	pageStep = 512 << 10
	// pageWeight is how often the bytes of a page are in memory while it is read: as they came, decoded, and as they are served.
	pageWeight = 4
)

// filesMax is how many files a page may list; the largest of PyPI has some ten thousand.
const filesMax = 1 << 18

const (
	// linkMax is the longest address of a file; real ones have under 500 bytes.
	linkMax = 4 << 10
	// linksMax bounds the addresses of a page together. Relative links are short in the page and long here: a page of some
	// MiB could otherwise become more than any memory holds.
	linksMax = 2 * pageMax
)

// errPageSize is the error for a page of more than pageMax bytes.
var errPageSize = fmt.Errorf("it has more than %d MiB", pageMax>>20)

// file is one file of a project, as its page lists it.
type file struct {
	Name           string            `json:"n"`
	URL            string            `json:"u"`           // absolute, on upstream
	Hashes         map[string]string `json:"h,omitempty"` // hexadecimal, by algorithm
	Size           int64             `json:"s,omitempty"` // 0: not known
	RequiresPython string            `json:"p,omitempty"`
	UploadTime     string            `json:"t,omitempty"`
	Yanked         *string           `json:"y,omitempty"` // why, possibly ""; nil: it is not
	Metadata       map[string]string `json:"m,omitempty"` // hashes of the metadata beside it; empty: its hash is not known; nil: there is none
}

// page describes a project. It is immutable.
type page struct {
	Name     string    `json:"name"`
	Versions []string  `json:"versions,omitempty"`
	Files    []file    `json:"files"` // by name
	ETag     string    `json:"etag,omitempty"`
	Modified string    `json:"modified,omitempty"`
	Fetched  time.Time `json:"fetched"` // when upstream last confirmed it

	doc  []byte // npm: the packument, with a zero byte where the address of the registry belongs
	body []byte // PyPI: the page as JSON
	sum  string // of doc or body, for validators
	html length // PyPI: of the page as HTML

	links  int     // bytes of addresses, while it is read
	charge *charge // shared with its copies
}

// link counts an address.
func (p *page) link(address string) error {
	if p.links += len(address); p.links > linksMax {
		return fmt.Errorf("its links have more than %d MiB", linksMax>>20)
	}
	return nil
}

// find returns a file of the page; nil if it lists none of that name.
func (p *page) find(name string) *file {
	at, ok := slices.BinarySearchFunc(p.Files, name, func(f file, name string) int { return strings.Compare(f.Name, name) })
	if !ok {
		return nil
	}
	return &p.Files[at]
}

// arrange sorts the files and removes duplicates.
func (p *page) arrange() {
	slices.SortStableFunc(p.Files, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	p.Files = slices.CompactFunc(p.Files, func(a, b file) bool { return a.Name == b.Name })
}

// cost estimates the memory of the page in bytes.
func (p *page) cost() int64 {
	n := int64(1024 + len(p.doc) + len(p.body))
	for _, v := range p.Versions {
		n += int64(16 + len(v))
	}
	for _, f := range p.Files {
		n += int64(160 + len(f.Name) + len(f.URL) + len(f.RequiresPython) + len(f.UploadTime))
		n += int64(200 * (len(f.Hashes) + len(f.Metadata)))
	}
	return n
}

// encode serialises the page for the cache.
func (p *page) encode() ([]byte, error) {
	head, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode page: %w", err)
	}
	return slices.Concat(head, []byte("\n"), p.doc), nil
}

// decode reads what encode wrote: size bytes.
func decode(r io.Reader, size int64) (*page, error) {
	buffered := bufio.NewReader(io.LimitReader(r, min(size, 4*pageMax)))
	head, err := buffered.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	p := &page{}
	if err := json.Unmarshal(head, p); err != nil {
		return nil, fmt.Errorf("decode page: %w", err)
	}
	if p.doc, err = io.ReadAll(buffered); err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	if len(p.doc) == 0 {
		p.doc = nil
	}
	return p, nil
}

// capped reads up to pageMax bytes and fails at more. What is beyond pageFree is charged before it is read, but for one byte.
type capped struct {
	r       io.Reader
	read    int64
	charge  func(bytes int64) error // of the page so far
	charged int64
}

// Read reads one byte more than allowed or charged, to detect the end of a page of exactly so many bytes.
func (c *capped) Read(p []byte) (int, error) {
	if c.read > pageMax {
		return 0, errPageSize
	}
	if c.read > max(pageFree, c.charged) {
		if err := c.charge(c.read + pageStep); err != nil {
			return 0, err
		}
		c.charged = c.read + pageStep
	}
	n, err := c.r.Read(p[:min(int64(len(p)), pageMax+1-c.read, max(pageFree, c.charged)+1-c.read)])
	if c.read += int64(n); c.read > pageMax {
		return n, errPageSize
	}
	return n, err
}

// coreFree is how much of a page is read without a core: that takes about half a millisecond, as a request does.
const coreFree = 16 << 10

// onCore reads a page. What is done with its bytes, and after the last of them, has one of the cores of the request's tenant (see budget.TakeCore):
// the rate of requests does not know how large their pages are. It has none while it waits for bytes.
type onCore struct {
	ctx  context.Context // for the core
	r    io.Reader
	read int
}

// Read waits for a core after it has read. The error is then that of the context.
func (c *onCore) Read(p []byte) (int, error) {
	budget.LeaveCore(c.ctx)
	n, err := c.r.Read(p)
	if c.read += n; c.read <= coreFree {
		return n, err
	}
	if err := budget.TakeCore(c.ctx, budget.SmallBytes+1); err != nil {
		return 0, err
	}
	return n, err
}

// sentOffCore sends what is written of a page. The writing, beyond its first budget.SmallBytes, has one of the cores of the request's tenant, but none while
// the caller takes what is sent.
type sentOffCore struct {
	ctx context.Context // for the core
	w   io.Writer
}

// Write waits for a core after it has sent. The error is then that of the context.
func (s sentOffCore) Write(p []byte) (int, error) {
	budget.LeaveCore(s.ctx)
	n, err := s.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, budget.TakeCore(s.ctx, n)
}

// goodName reports whether a file's name can be part of a path, here and in the cache.
func goodName(name string) bool {
	return name != "" && len(name) <= 255 && name[0] != '.' && !strings.ContainsFunc(name, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '/' || r == '\\' || r == 0xfffd
	})
}

// goodHashes keeps the hashes that can be checked, in lower case.
func goodHashes(hashes map[string]string) map[string]string {
	good := make(map[string]string, 1)
	for algorithm, value := range hashes {
		algorithm, value = strings.ToLower(algorithm), strings.ToLower(value)
		if h := newHash(algorithm); h != nil && len(value) == 2*h.Size() && strings.Trim(value, "0123456789abcdef") == "" {
			good[algorithm] = value
		}
	}
	return good
}

// absolute resolves a link of a page. Only http addresses are links to files.
func absolute(page *url.URL, link string) (*url.URL, error) {
	target, err := page.Parse(strings.TrimSpace(link))
	if err != nil {
		return nil, err
	}
	if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.Opaque != "" {
		return nil, errors.New("it is not an http address")
	}
	target.User = nil
	if len(target.Host)+len(target.Path)+len(target.RawQuery) > linkMax {
		return nil, fmt.Errorf("it has more than %d bytes", linkMax)
	}
	return target, nil
}

// sumOf returns a short hash of a text.
func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// wanted is a file that a page lists.
type wanted struct {
	name   string
	from   *upstream
	target *url.URL
	id     string // equal for requests that share one download
	key    string // in the cache; empty: not cached, since its hash is unknown
	size   int64  // 0: unknown

	algorithm, hash string // the expected hash; empty: not verified
}

// want describes a file of a page.
func (u *upstream) want(name, address string, hashes map[string]string, size int64) (wanted, error) {
	target, err := url.Parse(address)
	if err != nil {
		return wanted{}, u.broken(err, "an address of %s that is not valid", name)
	}
	if err := u.allowed(target); err != nil {
		return wanted{}, err
	}
	w := wanted{name: name, from: u, target: target, id: address, size: size}
	if w.algorithm, w.hash = bestHash(hashes); w.hash != "" {
		w.key = farm.IndexPrefix + "file/" + w.algorithm + "/" + w.hash
		w.id = w.key + " " + address
	}
	return w, nil
}

// refusal is a file that is not requested again for a while.
type refusal struct {
	err   error
	until int64 // Unix nanoseconds
}

// mismatch is the error of a file that is not the one listed.
func (w wanted) mismatch(got string) error {
	return farm.Wrap(errMismatch, farm.CodeUnavailable, "The %s gave a file %s whose %s is %s and not %s, as listed: it is refused.",
		w.from.name, w.name, w.algorithm, got, w.hash)
}
