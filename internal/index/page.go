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
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// pageMax is the largest page that is read, unpacked: the largest of the public indexes have 10 to 40 MiB.
const pageMax = 64 << 20

const (
	// pageFree is the size up to which pages are not charged to the memory budget, neither what is read of one nor what is kept; most are smaller.
	pageFree = 256 << 10
	// pageStep is how much more of a page's memory is charged at once.
	pageStep = 2 << 20
	// readWeighed is how much of a page counts with valueWeight as it comes. No more of it is decoded at once, but longer values, which count themselves.
	readWeighed = tagMax
	// valueWeight is how often the bytes of a value are in memory while it is read: up to twice as they came, alone, and decoded.
	valueWeight = 4
	// fileWeight is what a file takes beside its texts while a page is read: a list that grows is there twice, and texts are rounded up.
	fileWeight = 304
	// fileKept is what it takes once the page has been read.
	fileKept = 160
	// versionWeight is what a version takes beside its text.
	versionWeight = 48
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
	Name           string  `json:"n"`
	URL            string  `json:"u"`           // absolute, on upstream
	Hash           digest  `json:"h,omitempty"` // the best
	Size           int64   `json:"s,omitempty"` // 0: not known
	RequiresPython string  `json:"p,omitempty"`
	UploadTime     string  `json:"t,omitempty"`
	Yanked         *string `json:"y,omitempty"` // why, possibly ""; nil: it is not
	Metadata       digest  `json:"m,omitempty"` // of the metadata beside it; "": there is none
}

// text is how many bytes the texts of a file take.
func (f *file) text() int64 {
	n := len(f.Name) + len(f.URL) + len(f.Hash) + len(f.RequiresPython) + len(f.UploadTime) + len(f.Metadata)
	if f.Yanked != nil {
		n += len(*f.Yanked)
	}
	return int64(n + n/8)
}

// digest is a hash as links have it: "sha256=…", hexadecimal. A map of hashes for each file would take more than all else of a page.
type digest string

// unknown is the digest of what is there and whose hash is not known.
const unknown digest = "true"

// digestOf is the best of some hashes; "" when there is none that can be checked.
func digestOf(hashes map[string]string) digest {
	if algorithm, value := bestHash(goodHashes(hashes)); value != "" {
		return digest(algorithm + "=" + value)
	}
	return ""
}

// split returns the algorithm and the hash; "" when there is none.
func (d digest) split() (algorithm, value string) {
	algorithm, value, ok := strings.Cut(string(d), "=")
	if !ok {
		return "", ""
	}
	return algorithm, value
}

// UnmarshalJSON reads an object of hashes, by algorithm. The cache may have one with several.
func (d *digest) UnmarshalJSON(text []byte) error {
	var hashes map[string]string
	if err := json.Unmarshal(text, &hashes); err != nil {
		return err
	}
	if *d = digestOf(hashes); *d == "" {
		*d = unknown
	}
	return nil
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
	grows  grower  // what it takes then; nil: nobody counts
	charge *charge // shared with its copies
}

// grower counts bytes of memory before they are used, and may refuse them.
type grower interface{ grow(bytes int64) error }

// grow counts what a page takes while it is read.
func (p *page) grow(bytes int64) error {
	if p.grows == nil {
		return nil
	}
	return p.grows.grow(bytes)
}

// list adds a file while the page is read.
func (p *page) list(f file) error {
	if err := p.grow(fileWeight + f.text()); err != nil {
		return err
	}
	p.Files = append(p.Files, f)
	return nil
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
	p.Files = slices.Clone(slices.CompactFunc(p.Files, func(a, b file) bool { return a.Name == b.Name }))
}

// cost estimates the memory of the page in bytes.
func (p *page) cost() int64 {
	n := int64(1024 + len(p.doc) + len(p.body))
	for _, v := range p.Versions {
		n += int64(32 + len(v))
	}
	for i := range p.Files {
		n += fileKept + p.Files[i].text()
	}
	return n
}

// encode writes the page for the cache, piece by piece.
func (p *page) encode(to io.Writer) error {
	w := newJSONWriter(to)
	w.raw(`{"name":`).text(p.Name).raw(`,"versions":[`)
	for i, version := range p.Versions {
		w.comma(i).text(version)
	}
	w.raw(`],"files":[`)
	for i := range p.Files {
		f := &p.Files[i]
		w.comma(i).raw(`{"n":`).text(f.Name).raw(`,"u":`).text(f.URL)
		if f.Hash != "" {
			w.raw(`,"h":`).digest(f.Hash)
		}
		if f.Size > 0 {
			w.raw(`,"s":` + strconv.FormatInt(f.Size, 10))
		}
		if f.RequiresPython != "" {
			w.raw(`,"p":`).text(f.RequiresPython)
		}
		if f.UploadTime != "" {
			w.raw(`,"t":`).text(f.UploadTime)
		}
		if f.Yanked != nil {
			w.raw(`,"y":`).text(*f.Yanked)
		}
		if f.Metadata != "" {
			w.raw(`,"m":`).digest(f.Metadata)
		}
		w.raw("}")
	}
	w.raw(`],"etag":`).text(p.ETag).raw(`,"modified":`).text(p.Modified)
	w.raw(`,"fetched":`).text(p.Fetched.Format(time.RFC3339Nano)).raw("}\n")
	_, _ = w.Write(p.doc) // Flush returns its error
	return w.Flush()
}

