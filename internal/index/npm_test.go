package index_test

import (
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

const npmShort = "application/vnd.npm.install-v1+json"

func integrity(content []byte) string {
	sum := sha512.Sum512(content)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// document serves a packument. ROOT stands for the registry's own address.
func (u *upstream) document(name, text string) {
	u.mux.HandleFunc("/registry/"+name, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.ReplaceAll(text, "ROOT", u.URL+"/registry"))
	})
}

// Documents keep their content, and their tarballs lead to this index under the requested Host, in both forms.
func TestDocuments(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.document("left", `{"_id":"left","name":"left","readme":"<long> & \u0000","dist-tags":{"latest":"1.0.0"},"time":{"modified":"2020-01-02T03:04:05Z","1.0.0":"x"},"versions":{
"1.0.0":{"name":"left","version":"1.0.0","description":"d","dependencies":{"a":"^1"},"scripts":{"postinstall":"x"},"engines":{"node":">=1"},"bin":{"left":"x.js"},
 "dist":{"tarball":"ROOT/left/-/left-1.0.0.tgz","integrity":"sha512-AAAA","shasum":"x","signatures":[{"keyid":"k"}]}},
"2.0.0":{"name":"left","version":"2.0.0","scripts":{"test":"x"},"dist":{"tarball":"https://elsewhere.example/odd.tgz"}},
"../3":{"name":"left","dist":{"tarball":"ROOT/left/-/left-3.tgz"}},"4.0.0":{"name":"left","dist":{}},"5.0.0":{"name":"left","dist":3}},"users":{"x":true}}`)
	_, root := serve(t, u.config())
	const dist1 = `{"tarball":"HOST/npm/left/-/left-1.0.0.tgz","integrity":"sha512-AAAA","shasum":"x","signatures":[{"keyid":"k"}]}`
	const dist2 = `{"tarball":"HOST/npm/left/-/left-2.0.0.tgz"}`
	full := `{"_id":"left","name":"left","readme":"<long> & \u0000","dist-tags":{"latest":"1.0.0"},"time":{"modified":"2020-01-02T03:04:05Z","1.0.0":"x"},"versions":{
"1.0.0":{"name":"left","version":"1.0.0","description":"d","dependencies":{"a":"^1"},"scripts":{"postinstall":"x"},"engines":{"node":">=1"},"bin":{"left":"x.js"},"dist":` + dist1 + `},
"2.0.0":{"name":"left","version":"2.0.0","scripts":{"test":"x"},"dist":` + dist2 + `}},"users":{"x":true}}`
	short := `{"name":"left","dist-tags":{"latest":"1.0.0"},"modified":"2020-01-02T03:04:05Z","versions":{
"1.0.0":{"name":"left","version":"1.0.0","dependencies":{"a":"^1"},"engines":{"node":">=1"},"bin":{"left":"x.js"},"hasInstallScript":true,"dist":` + dist1 + `},
"2.0.0":{"name":"left","version":"2.0.0","dist":` + dist2 + `}}}`
	for name, c := range map[string]struct{ accept, kind, want string }{
		"Full":           {"application/json", "application/json", full},
		"Anything":       {"*/*", "application/json", full},
		"AsNpmAsks":      {npmShort + "; q=1.0, application/json; q=0.8, */*", npmShort, short},
		"FullIsPrefered": {npmShort + "; q=0.5, application/json", "application/json", full},
	} {
		a := ask(t, "GET", root+"/npm/left", "Accept", c.accept)
		if a.status != http.StatusOK || a.header.Get("Content-Type") != c.kind {
			t.Fatalf("%s: status %d, type %s, %q", name, a.status, a.header.Get("Content-Type"), a.body)
		}
		testbed.Diff(t, name, parsed(t, strings.ReplaceAll(c.want, "HOST", root)), parsed(t, a.body))
	}
	host, _ := url.Parse(root)
	for _, name := range []string{"sandbox:3141", "[::1]:80", host.Host} {
		if status, body := raw(t, root, "GET /npm/left HTTP/1.0\r\nHost: "+name+"\r\n\r\n"); status != 200 || !strings.Contains(body, `"http://`+name+"/npm/left/-/left-1.0.0.tgz") {
			t.Errorf("%s: status %d, %q", name, status, body)
		}
	}
}

