package api_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// echoes answers with what a server got.
func echoes(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Set-Cookie", "app=1; Domain=example.com")
	_, _ = fmt.Fprintf(w, "%s cookies=%q key=%q", r.RequestURI, r.Header.Get("Cookie"), r.Header.Get("X-Api-Key")+r.Header.Get("Authorization"))
}

// link makes a link and returns the path of it below the farm, or its host and path.
func (f *liveFarm) link(box, port string, headers ...string) *url.URL {
	f.t.Helper()
	made := get[wire.PortLink](f.bundle, http.StatusCreated, "POST", "/v1/sandboxes/"+box+"/port-links", `{"port":`+port+`}`, headers...)
	if life := time.Until(made.ExpiresAt); life < 59*time.Minute || life > time.Hour || strconv.Itoa(made.Port) != port {
		f.t.Errorf("%+v", made)
	}
	u, err := url.Parse(made.URL)
	testbed.Must(f.t, err)
	return u
}

// Pages of sandboxes below the API's host could set its cookies.
func TestAPreviewDomainBelowTheAPIsHostIsRefused(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string]bool{"preview.example.com": true, "myfarm.example.com": true, "farm.example.com": false, "preview.farm.example.com": false, "none": true, "": true} {
		c := api.Config{TrustedHosts: []string{"Farm.example.com"}, PreviewDomain: domain}
		if err := c.Validate(); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "api.preview_domain") {
			t.Errorf("%q: %v", domain, err)
		}
	}
	if err := (api.Config{Listen: "farm.example.com:80", RequireKeys: true, PreviewDomain: "p.farm.example.com"}).Validate(); err == nil {
		t.Error("below the address that the API listens on")
	}
}

func noPreviews(c *api.Config, _ *api.Deps) { c.PreviewDomain = "none" }

func TestALinkNeedsNoKey(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, noPreviews)
	mine := []string{"Authorization", "Bearer " + key}
	box, port := f.sandbox(mine...), guest(t, echoes)
	link := f.link(box, port, mine...)
	if "http://"+link.Host != f.web.URL {
		t.Errorf("%s", link)
	}
	answer, text := f.do("GET", link.Path+"a%2Fb?x=1", nil, "Origin", "null", "X-API-Key", key)
	if answer.StatusCode != http.StatusOK || string(text) != `/a%2Fb?x=1 cookies="" key=""` || answer.Header.Get("Access-Control-Allow-Origin") != "null" {
		t.Errorf("%s %s %v", answer.Status, text, answer.Header)
	}
	if !strings.HasPrefix(answer.Header.Get("Content-Security-Policy"), "sandbox ") || answer.Header.Get("Set-Cookie") != "app=1; Path="+link.Path {
		t.Errorf("%v", answer.Header)
	}
	if _, text := f.do("GET", link.Path, nil, mine...); !strings.HasSuffix(string(text), `key=""`) {
		t.Errorf("the farm's key reached the server: %s", text)
	}
	if _, text := f.do("GET", link.Path, nil, "Authorization", "Bearer of-the-app"); !strings.HasSuffix(string(text), `key="Bearer of-the-app"`) {
		t.Errorf("the server's own key did not: %s", text)
	}
	f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "POST", "/v1/sandboxes/"+box+"/port-links", `{"port":80}`)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "POST", "/v1/sandboxes/"+box+"/port-links", `{"port":80}`, "X-API-Key", otherKey)
}

