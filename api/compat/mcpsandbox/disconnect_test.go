package mcpsandbox_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// A dropped SSE stream used to end the code that its call had started.
func TestAJobContinuesWhenItsStreamDrops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waiting, left := make(chan struct{}), make(chan struct{})
	b.farm.ExecuteFunc = func(context.Context, wire.ExecuteRequest) wire.Job { return wire.Job{ID: "job_1", State: "running"} }
	b.farm.JobFunc = func(ctx context.Context, _ string, _ time.Duration) (wire.Job, error) {
		close(waiting)
		<-ctx.Done()
		close(left)
		return wire.Job{}, ctx.Err()
	}
	server, err := b.set.Serve(b.env, "1", mcp.HTTP{})
	if err != nil {
		t.Fatal(err)
	}
	sse := server.SSE(mcp.SSEOptions{Messages: "/messages/"})
	mux := http.NewServeMux()
	mux.HandleFunc("/sse", sse.Stream)
	mux.HandleFunc("/messages/", sse.Post)
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)

	c, err := client.NewSSEMCPClient(web.URL + "/sse")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Initialize(t.Context(), protocol.InitializeRequest{Params: protocol.InitializeParams{ProtocolVersion: "2024-11-05"}}); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = c.CallTool(context.WithoutCancel(t.Context()), protocol.CallToolRequest{Params: protocol.CallToolParams{
			Name: "execute_python_code", Arguments: b.in(map[string]any{"code": "while True: pass"}),
		}})
	}()
	<-waiting
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-left      // the wait for the job has ended
	web.Close() // and the call has returned
	if canceled := b.farm.Canceled(); len(canceled) > 0 {
		t.Errorf("canceled: %v", canceled)
	}
}
