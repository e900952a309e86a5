package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
)

// SDKs without a URL for all sandboxes reach a sandbox at hosts below the domain of the answer to its create.
func TestE2BHosts(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = "preview.example.com" })
	box, port := f.sandbox("Authorization", "Bearer "+key), guest(t, func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	id := e2b.ShownID(box)
	made := get[struct{ Domain, EnvdAccessToken, TrafficAccessToken string }](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+id+"/connect", `{}`, "X-API-KEY", key)
	if made.Domain != "preview.example.com" {
		t.Fatalf("domain %q", made.Domain)
	}
	at := func(port, method, target string, headers ...string) (int, string) {
		answer, text := f.do(method, target, nil, append([]string{"Host", port + "-" + id + "." + made.Domain}, headers...)...)
		return answer.StatusCode, string(text)
	}
	access, traffic := []string{"X-Access-Token", made.EnvdAccessToken}, []string{"E2b-Traffic-Access-Token", made.TrafficAccessToken}
	other := f.sandbox("Authorization", "Bearer "+key)
	foreign := get[struct{ EnvdAccessToken, TrafficAccessToken string }](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+e2b.ShownID(other)+"/connect", `{}`, "X-API-KEY", key)
	for name, c := range map[string]struct {
		port, target string
		headers      []string
		want         int
	}{
		"envd":                          {e2b.EnvdPort, "/health", access, http.StatusNoContent},
		"envd without a token":          {e2b.EnvdPort, "/health", nil, http.StatusUnauthorized},
		"envd for traffic":              {e2b.EnvdPort, "/health", traffic, http.StatusUnauthorized},
		"envd of another sandbox":       {e2b.EnvdPort, "/health", []string{"X-Access-Token", foreign.EnvdAccessToken}, http.StatusUnauthorized},
		"a route of the farm":           {e2b.EnvdPort, "/v1/sandboxes", []string{"Authorization", "Bearer " + key}, http.StatusNotFound},
		"control":                       {e2b.EnvdPort, "/sandboxes/" + id, []string{"X-API-KEY", key}, http.StatusNotFound},
		"the interpreter":               {e2b.InterpreterPort, "/contexts", traffic, http.StatusOK},
		"its health":                    {e2b.InterpreterPort, "/health", access, http.StatusOK},
		"its health, for traffic":       {e2b.InterpreterPort, "/health", traffic, http.StatusUnauthorized},
		"the interpreter, no token":     {e2b.InterpreterPort, "/health", nil, http.StatusUnauthorized},
		"a port":                        {port, "/", traffic, http.StatusOK},
		"a port by the other token":     {port, "/", access, http.StatusOK},
		"a port without a token":        {port, "/", nil, http.StatusUnauthorized},
		"a port of another sandbox":     {port, "/", []string{"E2b-Traffic-Access-Token", foreign.TrafficAccessToken}, http.StatusUnauthorized},
		"another one named by a header": {port, "/", []string{"E2b-Sandbox-Id", e2b.ShownID(other), "E2b-Traffic-Access-Token", foreign.TrafficAccessToken}, http.StatusUnauthorized},
	} {
		if got, text := at(c.port, "GET", c.target, c.headers...); got != c.want {
			t.Errorf("%s: %d %s", name, got, text)
		}
	}
	_, text := at(port, "GET", "/")
	if !strings.Contains(text, e2b.HeaderTraffic) {
		t.Errorf("without a token: %s", text)
	}
	_, text = at(port, "GET", "/", append(traffic, "X-Access-Token", "the server's own")...)
	if strings.Contains(text, made.TrafficAccessToken) || !strings.Contains(text, "the server's own") {
		t.Errorf("the server got %s", text)
	}
	if _, text := at(port, "GET", "/", append(traffic, access...)...); strings.Contains(text, made.EnvdAccessToken) {
		t.Errorf("the server got %s", text)
	}
	f.do("DELETE", "/e2b/sandboxes/"+id, nil, "X-API-KEY", key)
	for _, port := range []string{e2b.EnvdPort, port} {
		if got, text := at(port, "GET", "/health", access...); got != http.StatusBadGateway || !strings.Contains(text, "was not found") {
			t.Errorf("after its end: %d %s", got, text)
		}
	}
}
