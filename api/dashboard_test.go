package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// ownPage are the headers that a browser adds to a request of the dashboard.
var ownPage = []string{"Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}

// logIn exchanges a key for a cookie.
func logIn(b *bundle, key string) string {
	b.t.Helper()
	answer, text := b.do("POST", "/session", `{"key":"`+key+`","path":"/"}`, ownPage...)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		b.t.Fatalf("log in: %d %s", answer.StatusCode, text)
	}
	return answer.Cookies()[0].Name + "=" + answer.Cookies()[0].Value
}

func TestASessionStandsForItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	cookie := logIn(b, key)
	if strings.Contains(cookie, key) {
		t.Errorf("the cookie holds the key: %s", cookie)
	}
	mine := append([]string{"Cookie", cookie}, ownPage...)
	box := b.sandbox(mine...)
	var who struct {
		LoggedIn bool `json:"logged_in"`
		Keyless  bool
		Tenant   string
		Scopes   []string
	}
	if _, text := b.do("GET", "/session", nil, mine...); json.Unmarshal(text, &who) != nil || !who.LoggedIn || who.Keyless || who.Tenant != "acme" || !slices.Contains(who.Scopes, "run") || strings.Contains(string(text), "/srv/farm") {
		t.Errorf("the session is %s", text)
	}
	theirs := append([]string{"Cookie", logIn(b, otherKey)}, ownPage...)
	if answer, _ := b.do("GET", "/v1/sandboxes/"+box, nil, theirs...); answer.StatusCode != http.StatusNotFound {
		t.Errorf("another tenant's session is answered %d", answer.StatusCode)
	}
	if answer, _ := b.do("GET", "/v1/sandboxes/"+box, nil, append(mine, "X-API-Key", otherKey)...); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a key does not count before the session: %d", answer.StatusCode)
	}
	answer, _ := b.do("DELETE", "/session", nil, mine...)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 || answer.Cookies()[0].MaxAge >= 0 {
		t.Errorf("log out: %d %v", answer.StatusCode, answer.Cookies())
	}
	if answer, _ := b.do("GET", "/v1/sandboxes/"+box, nil, mine...); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the log-out the cookie is answered %d", answer.StatusCode)
	}
}

func TestOnlyTheDashboardsOwnPagesUseItsSession(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	cookie := logIn(b, key)
	for name, headers := range map[string][]string{
		"AnotherSite":    {"Sec-Fetch-Site", "cross-site"},
		"AnotherPort":    {"Sec-Fetch-Site", "same-site"},
		"ForeignOrigin":  {"Origin", "https://evil.example"},
		"OpaqueOrigin":   {"Origin", "null"},
		"NoOriginAtAll":  {},
		"OriginOfAPort":  {"Origin", "http://127.0.0.1:1"},
		"OriginByPrefix": {"Origin", b.web.URL + ".evil.example"},
	} {
		answer, _ := b.do("POST", "/v1/sandboxes", `{}`, append(headers, "Cookie", cookie, "Content-Type", "application/json")...)
		testbed.Diff(t, fmt.Sprintf("%s: a create is answered", name), http.StatusForbidden, answer.StatusCode)
		for _, method := range []string{"POST", "DELETE"} {
			answer, _ = b.do(method, "/session", `{"key":"`+key+`"}`, append(headers, "Content-Type", "application/json")...)
			if answer.StatusCode != http.StatusForbidden || len(answer.Cookies()) > 0 {
				t.Errorf("%s: %s /session is answered %d", name, method, answer.StatusCode)
			}
		}
	}
	if page := get[struct{ Items []any }](b, http.StatusOK, "GET", "/v1/sandboxes", nil, "X-API-Key", key); len(page.Items) > 0 {
		t.Errorf("%d sandboxes were made", len(page.Items))
	}
}

