package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestToolsByPostRefuseInTheirShape(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const none = "sbx_00000000000000000000000000000000"
	for name, test := range map[string]struct {
		tool, body string
		status     int
	}{
		"NoTool":     {"nothing", `{}`, 404},
		"NoObject":   {"create_sandbox", `[1]`, 400},
		"Null":       {"create_sandbox", `null`, 400},
		"Broken":     {"create_sandbox", `{`, 400},
		"NoCode":     {"execute_python_code", `{"sandbox_id":"x"}`, 400},
		"Unknown":    {"execute_python_code", `{"sandbox_id":"` + none + `","code":"1"}`, 404},
		"LocalPath":  {"upload_file_to_sandbox", `{"sandbox_id":"x","local_file_path":"/etc/passwd"}`, 400},
		"NamesAText": {"install_packages_in_sandbox", `{"sandbox_id":"x","package_names":"six"}`, 400},
	} {
		answer, text := b.do("POST", "/mcp/tools/"+test.tool, test.body, "Content-Type", "application/json")
		var got struct {
			Error   bool
			Message string
		}
		if err := json.Unmarshal(text, &got); err != nil || answer.StatusCode != test.status || !got.Error || got.Message == "" {
			t.Errorf("%s: %d %s", name, answer.StatusCode, text)
		}
	}
	answer, text := b.do("POST", "/mcp/tools/execute_terminal_command", `{"sandbox_id":"`+none+`","command":"true"}`, "Content-Type", "application/json")
	if answer.StatusCode != 404 || !strings.Contains(string(text), `"exit_code":-1`) {
		t.Errorf("a command: %d %s", answer.StatusCode, text)
	}
}

func TestToolBodiesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, small)
	const limit = 20_000
	for size, want := range map[int]int{limit - 1: 404, limit: 404, limit + 1: 413} {
		body := fmt.Sprintf("%-*s", size, `{"sandbox_id":"x","code":"print(1)"}`)
		if answer, text := b.do("POST", "/mcp/tools/execute_python_code", body, "Content-Type", "application/json"); answer.StatusCode != want {
			t.Errorf("%d bytes: %d %s", size, answer.StatusCode, text)
		}
	}
}

func TestFilesByNameRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for query, want := range map[string]int{
		"": 422, "file_path=x": 422, "sandbox_id=%20&sandbox_name=&file_path=x": 422, "sandbox_id=x": 422, "sandbox_id=x&file_path=%20": 422,
		"sandbox_id=x&file_path=a": 404, "sandbox_name=x&file_path=a": 404, "sandbox_id=x&file_path=/etc/passwd": 422, "sandbox_id=x&file_path=../a": 422,
		"sandbox_id=x&file_path=/app/results/../a": 422, "sandbox_id=x&file_path=/app/results": 422,
	} {
		answer, text := b.do("GET", "/sandbox/file?"+query, nil)
		var got struct{ Detail string }
		if err := json.Unmarshal(text, &got); err != nil || answer.StatusCode != want || got.Detail == "" {
			t.Errorf("%s: %d %s", query, answer.StatusCode, text)
		}
	}
}

func TestPagesOfTrustedOriginsMayCallTheToolsAndNoOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config, _ *api.Deps) {
		c.TrustedOrigins = []string{"https://chat.example.com", "http://localhost:3000"}
	})
	own := b.web.URL
	for origin, trusted := range map[string]bool{
		"http://localhost:3000": true, own: true, "https://chat.example.com": true, "http://127.0.0.1:5173": false, "http://localhost": false,
		"https://evil.example": false, "http://localhost.evil.example": false, "null": false,
	} {
		for _, path := range []string{"/mcp/tools/create_sandbox", "/sandbox/file", "/mcp", "/mcp/sandbox", "/mcp/python-env", "/messages/", "/check"} {
			answer, _ := b.do("OPTIONS", path, nil, "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type")
			allowed := answer.Header.Get("Access-Control-Allow-Origin")
			if answer.StatusCode != http.StatusNoContent || (allowed == origin) != trusted || (answer.Header.Get("Access-Control-Allow-Headers") != "") != trusted || !trusted && allowed != "" {
				t.Errorf("%s asks for %s: %d %q", origin, path, answer.StatusCode, allowed)
			}
		}
		answer, text := b.do("POST", "/mcp/tools/nothing", "", "Origin", origin)
		if want := map[bool]int{true: 404, false: 403}[trusted]; answer.StatusCode != want {
			t.Errorf("%s calls: %d %s", origin, answer.StatusCode, text)
		}
		answer, _ = b.do("GET", "/check", nil, "Origin", origin)
		if (answer.Header.Get("Access-Control-Allow-Origin") == origin) != trusted || answer.Header.Get("Vary") == "" && trusted {
			t.Errorf("%s reads: %v", origin, answer.Header)
		}
	}
	if answer, _ := b.do("OPTIONS", "/v1/sandboxes", nil, "Origin", "http://localhost:3000", "Access-Control-Request-Method", "POST"); answer.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("/v1 takes pages")
	}
	for origin, want := range map[string]int{"http://localhost:3000": 403, own: 404} { // 404: there is no such sandbox
		answer, text := b.do("GET", "/v1/sandboxes/sbx_1/ports/80/", nil, "Origin", origin, "Connection", "Upgrade", "Upgrade", "websocket")
		testbed.Check(t, answer.StatusCode == want, "a WebSocket of %s to a port: %d %s", origin, answer.StatusCode, text)
	}
	if answer, _ := b.do("POST", "/mcp/tools/create_sandbox", "", "Sec-Fetch-Site", "cross-site"); answer.StatusCode != 403 {
		t.Errorf("a page without an origin: %d", answer.StatusCode)
	}
}

func TestAddressesOfServersMayEndInASlash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{"/mcp", "/mcp/sandbox", "/mcp/python-env"} {
		for _, end := range []string{"", "/"} {
			answer, text := b.do("POST", path+end, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Content-Type", "application/json")
			if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"result":{}`) {
				t.Errorf("%s%s: %d %s", path, end, answer.StatusCode, text)
			}
		}
	}
	for _, path := range []string{"/sse/", "/sandbox/sse/"} {
		if answer, _ := b.do("OPTIONS", path, nil); !strings.Contains(answer.Header.Get("Allow"), "GET") {
			t.Errorf("%s: %d %v", path, answer.StatusCode, answer.Header)
		}
	}
}

func TestStreamsOfOneTenantAreHiddenFromOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	if answer, _ := b.do("GET", "/sse", nil); answer.StatusCode != 401 {
		t.Errorf("without a key: %d", answer.StatusCode)
	}
	for _, path := range []string{"/messages/", "/messages", "/sandbox/messages/", "/python-env/messages/"} {
		if answer, _ := b.do("POST", path+"?session_id=x", "{}"); answer.StatusCode != 401 {
			t.Errorf("%s without a key: %d", path, answer.StatusCode)
		}
		if answer, _ := b.do("POST", path+"?session_id=x", "{}", "X-API-Key", key); answer.StatusCode != 404 {
			t.Errorf("%s to no stream: %d", path, answer.StatusCode)
		}
		if answer, _ := b.do("POST", path, "{}", "X-API-Key", key); answer.StatusCode != 400 {
			t.Errorf("%s without an id: %d", path, answer.StatusCode)
		}
	}
}
