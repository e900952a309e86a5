package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	protocol "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sandboxes"}}`

func TestOriginsAndHosts(t *testing.T) {
	t.Parallel()
	trusting := func(o *mcp.Options) {
		o.HTTP.Origins, o.HTTP.Hosts = []string{"https://chat.example.com", "http://localhost:6274"}, []string{"farm.example.com"}
	}
	strict, trusted := setup(t, &fakeFarm{}), setup(t, &fakeFarm{}, trusting)
	open := setup(t, &fakeFarm{}, func(o *mcp.Options) { o.HTTP.AnyHost = true })
	for name, c := range map[string]struct {
		b      *bundle
		status int
		header []string
	}{
		"NoOrigin":           {strict, 200, nil},
		"Own":                {strict, 200, []string{"Origin", "http://localhost:8000", "Host", "localhost:8000"}},
		"OtherPort":          {strict, 403, []string{"Origin", "http://localhost:6274", "Host", "localhost:8000"}},
		"LoopbackAddress":    {strict, 403, []string{"Origin", "https://127.0.0.1"}},
		"LoopbackSix":        {strict, 403, []string{"Origin", "http://[::1]:3000"}},
		"SameSite":           {strict, 403, []string{"Sec-Fetch-Site", "same-site"}},
		"ConfiguredPort":     {trusted, 200, []string{"Origin", "http://localhost:6274"}},
		"Foreign":            {strict, 403, []string{"Origin", "https://evil.example"}},
		"ForeignSaysItsOurs": {strict, 403, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "same-origin"}},
		"LooksLikeLoopback":  {strict, 403, []string{"Origin", "http://localhost.evil.example"}},
		"UserInfo":           {strict, 403, []string{"Origin", "http://localhost@evil.example"}},
		"Null":               {strict, 403, []string{"Origin", "null"}},
		"FileScheme":         {strict, 403, []string{"Origin", "file://localhost"}},
		"CrossSite":          {strict, 403, []string{"Sec-Fetch-Site", "cross-site"}},
		"Configured":         {trusted, 200, []string{"Origin", "https://chat.example.com"}},
		"ConfiguredSub":      {trusted, 403, []string{"Origin", "https://a.chat.example.com"}},
		"OtherWithKeys":      {open, 403, []string{"Origin", "https://evil.example"}},
		"ForeignHost":        {strict, 403, []string{"Host", "evil.example"}},
		"ForeignHostAndPort": {strict, 403, []string{"Host", "evil.example:8000"}},
		"LocalHost":          {strict, 200, []string{"Host", "localhost:8000"}},
		"BelowLocalHost":     {strict, 200, []string{"Host", "foo.localhost:8000"}}, // as over REST
		"ConfiguredHost":     {trusted, 200, []string{"Host", "farm.example.com:8000"}},
		"AnyHostWithKeys":    {open, 200, []string{"Host", "farm.example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, body := c.b.post(ping, c.header...)
			if answer.StatusCode != c.status || !json.Valid([]byte(body)) {
				t.Errorf("%d, want %d: %s", answer.StatusCode, c.status, body)
			}
		})
	}
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	const limit = 4096
	b := setup(t, &fakeFarm{}, func(o *mcp.Options) { o.HTTP.MaxBodyBytes = limit })
	for size, status := range map[int]int{limit - 1: 200, limit: 200, limit + 1: 413, limit * 1000: 413} {
		body := ping + strings.Repeat(" ", size-len(ping))
		for _, reader := range []io.Reader{strings.NewReader(body), struct{ io.Reader }{strings.NewReader(body)}} { // with its length, and chunked
			answer, text := b.send(http.MethodPost, reader)
			var message struct {
				Error *struct {
					Code    int
					Message string
				}
			}
			if err := json.Unmarshal([]byte(text), &message); err != nil || answer.StatusCode != status {
				t.Errorf("%d bytes: %d, want %d: %v %s", size, answer.StatusCode, status, err, text)
			}
			if refused := message.Error != nil; refused != (status == 413) || refused && !strings.Contains(message.Error.Message, fmt.Sprint(limit)) {
				t.Errorf("%d bytes: %s", size, text)
			}
		}
	}
}

func TestOnlyPosts(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, method := range []string{"GET", "DELETE", "PUT", "HEAD", "OPTIONS"} {
		answer, _ := b.send(method, nil, "Mcp-Session-Id", "mcp-session-1")
		if answer.StatusCode != 405 || answer.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, answer.StatusCode, answer.Header.Get("Allow"))
		}
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, body := range []string{"", "{", "null", "42", `"x"`, "[]", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "\xff\xfe", strings.Repeat("[", 100_000)} {
		answer, text := b.post(body)
		if answer.StatusCode != 400 && !strings.Contains(text, `"error"`) {
			t.Errorf("%.20q: %d %s", body, answer.StatusCode, text)
		}
	}
	if answer, text := b.post(ping); answer.StatusCode != 200 {
		t.Errorf("it does not work any more: %d %s", answer.StatusCode, text)
	}
}

// There are no sessions: an id that a client sends is neither needed nor checked.
func TestSessionIDsAreIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	answer, text := b.post(ping, "Mcp-Session-Id", "mcp-session-unknown")
	if answer.StatusCode != 200 || answer.Header.Get("Mcp-Session-Id") != "" || !strings.Contains(text, "no open sandbox") {
		t.Errorf("%d %v %s", answer.StatusCode, answer.Header, text)
	}
	if got := answer.Header.Get("X-Accel-Buffering"); got != "no" {
		t.Errorf("X-Accel-Buffering is %q", got)
	}
}

// Ids of requests are small numbers that many callers use, so a cancellation by id could hit another caller's request.
func TestNobodyCancelsAnothersCall(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	b := setup(t, &fakeFarm{SandboxesFunc: func(ctx context.Context) ([]wire.Sandbox, error) {
		close(started)
		select {
		case <-release:
			return []wire.Sandbox{{ID: "sbx_1"}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	done := make(chan string)
	go func() {
		_, text := b.post(strings.Replace(ping, `"id":1`, `"id":77`, 1))
		done <- text
	}()
	<-started
	for _, note := range []string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`,
		`{"jsonrpc":"2.0","Method":"notifications/cancelled","params":{"requestId":77}}`,
		`{"jsonrpc":"2.0","method":"x","method":"notifications/cancelled","params":{"requestId":77}}`,
	} {
		if answer, text := b.post(note); answer.StatusCode != 202 || text != "" {
			t.Errorf("%d %q", answer.StatusCode, text)
		}
	}
	close(release)
	if text := <-done; !strings.Contains(text, "sbx_1") {
		t.Errorf("the call was cut off: %s", text)
	}
}

