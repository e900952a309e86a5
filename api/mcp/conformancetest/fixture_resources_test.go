//go:build integration

package conformancetest_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

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
