package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	protocol "github.com/mark3labs/mcp-go/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Revisions of the protocol: the newest, and the newest of the older kind with sessions.
const (
	modern = protocol.ProtocolVersion20260728
	legacy = protocol.ProtocolVersion20251125
)

func eras() []string { return []string{modern, legacy} }

// bundle is a server over HTTP with a fake farm.
type bundle struct {
	t      *testing.T
	server *mcp.Server
	web    *httptest.Server
	log    *testbed.Log
}

func setup(t *testing.T, f mcp.Farm, change ...func(*mcp.Options)) *bundle {
	t.Helper()
	b := &bundle{t: t, log: &testbed.Log{}}
	o := mcp.Options{Farm: func(context.Context) mcp.Farm { return f }, Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(b.log, nil))}
	for _, c := range change {
		c(&o)
	}
	var err error
	if b.server, err = mcp.New(o); err != nil {
		t.Fatal(err)
	}
	b.web = httptest.NewServer(b.server.Handler())
	t.Cleanup(b.web.Close)
	return b
}

// client connects as a client of a revision.
func (b *bundle) client(revision string) *client.Client {
	b.t.Helper()
	tr, err := transport.NewStreamableHTTP(b.web.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	c := client.NewClient(tr, client.WithProtocolVersion(revision))
	if err := c.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	info, err := c.Initialize(b.t.Context(), protocol.InitializeRequest{Params: protocol.InitializeParams{
		ProtocolVersion: revision, ClientInfo: protocol.Implementation{Name: "test", Version: "1"},
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	if info.ServerInfo.Name != "sandfarm" || info.ServerInfo.Version != "1.2.3" || !strings.Contains(info.Instructions, "check_package_status") {
		b.t.Errorf("server says %+v", info)
	}
	return c
}

// call calls a tool over HTTP in the newest revision, and checks the rules for every answer.
func (b *bundle) call(tool string, args map[string]any) *protocol.CallToolResult {
	b.t.Helper()
	c := b.client(modern)
	r, err := c.CallTool(b.t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: tool, Arguments: args}})
	if err != nil {
		b.t.Fatalf("%s: %v", tool, err)
	}
	b.conforms(c, tool, r)
	return r
}

// conforms checks an answer against the output schema of its tool.
func (b *bundle) conforms(c *client.Client, tool string, r *protocol.CallToolResult) {
	b.t.Helper()
	if len(r.Content) == 0 || textOf(r) == "" {
		b.t.Errorf("%s has no text", tool)
	}
	if r.IsError {
		if r.StructuredContent != nil {
			b.t.Errorf("%s: an error has structured content %v", tool, r.StructuredContent)
		}
		return
	}
	list, err := c.ListTools(b.t.Context(), protocol.ListToolsRequest{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, t := range list.Tools {
		if t.Name != tool {
			continue
		}
		schema, err := json.Marshal(t.OutputSchema)
		if t.RawOutputSchema != nil {
			schema, err = t.RawOutputSchema, nil
		}
		if err != nil {
			b.t.Fatal(err)
		}
		if err := validate(schema, r.StructuredContent); err != nil {
			b.t.Errorf("%s: its structured content does not fit its schema: %v", tool, err)
		}
	}
}

func validate(schema []byte, value any) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", doc); err != nil {
		return err
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return compiled.Validate(plain)
}

// textOf is the first block of an answer, which must be its text.
func textOf(r *protocol.CallToolResult) string {
	if len(r.Content) == 0 {
		return ""
	}
	block, _ := r.Content[0].(protocol.TextContent)
	return block.Text
}

func blocksOf[T any](r *protocol.CallToolResult) []T {
	var out []T
	for _, c := range r.Content {
		if one, ok := c.(T); ok {
			out = append(out, one)
		}
	}
	return out
}

// field is a field of the structured content.
func field(t *testing.T, r *protocol.CallToolResult, name string) any {
	t.Helper()
	fields, ok := r.StructuredContent.(map[string]any)
	if !ok {
		t.Fatalf("structured content is %T: %s", r.StructuredContent, textOf(r))
	}
	return fields[name]
}

// post sends a raw message and returns the answer with its body.
func (b *bundle) post(body string, headers ...string) (*http.Response, string) {
	b.t.Helper()
	return b.send(http.MethodPost, strings.NewReader(body), headers...)
}

func (b *bundle) send(method string, body io.Reader, headers ...string) (*http.Response, string) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.web.URL, body)
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer, string(content)
}

// toolCall is the message of a call in the older revisions.
func toolCall(id int, tool string, args map[string]any, token any) string {
	params := map[string]any{"name": tool, "arguments": args}
	if token != nil {
		params["_meta"] = map[string]any{"progressToken": token}
	}
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// echoSet has tools that return their arguments, and one that waits until its call ends.
func echoSet(t *testing.T, ended chan<- string) *mcp.SetServer {
	t.Helper()
	param := []mcp.Param{mcp.Text("text", "what to say")}
	s, err := mcp.NewSet(mcp.Set{
		Name: "echo", Title: "Echo", Structured: true,
		Tools: []mcp.SetTool{
			{Name: "object", Params: param, Run: func(_ context.Context, given any, _ *mcp.Progress) mcp.Reply {
				return mcp.Reply{Value: map[string]any{"said": given}}
			}},
			{Name: "list", Run: func(context.Context, any, *mcp.Progress) mcp.Reply { return mcp.Reply{Value: []string{"<a>", "b"}} }},
			{Name: "text", Run: func(context.Context, any, *mcp.Progress) mcp.Reply { return mcp.Reply{Value: "bare"} }},
			{Name: "wrong", Run: func(context.Context, any, *mcp.Progress) mcp.Reply {
				return mcp.Reply{Value: map[string]any{"error": true}, IsError: true}
			}},
			{Name: "wait", Run: func(ctx context.Context, _ any, _ *mcp.Progress) mcp.Reply {
				ended <- "begun"
				<-ctx.Done()
				ended <- "ended"
				return mcp.Reply{Value: "over"}
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sseServer serves the set over SSE; a header names the caller.
func sseServer(t *testing.T, o mcp.SSEOptions, ended chan<- string) *httptest.Server {
	t.Helper()
	type owner struct{}
	o.Messages = "/messages/"
	o.Owner = func(ctx context.Context) string { name, _ := ctx.Value(owner{}).(string); return name }
	sse := echoSet(t, ended).SSE(o)
	named := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			next(w, r.WithContext(context.WithValue(r.Context(), owner{}, r.Header.Get("X-Name"))))
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sse", named(sse.Stream))
	mux.HandleFunc("POST /messages/", named(sse.Post))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// listener is an open stream.
type listener struct {
	t      *testing.T
	body   io.ReadCloser
	lines  *bufio.Scanner
	url    string // to post to
	server *httptest.Server
}

func (l *listener) event() (name, data string) {
	l.t.Helper()
	for l.lines.Scan() {
		switch line := l.lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			name = strings.TrimPrefix(line, "event: ")
		case strings.HasPrefix(line, "data: "):
			data = strings.TrimPrefix(line, "data: ")
		case line == "" && name != "":
			return name, data
		case strings.HasPrefix(line, ":"):
			return "comment", line
		}
	}
	return "end", ""
}

func get(t *testing.T, server *httptest.Server, name string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/sse", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Name", name)
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

func listen(t *testing.T, server *httptest.Server, name string) *listener {
	t.Helper()
	answer := get(t, server, name) //nolint:bodyclose // closed by get
	l := &listener{t: t, body: answer.Body, lines: bufio.NewScanner(answer.Body), server: server}
	l.lines.Buffer(nil, 4<<20)
	kind, data := l.event()
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" || kind != "endpoint" || !strings.HasPrefix(data, "/messages/?session_id=") {
		t.Fatalf("the stream begins with %d %q %q %q", answer.StatusCode, answer.Header.Get("Content-Type"), kind, data)
	}
	l.url = server.URL + data
	return l
}

func say(t *testing.T, server *httptest.Server, url, name, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Name", name)
	r.Header.Set("Content-Type", "application/json")
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}