// decode reads what encode wrote: size bytes.
func (p *page) decode(r io.Reader, size int64) error {
	dec := newDecoder(p, r)
	err := object(dec, func(key string) error {
		switch key {
		case "name":
			return value(dec, &p.Name)
		case "versions":
			return p.readVersions(dec)
		case "files":
			if token, err := dec.Token(); err != nil || token == nil { // older versions wrote null for none
				return err
			}
			return elements(dec, func() error {
				var f file
				if err := value(dec, &f); err != nil {
					return err
				}
				return p.list(f)
			})
		case "etag":
			return value(dec, &p.ETag)
		case "modified":
			return value(dec, &p.Modified)
		case "fetched":
			return value(dec, &p.Fetched)
		}
		var other json.RawMessage // of a later version
		return value(dec, &other)
	})
	rest := size - dec.InputOffset() // a line feed, and the document
	if err == nil && (rest < 1 || rest > 4*pageMax) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = p.grow(rest)
	}
	if err != nil {
		return fmt.Errorf("decode page: %w", err)
	}
	text := make([]byte, rest)
	if _, err := io.ReadFull(io.MultiReader(dec.Buffered(), r), text); err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	if len(text) > 1 {
		p.doc = text[1:]
	}
	return nil
}

// jsonWriter writes JSON piece by piece. Flush returns the first error.
type jsonWriter struct{ *bufio.Writer }

func newJSONWriter(w io.Writer) jsonWriter { return jsonWriter{bufio.NewWriterSize(w, htmlPiece)} }

// raw writes a piece of JSON.
func (w jsonWriter) raw(json string) jsonWriter {
	_, _ = w.WriteString(json)
	return w
}

// comma separates the elements of a list.
func (w jsonWriter) comma(i int) jsonWriter {
	if i > 0 {
		w.raw(",")
	}
	return w
}

// digest writes a digest as an object, by algorithm.
func (w jsonWriter) digest(d digest) {
	algorithm, value := d.split()
	if value == "" {
		w.raw("{}")
		return
	}
	w.raw(`{"`).raw(algorithm).raw(`":"`).raw(value).raw(`"}`)
}

// text writes a string.
func (w jsonWriter) text(text string) jsonWriter {
	if !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r >= utf8.RuneSelf }) {
		return w.raw(`"`).raw(text).raw(`"`)
	}
	quoted, _ := farm.Encode(text) // a string can be encoded
	_, _ = w.Write(quoted)
	return w
}

// capped reads up to max bytes and fails at more. What the page takes beyond valueWeight*pageFree is charged before it is read, but for one byte.
type capped struct {
	r       io.Reader
	max     int64
	read    int64
	grown   int64                   // of what has been read
	charge  func(bytes int64) error // of all that the page takes
	charged int64
}

// takes is what the page takes while so many of its bytes have been read.
func (c *capped) takes() int64 { return valueWeight*min(c.read, readWeighed) + c.grown }

// grow counts what is kept of the page.
func (c *capped) grow(bytes int64) error {
	c.grown += bytes
	return c.ensure()
}

// ensure charges what the page takes, and a step more.
func (c *capped) ensure() error {
	n := c.takes()
	if n <= max(valueWeight*pageFree, c.charged) {
		return nil
	}
	if err := c.charge(n + pageStep); err != nil {
		return err
	}
	c.charged = n + pageStep
	return nil
}

// Read reads one byte more than allowed or charged, to detect the end of a page of exactly so many bytes.
func (c *capped) Read(p []byte) (int, error) {
	if c.read > c.max {
		return 0, errPageSize
	}
	if err := c.ensure(); err != nil {
		return 0, err
	}
	left := int64(len(p))
	if c.read < readWeighed {
		left = min(left, (max(valueWeight*pageFree, c.charged)-c.takes())/valueWeight+1)
	}
	n, err := c.r.Read(p[:min(left, c.max+1-c.read)])
	if c.read += int64(n); c.read > c.max {
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
func (u *upstream) want(name, address string, hash digest, size int64) (wanted, error) {
	target, err := url.Parse(address)
	if err != nil {
		return wanted{}, u.broken(err, "an address of %s that is not valid", name)
	}
	if err := u.allowed(target); err != nil {
		return wanted{}, err
	}
	w := wanted{name: name, from: u, target: target, id: address, size: size}
	if w.algorithm, w.hash = hash.split(); w.hash != "" {
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
