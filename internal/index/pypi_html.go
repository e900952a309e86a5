package index

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// tagMax is the largest tag of a page; real ones have under 2 KiB.
const tagMax = 1 << 20

// parseHTML reads a page in its HTML form (PEP 503): each anchor is a file.
func parseHTML(body io.Reader, at *url.URL) (*page, error) {
	p := &page{}
	z := html.NewTokenizer(body)
	z.SetMaxBuf(tagMax)
	known, heading := false, false
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, err
			}
			if len(p.Files) == 0 && !known {
				return nil, errors.New("it is not a page of a package index")
			}
			return p, nil
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
						return nil, fmt.Errorf("its version is %q", version)
					}
					known = true
				}
			case atom.A:
				if err := p.anchor(t, at); err != nil {
					return nil, err
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
	f := jsonFile{Filename: lastPart(target), URL: target.String(), Hashes: fragmentHashes(target.Fragment)}
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
