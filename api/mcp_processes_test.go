package api_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A model starts a server, sees that it is up, gets a link that works, and stops the server.
func TestMCPProcesses(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	in := func(args map[string]any) map[string]any { args["sandbox_id"] = box; return args }
	made := f.tool("start_process", in(map[string]any{"command": "echo up; while read line; do :; done; exec sleep 1000", "name": "web"}))
	id := made.field("process_id")
	if made.Result.IsError || !farm.ValidID(farm.ProcessPrefix, id) || made.field("state") != "running" {
		t.Fatalf("%+v", made)
	}
	var printed, cursor string
	for deadline := time.Now().Add(time.Minute); printed != "up\n" && time.Now().Before(deadline); {
		got := f.tool("read_process", in(map[string]any{"process_id": id, "cursor": cursor, "wait_seconds": 50}))
		if got.Result.IsError || got.field("state") != "running" {
			t.Fatalf("%+v", got)
		}
		printed, cursor = printed+got.field("output"), got.field("cursor")
	}
	if printed != "up\n" {
		t.Errorf("it printed %q", printed)
	}
	if got := f.tool("read_process", in(map[string]any{"process_id": id, "cursor": "x"})); !got.Result.IsError || !strings.Contains(got.text(), `"x"`) {
		t.Errorf("a cursor that is none: %+v", got)
	}
	link := f.tool("get_port_url", in(map[string]any{"port": 8123}))
	if link.Result.IsError || !strings.Contains(link.field("url"), "://8123-sbx-") || !strings.Contains(link.text(), link.field("url")) {
		t.Errorf("%+v", link)
	}
	for range 2 { // the second call has it forgotten
		ended := f.tool("stop_process", in(map[string]any{"process_id": id}))
		if ended.Result.IsError || ended.field("state") != "exited" {
			t.Errorf("%+v", ended)
		}
	}
	if got := f.tool("stop_process", in(map[string]any{"process_id": id})); !got.Result.IsError || !strings.Contains(got.text(), "start_process") {
		t.Errorf("again: %+v", got)
	}
}

// The links of tools work as those of POST …/port-links do.
func TestMCPLinksToPorts(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	number, err := strconv.Atoi(guest(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("here")) }))
	testbed.Must(t, err)
	got := f.tool("get_port_url", map[string]any{"sandbox_id": f.sandbox(), "port": number})
	link, err := url.Parse(got.field("url"))
	testbed.Must(t, err)
	if answer, body := f.do("GET", link.RequestURI(), nil, "Host", link.Host); answer.StatusCode != http.StatusOK || string(body) != "here" {
		t.Errorf("%s: %s %s", link, answer.Status, body)
	}
}

// What a key may only read, it may not start over MCP either.
func TestMCPProcessesNeedTheScopeRun(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withScopes)
	box := f.sandbox("X-API-Key", string(farm.ScopeRun))
	for name, args := range map[string]map[string]any{
		"start_process": {"command": "true"}, "stop_process": {"process_id": farm.NewID(farm.ProcessPrefix)}, "get_port_url": {"port": 80},
	} {
		args["sandbox_id"] = box
		if got := f.tool(name, args, "X-API-Key", string(farm.ScopeRead)); !got.Result.IsError || !strings.Contains(got.text(), "scope run") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