// A link ends with the key that made it, also for a request that lasts, and no other key ends it.
func TestALinkEndsWithItsKey(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withScopes, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = "preview.example.com" })
	first, second := f.newKey(wire.KeyRequest{Tenant: "acme"}, "admin"), f.newKey(wire.KeyRequest{Tenant: "acme"}, "admin")
	ended := make(chan struct{})
	port := guest(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/lasts" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	box := f.sandbox(bearer("run")...)
	open := func(link *url.URL) int {
		answer, _ := f.do("GET", "/?"+link.RawQuery, nil, "Host", link.Host)
		return answer.StatusCode
	}
	tool := f.tool("get_port_url", map[string]any{"sandbox_id": box, "port": 80}, bearer(first.Secret)...)
	byTool, err := url.Parse(tool.field("url"))
	testbed.Must(t, err)
	of, others, settings := f.link(box, port, bearer(first.Secret)...), f.link(box, port, bearer(second.Secret)...), f.link(box, port, bearer("run")...)
	for name, link := range map[string]*url.URL{"first": of, "second": others, "settings": settings} {
		if status := open(link); status != http.StatusOK {
			t.Fatalf("%s: %d", name, status)
		}
	}
	lasts, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.web.URL+"/lasts?"+of.RawQuery, http.NoBody)
	testbed.Must(t, err)
	lasts.Host = of.Host
	answer, err := f.web.Client().Do(lasts)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	f.do("DELETE", "/v1/keys/"+first.Key.ID, nil, bearer("admin")...)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("its request lasts on")
	}
	if status := open(of); status != http.StatusUnauthorized {
		t.Errorf("the link of a revoked key: %d", status)
	}
	f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", "/?"+byTool.RawQuery, nil, "Host", byTool.Host)
	if one, other := open(others), open(settings); one != http.StatusOK || other != http.StatusOK {
		t.Errorf("links of other keys: %d, %d", one, other)
	}
}