// Tarballs are verified with the strongest hash in the document.
func TestTarballs(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(t, 50_000)
	old := sha1.Sum(content)
	u.document("left", `{"name":"left","versions":{
"1.0.0":{"dist":{"tarball":"ROOT/f/good.tgz","integrity":"`+integrity(content)+`","shasum":"`+strings.Repeat("0", 40)+`"}},
"1.0.1":{"dist":{"tarball":"ROOT/f/old.tgz","shasum":"`+hex.EncodeToString(old[:])+`"}},
"1.0.2":{"dist":{"tarball":"ROOT/f/bad.tgz","integrity":"sha1-AAAA `+integrity([]byte("x"))+`","shasum":"`+hex.EncodeToString(old[:])+`"}},
"1.0.3":{"dist":{"tarball":"ROOT/f/badold.tgz","shasum":"`+strings.Repeat("0", 40)+`"}},
"1.0.4":{"dist":{"tarball":"https://elsewhere.example/x.tgz","integrity":"`+integrity(content)+`"}}}}`)
	u.mux.HandleFunc("/registry/f/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	cache := newMemory()
	cfg := u.config()
	cfg.Cache = cache
	x, root := serve(t, cfg)
	for version, want := range map[string]int{"1.0.0": 200, "1.0.1": 200, "1.0.2": 0, "1.0.3": 0, "1.0.4": 502, "1.0.5": 404} {
		a := ask(t, "GET", root+"/npm/left/-/left-"+version+".tgz")
		if want == 0 {
			testbed.Check(t, a.err != nil || a.status != http.StatusOK, "%s: a file with a wrong hash was delivered", version)
			continue
		}
		testbed.Check(t, a.status == want && (want != 200 || a.body == string(content)), "%s: status %d, %.200q", version, a.status, a.body)
	}
	testbed.Must(t, x.Close())
	keys := cache.files()
	testbed.Check(t, len(keys) == 2, "kept %v", keys)
}

// The name of a scoped package contains a slash, which npm escapes.
func TestScopedPackages(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := []byte("tarball")
	paths := make(chan string, 10)
	u.mux.HandleFunc("/registry/", func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.EscapedPath()
		if strings.HasSuffix(r.URL.Path, ".tgz") {
			_, _ = w.Write(content)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"name":"@types/node","versions":{"1.0.0":{"dist":{"tarball":"`+u.URL+`/registry/@types/node/-/node-1.0.0.tgz","integrity":"`+integrity(content)+`"}}}}`)
	})
	_, root := serve(t, u.config())
	for _, path := range []string{"/npm/@types%2fnode", "/npm/@types%2Fnode", "/npm/@types/node", "/npm/%40types%2fnode"} {
		text := get(t, root+path, "Accept", npmShort)
		testbed.Check(t, strings.Contains(text, root+"/npm/@types/node/-/node-1.0.0.tgz"), "%s: %s", path, text)
	}
	for _, path := range []string{"/npm/@types/node/-/node-1.0.0.tgz", "/npm/@types%2fnode/-/node-1.0.0.tgz"} {
		testbed.Diff(t, path, "tarball", get(t, root+path))
	}
	if first, second := <-paths, <-paths; first != "/registry/@types%2fnode" || second != "/registry/@types/node/-/node-1.0.0.tgz" || len(paths) != 0 {
		t.Errorf("upstream was asked %q, %q and %d more", first, second, len(paths))
	}
}

func TestDocumentsThatAreGarbage(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	for name, text := range map[string]string{
		"a": "", "b": "<html>", "c": `{"name":"c","versions":{`, "d": `{"name":"other","versions":{}}`, "e": `{"versions":{}}`,
		"f": `{"name":"f"}`, "g": `{"name":"g","versions":[]}`, "h": `{"name":"h","versions":{}}x`, "i": `{"name":"i","versions":{"1":3}}`, "j": "null",
	} {
		u.document(name, text)
	}
	_, root := serve(t, u.config())
	for _, name := range strings.Split("abcdefghij", "") {
		a := ask(t, "GET", root+"/npm/"+name)
		if a.status != http.StatusBadGateway || a.body != "The npm registry gave a page of package "+name+" that cannot be read.\n" {
			t.Errorf("%s: status %d, %q", name, a.status, a.body)
		}
	}
	a := ask(t, "GET", root+"/npm/none")
	testbed.Check(t, a.status == http.StatusNotFound && a.body == "The npm registry has no package none.\n", "status %d, %q", a.status, a.body)
}
