//go:build integration

package mcp_test

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	sandmcp "github.com/sandfarm/sandfarm/api/mcp"
)

// fixtureTasks keeps the tasks of the fixture's tools in memory.
type fixtureTasks struct {
	ctx context.Context // of the test: its tasks end with it
	wg  sync.WaitGroup

	mu    sync.Mutex
	tasks map[string]*fixtureTask
}

// fixtureTask is a task and the goroutine behind it.
type fixtureTask struct {
	sandmcp.Task
	cancel  context.CancelFunc
	answers map[string]json.RawMessage
	changed chan struct{} // closed and replaced when answers arrive
}

func newFixtureTasks(t *testing.T) *fixtureTasks {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fixtureTasks{ctx: ctx, tasks: map[string]*fixtureTask{}}
	t.Cleanup(func() {
		cancel()
		f.wg.Wait()
	})
	return f
}

// Support returns which fixtures may or must be tasks.
func (f *fixtureTasks) Support(tool string) sandmcp.TaskSupport {
	switch tool {
	case "slow_compute", "protocol_error_job", "confirm_delete", "multi_input":
		return sandmcp.TaskOptional
	case "failing_job", "test_tool_with_task":
		return sandmcp.TaskRequired
	default:
		return sandmcp.TaskNever
	}
}

// Task returns a task.
func (f *fixtureTasks) Task(_ context.Context, id string) (sandmcp.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tasks[id]; t != nil {
		out := t.Task
		out.Input = maps.Clone(t.Input)
		return out, nil
	}
	return sandmcp.Task{}, sandmcp.ErrNoTask
}

// Answer stores the answers and removes the questions.
func (f *fixtureTasks) Answer(_ context.Context, id string, answers map[string]json.RawMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tasks[id]
	if t == nil {
		return sandmcp.ErrNoTask
	}
	for key, answer := range answers {
		if _, asked := t.Input[key]; asked {
			delete(t.Input, key)
			t.answers[key] = answer
		}
	}
	close(t.changed)
	t.changed = make(chan struct{})
	return nil
}

// Cancel ends a task's goroutine.
func (f *fixtureTasks) Cancel(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tasks[id]
	if t == nil {
		return sandmcp.ErrNoTask
	}
	t.cancel()
	return nil
}

// set changes a task.
func (f *fixtureTasks) set(t *fixtureTask, change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	t.UpdatedAt = time.Now()
}

// run makes the call a task with work as its goroutine, or does the work at once if it may not become a task.
func (f *fixtureTasks) run(ctx context.Context, work func(context.Context, *fixtureTask) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	if !sandmcp.MayBecomeTask(ctx) {
		return work(ctx, nil)
	}
	taskCtx, cancel := context.WithCancel(f.ctx)
	ttl := time.Hour.Milliseconds()
	t := &fixtureTask{cancel: cancel, answers: map[string]json.RawMessage{}, changed: make(chan struct{}), Task: sandmcp.Task{
		ID: rand.Text(), Status: sandmcp.TaskWorking, CreatedAt: time.Now(), UpdatedAt: time.Now(), TTL: &ttl, Poll: 100,
	}}
	f.mu.Lock()
	f.tasks[t.ID] = t
	created := t.Task
	f.mu.Unlock()
	f.wg.Go(func() {
		defer cancel()
		result, err := work(taskCtx, t)
		f.set(t, func() {
			switch {
			case taskCtx.Err() != nil:
				t.Status, t.Input = sandmcp.TaskCancelled, nil
			case err != nil:
				t.Status, t.Error = sandmcp.TaskFailed, &mcp.JSONRPCErrorDetails{Code: mcp.INTERNAL_ERROR, Message: err.Error()}
			default:
				result.ResultType = mcp.ResultTypeComplete
				t.Status, t.Result = sandmcp.TaskCompleted, result
			}
		})
	})
	sandmcp.BecomeTask(ctx, created)
	return mcp.NewToolResultText("goes on as a task"), nil
}

// input blocks a task until its questions are answered.
func (f *fixtureTasks) input(ctx context.Context, t *fixtureTask, questions map[string]any) error {
	f.set(t, func() { t.Status, t.Input = sandmcp.TaskInputRequired, questions })
	for {
		f.mu.Lock()
		open, changed := len(t.Input), t.changed
		f.mu.Unlock()
		if open == 0 {
			f.set(t, func() { t.Status = sandmcp.TaskWorking })
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fixture) addTaskTools() {
	f.add("greet", `{"type":"object","properties":{"name":{"type":"string"}}}`, func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("Hello, " + r.GetString("name", "") + "!"), nil
	})
	f.add("slow_compute", `{"type":"object","properties":{"seconds":{"type":"number"},"label":{"type":"string"}}}`, func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return f.tasks.run(ctx, func(ctx context.Context, _ *fixtureTask) (*mcp.CallToolResult, error) {
			select {
			case <-time.After(time.Duration(r.GetFloat("seconds", 0) * float64(time.Second))):
				return mcp.NewToolResultText("computed " + r.GetString("label", "")), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	})
	f.add("failing_job", "", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return f.tasks.run(ctx, func(context.Context, *fixtureTask) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultError("the job did not work out"), nil
		})
	})
	f.add("protocol_error_job", "", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return f.tasks.run(ctx, func(context.Context, *fixtureTask) (*mcp.CallToolResult, error) {
			return nil, fmt.Errorf("the job broke")
		})
	})
	elicit := func(message string) any {
		return map[string]any{"method": "elicitation/create", "params": ask(message, "confirm", "boolean")}
	}
	asking := func(questions map[string]any) tool {
		return func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.tasks.run(ctx, func(ctx context.Context, t *fixtureTask) (*mcp.CallToolResult, error) {
				if t == nil {
					return mcp.NewToolResultError("this needs a task to ask in"), nil
				}
				if err := f.tasks.input(ctx, t, maps.Clone(questions)); err != nil {
					return nil, err
				}
				return mcp.NewToolResultText("confirmed"), nil
			})
		}
	}
	f.add("confirm_delete", `{"type":"object","properties":{"filename":{"type":"string"}}}`, asking(map[string]any{"confirm": elicit("Delete it?")}))
	f.add("multi_input", "", asking(map[string]any{"first": elicit("First?"), "second": elicit("Second?")}))
	f.add("test_tool_with_task", "", func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answer := server.ElicitationResponse(r.Params.InputResponses, "user_name")
		if answer == nil {
			return server.NewInputRequestBuilder("").Elicit("user_name", ask("What is your name?", "user_name", "string")).ToolResult(), nil
		}
		return f.tasks.run(ctx, func(context.Context, *fixtureTask) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(fmt.Sprint("Hello, ", answer.Content)), nil
		})
	})
}

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
