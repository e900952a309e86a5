package index_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
)

// raw sends bytes unchanged and returns the status of the answer and the start of its body.
func raw(t *testing.T, address, text string) (int, string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(address, "http://"), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	root := strings.TrimSuffix(s.URL(), "/pypi/simple/")
	if status, body := raw(t, root, "GET /pypi/files/six/six-1.0.whl HTTP/1.1\r\nHost: x\r\n\r\n"); status != 200 || body != "text" {
		t.Fatalf("a good request: status %d, %q", status, body)
	}
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
		if status, body := raw(t, root, c.text); status != c.want || strings.Contains(body, "treasure") {
			t.Errorf("%s: status %d, want %d: %q", name, status, c.want, body)
		}
	}
	if u.all() != asked || other.all() != 0 {
		t.Errorf("upstream was asked %v, the other host %v", u.asked, other.asked)
	}
	// Nothing but the path of a request has an effect.
	for _, headers := range []string{"Host: " + other.URL[7:], "Host: x\r\nX-Forwarded-Host: " + other.URL[7:], "Host: x\r\nCookie: a=b\r\nAuthorization: Basic eDp5"} {
		text := fmt.Sprintf("GET /pypi/simple/six/?url=%s&x=../.. HTTP/1.1\r\n%s\r\n\r\n", other.URL, headers)
		if status, body := raw(t, root, text); status != 200 || strings.Contains(body, other.URL[7:]) {
			t.Errorf("%q: status %d, %q", headers, status, body)
		}
	}
	if status, _ := raw(t, root, "GET /npm/left HTTP/1.1\r\nHost: a/b?\"c\r\n\r\n"); status != 400 {
		t.Errorf("a malformed Host: status %d", status)
	}
	if other.all() != 0 {
		t.Errorf("the other host was asked %v", other.asked)
	}
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
	if got.Get("User-Agent") != "sandfarm-index/1" {
		t.Errorf("user agent %q", got.Get("User-Agent"))
	}
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
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the password went to another host")
		}
		_, _ = w.Write([]byte("other"))
	})
	log := &logged{}
	cfg := u.config()
	cfg.PyPIURL, cfg.FilesURL, cfg.Logger = strings.Replace(u.URL, "http://", "http://me:hidden@", 1)+"/simple", files.URL, log.logger()
	_, root := serve(t, cfg)
	if page := get(t, root+"/pypi/simple/six/"); strings.Contains(page, "hidden") {
		t.Errorf("page %q", page)
	}
	if own, other := get(t, root+"/pypi/files/six/own.whl"), get(t, root+"/pypi/files/six/other.whl"); own != "own" || other != "other" {
		t.Errorf("files %q, %q", own, other)
	}
	u.Server.Close()
	if a := ask(t, "GET", root+"/pypi/simple/x/"); strings.Contains(a.body, "hidden") || log.has("hidden") != 0 {
		t.Errorf("%q, log %s", a.body, log.String())
	}
}
