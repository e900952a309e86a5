package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A message is charged in the same way over each transport: while it is encoded for the store, it is in memory as often.
func TestMessagesAreChargedAlikeOverEveryTransport(t *testing.T) {
	t.Parallel()
	const large, calls = 900_000, 60
	held := make(chan int64, 1)
	s, err := mcp.NewSet(mcp.Set{Name: "held", Title: "Held", Tools: []mcp.SetTool{
		{Name: "held", Params: []mcp.Param{mcp.Text("text", "what to say")}, Run: func(ctx context.Context, _ any, _ *mcp.Progress) mcp.Reply {
			held <- budget.Held(ctx)
			return mcp.Reply{Value: "over"}
		}},
		{Name: "large", Title: "Large", Run: func(context.Context, any, *mcp.Progress) mcp.Reply {
			return mcp.Reply{Value: strings.Repeat("x", large)}
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sse := s.SSE(mcp.SSEOptions{Messages: "/messages/"})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sse", sse.Stream)
	mux.HandleFunc("POST /messages/", sse.Post)
	mux.Handle("/mcp", s.Handler())
	memory := budget.New(256 << 20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, hold := memory.With(r.Context(), "acme", 0)
		defer hold.Release()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	message := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"held","arguments":{"text":"` + strings.Repeat("x", 1<<20) + `"}}}`
	call := func(url string) int64 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		select {
		case n := <-held:
			return n
		case <-time.After(time.Minute):
			t.Fatalf("the tool was not called: %s %.200s", answer.Status, text)
			return 0
		}
	}
	plain := call(server.URL + "/mcp")
	if over := call(listen(t, server, "").url); over != plain || plain < 4<<20 {
		t.Errorf("%d bytes are charged over SSE, and %d over HTTP", over, plain)
	}
	l := listen(t, server, "") // not read: what the connection does not hold waits
	for i := range calls {
		if status, body := say(t, server, l.url, "", toolCall(i, "large", nil, nil)); status != http.StatusAccepted {
			t.Fatalf("call %d: %d %s", i, status, body)
		}
	}
	testbed.Until(t, "half of the answers are charged", func() bool { return memory.Stats().Used > calls/2*large })
	for range calls {
		l.event()
	}
	testbed.Until(t, "nothing is charged", func() bool { return memory.Stats().Used == 0 })
}

// A call over a stream goes on when its request is over: until then what it takes counts in the memory, among what lasts.
func TestSSECallsCountInTheMemory(t *testing.T) {
	t.Parallel()
	const size, callBytes = 16 << 20, 32 << 10
	const most = size * 7 / 8 / 8 / callBytes // an eighth of what is not kept for small requests
	ended := make(chan string, 2*(most+2))
	sse := echoSet(t, ended).SSE(mcp.SSEOptions{Messages: "/messages/"})
	memory := budget.New(size)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sse", sse.Stream)
	mux.HandleFunc("POST /messages/", sse.Post)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, hold := memory.With(r.Context(), "acme", 0)
		defer hold.Release()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	l := listen(t, server, "")
	call := func(want int) {
		t.Helper()
		if status, body := say(t, server, l.url, "", toolCall(1, "wait", nil, nil)); status != want {
			t.Fatalf("with %d bytes held: %d %s", memory.Stats().Used, status, body)
		}
		if want == http.StatusAccepted {
			<-ended
		}
	}
	for range most {
		call(http.StatusAccepted)
	}
	call(http.StatusTooManyRequests)
	_ = l.body.Close()
	for range most {
		<-ended
	}
	testbed.Until(t, "nothing is held", func() bool { return memory.Stats().Used == 0 })
	l = listen(t, server, "")
	call(http.StatusAccepted)

	// A call goes on with what its body holds: others of the tenant wait for memory.
	first, _ := memory.TryAcquire("acme", 1<<20)
	used := memory.Stats().Used
	body, rest := io.Pipe()
	status := make(chan int)
	go func() {
		status <- func() int {
			res, err := server.Client().Post(l.url, "application/json", body) //nolint:noctx // the server ends it
			if err != nil {
				t.Error(err)
				return 0
			}
			_ = res.Body.Close()
			return res.StatusCode
		}()
	}()
	_, err := io.WriteString(rest, toolCall(2, "wait", nil, nil)+strings.Repeat(" ", 300<<10))
	testbed.Must(t, err)
	testbed.Until(t, "the body is charged", func() bool { return memory.Stats().Used >= used+300<<10 })
	ctx, leave := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() { _, _ = memory.Acquire(ctx, "acme", memory.Share()) })
	testbed.Until(t, "another waits", func() bool { return memory.Stats().Waiting > 0 })
	testbed.Must(t, rest.Close())
	testbed.Diff(t, "a large message", http.StatusAccepted, <-status)
	<-ended
	testbed.Check(t, memory.Stats().Used >= used+2*(300<<10), "its body is charged no more")
	leave()
	others.Wait()
	first.Release()
	_ = l.body.Close()
	<-ended
	<-ended
	testbed.Until(t, "nothing is held", func() bool { return memory.Stats().Used == 0 })
}

func TestSetAnswersAlikeOverEveryTransport(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(echoSet(t, nil).Handler())
	t.Cleanup(web.Close)
	stream := sseServer(t, mcp.SSEOptions{}, nil)
	doors := map[string]func(t *testing.T) *client.Client{
		"HTTP": func(t *testing.T) *client.Client {
			t.Helper()
			c, err := client.NewStreamableHttpClient(web.URL)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"SSE": func(t *testing.T) *client.Client {
			t.Helper()
			c, err := client.NewSSEMCPClient(stream.URL + "/sse")
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"Stdio": func(t *testing.T) *client.Client {
			t.Helper()
			in, toServer := io.Pipe()
			fromServer, out := io.Pipe()
			s := echoSet(t, nil)
			var serving sync.WaitGroup
			serving.Go(func() { _ = s.ServeStdio(context.WithoutCancel(t.Context()), in, out) }) // it ends with its input
			t.Cleanup(func() { _ = toServer.Close(); serving.Wait() })
			return client.NewClient(transport.NewIO(fromServer, toServer, io.NopCloser(&bytes.Buffer{})))
		},
	}
	for name, open := range doors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			if err := c.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			info, err := c.Initialize(t.Context(), protocol.InitializeRequest{Params: protocol.InitializeParams{
				ProtocolVersion: "2024-11-05", ClientInfo: protocol.Implementation{Name: "test", Version: "1"},
			}})
			if err != nil || info.ServerInfo.Name != "echo" {
				t.Fatalf("initialize gives %+v, %v", info, err)
			}
			for tool, want := range map[string]struct{ text, structured string }{
				"object": {`{"said":{"text":"x & y"}}`, `{"said":{"text":"x \u0026 y"}}`},
				"list":   {`["<a>","b"]`, `{"result":["\u003ca\u003e","b"]}`},
				"text":   {`bare`, `null`},
				"wrong":  {`{"error":true}`, `null`},
			} {
				r, err := c.CallTool(t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: tool, Arguments: map[string]any{"text": "x & y"}}})
				if err != nil {
					t.Fatalf("%s: %v", tool, err)
				}
				structured, _ := json.Marshal(r.StructuredContent)
				if textOf(r) != want.text || string(structured) != want.structured || r.IsError != (tool == "wrong") || len(r.Content) != 1 {
					t.Errorf("%s answers %q, %s, %t", tool, textOf(r), structured, r.IsError)
				}
			}
		})
	}
}

func TestSSEMessagesNeedAStreamOfTheirOwner(t *testing.T) {
	t.Parallel()
	server := sseServer(t, mcp.SSEOptions{}, nil)
	mine := listen(t, server, "me")
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	for name, test := range map[string]struct {
		url, who, body string
		status         int
	}{
		"NoId":      {server.URL + "/messages/", "me", ping, http.StatusBadRequest},
		"UnknownId": {server.URL + "/messages/?session_id=" + strings.Repeat("0", 32), "me", ping, http.StatusNotFound},
		"Foreign":   {mine.url, "somebody", ping, http.StatusNotFound},
		"NoJSON":    {mine.url, "me", "{", http.StatusBadRequest},
		"Mine":      {mine.url, "me", ping, http.StatusAccepted},
	} {
		status, body := say(t, server, test.url, test.who, test.body)
		if status != test.status || status >= 400 && !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %d %s, want %d", name, status, body, test.status)
		}
	}
	if name, data := mine.event(); name != "message" || !strings.Contains(data, `"id":7`) {
		t.Errorf("the answer is %s %s", name, data)
	}
	_ = mine.body.Close()
}

func TestSSECallsEndWithTheirStream(t *testing.T) {
	t.Parallel()
	ended := make(chan string, 4)
	server := sseServer(t, mcp.SSEOptions{}, ended)
	l := listen(t, server, "me")
	if status, body := say(t, server, l.url, "me", toolCall(1, "wait", nil, nil)); status != http.StatusAccepted {
		t.Fatal(status, body)
	}
	if got := <-ended; got != "begun" {
		t.Fatal(got)
	}
	_ = l.body.Close()
	if got := <-ended; got != "ended" {
		t.Fatal(got)
	}
}

func TestSSECancelledCallsEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan string, 4)
	server := sseServer(t, mcp.SSEOptions{}, ended)
	l := listen(t, server, "me")
	say(t, server, l.url, "me", toolCall(1, "wait", nil, nil))
	<-ended
	say(t, server, l.url, "me", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if got := <-ended; got != "ended" {
		t.Fatal(got)
	}
}

func TestSSEBounds(t *testing.T) {
	t.Parallel()
	ended := make(chan string, 8)
	closing := make(chan struct{})
	server := sseServer(t, mcp.SSEOptions{Streams: 2, Calls: 2, Heartbeat: 20 * time.Millisecond, Closing: closing}, ended)
	first, second := listen(t, server, "me"), listen(t, server, "me")
	if answer := get(t, server, "me"); answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" { //nolint:bodyclose // closed by get
		t.Errorf("a third stream: %d", answer.StatusCode)
	}
	other := listen(t, server, "other") // the limit applies to each owner
	for i, want := range []int{202, 202, 429} {
		if status, body := say(t, server, first.url, "me", toolCall(i, "wait", nil, nil)); status != want {
			t.Errorf("call %d: %d %s", i, status, body)
		}
	}
	if status, _ := say(t, server, second.url, "me", toolCall(9, "wait", nil, nil)); status != http.StatusAccepted {
		t.Errorf("a call on another stream: %d", status)
	}
	if name, data := other.event(); name != "comment" || data != ": ping" {
		t.Errorf("a quiet stream says %s %s", name, data)
	}
	close(closing)
	for _, l := range []*listener{first, second, other} {
		for name := "comment"; name != "end"; {
			name, _ = l.event()
		}
	}
}

func ExampleNewSet() {
	s, _ := mcp.NewSet(mcp.Set{Name: "greeter", Tools: []mcp.SetTool{{
		Name: "greet", Run: func(context.Context, any, *mcp.Progress) mcp.Reply { return mcp.Reply{Value: "hello"} },
	}}})
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	answer, err := http.Post(web.URL, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet"}}`)) //nolint:gosec,noctx // of the example itself
	if err != nil {
		return
	}
	defer func() { _ = answer.Body.Close() }()
	var message struct{ Result protocol.CallToolResult }
	_ = json.NewDecoder(answer.Body).Decode(&message)
	fmt.Println(textOf(&message.Result))
	// Output: hello
}

// TestStreamsCarryNoEventOfAMebibyte: clients with the official Python SDK end the session at such an event.
func TestStreamsCarryNoEventOfAMebibyte(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	value := strings.Repeat("x", 600_000) // it is in an answer twice
	call := func(meta string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"object","arguments":{"text":"` + value + `"}` + meta + `}}`
	}
	l := listen(t, sseServer(t, mcp.SSEOptions{}, nil), "a")
	long := bufio.NewScanner(l.body)
	long.Buffer(nil, 8*limit)
	l.lines = long
	if status, text := say(t, l.server, l.url, "a", call("")); status != http.StatusAccepted {
		t.Fatalf("it is posted: %d %s", status, text)
	}
	_, event := l.event()
	web := httptest.NewServer(echoSet(t, nil).Handler())
	t.Cleanup(web.Close)
	_, streamed := say(t, web, web.URL, "a", call(`,"_meta":{"progressToken":1}`))
	_, plain := say(t, web, web.URL, "a", call(""))
	for where, text := range map[string]string{"SSE": event, "Progress": streamed, "JSON": plain} {
		var got struct {
			Result struct{ Content []struct{ Text string } }
		}
		at := strings.IndexByte(text, '{')
		if err := json.Unmarshal([]byte(text[max(at, 0):]), &got); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if short := where != "JSON"; (len(text) < limit) != short || len(got.Result.Content) == 0 || !strings.Contains(got.Result.Content[0].Text, value) {
			t.Errorf("%s: %d bytes", where, len(text))
		}
	}
}

// A large message is decoded on a core of its tenant's, which its tool gives back: tools may wait for long. Half of the cores are a tenant's.
func TestLargeCallsShareTheCoresUntilTheirToolRuns(t *testing.T) {
	t.Parallel()
	memory, ended := budget.New(1<<30), make(chan string, 2*runtime.GOMAXPROCS(0))
	handler := echoSet(t, ended).Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, hold := memory.With(r.Context(), "a", 0)
		defer hold.Release()
		handler.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	send := func(ctx context.Context, method, tool, text string) (int, string, error) {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"name":%q,"arguments":{"text":%q}}}`, method, tool, text)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "application/json, text/event-stream")
		answer, err := server.Client().Do(request)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = answer.Body.Close() }()
		got, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(got), err
	}
	large := strings.Repeat("x", budget.SmallBytes)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 { // more than a tenant has cores
		calls.Go(func() { _, _, _ = send(ctx, "tools/call", "wait", large) })
	}
	for range runtime.GOMAXPROCS(0) + 1 {
		if got := <-ended; got != "begun" {
			t.Errorf("a tool %s", got)
		}
	}
	cancel()
	calls.Wait()

	if status, text, err := send(t.Context(), "ping", "", large); status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "65536 bytes") {
		t.Errorf("a large message that calls no tool: %d %s %v", status, text, err)
	}
	if status, text, err := send(t.Context(), "ping", "", large[:budget.SmallBytes-len(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"name":"","arguments":{"text":""}}}`)]); status != http.StatusOK {
		t.Errorf("a message at the limit: %d %s %v", status, text, err)
	}
	if status, text, err := send(t.Context(), "tools/call", "object", large); status != http.StatusOK || !strings.Contains(text, "said") {
		t.Errorf("a large call: %d %.200s %v", status, text, err)
	}
}

// probed is a value that tells how many cores its tenant has left while it is encoded.
type probed struct {
	Text  string
	cores func()
}

func (p probed) MarshalJSON() ([]byte, error) {
	p.cores()
	return json.Marshal(p.Text)
}

// written tells when an answer is written.
type written struct {
	*httptest.ResponseRecorder
	cores func()
}

func (w written) Write(p []byte) (int, error) {
	w.cores()
	return w.ResponseRecorder.Write(p)
}

// A large answer is encoded on a core of its tenant's, which is given back before the caller is waited for.
func TestLargeAnswersAreEncodedOnACore(t *testing.T) {
	t.Parallel()
	memory := budget.New(1 << 30)
	free := func() int { return testbed.FreeCores(t, memory, "a") }
	whole := free()
	for size, taken := range map[int]int{10: 0, budget.SmallBytes: 1} {
		var encoded []int
		set, err := mcp.NewSet(mcp.Set{Name: "large", Title: "Large", Structured: true, Tools: []mcp.SetTool{{Name: "large", Run: func(context.Context, any, *mcp.Progress) mcp.Reply {
			return mcp.Reply{Value: map[string]any{"value": probed{strings.Repeat("x", size), func() { encoded = append(encoded, free()) }}}}
		}}}})
		testbed.Must(t, err)
		ctx, hold := memory.With(t.Context(), "a", 0)
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"large","arguments":{}}}`))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", "application/json, text/event-stream")
		answer := written{httptest.NewRecorder(), func() {
			if got := free(); got != whole {
				t.Errorf("%d of %d cores are free while an answer of %d bytes is written", got, whole, size)
			}
		}}
		set.Handler().ServeHTTP(answer, request)
		hold.Release()
		if answer.Code != http.StatusOK || answer.Body.Len() < size {
			t.Errorf("the answer is %d %.200s", answer.Code, answer.Body)
		}
		if len(encoded) < 2 || slices.Max(encoded) != whole-taken { // as text, and as structured content
			t.Errorf("of %d cores %v are free while an answer of %d bytes is encoded", whole, encoded, size)
		}
	}
}