// The newest revision requires headers that repeat values of the body.
func TestHeaderMismatch(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sandboxes","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	answer, text := b.post(body, "Mcp-Protocol-Version", modern, "Mcp-Method", "tools/call", "Mcp-Name", "list_sandboxes")
	if answer.StatusCode != 200 || !strings.Contains(text, "no open sandbox") {
		t.Fatalf("%d %s", answer.StatusCode, text)
	}
	for _, headers := range [][]string{
		{"Mcp-Protocol-Version", modern, "Mcp-Name", "list_sandboxes"},
		{"Mcp-Protocol-Version", modern, "Mcp-Method", "tools/list", "Mcp-Name", "list_sandboxes"},
		{"Mcp-Protocol-Version", modern, "Mcp-Method", "tools/call", "Mcp-Name", "close_sandbox"},
		{"Mcp-Method", "tools/call", "Mcp-Name", "list_sandboxes"},
	} {
		if answer, text := b.post(body, headers...); answer.StatusCode != 400 || !strings.Contains(text, "-32020") {
			t.Errorf("%v: %d %s", headers, answer.StatusCode, text)
		}
	}
}

// There is nothing to subscribe to: the acknowledgement says so, and the stream ends.
func TestSubscriptionsAreAcknowledged(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	for range 200 {
		answer, text := b.post(body, "Mcp-Protocol-Version", modern, "Mcp-Method", "subscriptions/listen")
		if answer.StatusCode != 200 || strings.Count(text, "data: ") != 2 || !strings.Contains(text, "notifications/subscriptions/acknowledged") {
			t.Fatalf("%d %s", answer.StatusCode, text)
		}
	}
}