// A key of the farm that is sent by mistake ends at the farm, wherever it is in the request, by a link as by a port.
func TestKeysSentByMistakeReachNoServer(t *testing.T) {
	t.Parallel()
	const oddKey, endKey, madeKey = "aB/9+x==", "q/7+w,", "sf_0123456789abcdef"
	f := setupLive(t, withKeys, noPreviews, func(c *api.Config, _ *api.Deps) {
		for _, more := range []string{oddKey, endKey, madeKey} {
			c.Keys = append(c.Keys, api.KeyConfig{Tenant: "acme", SHA256: hash(more)})
		}
	})
	mine := []string{"X-API-Key", key}
	var got string
	port := guest(t, func(_ http.ResponseWriter, r *http.Request) {
		text := &strings.Builder{}
		_ = r.Write(text)
		got = text.String()
	})
	box := f.sandbox(mine...)
	made := get[e2bMade](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+e2b.ShownID(box)+"/connect", `{}`, mine...)
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	for way, target := range map[string]string{"a link": f.link(box, port, mine...).Path, "a port": "/v1/sandboxes/" + box + "/ports/" + port + "/"} {
		for name, c := range map[string]struct{ query, header, value string }{
			"bearer":                {"", "Authorization", "bearer  " + key},
			"token":                 {"", "Authorization", "token " + key},
			"alone":                 {"", "Authorization", key},
			"as E2B's":              {"", "Authorization", "Bearer " + wire.E2BKey(key)},
			"password":              {"", "Authorization", basic("user", key)},
			"user":                  {"", "Authorization", basic(key, "")},
			"parameter":             {"", "Authorization", `Key token="` + key + `"`},
			"X-API-Key":             {"", "X-API-Key", key},
			"another tenant's":      {"", "X-Auth-Token", otherKey},
			"access token":          {"", "X-Access-Token", made.EnvdAccessToken},
			"key as access token":   {"", "X-Access-Token", key},
			"access token as key":   {"", "Authorization", "Bearer " + made.EnvdAccessToken},
			"token in a query":      {"?t=" + made.TrafficAccessToken, "", ""},
			"behind a colon":        {"", "X-Auth", "user:" + key},
			"Basic elsewhere":       {"", "Proxy-Authorization", basic("user", key)},
			"a token in Basic":      {"", "Authorization", basic(made.EnvdAccessToken, "")},
			"in brackets":           {"", "X-Meta", "{\"k\":[<" + key + ">]}"},
			"beside an @ and a bar": {"", "X-Meta", "a|" + key + "@host?b"},
			"behind a word":         {"", "Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key." + madeKey},
			"escaped JSON":          {"", "Cookie", "auth=%7B%22key%22%3A%22" + key + "%22%7D"},
			"escaped twice":         {"?next=%252Fa%253Fkey%253D" + key, "", ""},
			"any characters":        {"", "Authorization", "Bearer " + oddKey},
			"any, before others":    {"", "Cookie", "a=" + oddKey + "; b=c"},
			"any, and a comma":      {"", "X-Meta", "Bearer " + endKey},
			"a comma before others": {"", "Cookie", "a=" + endKey + "; b=c"},
			"any behind a sign":     {"", "X-Meta", "key=" + oddKey},
			"in parentheses":        {"", "User-Agent", "x/1 (" + key + ")"},
			"traffic token":         {"", "E2b-Traffic-Access-Token", made.TrafficAccessToken},
			"key as traffic token":  {"", "E2b-Traffic-Access-Token", key},
			"WebSocket's protocols": {"", "Sec-WebSocket-Protocol", "v1.token.websocket.jupyter.org, " + key},
			"a cookie":              {"", "Cookie", "token=" + key},
			"query":                 {"?a=1&token=" + key + "&b=2", "", ""},
			"escaped query":         {"?token=" + strings.ReplaceAll(key, "-", "%2D"), "", ""},
			"referer":               {"", "Referer", f.web.URL + "/?token=" + key},
		} {
			got = ""
			headers := []string{c.header, c.value}
			if c.header == "" {
				headers = nil
			}
			if way == "a port" && c.header != "X-API-Key" {
				headers = append(headers, mine...)
			}
			if way == "a port" && c.header == "Authorization" { // which counts before X-API-Key
				continue
			}
			answer, text := f.do("GET", target+c.query, nil, headers...)
			if answer.StatusCode != http.StatusOK || got == "" {
				t.Errorf("%s, %s: %s %s", way, name, answer.Status, text)
			}
			for _, secret := range []string{key, otherKey, oddKey, endKey, madeKey, wire.E2BKey(key), made.EnvdAccessToken, made.TrafficAccessToken, "%2D", c.value} {
				if secret != "" && strings.Contains(got, secret) {
					t.Errorf("%s, %s: the server got %s", way, name, got)
				}
			}
			if name == "query" && !strings.HasPrefix(got, "GET /?a=1&b=2 ") {
				t.Errorf("%s: the server got %s", way, got)
			}
		}
		headers := []string{"X-Access-Token", "the server's own", "X-Auth-Token", "own", "Cookie", "a=b"}
		if way == "a port" {
			headers = append(headers, mine...)
		}
		f.do("GET", target+"?token=own&x=%zz", nil, headers...)
		for _, own := range []string{"GET /?token=own&x=%zz ", "X-Access-Token: the server's own", "X-Auth-Token: own", "Cookie: a=b"} {
			if !strings.Contains(got, own) {
				t.Errorf("%s: no %q in %s", way, own, got)
			}
		}
	}
}

// The search for keys in a header of 32 KiB takes as long as large documents do: it waits for a core of its tenant, in which that of small ones passes it.
func TestKeysInLargeHeadersAreSearchedForOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	f := setupLive(t, withKeys, noPreviews, func(_ *api.Config, d *api.Deps) { d.Memory = memory })
	mine := []string{"X-API-Key", key}
	got := make(chan string, 11)
	port := guest(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.RawQuery })
	target := f.link(f.sandbox(mine...), port, mine...).Path
	cores := testbed.TakeCores(t, memory, "acme")
	var large sync.WaitGroup
	large.Go(func() { f.do("GET", target+"?large", nil, "X-Large", strings.Repeat("a ", 12<<10)) })
	for range 10 {
		f.do("GET", target+"?small", nil)
	}
	cores.Leave()
	large.Wait()
	for range 10 {
		testbed.Diff(t, "a request", "small", <-got)
	}
	testbed.Diff(t, "the last request", "large", <-got)
}

