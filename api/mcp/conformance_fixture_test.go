//go:build integration

package mcp_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	sandmcp "github.com/sandfarm/sandfarm/api/mcp"
)

// pause is the time between two notifications that the runner's scenarios require.
const pause = 50 * time.Millisecond

const (
	pixel  = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	beep   = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
	schema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},
"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},
"additionalProperties":false}`
	routed = `{"type":"object","properties":{"region":{"type":"string","description":"where","x-mcp-header":"Region"}},"additionalProperties":false}`
)

// fixture is the server that the runner's scenarios require.
type fixture struct {
	*server.MCPServer
	tasks *fixtureTasks
}

// serveFixture serves the fixtures on the front end's own stack and returns the address.
func serveFixture(t *testing.T) string {
	t.Helper()
	f := &fixture{tasks: newFixtureTasks(t)}
	f.MCPServer = server.NewMCPServer("sandfarm-conformance", "1.0.0",
		server.WithToolCapabilities(true), server.WithResourceCapabilities(true, true), server.WithPromptCapabilities(true),
		server.WithCompletions(), server.WithLogging(), server.WithRecovery(), server.WithResourceRecovery(),
		sandmcp.AdvertiseTasks())
	f.addTools()
	f.addInputTools()
	f.addTaskTools()
	f.addResources()
	f.addPrompts()
	closing := make(chan struct{})
	handler := sandmcp.NewHandler(f.MCPServer, sandmcp.HTTP{
		Closing:    closing,
		Extensions: []sandmcp.Extension{sandmcp.Tasks(f.tasks, mcp.Implementation{Name: "sandfarm-conformance", Version: "1.0.0"}, nil)},
	}, nil)
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		close(closing)
		s.Close()
	})
	return s.URL + "/mcp"
}

type tool = server.ToolHandlerFunc

// says makes a tool that always returns the same content.
func says(content ...mcp.Content) tool {
	return func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: content}, nil
	}
}

// add registers a tool without parameters, or with those of a schema.
func (f *fixture) add(name, inputSchema string, run tool) {
	if inputSchema == "" {
		inputSchema = `{"type":"object","additionalProperties":false}`
	}
	f.AddTool(mcp.NewToolWithRawSchema(name, "Fixture of the conformance runner.", []byte(inputSchema)), run)
}

func (f *fixture) addTools() {
	f.add("test_simple_text", "", says(mcp.NewTextContent("This is a simple text response for testing.")))
	f.add("test_image_content", "", says(mcp.NewImageContent(pixel, "image/png")))
	f.add("test_audio_content", "", says(mcp.NewAudioContent(beep, "audio/wav")))
	f.add("test_embedded_resource", "", says(mcp.NewEmbeddedResource(mcp.TextResourceContents{
		URI: "test://embedded-resource", MIMEType: "text/plain", Text: "This is an embedded resource content.",
	})))
	f.add("test_multiple_content_types", "", says(mcp.NewTextContent("Multiple content types test:"), mcp.NewImageContent(pixel, "image/png"),
		mcp.NewEmbeddedResource(mcp.TextResourceContents{URI: "test://mixed-content-resource", MIMEType: "application/json", Text: `{"test":"data","value":123}`})))
	f.add("test_error_handling", "", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultError("This tool intentionally returns an error for testing"), nil
	})
	f.add("json_schema_2020_12_tool", schema, says(mcp.NewTextContent("taken")))
	f.add("test_custom_header", routed, says(mcp.NewTextContent("routed")))
	f.add("test_tool_with_progress", "", func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return spaced(ctx, func(i int) error {
			if r.Params.Meta == nil || r.Params.Meta.ProgressToken == nil {
				return nil
			}
			return sandmcp.Notify(ctx, "notifications/progress", map[string]any{"progressToken": r.Params.Meta.ProgressToken, "progress": 50 * i, "total": 100})
		})
	})
	logging := func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return spaced(ctx, func(i int) error {
			if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.Modern && info.LogLevel == "" {
				return nil // requests of 2026-07-28 ask for it one by one
			}
			return sandmcp.Notify(ctx, "notifications/message", map[string]any{"level": "info", "logger": "fixture", "data": i})
		})
	}
	f.add("test_tool_with_logging", "", logging)
	f.add("test_logging_tool", "", logging)
	f.add("test_missing_capability", "", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if info := server.RequestProtocolInfoFromContext(ctx); info == nil || info.ClientCapabilities == nil || info.ClientCapabilities.Sampling == nil {
			return nil, mcp.MissingRequiredClientCapabilityError{Capability: "sampling"}
		}
		return mcp.NewToolResultText("sampled"), nil
	})
	f.add("test_trigger_tool_change", "", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.add("test_appeared", "", says(mcp.NewTextContent("here")))
		return mcp.NewToolResultText("changed"), nil
	})
	f.add("test_trigger_prompt_change", "", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		f.AddPrompt(mcp.NewPrompt("test_appeared", mcp.WithPromptDescription("Appeared later.")), prompt("here"))
		return mcp.NewToolResultText("changed"), nil
	})
}

// spaced runs a step three times with a pause between.
func spaced(ctx context.Context, step func(i int) error) (*mcp.CallToolResult, error) {
	for i := range 3 {
		if i > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if err := step(i); err != nil {
			return nil, err
		}
	}
	return mcp.NewToolResultText("done"), nil
}

func (f *fixture) addResources() {
	add := func(name string, contents mcp.ResourceContents) {
		f.AddResource(mcp.NewResource("test://"+name, name, mcp.WithResourceDescription("Fixture of the conformance runner.")),
			func(context.Context, mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
				return []mcp.ResourceContents{contents}, nil
			})
	}
	add("static-text", mcp.TextResourceContents{URI: "test://static-text", MIMEType: "text/plain", Text: "This is the content of the static text resource."})
	add("static-binary", mcp.BlobResourceContents{URI: "test://static-binary", MIMEType: "image/png", Blob: pixel})
	add("watched-resource", mcp.TextResourceContents{URI: "test://watched-resource", MIMEType: "text/plain", Text: "watched"})
	f.AddResourceTemplate(mcp.NewResourceTemplate("test://template/{id}/data", "template", mcp.WithTemplateMIMEType("application/json")),
		func(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(r.Params.URI, "test://template/"), "/data")
			text := fmt.Sprintf(`{"id":%q,"templateTest":true,"data":%q}`, id, "Data for ID: "+id)
			return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.Params.URI, MIMEType: "application/json", Text: text}}, nil
		})
}

// prompt makes a prompt of texts.
func prompt(texts ...string) server.PromptHandlerFunc {
	return func(context.Context, mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		result := &mcp.GetPromptResult{}
		for _, text := range texts {
			result.Messages = append(result.Messages, mcp.NewPromptMessage(mcp.RoleUser, mcp.NewTextContent(text)))
		}
		return result, nil
	}
}

func (f *fixture) addPrompts() {
	about := mcp.WithPromptDescription("Fixture of the conformance runner.")
	f.AddPrompt(mcp.NewPrompt("test_simple_prompt", about), prompt("This is a simple prompt for testing."))
	f.AddPrompt(mcp.NewPrompt("test_prompt_with_arguments", about, mcp.WithArgument("arg1", mcp.RequiredArgument()), mcp.WithArgument("arg2", mcp.RequiredArgument())),
		func(ctx context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			args := r.Params.Arguments
			return prompt(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"]))(ctx, r)
		})
	f.AddPrompt(mcp.NewPrompt("test_prompt_with_embedded_resource", about, mcp.WithArgument("resourceUri", mcp.RequiredArgument())),
		func(_ context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []mcp.PromptMessage{
				mcp.NewPromptMessage(mcp.RoleUser, mcp.NewEmbeddedResource(mcp.TextResourceContents{
					URI: r.Params.Arguments["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing.",
				})),
				mcp.NewPromptMessage(mcp.RoleUser, mcp.NewTextContent("Please process the embedded resource above.")),
			}}, nil
		})
	f.AddPrompt(mcp.NewPrompt("test_prompt_with_image", about), func(context.Context, mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []mcp.PromptMessage{
			mcp.NewPromptMessage(mcp.RoleUser, mcp.NewImageContent(pixel, "image/png")),
			mcp.NewPromptMessage(mcp.RoleUser, mcp.NewTextContent("Please analyze the image above.")),
		}}, nil
	})
	f.AddPrompt(mcp.NewPrompt("test_input_required_result_prompt", about), func(ctx context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		answer := server.ElicitationResponse(r.Params.InputResponses, "user_context")
		if answer == nil {
			return server.NewInputRequestBuilder("").Elicit("user_context", ask("What context should the prompt use?", "context", "string")).PromptResult(), nil
		}
		return prompt(fmt.Sprint("Context: ", answer.Content))(ctx, r)
	})
}
