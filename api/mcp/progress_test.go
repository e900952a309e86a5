package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// talking makes a farm whose run prints lines with pauses and then ends.
func talking(lines int, pause time.Duration) *fakeFarm {
	final := func(id, box string) wire.Job {
		return wire.Job{ID: id, Kind: "execute", SandboxID: box, State: "completed", Result: &wire.Result{Execute: &wire.ExecuteResult{}}}
	}
	return &fakeFarm{
		ExecuteFunc: func(_ context.Context, box string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
			if wait > 0 {
				return final("job_"+r.Code, box), nil
			}
			return wire.Job{ID: "job_" + r.Code, Kind: "execute", SandboxID: box, State: "running"}, nil
		},
		EventsFunc: func(ctx context.Context, id string) iter.Seq2[wire.Event, error] {
			return func(yield func(wire.Event, error) bool) {
				for i := range lines {
					if i > 0 && pause > 0 {
						select {
						case <-time.After(pause):
						case <-ctx.Done():
							return
						}
					}
					if !yield(event("stdout", wire.TextData{Text: fmt.Sprintf("%s line %d\n", id, i)}), nil) {
						return
					}
				}
				yield(event("state", wire.StateData{State: "completed"}), nil)
			}
		},
		JobFunc: func(_ context.Context, id string, _ time.Duration) (wire.Job, error) { return final(id, "sbx_1"), nil },
	}
}

// told is the answer to one call: its progress messages, in order, and the response after them.
type reported struct {
	messages []string
	values   []float64
	tokens   map[string]bool
	last     string // method of the last message; empty for a response
	response int
}

func (b *bundle) follow(t *testing.T, body string) reported {
	t.Helper()
	answer, text := b.post(body)
	return parse(t, answer.StatusCode, text)
}

func parse(t *testing.T, status int, text string) reported {
	t.Helper()
	out := reported{tokens: map[string]bool{}}
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var message struct {
			Method string
			Params struct {
				ProgressToken string
				Progress      float64
				Message       string
			}
			Result *struct{}
		}
		if err := json.Unmarshal([]byte(data), &message); err != nil {
			t.Fatal(err)
		}
		out.last = message.Method
		if message.Result != nil {
			out.response++
			continue
		}
		out.messages = append(out.messages, message.Params.Message)
		out.values = append(out.values, message.Params.Progress)
		out.tokens[message.Params.ProgressToken] = true
	}
	return out
}

// mcp-go hands notifications to a goroutine, which drops the last one when the handler returns too soon.
func TestProgressIsNeverLostNorSeenByOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, talking(1, 0))
	const calls, lanes = 1000, 8
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for i := lane; i < calls; i += lanes {
				token := fmt.Sprintf("token-%d", i)
				got := b.follow(t, toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": fmt.Sprint(i)}, token))
				if len(got.messages) != 1 || got.messages[0] != fmt.Sprintf("job_%d line 0\n", i) || len(got.tokens) != 1 || !got.tokens[token] || got.last != "" || got.response != 1 {
					t.Errorf("call %d: %+v", i, got)
				}
			}
		})
	}
	wg.Wait()
}

// A tool may send more notifications at once than mcp-go buffers.
func TestNotifyDropsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	const many = 500
	b.server.MCP().AddTool(protocol.NewTool("chatter"), func(ctx context.Context, r protocol.CallToolRequest) (*protocol.CallToolResult, error) {
		for i := range many {
			if err := mcp.Notify(ctx, "notifications/progress", map[string]any{"progressToken": "t", "progress": i + 1, "message": fmt.Sprint(i)}); err != nil {
				return nil, err
			}
		}
		return protocol.NewToolResultText("done"), nil
	})
	got := b.follow(t, toolCall(1, "chatter", nil, "t"))
	if len(got.messages) != many || got.last != "" {
		t.Fatalf("%d of %d came", len(got.messages), many)
	}
	for i, value := range got.values {
		if value != float64(i+1) {
			t.Fatalf("message %d has the value %g", i, value)
		}
	}
}

// Output that comes for 0.819 s is told every 0.25 s, and at its end.
func TestLiveOutput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lines, pause = 40, 21 * time.Millisecond
		server, err := mcp.New(mcp.Options{Farm: func(context.Context) mcp.Farm { return talking(lines, pause) }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1"}, "t")))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "application/json, text/event-stream")
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, request)
		got := parse(t, answer.Code, answer.Body.String())
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "job_1 line %d\n", i)
		}
		if all := strings.Join(got.messages, ""); all != want.String() {
			t.Errorf("it told %q", all)
		}
		if diff := cmp.Diff([]float64{0.25, 0.5, 0.75, 0.819}, got.values); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
	})
}

func TestLongOutputIsReportedByItsTail(t *testing.T) {
	t.Parallel()
	f := talking(0, 0)
	f.EventsFunc = func(context.Context, string) iter.Seq2[wire.Event, error] {
		return func(yield func(wire.Event, error) bool) {
			for range 100 {
				if !yield(event("stdout", wire.TextData{Text: strings.Repeat("ü", 5000)}), nil) {
					return
				}
			}
			yield(event("stderr", wire.TextData{Text: "the end"}), nil)
			yield(event("state", wire.StateData{State: "completed"}), nil)
		}
	}
	got := setup(t, f).follow(t, toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1"}, "t"))
	last := got.messages[len(got.messages)-1]
	if len(last) > 5000 || !strings.HasPrefix(last, "…ü") || !strings.HasSuffix(last, "üthe end") {
		t.Errorf("%d bytes: %.20q … %q", len(last), last, last[max(0, len(last)-20):])
	}
}

func TestProgressIsOnlySentOnRequest(t *testing.T) {
	t.Parallel()
	answer, text := setup(t, talking(3, 0)).post(toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1"}, nil))
	if got := answer.Header.Get("Content-Type"); got != "application/json" || strings.Contains(text, "line 0") {
		t.Errorf("%s: %s", got, text)
	}
}

// The work continues when its events cannot be read, and the caller still gets its result.
func TestBrokenEventStream(t *testing.T) {
	t.Parallel()
	f := talking(1, 0)
	f.EventsFunc = nil
	answer, text := setup(t, f).post(toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1"}, "t"))
	if answer.StatusCode != 200 || !strings.Contains(text, `"state":"completed"`) {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
}

// A caller that disconnects ends its call, not the work.
func TestCallerDisconnects(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	f := talking(0, 0)
	f.ExecuteFunc = func(ctx context.Context, box string, _ wire.ExecuteRequest, _ time.Duration) (wire.Job, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return wire.Job{}, ctx.Err()
	}
	b := setup(t, f)
	ctx, hangUp := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.web.URL, strings.NewReader(toolCall(1, "execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1"}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	go func() {
		<-started
		hangUp()
	}()
	if answer, err := http.DefaultTransport.RoundTrip(request); err == nil {
		_ = answer.Body.Close()
		t.Error("there was an answer")
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the call continues")
	}
	if r := b.call("get_job_result", map[string]any{"job_id": "job_1"}); field(t, r, "state") != "completed" {
		t.Errorf("the job does not exist: %s", textOf(r))
	}
	if strings.Contains(b.log.String(), "level=ERROR") {
		t.Errorf("a caller who hangs up is no error: %s", b.log)
	}
}
