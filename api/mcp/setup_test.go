package mcp_test

import (
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
