//go:build integration

package conformancetest_test

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// ask is an elicitation of one field.
func ask(message, field, kind string) mcp.ElicitationParams {
	return mcp.ElicitationParams{Message: message, RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{field: map[string]any{"type": kind}}, "required": []string{field},
	}}
}

func sample(text string) mcp.CreateMessageParams {
	return mcp.CreateMessageParams{
		Messages:  []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: mcp.NewTextContent(text)}},
		MaxTokens: 100,
	}
}

// seal signs a state that callers send back unchanged.
type seal []byte

func newSeal() seal {
	key := make(seal, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

func (s seal) sign(state string) string {
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(state))
	return state + "." + hex.EncodeToString(mac.Sum(nil))
}

func (s seal) open(signed string) (string, error) {
	state, _, ok := strings.Cut(signed, ".")
	if !ok || !hmac.Equal([]byte(signed), []byte(s.sign(state))) {
		return "", errors.New("requestState is not ours")
	}
	return state, nil
}

// addInputTools adds the tools that ask their caller for input before they answer.
func (f *fixture) addInputTools() {
	key := newSeal()
	// asks makes a tool that asks until every question is answered, with a sealed state if it has one.
	asks := func(name, state string, build func(*server.InputRequestBuilder), keys ...string) {
		f.add(name, "", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			signed := ""
			if state != "" {
				signed = key.sign(state)
			}
			for _, k := range keys {
				if _, ok := r.Params.InputResponses[k]; !ok {
					b := server.NewInputRequestBuilder(signed)
					build(b)
					return b.ToolResult(), nil
				}
			}
			if state != "" {
				if got, err := key.open(r.Params.RequestState); err != nil || got != state {
					return nil, fmt.Errorf("open state: %w", err)
				}
			}
			return mcp.NewToolResultText(strings.TrimSpace(state + " answered")), nil
		})
	}
	name := ask("What is your name?", "name", "string")
	f.add("test_input_required_result_elicitation", "", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if answer := server.ElicitationResponse(r.Params.InputResponses, "user_name"); answer != nil {
			if content, ok := answer.Content.(map[string]any); ok {
				return mcp.NewToolResultText(fmt.Sprintf("Hello, %v!", content["name"])), nil
			}
		}
		return server.NewInputRequestBuilder("").Elicit("user_name", name).ToolResult(), nil
	})
	asks("test_input_required_result_sampling", "", func(b *server.InputRequestBuilder) {
		b.Sample("capital_question", sample("What is the capital of France?"))
	}, "capital_question")
	asks("test_input_required_result_list_roots", "", func(b *server.InputRequestBuilder) { b.Roots("client_roots") }, "client_roots")
	confirm := func(b *server.InputRequestBuilder) { b.Elicit("confirm", ask("Please confirm", "ok", "boolean")) }
	asks("test_input_required_result_request_state", "state-ok", confirm, "confirm")
	asks("test_input_required_result_tampered_state", "state-ok", confirm, "confirm")
	asks("test_input_required_result_multiple_inputs", "state-many", func(b *server.InputRequestBuilder) {
		b.Elicit("user_name", name).Sample("greeting", sample("Generate a greeting")).Roots("client_roots")
	}, "user_name", "greeting", "client_roots")
	f.add("test_input_required_result_multi_round", "", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if r.Params.RequestState == "" {
			return server.NewInputRequestBuilder(key.sign("1")).Elicit("step1", ask("Step 1: What is your name?", "name", "string")).ToolResult(), nil
		}
		switch round, err := key.open(r.Params.RequestState); {
		case err != nil:
			return nil, err
		case round == "1":
			return server.NewInputRequestBuilder(key.sign("2")).Elicit("step2", ask("Step 2: What is your favorite color?", "color", "string")).ToolResult(), nil
		}
		return mcp.NewToolResultText("all rounds done"), nil
	})
	f.add("test_input_required_result_capabilities", "", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		b := server.NewInputRequestBuilder("")
		if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.ClientCapabilities != nil {
			if info.ClientCapabilities.Elicitation != nil {
				b.Elicit("user_name", name)
			}
			if info.ClientCapabilities.Sampling != nil {
				b.Sample("greeting", sample("Generate a greeting"))
			}
		}
		return b.ToolResult(), nil
	})
	f.add("test_streaming_elicitation", "", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return server.NewInputRequestBuilder("").Elicit("user_name", name).ToolResult(), nil
	})
}
