package index_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// raw sends bytes unchanged and returns the status of the answer and the start of its body.
func raw(t *testing.T, address, text string) (int, string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(address, "http://"), 5*time.Second)
	testbed.Must(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.Write([]byte(text))
	testbed.Must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body := make([]byte, 1000)
	n, _ := resp.Body.Read(body)
	return resp.StatusCode, string(body[:n])
}

// A sandbox can get pages and files only; no request makes the index fetch anything else.
func TestHostileCaller(t *testing.T) {
	t.Parallel()
	u, other := newUpstream(t), newUpstream(t)
	u.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("treasure")) })
	u.wheel("six", "six-1.0.whl", []byte("text"))
	cfg := u.config()
	s, err := index.Serve(t.Context(), cfg)
	testbed.Must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	root := strings.TrimSuffix(s.URL(), "/pypi/simple/")
	status, body := raw(t, root, "GET /pypi/files/six/six-1.0.whl HTTP/1.1\r\nHost: x\r\n\r\n")
	testbed.Require(t, status == 200 && body == "text", "a good request: status %d, %q", status, body)
	asked := u.all()
	line := func(method, target string, headers ...string) string {
		return method + " " + target + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(headers, "") + "\r\n"
	}
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"Root":                {line("GET", "/"), 404},
		"AllProjects":         {line("GET", "/pypi/simple/"), 404},
		"UpALevel":            {line("GET", "/pypi/files/six/../../../secret"), 404},
		"UpALevelEscaped":     {line("GET", "/pypi/files/six/%2e%2e%2fsecret"), 404},
		"UpInName":            {line("GET", "/pypi/simple/../"), 404},
		"UpInNameEscaped":     {line("GET", "/pypi/simple/..%2f..%2fsecret/"), 404},
		"Backslash":           {line("GET", `/pypi/files/six/..%5csecret`), 404},
		"NullByte":            {line("GET", "/pypi/files/six/six-1.0.whl%00"), 404},
		"Newline":             {line("GET", "/pypi/simple/six%0d%0aX:y/"), 404},
		"NotListed":           {line("GET", "/pypi/files/six/secret"), 404},
		"FullAddressAsName":   {line("GET", "/pypi/files/six/http:%2f%2fother"), 404},
		"AddressAsProject":    {line("GET", "/pypi/simple/"+other.URL+"/"), 404},
		"LongName":            {line("GET", "/pypi/simple/"+strings.Repeat("a", 201)+"/"), 404},
		"LongPath":            {line("GET", "/pypi/files/six/"+strings.Repeat("a", 5000)), 404},
		"NpmSearch":           {line("GET", "/npm/-/v1/search?text=x"), 404},
		"NpmUser":             {line("GET", "/npm/-/whoami"), 404},
		"NpmUp":               {line("GET", "/npm/@a%2f..%2f..%2fsecret"), 404},
		"NpmUpPlain":          {line("GET", "/npm/@a/.."), 404},
		"NpmAllDocs":          {line("GET", "/npm/_all_docs"), 404},
		"AbsoluteForm":        {line("GET", other.URL+"/secret"), 400},
		"AbsoluteFormOfAPage": {line("GET", other.URL+"/pypi/simple/six/"), 400},
		"Connect":             {"CONNECT " + strings.TrimPrefix(other.URL, "http://") + " HTTP/1.1\r\nHost: x\r\n\r\n", 405},
		"Post":                {line("POST", "/pypi/simple/six/", "Content-Length: 3\r\n") + "abc", 405},
		"Put":                 {line("PUT", "/npm/left", "Content-Length: 3\r\n") + "abc", 405},
		"Delete":              {line("DELETE", "/pypi/files/six/six-1.0.whl"), 405},
		"Options":             {line("OPTIONS", "/pypi/simple/six/"), 405},
		"GetWithBody":         {line("GET", "/pypi/simple/six/", "Content-Length: 3\r\n") + "abc", 400},
		"GetWithChunks":       {line("GET", "/pypi/simple/six/", "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n0\r\n\r\n", 400},
		"HugeHeader":          {line("GET", "/pypi/simple/six/", "X: "+strings.Repeat("a", 64<<10)+"\r\n"), 431},
		"BadEscape":           {line("GET", "/pypi/simple/%zz/"), 400},
		"TwoHosts":            {line("GET", "/pypi/simple/six/", "Host: y\r\n"), 400},
	} {
		status, body := raw(t, root, c.text)
		testbed.Check(t, status == c.want && !strings.Contains(body, "treasure"), "%s: status %d, want %d: %q", name, status, c.want, body)
	}
	testbed.Check(t, u.all() == asked && other.all() == 0, "upstream was asked %v, the other host %v", u.asked, other.asked)
	// Nothing but the path of a request has an effect.
	for _, headers := range []string{"Host: " + other.URL[7:], "Host: x\r\nX-Forwarded-Host: " + other.URL[7:], "Host: x\r\nCookie: a=b\r\nAuthorization: Basic eDp5"} {
		text := fmt.Sprintf("GET /pypi/simple/six/?url=%s&x=../.. HTTP/1.1\r\n%s\r\n\r\n", other.URL, headers)
		status, body := raw(t, root, text)
		testbed.Check(t, status == 200 && !strings.Contains(body, other.URL[7:]), "%q: status %d, %q", headers, status, body)
	}
	status, _ = raw(t, root, "GET /npm/left HTTP/1.1\r\nHost: a/b?\"c\r\n\r\n")
	testbed.Check(t, status == 400, "a malformed Host: status %d", status)
	testbed.Check(t, other.all() == 0, "the other host was asked %v", other.asked)
}