// POST …/ports/{port}/link makes a link as well, and does not reach the server, whose own address of this name is below the link.
func TestALinkIsMadeBelowItsPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, noPreviews)
	mine := []string{"Authorization", "Bearer " + key}
	box, port := f.sandbox(mine...), guest(t, echoes)
	target := "/v1/sandboxes/" + box + "/ports/" + port + "/link"
	for body, life := range map[string]time.Duration{"": time.Hour, `{}`: time.Hour, `{"expires_seconds":60}`: time.Minute} {
		made := get[wire.PortLink](f.bundle, http.StatusCreated, "POST", target, body, mine...)
		if left := time.Until(made.ExpiresAt); left > life || left < life-time.Minute || strconv.Itoa(made.Port) != port {
			t.Errorf("%s: %+v", body, made)
		}
		link, err := url.Parse(made.URL)
		testbed.Must(t, err)
		if answer, text := f.do("POST", link.Path+"link", nil); answer.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "/link ") {
			t.Errorf("%s: %s %s", body, answer.Status, text)
		}
	}
	if _, text := f.do("GET", target, nil, mine...); !strings.HasPrefix(string(text), "/link ") {
		t.Errorf("GET does not reach the server: %s", text)
	}
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, `{"expires_seconds":0}`, mine...)
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", target, `{"port":80}`, mine...)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", strings.Replace(target, port, "65536", 1), nil, mine...)
	f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "POST", target, nil)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "POST", target, nil, "X-API-Key", otherKey)
}

// Programs that cannot resolve the host of a port ask for a path.
func TestALinkOfPathStyle(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"", "preview.example.com"} {
		f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = domain })
		mine := []string{"X-API-Key", key}
		box, port := f.sandbox(mine...), guest(t, echoes)
		for target, body := range map[string]string{"/port-links": `{"port":` + port + `,"path_style":true}`, "/ports/" + port + "/link": `{"path_style":true}`} {
			made := get[wire.PortLink](f.bundle, http.StatusCreated, "POST", "/v1/sandboxes/"+box+target, body, mine...)
			path, below := strings.CutPrefix(made.URL, f.web.URL+"/p/")
			if !below {
				t.Fatalf("%q %s: %s", domain, target, made.URL)
			}
			if answer, text := f.do("GET", "/p/"+path+"x", nil); answer.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "/x ") {
				t.Errorf("%q %s: %s %s", domain, target, answer.Status, text)
			}
		}
	}
}

func TestALinkEndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	f := setupLive(t, noPreviews)
	box := f.sandbox()
	link := f.link(box, guest(t, echoes))
	get[wire.Job](f.bundle, http.StatusOK, "DELETE", "/v1/sandboxes/"+box+"?wait=20", nil)
	f.problem(farm.CodeConflict, http.StatusConflict, "GET", link.Path, nil)
}

func TestLimitsOfLinks(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	target := "/v1/sandboxes/" + f.sandbox() + "/port-links"
	for body, ok := range map[string]bool{
		`{"port":1}`: true, `{"port":65535}`: true, `{"port":0}`: false, `{"port":65536}`: false, `{}`: false,
		`{"port":80,"expires_seconds":1}`: true, `{"port":80,"expires_seconds":0}`: false,
		fmt.Sprintf(`{"port":80,"expires_seconds":%d}`, farm.MaxLinkSeconds-1): true, fmt.Sprintf(`{"port":80,"expires_seconds":%d}`, farm.MaxLinkSeconds): true,
		fmt.Sprintf(`{"port":80,"expires_seconds":%d}`, farm.MaxLinkSeconds+1): false,
	} {
		if answer, text := f.do("POST", target, body); (answer.StatusCode == http.StatusCreated) != ok {
			t.Errorf("%s: %s %s", body, answer.Status, text)
		}
	}
}

