package index

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
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

// packument returns a package's document, which the caller must drop.
func (x *Index) packument(ctx context.Context, name string, short bool) (*page, error) {
	form, accept := "full", "application/json"
	if short {
		form, accept = "short", typeAbbreviated+", application/json;q=0.8"
	}
	return x.page(ctx, source{
		key: farm.IndexPrefix + "page/npm/" + form + "/" + name, what: "package " + name, from: x.npm,
		target: x.npm.root.ResolveReference(&url.URL{Path: name, RawPath: strings.ReplaceAll(name, "/", "%2f")}),
		accept: []string{accept},
		parse: func(p *page, body io.Reader, contentType string, _ *url.URL) error {
			kind, _, err := mime.ParseMediaType(contentType)
			if err != nil || kind != "application/json" && kind != typeAbbreviated {
				return fmt.Errorf("its type is %q, not JSON", contentType)
			}
			return parsePackument(p, body, name, x.npm.root, short)
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
	defer x.drop(p)
	f := p.find(filename)
	if f == nil {
		return wanted{}, farm.NotFoundf("The %s lists no file %s of package %s.", x.npm.name, filename, name)
	}
	return x.npm.want(f.Name, f.URL, f.Hash, f.Size)
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
	defer x.drop(p)
	defer limited(w)()
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
	x.weigh(r, int64(size))
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

// typeAbbreviated is the form of a packument that installers ask for.
const typeAbbreviated = "application/vnd.npm.install-v1+json"

// abbreviated are the fields of a version in that form.
const abbreviated = " name version deprecated dependencies optionalDependencies devDependencies bundleDependencies bundledDependencies" +
	" peerDependencies peerDependenciesMeta acceptDependencies bin directories dist engines _hasShrinkwrap hasInstallScript cpu os libc funding "

// packument reads and writes the document of an npm package.
type packument struct {
	page  *page
	name  string
	root  *url.URL // of the registry
	short bool     // in the abbreviated form, whatever upstream gives
	doc   bytes.Buffer
	grown int    // what was counted for doc
	mark  string // stands for the address of this registry while a version is written
}

// parsePackument reads a document one version at a time. Addresses of tarballs get a zero byte for that of the registry.
func parsePackument(p *page, body io.Reader, name string, root *url.URL, short bool) error {
	p.Name = name
	k := &packument{page: p, name: name, root: root, short: short, mark: "@" + rand.Text() + "@"}
	dec := newDecoder(p, body)
	k.doc.WriteByte('{')
	named, versions := false, false
	err := object(dec, func(key string) error {
		switch {
		case key == "versions":
			versions = true
			return k.versions(dec)
		case k.short && key != "name" && key != "modified" && key != "dist-tags" && key != "time":
			var skipped json.RawMessage
			return dec.Decode(&skipped)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if key == "name" {
			var got string
			if err := json.Unmarshal(value, &got); err != nil || got != name {
				return fmt.Errorf("it is of %s", value)
			}
			named = true
		}
		if k.short && key == "time" {
			var times struct {
				Modified json.RawMessage `json:"modified"`
			}
			if err := json.Unmarshal(value, &times); err != nil || times.Modified == nil {
				return nil // without a time
			}
			key, value = "modified", times.Modified
		}
		return k.field(key, value)
	})
	if err != nil {
		return err
	}
	if !named || !versions {
		return errors.New("it is not a document of an npm package")
	}
	k.doc.WriteByte('}')
	p.doc = bytes.Clone(k.doc.Bytes())
	return ended(dec)
}

// room makes room for n bytes more of the document, which is in memory twice while it grows: doubling it would be three times.
func (k *packument) room(n int) error {
	if n += docSlack; k.doc.Available() >= n {
		return nil
	}
	size := k.doc.Len() + max(k.doc.Len()/4, n)
	if err := k.page.grow(int64(k.doc.Len() + size - k.grown)); err != nil {
		return err
	}
	k.grown = k.doc.Len() + size
	k.doc = *bytes.NewBuffer(append(make([]byte, 0, size), k.doc.Bytes()...))
	return nil
}

// docSlack is room for the separators of a document.
const docSlack = 64

// field writes a field of the document.
func (k *packument) field(key string, value json.RawMessage) error {
	name, err := farm.Encode(key)
	if err != nil {
		return err
	}
	if err := k.room(len(name) + len(value)); err != nil {
		return err
	}
	if k.doc.Len() > 1 {
		k.doc.WriteByte(',')
	}
	k.doc.Write(name)
	k.doc.WriteByte(':')
	return json.Compact(&k.doc, value)
}

// versions reads and writes the versions.
func (k *packument) versions(dec *json.Decoder) error {
	if k.doc.Len() > 1 {
		k.doc.WriteByte(',')
	}
	k.doc.WriteString(`"versions":{`)
	first := true
	err := object(dec, func(version string) error {
		fields := map[string]json.RawMessage{}
		if err := value(dec, &fields); err != nil {
			return err
		}
		text, err := k.version(version, fields)
		if err != nil || text == nil {
			return err
		}
		name, err := farm.Encode(version)
		if err != nil {
			return err
		}
		if err := k.room(len(name) + len(text)); err != nil {
			return err
		}
		if !first {
			k.doc.WriteByte(',')
		}
		first = false
		k.doc.Write(name)
		k.doc.WriteByte(':')
		k.doc.Write(text)
		return nil
	})
	k.doc.WriteByte('}')
	return err
}

// version notes the tarball of a version and writes it; nil for one that cannot be served.
func (k *packument) version(version string, fields map[string]json.RawMessage) ([]byte, error) {
	var dist struct {
		Tarball   string `json:"tarball"`
		Integrity string `json:"integrity"`
		SHA1      string `json:"shasum"`
	}
	all := map[string]json.RawMessage{}
	if json.Unmarshal(fields["dist"], &dist) != nil || json.Unmarshal(fields["dist"], &all) != nil {
		return nil, nil
	}
	target, err := absolute(k.root, dist.Tarball)
	name := path.Base(k.name) + "-" + version + ".tgz"
	if err != nil || dist.Tarball == "" || !goodName(name) {
		return nil, nil // such a version cannot be served
	}
	if strings.EqualFold(target.Host, k.root.Host) {
		target.Scheme = k.root.Scheme // old documents have http addresses of a registry that uses https now
	}
	if len(k.page.Files) >= filesMax {
		return nil, fmt.Errorf("it has more than %d versions", filesMax)
	}
	f := file{Name: name, URL: target.String(), Hash: integrity(dist.Integrity, dist.SHA1)}
	if err := k.page.link(f.URL); err != nil {
		return nil, err
	}
	if err := k.page.list(f); err != nil {
		return nil, err
	}
	if all["tarball"], err = farm.Encode(k.mark + "/" + k.name + "/-/" + url.PathEscape(name)); err != nil {
		return nil, err
	}
	if fields["dist"], err = farm.Encode(all); err != nil {
		return nil, err
	}
	if k.short {
		shorten(fields)
	}
	text, err := farm.Encode(fields)
	if err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(text, []byte(k.mark), []byte{0}), nil
}

// shorten keeps the fields of the abbreviated form.
func shorten(fields map[string]json.RawMessage) {
	var scripts map[string]json.RawMessage
	if json.Unmarshal(fields["scripts"], &scripts) == nil {
		for _, name := range []string{"preinstall", "install", "postinstall"} {
			if scripts[name] != nil {
				fields["hasInstallScript"] = json.RawMessage("true")
			}
		}
	}
	for name := range fields {
		if !strings.Contains(abbreviated, " "+name+" ") {
			delete(fields, name)
		}
	}
}

// integrity reads the hash of a tarball, the strongest if there are several.
func integrity(text, sha1 string) digest {
	hashes := map[string]string{"sha1": sha1}
	for part := range strings.FieldsSeq(text) {
		algorithm, value, _ := strings.Cut(part, "-")
		value, _, _ = strings.Cut(value, "?")
		if raw, err := base64.StdEncoding.DecodeString(value); err == nil {
			hashes[algorithm] = hex.EncodeToString(raw)
		}
	}
	return digestOf(hashes)
}