// Nothing that a caller sends reaches upstream, except the name of the project or file.
func TestUpstreamSeesNothingOfTheCaller(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	headers := make(chan http.Header, 10)
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<a href="/six.zip">x</a>`))
	})
	_, root := serve(t, u.config())
	get(t, root+"/pypi/simple/six/", "Cookie", "a=b", "Authorization", "Bearer x", "User-Agent", "me", "X-Mine", "y", "Referer", "http://z")
	got := <-headers
	for name := range got {
		switch name {
		case "Accept", "Accept-Encoding", "User-Agent":
		default:
			t.Errorf("upstream sees %s: %q", name, got[name])
		}
	}
	testbed.Diff(t, "user agent", "sandfarm-index/1", got.Get("User-Agent"))
}

// A password in the address of an index is sent to that index only and appears in no answer.
func TestPasswordOfTheIndex(t *testing.T) {
	t.Parallel()
	u, files := newUpstream(t), newUpstream(t)
	guarded := func(w http.ResponseWriter, r *http.Request, text string) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "hidden" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(text))
	}
	u.mux.HandleFunc("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		guarded(w, r, `<a href="`+u.URL+`/own.whl">x</a><a href="`+files.URL+`/other.whl">x</a>`)
	})
	u.mux.HandleFunc("/own.whl", func(w http.ResponseWriter, r *http.Request) { guarded(w, r, "own") })
	files.mux.HandleFunc("/other.whl", func(w http.ResponseWriter, r *http.Request) {
		testbed.Check(t, r.Header.Get("Authorization") == "", "the password went to another host")
		_, _ = w.Write([]byte("other"))
	})
	log := &logged{}
	cfg := u.config()
	cfg.PyPIURL, cfg.FilesURL, cfg.Logger = strings.Replace(u.URL, "http://", "http://me:hidden@", 1)+"/simple", files.URL, log.logger()
	_, root := serve(t, cfg)
	page := get(t, root+"/pypi/simple/six/")
	testbed.Check(t, !strings.Contains(page, "hidden"), "page %q", page)
	own, other := get(t, root+"/pypi/files/six/own.whl"), get(t, root+"/pypi/files/six/other.whl")
	testbed.Check(t, own == "own" && other == "other", "files %q, %q", own, other)
	cfg.PyPIURL, cfg.Dir = strings.Replace(u.URL, "http://", "http://hidden@", 1)+"/simple", "" // a token
	_, token := serve(t, cfg)
	u.Server.Close()
	for _, root := range []string{root, token} {
		if a := ask(t, "GET", root+"/pypi/simple/x/"); a.status != http.StatusGatewayTimeout || strings.Contains(a.body, "hidden") || log.has("hidden") != 0 {
			t.Errorf("%d %q, log %s", a.status, a.body, log.String())
		}
	}
	testbed.Check(t, log.has("connection refused") > 0, "the log does not say why: %s", log.String())
}

// A page of a few MiB whose base has a MiB, before links of a few bytes, once expanded to a TiB of addresses.
func TestLinksThatGrowAreBounded(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("https://index.example/simple/x/")
	testbed.Must(t, err)
	page := func(base, links int) (index.Page, error) {
		text := `<meta name="pypi:repository-version" content="1.0"><base href="/` + strings.Repeat("a", base) + `/">` + strings.Repeat("<a href=a.whl>", links)
		return index.ParsePyPI(strings.NewReader(text), "text/html", at)
	}
	if p, err := page(1000, 10); err != nil || len(p.Names()) != 10 {
		t.Fatalf("%v of an ordinary page, %v", p.Names(), err)
	}
	p, err := page(1<<19, 1000)
	testbed.Check(t, err == nil && !strings.Contains(strings.Join(p.Links(), ""), "aaaa"), "a base of half a MiB counts, %v", err)
	_, err = page(4000, 100_000)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "links"), "400 MiB of addresses: %v", err)
	json := `{"meta":{"api-version":"1.1"},"files":[` + strings.TrimSuffix(strings.Repeat(`{"filename":"a.whl","url":"a"},`, 40_000), ",") + `]}`
	at.Path = "/" + strings.Repeat("b", 4000) + "/"
	_, err = index.ParsePyPI(strings.NewReader(json), "application/json", at)
	testbed.Check(t, err != nil && strings.Contains(err.Error(), "links"), "160 MiB of addresses: %v", err)
	at.Path = "/" + strings.Repeat("b", 8000) + "/"
	if p, err := index.ParsePyPI(strings.NewReader(json), "application/json", at); err != nil || len(p.Names()) != 0 {
		t.Errorf("addresses of 8000 bytes: %d, %v", len(p.Names()), err)
	}
}

// Responses of a hostile index are limited in size after decompression, and so are the headers that are kept.
func TestAnswersThatGrowAreBounded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mux.HandleFunc("/simple/zeros/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		for range 256 {
			if _, err := z.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	tags := 0
	u.mux.HandleFunc("/simple/tagged/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			tags++
		}
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("ETag", `"`+strings.Repeat("e", 30_000)+`"`)
		_, _ = w.Write([]byte(`<a href="a-1.0.zip">a</a>`))
	})
	u.mux.HandleFunc("/simple/headed/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("h", 1<<20))
	})
	cfg := u.config()
	cfg.PageAge = time.Nanosecond
	cfg.Client = nil
	x, err := index.New(cfg)
	testbed.Must(t, err)
	address := serveHandler(t, x)
	for _, project := range []string{"zeros", "headed"} {
		if a := ask(t, http.MethodGet, address+"/pypi/simple/"+project+"/"); a.status != http.StatusBadGateway && a.status != http.StatusGatewayTimeout {
			t.Errorf("%s: status %d, %.100q", project, a.status, a.body)
		}
	}
	for range 2 {
		get(t, address+"/pypi/simple/tagged/")
	}
	testbed.Check(t, tags == 0, "an ETag of 30 kB is kept")
}

// A caller can cause a warning with each request, but cannot fill the disk with them.
func TestWarningsArePaced(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mux.HandleFunc("/simple/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	log := &logged{}
	cfg := u.config()
	cfg.Logger = log.logger()
	_, address := serve(t, cfg)
	for i := range 300 {
		ask(t, http.MethodGet, fmt.Sprintf("%s/pypi/simple/p%d/", address, i))
	}
	n := log.has("level=WARN")
	testbed.Check(t, n >= 20 && n <= 60, "%d warnings of 300 requests", n)
}

// Metadata without a hash of its own is cached by the hash of its file. A page that claims the hash of another project's file must
// not replace that file's metadata.
func TestMetadataWithoutAHashIsNotSharedBetweenPages(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	hash := sha([]byte("wheel"))
	for _, project := range []string{"good", "bad"} {
		u.page(project, "application/vnd.pypi.simple.v1+json", fmt.Sprintf(`{"meta":{"api-version":"1.1"},"name":%q,"files":[`+
			`{"filename":"x-1.0-py3-none-any.whl","url":"%s/%s.whl","hashes":{"sha256":%q},"core-metadata":true}]}`, project, u.URL, project, hash))
		u.mux.HandleFunc("/"+project+".whl.metadata", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "Requires-Dist: %s-dependency\n", project)
		})
	}
	cfg := u.config()
	cache := newMemory()
	cfg.Cache = cache
	x, address := serve(t, cfg)
	file := "/x-1.0-py3-none-any.whl.metadata"
	got := get(t, address+"/pypi/files/bad"+file)
	testbed.Require(t, got == "Requires-Dist: bad-dependency\n", "metadata %q", got)
	testbed.Until(t, "it is kept", func() bool { return x.Spooled() == 0 })
	for range 2 {
		testbed.Diff(t, "metadata", "Requires-Dist: good-dependency\n", get(t, address+"/pypi/files/good"+file))
	}
}

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
		testbed.Must(t, err)
		again, err := index.ParsePyPI(bytes.NewReader(asJSON), pypiJSON, at)
		testbed.Require(t, err == nil, "read the JSON again: %v in %s", err, asJSON)
		testbed.Diff(t, "files of the JSON", p.Names(), again.Names())
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
		testbed.Must(t, json.Unmarshal(asJSON, &simple))
		for _, file := range simple.Files {
			testbed.Check(t, strings.HasPrefix(file.URL, "/pypi/files/six/") && strings.Count(file.URL, "/") == 4, "a file leads to %q", file.URL)
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
		err = json.Unmarshal(full, &document)
		testbed.Require(t, err == nil, "%v in %s", err, full)
		for version, v := range document.Versions {
			if !strings.HasPrefix(v.Dist.Tarball, "http://here/npm/left/-/left-") {
				t.Errorf("version %q has its tarball at %q", version, v.Dist.Tarball)
			}
		}
	})
}