func TestASessionOpensNoPortAndNothingBesideV1(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine := append([]string{"Cookie", logIn(b, key)}, ownPage...)
	box := b.sandbox(mine...)
	for _, path := range []string{"/v1/sandboxes/" + box + "/ports/8000/", "/v1/sandboxes/" + box + "/ports/8000", "/v1/sandboxes/" + box + "/tcp/22", "/metrics", "/sandboxes", "/nowhere"} {
		if answer, _ := b.do("GET", path, nil, mine...); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s is answered %d", path, answer.StatusCode)
		}
	}
	if answer, _ := b.do("POST", "/mcp", `{}`, mine...); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("/mcp is answered %d", answer.StatusCode)
	}
}

func TestASessionEndsWithItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	made := get[wire.NewKey](b, http.StatusCreated, "POST", "/v1/keys", `{"tenant":"acme","scopes":["read"]}`, "X-API-Key", string(farm.ScopeAdmin), "Content-Type", "application/json")
	mine := append([]string{"Cookie", logIn(b, made.Secret)}, ownPage...)
	if answer, _ := b.do("GET", "/v1/jobs", nil, mine...); answer.StatusCode != http.StatusOK {
		t.Fatalf("the session is answered %d", answer.StatusCode)
	}
	if answer, _ := b.do("POST", "/v1/sandboxes", `{}`, mine...); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a session of a key that reads starts work: %d", answer.StatusCode)
	}
	if answer, text := b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, "X-API-Key", string(farm.ScopeAdmin)); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("revoke: %d %s", answer.StatusCode, text)
	}
	b.refused(made.Secret) // waits until the farm knows
	if answer, _ := b.do("GET", "/v1/jobs", nil, mine...); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("after its key the session is answered %d", answer.StatusCode)
	}
	if _, text := b.do("GET", "/session", nil, mine...); !strings.Contains(string(text), `"logged_in":false,"key_ended":true`) {
		t.Errorf("the session is %s", text)
	}
	if _, text := b.do("GET", "/session", nil, ownPage...); !strings.Contains(string(text), `"logged_in":false,"key_ended":false`) {
		t.Errorf("without a cookie the session is %s", text)
	}
}

func TestNobodyLogsInWithAWrongKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	for body, want := range map[string]int{
		`{"key":"nonsense"}`: http.StatusUnauthorized, `{"key":""}`: http.StatusUnauthorized, `{}`: http.StatusUnprocessableEntity, `[]`: http.StatusBadRequest,
		`{"key":"` + key + `","path":"/;Domain=evil.example/"}`: http.StatusUnprocessableEntity, `{"key":"` + strings.Repeat("a", 5<<10) + `"}`: http.StatusRequestEntityTooLarge,
	} {
		answer, text := b.do("POST", "/session", body, ownPage...)
		if answer.StatusCode != want || len(answer.Cookies()) > 0 {
			t.Errorf("%.60s is answered %d: %s", body, answer.StatusCode, text)
		}
	}
}

func TestAFarmWithoutKeysNeedsNoSession(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, text := b.do("GET", "/session", nil, ownPage...)
	for _, want := range []string{`"logged_in":true`, `"keyless":true`, `"tenant":"default"`, `"data":"/srv/farm"`, `"allowlist":false`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the session lacks %s: %s", want, text)
		}
	}
	answer, _ := b.do("POST", "/session", `{"key":"anything"}`, ownPage...)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) > 0 {
		t.Errorf("a log-in is answered %d with %v", answer.StatusCode, answer.Cookies())
	}
}

