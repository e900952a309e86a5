package index

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
)

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
	mark  string // stands for the address of this registry while a version is written
}

// parsePackument reads a document one version at a time. Addresses of tarballs get a zero byte for that of the registry.
func parsePackument(body io.Reader, name string, root *url.URL, short bool) (*page, error) {
	k := &packument{page: &page{Name: name}, name: name, root: root, short: short, mark: "@" + rand.Text() + "@"}
	dec := newDecoder(body)
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
		return nil, err
	}
	if !named || !versions {
		return nil, errors.New("it is not a document of an npm package")
	}
	k.doc.WriteByte('}')
	k.page.doc = k.doc.Bytes()
	return k.page, ended(dec)
}

// field writes a field of the document.
func (k *packument) field(key string, value json.RawMessage) error {
	name, err := compact(key)
	if err != nil {
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
		name, err := compact(version)
		if err != nil {
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
	k.page.Files = append(k.page.Files, file{Name: name, URL: target.String(), Hashes: integrity(dist.Integrity, dist.SHA1)})
	if err := k.page.link(k.page.Files[len(k.page.Files)-1].URL); err != nil {
		return nil, err
	}
	if all["tarball"], err = compact(k.mark + "/" + k.name + "/-/" + url.PathEscape(name)); err != nil {
		return nil, err
	}
	if fields["dist"], err = compact(all); err != nil {
		return nil, err
	}
	if k.short {
		shorten(fields)
	}
	text, err := compact(fields)
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
func integrity(text, sha1 string) map[string]string {
	hashes := map[string]string{"sha1": sha1}
	for part := range strings.FieldsSeq(text) {
		algorithm, value, _ := strings.Cut(part, "-")
		value, _, _ = strings.Cut(value, "?")
		if raw, err := base64.StdEncoding.DecodeString(value); err == nil {
			hashes[algorithm] = hex.EncodeToString(raw)
		}
	}
	return goodHashes(hashes)
}
