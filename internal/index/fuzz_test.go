package index_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/index"
)

// Whatever a page contains, its rendered form can be parsed again, as HTML and as JSON, and lists the same files under this index.
func FuzzPage(f *testing.F) {
	at, _ := url.Parse("https://index.example/simple/six/")
	for _, seed := range []string{
		"", `<a href="/x.whl#sha256=` + hashA + `" data-yanked="a&quot;b" data-requires-python="&gt;=3" data-core-metadata="true">x</a>`,
		`<base href="//h/"><a href=x.zip><a href='&#47;y.zip?a=b'></a><script><a href="z.zip"></script>`, "<a href=\"a\x00b.zip\">",
		`<meta name="pypi:repository-version" content="1.0">`, `<h1>Links for x</h1><a href="a%2Fb.zip"><a href="..zip"><a href="%ff.zip">`,
	} {
		f.Add(false, seed)
	}
	for _, seed := range []string{
		`{"meta":{"api-version":"1.1"},"name":"x","versions":["1"],"files":[{"filename":"a b.whl","url":"x","hashes":{"sha256":"` + hashA + `"},"size":1,"yanked":"w","core-metadata":{"sha256":"` + hashB + `"},"upload-time":"2020-01-02T03:04:05Z"}]}`,
		`{"meta":{"api-version":"1.0"},"files":[{"filename":"<\"'>.whl","url":"http://[::1]:x/"},{"filename":"\u2028.whl","url":"//x"}]}`, `{"files":[null]}`, `[[[[`,
	} {
		f.Add(true, seed)
	}
	f.Fuzz(func(t *testing.T, isJSON bool, text string) {
		kind := "text/html"
		if isJSON {
			kind = pypiJSON
		}
		p, err := index.ParsePyPI(strings.NewReader(text), kind, at)
		if err != nil {
			return
		}
		asJSON, asHTML, err := p.Render("six")
		if err != nil {
			t.Fatalf("render: %v", err)
		}
		again, err := index.ParsePyPI(bytes.NewReader(asJSON), pypiJSON, at)
		if err != nil {
			t.Fatalf("read the JSON again: %v in %s", err, asJSON)
		}
		if diff := cmp.Diff(p.Names(), again.Names()); diff != "" {
			t.Errorf("files of the JSON (-want +got):\n%s", diff)
		}
		for _, line := range strings.Split(string(asHTML), "\n") {
			if strings.HasPrefix(line, "<a ") && !strings.HasPrefix(line, `<a href="/pypi/files/six/`) {
				t.Errorf("a link leads elsewhere: %s", line)
			}
		}
		if n := strings.Count(string(asHTML), "<a "); n != len(p.Names()) {
			t.Errorf("%d links for %d files:\n%s", n, len(p.Names()), asHTML)
		}
		var simple struct {
			Files []struct{ URL string }
		}
		if err := json.Unmarshal(asJSON, &simple); err != nil {
			t.Fatal(err)
		}
		for _, file := range simple.Files {
			if !strings.HasPrefix(file.URL, "/pypi/files/six/") || strings.Count(file.URL, "/") != 4 {
				t.Errorf("a file leads to %q", file.URL)
			}
		}
	})
}

// Whatever a document contains, its rendered form is JSON whose tarballs are below this index.
func FuzzPackument(f *testing.F) {
	root, _ := url.Parse("https://registry.example/")
	for _, seed := range []string{
		`{"name":"left","versions":{"1.0.0":{"name":"left","dist":{"tarball":"https://registry.example/left/-/left-1.0.0.tgz","shasum":"x"}}},"time":{"modified":"x"}}`,
		`{"name":"left","versions":{"a/b":{"dist":{"tarball":"x"}},"1\u0000":{"dist":{"tarball":"http://x/y"}}},"x":"\u0000"}`, `{"versions":{},"name":"left"}`, "",
		`{"name":"left","versions":{"1":{"dist":{"tarball":"ftp://x"}}},"versions":{"2":{"dist":{"tarball":"x"}}}}`,
	} {
		f.Add(true, seed)
		f.Add(false, seed)
	}
	f.Fuzz(func(t *testing.T, short bool, text string) {
		p, err := index.ParsePackument(strings.NewReader(text), "left", root, short)
		if err != nil {
			return
		}
		full := bytes.ReplaceAll(p.Document(), []byte{0}, []byte("http://here/npm"))
		var document struct {
			Name     string
			Versions map[string]struct {
				Dist struct{ Tarball string }
			}
		}
		if err := json.Unmarshal(full, &document); err != nil {
			t.Fatalf("%v in %s", err, full)
		}
		for version, v := range document.Versions {
			if !strings.HasPrefix(v.Dist.Tarball, "http://here/npm/left/-/left-") {
				t.Errorf("version %q has its tarball at %q", version, v.Dist.Tarball)
			}
		}
	})
}
