//go:build integration

package index_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The public indexes can be used through this one: pages, parts of files, and files from the cache.
func TestPublicIndexes(t *testing.T) {
	t.Parallel()
	cache := newMemory()
	x, root := serve(t, index.Config{Cache: cache})
	var page struct {
		Files []struct {
			Filename, URL string
			Hashes        map[string]string
			Metadata      any `json:"core-metadata"`
		}
	}
	testbed.Must(t, json.Unmarshal([]byte(get(t, root+"/pypi/simple/six/", "Accept", pypiJSON)), &page))
	const wheel = "six-1.17.0-py2.py3-none-any.whl"
	found := false
	for _, f := range page.Files {
		if f.Filename != wheel {
			continue
		}
		found = true
		text := get(t, root+f.URL)
		testbed.Check(t, sha([]byte(text)) == f.Hashes["sha256"], "%s: the hash of %d bytes is wrong", wheel, len(text))
		z, err := zip.NewReader(strings.NewReader(text), int64(len(text)))
		testbed.Check(t, err == nil && len(z.File) >= 3, "%s is not a wheel: %v", wheel, err)
		part := get(t, root+f.URL, "Range", "bytes=-1000")
		testbed.Check(t, part == text[len(text)-1000:], "%s: the last 1000 bytes are %d wrong bytes", wheel, len(part))
		if f.Metadata != nil {
			m := get(t, root+f.URL+".metadata")
			testbed.Check(t, strings.Contains(m, "Name: six\n"), "metadata %.100q", m)
		}
	}
	testbed.Check(t, found, "no %s among %d files", wheel, len(page.Files))
	if html := get(t, root+"/pypi/simple/six/", "Accept", "text/html"); strings.Count(html, "<a href=") != len(page.Files) {
		t.Errorf("%d files in HTML, %d in JSON", strings.Count(html, "<a href="), len(page.Files))
	}
	for _, name := range []string{"is-odd", "@types/node"} {
		var document struct {
			Latest   map[string]string `json:"dist-tags"`
			Versions map[string]struct {
				Dist struct{ Tarball string }
			}
		}
		testbed.Must(t, json.Unmarshal([]byte(get(t, root+"/npm/"+strings.Replace(name, "/", "%2f", 1), "Accept", npmShort)), &document))
		tarball := get(t, document.Versions[document.Latest["latest"]].Dist.Tarball)
		unpacked, err := gzip.NewReader(strings.NewReader(tarball))
		testbed.Require(t, err == nil, "%s: %v", name, err)
		first, err := tar.NewReader(unpacked).Next()
		testbed.Check(t, err == nil && first.Name != "", "%s: %v, error %v", name, first, err)
	}
	for _, path := range []string{"/pypi/simple/sandfarm-no-such-project-9d1f/", "/npm/sandfarm-no-such-package-9d1f"} {
		a := ask(t, "GET", root+path)
		testbed.Check(t, a.status == http.StatusNotFound, "%s: status %d, %q", path, a.status, a.body)
	}
	testbed.Must(t, x.Close())
	// A worker with an empty disk sends no request upstream.
	y, second := serve(t, index.Config{Cache: cache})
	get(t, fmt.Sprintf("%s/pypi/files/six/%s", second, wheel))
	s := y.Stats()
	testbed.Check(t, s.UpstreamRequests == 0 && !bytes.Equal(cache.values["index/page/pypi/six"].text, nil), "counters %+v", s)
}