// The port by which a sandbox reaches the package index is no server's, unless it has no network.
func TestNoLinkToTheFarmsOwnPort(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	for network, status := range map[string]int{"packages": http.StatusUnprocessableEntity, "none": http.StatusCreated} {
		box := get[wire.Created](f.bundle, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"network":"`+network+`"}`).Sandbox.ID
		for port, want := range map[int]int{farm.EgressPort - 1: http.StatusCreated, farm.EgressPort: status, farm.EgressPort + 1: http.StatusCreated} {
			if answer, text := f.do("POST", "/v1/sandboxes/"+box+"/port-links", fmt.Sprintf(`{"port":%d}`, port)); answer.StatusCode != want {
				t.Errorf("%s, %d: %s %s", network, port, answer.Status, text)
			}
		}
	}
}

// A link works for its port and its sandbox, as it was made and until its time.
func TestLinksThatAreRefused(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	f := setupLive(t, noPreviews, func(_ *api.Config, d *api.Deps) {
		d.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	link := f.link(f.sandbox(), guest(t, echoes))
	token := strings.Trim(strings.TrimPrefix(link.Path, "/p/"), "/")
	for i := range len(token) {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		if answer, _ := f.do("GET", "/p/"+token[:i]+string(other)+token[i+1:]+"/", nil); answer.StatusCode != http.StatusUnauthorized {
			t.Fatalf("a link that was changed at %d: %s", i, answer.Status)
		}
	}
	for _, bad := range []string{"x", "x.y", token + "A", token[:len(token)-1], "." + token, strings.Repeat("a", 5000)} {
		f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", "/p/"+bad+"/", nil)
	}
	later.Store(int64(time.Hour - 5*time.Second))
	if answer, _ := f.do("GET", link.Path, nil); answer.StatusCode != http.StatusOK {
		t.Errorf("before its time: %s", answer.Status)
	}
	later.Store(int64(time.Hour + time.Second))
	if p := f.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", link.Path, nil); !strings.Contains(p.Detail, "expired") {
		t.Errorf("%+v", p)
	}
}

// A port has a host of its own, where only its link counts, which a cookie of that host keeps.
func TestPreviews(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = "preview.example.com" })
	mine := []string{"Authorization", "Bearer " + key}
	box, port := f.sandbox(mine...), guest(t, echoes)
	link := f.link(box, port, mine...)
	if want := port + "-" + strings.ReplaceAll(box, "_", "-") + ".preview.example.com"; link.Scheme != "https" || link.Host != want {
		t.Fatalf("%s, want host %s", link, want)
	}
	at := func(target string, headers ...string) (*http.Response, string) {
		answer, text := f.do("GET", target, nil, append([]string{"Host", link.Host, "X-Forwarded-Proto", "https"}, headers...)...)
		return answer, string(text)
	}
	answer, _ := at("/a//b?x=1&"+link.RawQuery+"&y=%2F", "Accept", "text/html")
	if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "/a//b?x=1&y=%2F" || len(answer.Cookies()) != 1 {
		t.Fatalf("%s %v", answer.Status, answer.Header)
	}
	cookie := answer.Cookies()[0]
	if cookie.Name != "__Host-sandfarm_link" || !cookie.Secure || !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" || cookie.Path != "/" {
		t.Errorf("%+v", cookie)
	}
	with := "theme=dark; " + cookie.Name + "=" + cookie.Value
	answer, text := at("/a//b?x=1&y=%2F", "Cookie", with)
	if answer.StatusCode != http.StatusOK || text != `/a//b?x=1&y=%2F cookies="theme=dark" key=""` || answer.Header.Get("Set-Cookie") != "app=1" || strings.Contains(answer.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%s %s %v", answer.Status, text, answer.Header)
	}
	if answer, text := at("/api?" + link.RawQuery); answer.StatusCode != http.StatusOK || !strings.HasPrefix(text, "/api cookies") { // no browser
		t.Errorf("%s %s", answer.Status, text)
	}
	for name, headers := range map[string][]string{
		"No link": nil, "The farm's key": mine, "Another cookie": {"Cookie", "sandfarm_link=" + cookie.Value},
		"A page of plain HTTP": {"Cookie", with, "Origin", "http://80-sbx.preview.example.com"}, "A changed one": {"Cookie", with + "x"},
		"A sibling's page": {"Cookie", with, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, "Its WebSocket": {"Cookie", with, "Upgrade", "websocket", "Connection", "Upgrade", "Origin", "https://80-sbx.preview.example.com"},
	} {
		if answer, text := at("/", headers...); answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s %s", name, answer.Status, text)
		}
	}
	for dest, want := range map[string]int{"document": http.StatusOK, "iframe": http.StatusForbidden} {
		answer, _ := at("/", "Cookie", with, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", dest)
		testbed.Diff(t, "status of a reference that is followed in a "+dest, want, answer.StatusCode)
	}
	for _, host := range []string{
		"81-" + strings.ReplaceAll(box, "_", "-") + ".preview.example.com", port + "-" + strings.ReplaceAll(farm.NewID(farm.SandboxPrefix), "_", "-") + ".preview.example.com",
	} {
		if answer, text := f.do("GET", "/?"+link.RawQuery, nil, "Host", host); answer.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "another port or another sandbox") {
			t.Errorf("%s: %s %s", host, answer.Status, text)
		}
	}
	// A host below the domain never echoes the farm, whatever it is; and the farm's own host never echoes a port.
	for _, host := range []string{
		"x.preview.example.com", "preview.preview.example.com", "0" + link.Host, "-" + link.Host, strings.ToUpper(link.Host), link.Host + ".", link.Host + ":443", "65536-" + link.Host,
	} {
		for _, path := range []string{"/v1/sandboxes", "/healthz", "/openapi.json", "/metrics"} {
			if answer, _ := f.do("GET", path, nil, append([]string{"Host", host}, mine...)...); answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusNotFound {
				t.Errorf("%s of %s: %s", path, host, answer.Status)
			}
		}
	}
	for _, host := range []string{"preview.example.com", "farm.example.com", link.Host + ".evil.example", "x" + link.Host[1:] + "evil"} {
		if answer, text := f.do("GET", "/echo?"+link.RawQuery, nil, append([]string{"Host", host}, mine...)...); answer.StatusCode != http.StatusNotFound || strings.Contains(string(text), "cookies") {
			t.Errorf("%s: %s %s", host, answer.Status, text)
		}
		if _, text := f.do("GET", "/?"+link.RawQuery, nil, append([]string{"Host", host}, mine...)...); !strings.Contains(string(text), "<title>Sandfarm</title>") {
			t.Errorf("the root of %s is no dashboard: %s", host, text)
		}
	}
}