func TestTheDashboardsHeaders(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	if answer, _ := b.do("GET", "/ui/frame.html", nil); answer.Header.Get("Connection-Allowlist") != "()" {
		t.Errorf("the page of results may connect to %q", answer.Header.Get("Connection-Allowlist"))
	}
	for path, wants := range map[string][]string{
		"/":                       {"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "connect-src 'self';"},
		"/ui/js/main.js":          {"default-src 'none'"},
		"/ui/frame.html":          {"sandbox allow-scripts;", "default-src 'none'", "frame-ancestors 'self'"},
		"/ui/terminal.html":       {"default-src 'none'", "script-src 'self';", "frame-ancestors 'self'"},
		"/ui/js/lib/preact.js":    {"default-src 'none'"},
		"/ui/app.css":             {"default-src 'none'"},
		"/ui/icon.svg":            {"default-src 'none'"},
		"/ui/js/words/zh.js":      {"default-src 'none'"},
		"/ui/js/views/jobs.js":    {"default-src 'none'"},
		"/ui/js/parts/editor.js":  {"default-src 'none'"},
		"/ui/js/lib/addon-fit.js": {"default-src 'none'"},
	} {
		answer, text := b.do("GET", path, nil, "Accept-Encoding", "identity")
		policy := answer.Header.Get("Content-Security-Policy")
		if answer.StatusCode != http.StatusOK || len(text) == 0 || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s is answered %d with %v", path, answer.StatusCode, answer.Header)
		}
		for _, want := range wants {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy lacks %q: %s", path, want, policy)
			}
		}
		if regexp.MustCompile(`script-src[^;]*unsafe`).MatchString(policy) && !strings.Contains(policy, "sandbox allow-scripts") {
			t.Errorf("%s: the policy runs inline scripts: %s", path, policy)
		}
		if again, body := b.do("GET", path, nil, "If-None-Match", answer.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || len(body) > 0 {
			t.Errorf("%s with its etag is answered %d", path, again.StatusCode)
		}
		packed, body := b.do("GET", path, nil, "Accept-Encoding", "gzip")
		if packed.Header.Get("Content-Encoding") != "gzip" || len(body) >= len(text)+64 {
			t.Errorf("%s: %d bytes are %d when packed", path, len(text), len(body))
		}
	}
	_, page := b.do("GET", "/", nil)
	for path, want := range map[string]string{
		"/": "no-cache", "/ui/js/main.js": "no-cache", "/ui/v-another/js/main.js": "no-cache", "/" + regexp.MustCompile(`ui/v-[^"]+/js/main.js`).FindString(string(page)): "public, max-age=31536000, immutable",
	} {
		if answer, _ := b.do("GET", path, nil); answer.StatusCode != http.StatusOK || answer.Header.Get("Cache-Control") != want {
			t.Errorf("%s is answered %d, Cache-Control %q instead of %q", path, answer.StatusCode, answer.Header.Get("Cache-Control"), want)
		}
	}
	for _, path := range []string{"/ui/ui.go", "/ui/../api/server.go", "/ui/js/lib/LICENSE.preact.txt", "/ui/vendor.sh"} {
		if answer, _ := b.do("GET", path, nil); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s is answered %d", path, answer.StatusCode)
		}
	}
}

func TestTheFolderOfTheDashboardLeadsToItsPage(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	for path, want := range map[string]string{"/ui": "./", "/ui/": "../"} { // relative, as a proxy may have put a prefix before both
		if answer, _ := b.do("GET", path, nil); answer.StatusCode != http.StatusFound || answer.Header.Get("Location") != want {
			t.Errorf("%s is answered %d, Location %q", path, answer.StatusCode, answer.Header.Get("Location"))
		}
	}
}

func TestPicturesOfTheStoreMayBeShown(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	const origin = "http://s3.test" // of the links of memory
	answer, _ := b.do("GET", "/", nil)
	if policy := answer.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "img-src 'self' data: blob: "+origin+";") {
		t.Errorf("pictures of %q are not in %s", origin, policy)
	}
}

func TestTheSessionsCookieIsOneThatNoSandboxSees(t *testing.T) {
	t.Parallel()
	if !strings.HasPrefix(access.Cookie, "sandfarm") {
		t.Errorf("the cookie is %s", access.Cookie)
	}
}

func TestLogInsAreInTheAudit(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	b.do("POST", "/session", `{"key":"nonsense"}`, ownPage...)
	logIn(b, string(farm.ScopeRead))
	got := map[int]string{}
	for _, e := range b.audited("", 2) {
		if e.Route == "POST /session" {
			got[e.Status] = e.Tenant
		}
	}
	testbed.Diff(t, "the audit", map[int]string{http.StatusUnauthorized: "", http.StatusOK: "acme"}, got)
}