// A subscription to something that exists never ends and would keep a server from stopping.
func TestSubscriptionsEndWithTheServer(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	b := setup(t, &fakeFarm{}, func(o *mcp.Options) {
		o.HTTP.Closing, o.Server = closing, []server.ServerOption{server.WithToolCapabilities(true)}
	})
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.web.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": modern, "Mcp-Method": "subscriptions/listen",
	} {
		request.Header.Set(k, v)
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := answer.Body.Read(make([]byte, 1)); err != nil || answer.StatusCode != 200 {
		t.Fatalf("%d: %v", answer.StatusCode, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, answer.Body)
	}()
	select {
	case <-ended:
		t.Fatal("the subscription ended before the server stopped")
	case <-time.After(50 * time.Millisecond):
	}
	close(closing)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the subscription continues")
	}
}

// A handler of mcp-go cannot choose the code of its error; the transport lets it.
func TestMissingCapability(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	b.server.MCP().AddTool(protocol.NewTool("needs"), func(ctx context.Context, _ protocol.CallToolRequest) (*protocol.CallToolResult, error) {
		if err := mcp.Notify(ctx, "notifications/progress", map[string]any{"progressToken": "p", "progress": 1}); err != nil {
			return nil, err
		}
		return nil, protocol.MissingRequiredClientCapabilityError{Capability: "elicitation"}
	})
	b.server.MCP().AddTool(protocol.NewTool("needs_quietly"), func(context.Context, protocol.CallToolRequest) (*protocol.CallToolResult, error) {
		return nil, protocol.MissingRequiredClientCapabilityError{Capability: "elicitation"}
	})
	for tool, status := range map[string]int{"needs": 200, "needs_quietly": 400} {
		answer, text := b.post(toolCall(9, tool, nil, nil))
		if answer.StatusCode != status || !strings.Contains(text, `"code":-32021`) || !strings.Contains(text, `"id":9`) || strings.Contains(text, "-32603") {
			t.Errorf("%s: %d %s", tool, answer.StatusCode, text)
		}
	}
}

// An answer repeats the id of its message.
func TestIDsAreBounded(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(echoSet(t, nil).Handler())
	t.Cleanup(web.Close)
	server := sseServer(t, mcp.SSEOptions{}, nil)
	l := listen(t, server, "me")
	for extra, want := range map[int]int{0: http.StatusOK, 1: http.StatusRequestEntityTooLarge} {
		id := strings.Repeat("x", 1022+extra) // and its quotation marks
		message := `{"jsonrpc":"2.0","id":"` + id + `","method":"ping"}`
		if status, body := say(t, web, web.URL, "", message); status != want || strings.Contains(body, id) != (extra == 0) {
			t.Errorf("an id of %d bytes: %d %.100s", len(id)+2, status, body)
		}
		say(t, server, l.url, "me", message)
		if _, data := l.event(); strings.Contains(data, id) != (extra == 0) || strings.Contains(data, `"error"`) != (extra == 1) {
			t.Errorf("an id of %d bytes over SSE: %.100s", len(id)+2, data)
		}
	}
}

func TestSSERefusesForeignPages(t *testing.T) {
	t.Parallel()
	server := sseServer(t, mcp.SSEOptions{}, nil)
	for origin, want := range map[string]int{"https://evil.example": http.StatusForbidden, "http://localhost:3000": http.StatusForbidden, server.URL: http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/sse", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d", origin, answer.StatusCode)
		}
	}
}