// Without a setting, callers on this machine get links below localhost, which browsers know.
func TestPreviewsOnThisMachine(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	port := guest(t, echoes)
	link := f.link(f.sandbox(), port)
	_, own, _ := strings.Cut(strings.TrimPrefix(f.web.URL, "http://"), ":")
	if link.Scheme != "http" || !strings.HasPrefix(link.Host, port+"-sbx-") || !strings.HasSuffix(link.Host, ".localhost:"+own) {
		t.Fatalf("%s", link)
	}
	answer, text := f.do("GET", "/x?"+link.RawQuery, nil, "Host", link.Host)
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "/x ") || !strings.HasPrefix(answer.Header.Values("Set-Cookie")[0], "sandfarm_link=") {
		t.Errorf("%s %s %v", answer.Status, text, answer.Header)
	}
	if answer, _ := f.do("GET", "/v1/sandboxes", nil, "Host", "other.localhost:"+own); answer.StatusCode != http.StatusOK {
		t.Errorf("a name of this machine: %s", answer.Status)
	}
	if answer, _ := f.do("POST", "/v1/sandboxes", "{}", "Host", "localhost:"+own, "Origin", "http://"+link.Host, "Sec-Fetch-Site", "cross-site"); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a page of a sandbox uses the farm: %s", answer.Status)
	}
}

func TestPortsAreListedOverTheAPI(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	port, err := strconv.Atoi(guest(t, echoes))
	testbed.Must(t, err)
	list := get[wire.Ports](f.bundle, http.StatusOK, "GET", "/v1/sandboxes/"+f.sandbox()+"/ports", nil)
	for _, p := range list.Items {
		if p.Port == port && p.Address == "127.0.0.1" && p.PID != nil && p.Command != "" {
			return
		}
	}
	t.Errorf("%+v", list)
}
