package mcp_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// printing is a farm with a process whose events are known; after the last one the process runs on, unless that is its exit.
func printing(events ...wire.Event) *fakeFarm {
	return &fakeFarm{OutputFunc: func(ctx context.Context, _, _, after string) iter.Seq2[wire.Event, error] {
		return func(yield func(wire.Event, error) bool) {
			past := after == ""
			for i, e := range events {
				e.ID = fmt.Sprint(i)
				if past && (!yield(e, nil) || e.Name == "exit") {
					return
				}
				past = past || e.ID == after
			}
			<-ctx.Done()
			yield(wire.Event{}, ctx.Err())
		}
	}}
}

func stdout(text string) wire.Event { return event("stdout", wire.OutputData{Text: &text}) }

func TestStartProcess(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{StartFunc: func(_ context.Context, id string, r wire.ProcessRequest) (wire.Process, error) {
		if id != "sbx_1" || *r.Command != "serve" || r.Cwd != "site" || r.Name != "web" || *r.TimeoutSeconds != 60 {
			return wire.Process{}, farm.Invalidf("request is %+v", r)
		}
		return wire.Process{ID: "prc_1", State: "running"}, nil
	}})
	r := b.call("start_process", map[string]any{"sandbox_id": "sbx_1", "command": "serve", "cwd": "site", "name": "web", "timeout_seconds": 60})
	want := map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "state": "running"}
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" || !strings.Contains(textOf(r), `read_process with process_id "prc_1"`) {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
}

func TestReadProcessGoesOnAtItsCursor(t *testing.T) {
	t.Parallel()
	b := setup(t, printing(stdout("one "), event("stderr", wire.OutputData{Base64: []byte("two\xff")}), event("dropped", struct{}{}), stdout("three"), event("exit", wire.ExitData{ExitCode: 3, TimedOut: true})))
	args := map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1"}
	want := map[string]any{
		"sandbox_id": "sbx_1", "process_id": "prc_1", "state": "exited", "exit_code": 3.0, "output": "one two�three", "cursor": "4", "more": false, "dropped": true,
	}
	r := b.call("read_process", args)
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" || !strings.Contains(textOf(r), "exit code 3 (its time was up)") || !strings.Contains(textOf(r), "not kept") {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
	args["cursor"] = "2"
	want["output"], want["dropped"] = "three", false
	if diff := cmp.Diff(want, b.call("read_process", args).StructuredContent); diff != "" {
		t.Error(diff)
	}
}

func TestReadProcessThatRuns(t *testing.T) {
	t.Parallel()
	b := setup(t, printing())
	if r := b.call("read_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "cursor": "", "wait_seconds": 0}); !strings.HasSuffix(textOf(r), "Next: read_process again.") {
		t.Error(textOf(r))
	}
	b = setup(t, printing(stdout("ready\n")))
	for _, wait := range []float64{0, 50} { // it does not wait once something has come
		r := b.call("read_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "wait_seconds": wait})
		if field(t, r, "state") != "running" || field(t, r, "output") != "ready\n" || field(t, r, "cursor") != "0" || !strings.Contains(textOf(r), `cursor "0"`) {
			t.Error(textOf(r))
		}
	}
	r := b.call("read_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "cursor": "0", "wait_seconds": 0})
	if field(t, r, "output") != "" || field(t, r, "cursor") != "0" || !strings.Contains(textOf(r), "nothing new") {
		t.Error(textOf(r))
	}
}

// An answer is full at its limit, not before, and the next one has the rest.
func TestReadProcessIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 100
	for size, more := range map[int]bool{limit - 1: false, limit: true, limit + 1: true} {
		events := []wire.Event{stdout(strings.Repeat("a", size))}
		if more {
			events = append(events, stdout("rest"))
		}
		b := setup(t, printing(events...), func(o *mcp.Options) { o.Limits.TextBytes = limit })
		r := b.call("read_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "wait_seconds": 0})
		if field(t, r, "more") != more || len(field(t, r, "output").(string)) != size {
			t.Errorf("%d: %s", size, textOf(r))
		}
		if !more {
			continue
		}
		if r = b.call("read_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1", "cursor": field(t, r, "cursor"), "wait_seconds": 0}); field(t, r, "output") != "rest" {
			t.Errorf("%d: %s", size, textOf(r))
		}
	}
}

func TestStopProcess(t *testing.T) {
	t.Parallel()
	code := 143
	b := setup(t, &fakeFarm{EndFunc: func(_ context.Context, _, process string) (wire.Process, error) {
		return wire.Process{ID: process, State: "exited", ExitCode: &code}, nil
	}})
	r := b.call("stop_process", map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1"})
	if field(t, r, "state") != "exited" || field(t, r, "exit_code") != 143.0 || !strings.Contains(textOf(r), "143") {
		t.Error(textOf(r))
	}
}

func TestProcessesThatDoNotExist(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, tool := range []string{"read_process", "stop_process"} {
		if r := b.call(tool, map[string]any{"sandbox_id": "sbx_1", "process_id": "prc_1"}); !r.IsError || !strings.Contains(textOf(r), "start_process") {
			t.Errorf("%s: %s", tool, textOf(r))
		}
	}
}

func TestGetPortURL(t *testing.T) {
	t.Parallel()
	ends := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	b := setup(t, &fakeFarm{LinkPortFunc: func(_ context.Context, _ string, r wire.PortLinkRequest) (wire.PortLink, error) {
		if *r.ExpiresSeconds != 60 {
			return wire.PortLink{}, farm.Invalidf("request is %+v", r)
		}
		return wire.PortLink{URL: "https://8000-x.test/?t=1", Port: r.Port, ExpiresAt: ends}, nil
	}})
	args := map[string]any{"sandbox_id": "sbx_1", "port": 8000, "expires_seconds": 60}
	want := map[string]any{"sandbox_id": "sbx_1", "port": 8000.0, "url": "https://8000-x.test/?t=1", "expires_at": "2026-11-22T01:02:03Z"}
	r := b.call("get_port_url", args)
	if diff := cmp.Diff(want, r.StructuredContent); diff != "" || !strings.Contains(textOf(r), "https://8000-x.test/?t=1") {
		t.Errorf("%s\n%s", diff, textOf(r))
	}
	for url, reported := range map[string]bool{"http://8000-sbx-1.localhost:8000/?t=1": true, "https://8000-x.test/?t=.localhost": false} {
		asked := false
		b := setup(t, &fakeFarm{LinkPortFunc: func(_ context.Context, _ string, r wire.PortLinkRequest) (wire.PortLink, error) {
			asked = r.PathStyle
			return wire.PortLink{URL: url, Port: r.Port, ExpiresAt: ends}, nil
		}})
		r := b.call("get_port_url", map[string]any{"sandbox_id": "sbx_1", "port": 8000, "path_style": true})
		if strings.Contains(textOf(r), "path_style") != reported || !asked || !strings.Contains(textOf(r), "start_process") {
			t.Errorf("%s: asked for a path: %t\n%s", url, asked, textOf(r))
		}
	}
	for port, ok := range map[int]bool{0: false, 1: true, 65535: true, 65536: false} {
		args["port"] = port
		if r := b.call("get_port_url", args); r.IsError == ok || !ok && !strings.Contains(textOf(r), "1 to 65535") {
			t.Errorf("%d: %s", port, textOf(r))
		}
	}
}
