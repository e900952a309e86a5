package index

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/url"
	"path"
	"strings"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	typeJSON = "application/vnd.pypi.simple.v1+json"
	typeHTML = "application/vnd.pypi.simple.v1+html"
)

// parsePyPI reads a page of a simple index in either form.
func parsePyPI(p *page, body io.Reader, contentType string, at *url.URL) error {
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("its type %q is malformed", contentType)
	}
	switch kind {
	case typeJSON, "application/json":
		return p.parseJSON(body, at)
	case typeHTML, "text/html", "application/xhtml+xml":
		return p.parseHTML(body, at)
	}
	return fmt.Errorf("its type is %q, neither HTML nor JSON of a package index", kind)
}

// jsonFile is a file as PEP 691 and its successors write it.
type jsonFile struct {
	Filename       string            `json:"filename"`
	URL            string            `json:"url"`
	Hashes         map[string]string `json:"hashes"`
	RequiresPython *string           `json:"requires-python,omitempty"`
	Size           *int64            `json:"size,omitempty"`
	UploadTime     string            `json:"upload-time,omitempty"`
	Yanked         any               `json:"yanked,omitempty"`                  // false, true, or why
	CoreMetadata   any               `json:"core-metadata,omitempty"`           // false, true, or hashes
	DistInfo       any               `json:"data-dist-info-metadata,omitempty"` // its old name
}

// parseJSON reads a page in its JSON form, one file at a time.
func (p *page) parseJSON(body io.Reader, at *url.URL) error {
	var meta struct {
		Version string `json:"api-version"`
	}
	listed := false
	dec := newDecoder(p, body)
	err := object(dec, func(key string) error {
		switch key {
		case "meta":
			return value(dec, &meta)
		case "name":
			return value(dec, &p.Name)
		case "versions":
			return p.readVersions(dec)
		case "files":
			listed = true
			return array(dec, func() error {
				var f jsonFile
				if err := value(dec, &f); err != nil {
					return err
				}
				return p.add(f, at)
			})
		default:
			var skipped json.RawMessage
			return dec.Decode(&skipped)
		}
	})
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(meta.Version, "1."):
		return fmt.Errorf("its version is %q", meta.Version)
	case !listed:
		return errors.New("it lists no files")
	}
	return ended(dec)
}

// readVersions reads a list of versions.
func (p *page) readVersions(dec *json.Decoder) error {
	return array(dec, func() error {
		if len(p.Versions) >= filesMax {
			return fmt.Errorf("it lists more than %d versions", filesMax)
		}
		var version string
		if err := dec.Decode(&version); err != nil {
			return err
		}
		p.Versions = append(p.Versions, version)
		return p.grow(versionWeight + int64(len(version)))
	})
}

// object reads an object: field must read the value that follows.
func object(dec *json.Decoder, field func(key string) error) error {
	if err := delim(dec, '{'); err != nil {
		return err
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return errors.New("a key is not a string")
		}
		if err := field(key); err != nil {
			return err
		}
	}
	return delim(dec, '}')
}

// array reads an array: element must read the next value.
func array(dec *json.Decoder, element func() error) error {
	if err := delim(dec, '['); err != nil {
		return err
	}
	return elements(dec, element)
}

// elements reads the rest of an array.
func elements(dec *json.Decoder, element func() error) error {
	for dec.More() {
		if err := element(); err != nil {
			return err
		}
	}
	return delim(dec, ']')
}

func delim(dec *json.Decoder, want json.Delim) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("there is %v where %v should be", token, want)
	}
	return nil
}

// ended checks that nothing follows.
func ended(dec *json.Decoder) error {
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("something follows its end")
		}
		return err
	}
	return nil
}

// add adds a file of a page. Files that cannot be served are skipped.
func (p *page) add(from jsonFile, at *url.URL) error {
	if len(p.Files) >= filesMax {
		return fmt.Errorf("it lists more than %d files", filesMax)
	}
	target, err := absolute(at, from.URL)
	if err != nil {
		return nil // a malformed link
	}
	target.Fragment, target.RawFragment = "", ""
	f := file{Name: from.Filename, URL: target.String(), Hash: digestOf(from.Hashes)}
	if !goodName(f.Name) {
		return nil
	}
	if err := p.link(f.URL); err != nil {
		return err
	}
	if from.RequiresPython != nil {
		f.RequiresPython = *from.RequiresPython
	}
	if from.Size != nil && *from.Size > 0 {
		f.Size = *from.Size
	}
	if _, err := time.Parse(time.RFC3339, from.UploadTime); err == nil {
		f.UploadTime = from.UploadTime
	}
	switch yanked := from.Yanked.(type) {
	case string:
		f.Yanked = &yanked
	case bool:
		if yanked {
			f.Yanked = new(string)
		}
	}
	if f.Metadata = metadata(from.CoreMetadata); f.Metadata == "" {
		f.Metadata = metadata(from.DistInfo)
	}
	return p.list(f)
}

// metadata reads the metadata attribute of a file.
func metadata(announced any) digest {
	switch announced := announced.(type) {
	case bool:
		if announced {
			return unknown
		}
	case map[string]any:
		hashes := map[string]string{}
		for algorithm, value := range announced {
			if text, ok := value.(string); ok {
				hashes[algorithm] = text
			}
		}
		return cmp.Or(digestOf(hashes), unknown)
	}
	return ""
}

// lastPart returns the file name of an address.
func lastPart(target *url.URL) string { return path.Base(target.Path) }

// tagMax is the largest tag of a page; real ones have under 2 KiB.
const tagMax = 1 << 20

// parseHTML reads a page in its HTML form (PEP 503): each anchor is a file.
func (p *page) parseHTML(body io.Reader, at *url.URL) error {
	z := html.NewTokenizer(body)
	z.SetMaxBuf(tagMax)
	known, heading := false, false
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return err
			}
			if len(p.Files) == 0 && !known {
				return errors.New("it is not a page of a package index")
			}
			return nil
		case html.TextToken:
			if heading && strings.HasPrefix(strings.TrimSpace(string(z.Text())), "Links for ") {
				known = true
			}
		case html.EndTagToken:
			heading = false
		case html.StartTagToken, html.SelfClosingTagToken:
			t := z.Token()
			switch t.DataAtom {
			case atom.Title, atom.H1:
				heading = true
			case atom.Base:
				if href, ok := attribute(t, "href"); ok {
					if resolved, err := absolute(at, href); err == nil {
						at = resolved
					}
				}
			case atom.Meta:
				if name, _ := attribute(t, "name"); name == "pypi:repository-version" {
					if version, _ := attribute(t, "content"); !strings.HasPrefix(version, "1.") {
						return fmt.Errorf("its version is %q", version)
					}
					known = true
				}
			case atom.A:
				if err := p.anchor(t, at); err != nil {
					return err
				}
			}
		}
	}
}

func attribute(t html.Token, name string) (string, bool) {
	for _, a := range t.Attr {
		if a.Namespace == "" && a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

// anchor adds the file that an anchor links to.
func (p *page) anchor(t html.Token, at *url.URL) error {
	href, _ := attribute(t, "href")
	target, err := absolute(at, href)
	if err != nil {
		return nil // a malformed link
	}
	f := jsonFile{Filename: strings.Clone(lastPart(target)), URL: target.String(), Hashes: fragmentHashes(target.Fragment)}
	if !distribution(f.Filename) {
		return nil
	}
	if v, ok := attribute(t, "data-requires-python"); ok {
		f.RequiresPython = &v
	}
	if v, ok := attribute(t, "data-yanked"); ok {
		f.Yanked = v
	}
	f.UploadTime, _ = attribute(t, "data-upload-time")
	for _, name := range []string{"data-core-metadata", "data-dist-info-metadata"} {
		if v, ok := attribute(t, name); ok && f.CoreMetadata == nil {
			f.CoreMetadata = metadataOf(v)
		}
	}
	return p.add(f, at)
}

// fragmentHashes reads "sha256=…".
func fragmentHashes(text string) map[string]string {
	hashes := map[string]string{}
	for part := range strings.SplitSeq(text, "&") {
		if algorithm, value, ok := strings.Cut(part, "="); ok {
			hashes[algorithm] = value
		}
	}
	return hashes
}

// metadataOf reads the value of the attribute: "true", "false" or a hash.
func metadataOf(value string) any {
	if algorithm, hash, ok := strings.Cut(value, "="); ok {
		return map[string]any{algorithm: hash}
	}
	return strings.EqualFold(value, "true") || value == ""
}

// distribution reports whether a link leads to a file for installers; pages may have other links.
func distribution(name string) bool {
	for _, end := range []string{".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz", ".tar.Z", ".tar", ".egg", ".exe", ".rpm", ".deb", ".msi", ".dmg"} {
		if strings.HasSuffix(strings.ToLower(name), strings.ToLower(end)) {
			return true
		}
	}
	return false
}
