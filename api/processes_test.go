package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// liveFarm is a farm whose sandboxes all have one real agent, behind the real live path.
type liveFarm struct {
	*bundle
	agent   *agenttest.Agent
	workers []*relay.Server
}

func setupLive(t *testing.T, options ...option) *liveFarm {
	t.Helper()
	return setupLiveAgent(t, agenttest.StartPlain(t), options...)
}

func setupLiveAgent(t *testing.T, agent *agenttest.Agent, options ...option) *liveFarm {
	t.Helper()
	f := &liveFarm{agent: agent}
	var path *relay.Path
	f.bundle = setup(t, append(options, func(_ *api.Config, d *api.Deps) {
		d.Agents = func(box *farm.Sandbox) relay.Agent { return path.Agent(box) }
	})...)
	own := relay.NewIdentity(relay.IdentityConfig{Source: f.store, Role: relay.Caller})
	testbed.Must(t, own.Refresh(t.Context()))
	path = relay.NewPath(own, f.store.Workers)
	t.Cleanup(path.Close)
	f.worker("wrk_9")
	return f
}

// worker starts the listener of one more worker.
func (f *liveFarm) worker(id string) *relay.Server {
	f.t.Helper()
	own := relay.NewIdentity(relay.IdentityConfig{Source: f.store, Role: relay.Worker, Name: id})
	testbed.Must(f.t, own.Refresh(f.t.Context()))
	agent := agenttest.Connect(f.t, f.agent.Server)
	s := relay.NewServer(relay.ServerConfig{Listen: "127.0.0.1:0", Connections: 8, Streams: 100, Tenant: 100}, relay.ServerDeps{
		Identity: own, Sandboxes: f.store, Node: func() string { return "n1" }, Log: slog.New(slog.DiscardHandler),
		Connect: func(context.Context, *farm.Sandbox) (*client.Client, error) { return agent, nil },
		DialPort: func(ctx context.Context, _ *farm.Sandbox, number uint16) (transport.PortServer, error) {
			return agent.Live().DialPort(ctx, int(number))
		},
		Used: func(context.Context, *farm.Sandbox) error { return nil },
	})
	testbed.Must(f.t, s.Start(f.t.Context()))
	f.t.Cleanup(s.Stop)
	testbed.Must(f.t, f.store.Heartbeat(f.t.Context(), farm.Worker{ID: id, Node: "n1", Live: s.Addr()}))
	f.workers = append(f.workers, s)
	return s
}

// stream opens the events of a process.
func (f *liveFarm) stream(base, last string, headers ...string) (*http.Response, *bufio.Reader) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.web.URL+base+"/events", nil)
	testbed.Must(f.t, err)
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(f.t, err)
	f.t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		f.t.Fatalf("events: %s", answer.Status)
	}
	return answer, bufio.NewReader(answer.Body)
}

type outputEvent struct {
	id, name string
	data     struct {
		wire.OutputData
		wire.ExitData
	}
}

// nextEvent reads the next event of a stream.
func nextEvent(t *testing.T, r *bufio.Reader) (e outputEvent) {
	t.Helper()
	for {
		row, err := r.ReadString('\n')
		testbed.Must(t, err)
		name, value, _ := strings.Cut(strings.TrimSpace(row), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			testbed.Must(t, json.Unmarshal([]byte(value), &e.data))
			return e
		}
	}
}

// textUntil reads events until their text ends with want.
func textUntil(t *testing.T, r *bufio.Reader, want string) (text, last string) {
	t.Helper()
	for !strings.HasSuffix(text, want) {
		e := nextEvent(t, r)
		if e.data.Text == nil {
			t.Fatalf("event %q after %q", e.name, text)
		}
		text, last = text+*e.data.Text, e.id
	}
	return text, last
}

func TestProcessesOverHTTP(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"command": `echo "hello $WHO"; cat; printf '\377' ; exit 3`, "name": "cat", "stdin": true, "env": map[string]string{"WHO": "world"}})
	if !farm.ValidID(farm.ProcessPrefix, made.ID) || made.PID == 0 || made.State != "running" || made.Name != "cat" || made.ExitCode != nil || made.EndedAt != nil || made.PTY != nil || !made.Stdin {
		t.Errorf("%+v", made)
	}
	one := base + "/" + made.ID
	testbed.Until(t, "the process to be listed with its owner and memory, which it has when its exec is over", func() bool {
		all := get[wire.Processes](f.bundle, http.StatusOK, "GET", base+"?all=true", nil)
		return slices.ContainsFunc(all.Running, func(p wire.RunningProcess) bool { return p.PID == made.PID && p.Owner == made.ID && p.MemoryBytes > 0 })
	})
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", base+"?all=maybe", nil)
	_, events := f.stream(one, "")
	text, last := textUntil(t, events, "hello world\n")
	if text != "hello world\n" {
		t.Errorf("%q", text)
	}
	if got := get[wire.Written](f.bundle, http.StatusOK, "POST", one+"/stdin", "typed\n", "Content-Type", "application/octet-stream"); got.Written != 6 {
		t.Errorf("written %d", got.Written)
	}
	_, again := f.stream(one, last)
	if text, _ := textUntil(t, again, "typed\n"); text != "typed\n" {
		t.Errorf("after %s: %q", last, text)
	}
	get[wire.Written](f.bundle, http.StatusOK, "POST", one+"/stdin?close=true", nil)
	textUntil(t, events, "typed\n")
	if e := nextEvent(t, events); e.name != "stdout" || string(e.data.Base64) != "\xff" {
		t.Errorf("%+v", e)
	}
	if e := nextEvent(t, events); e.name != "exit" || e.data.ExitCode != 3 {
		t.Errorf("%+v", e)
	}
	if rest, err := io.ReadAll(events); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("after the exit: %q, %v", rest, err)
	}
	list := get[wire.Processes](f.bundle, http.StatusOK, "GET", base, nil)
	if len(list.Items) != 1 || list.Items[0].ID != made.ID || *list.Items[0].ExitCode != 3 || list.Items[0].EndedAt == nil {
		t.Errorf("%+v", list)
	}
	if list.Running != nil {
		t.Errorf("%+v", list.Running)
	}
	ended := get[wire.Process](f.bundle, http.StatusOK, "DELETE", one, nil)
	if *ended.ExitCode != 3 || ended.Stopped {
		t.Errorf("%+v", ended)
	}
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", one, nil)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", one+"/events", nil)
}

// What runs in a sandbox is ended by its pid, whoever started it: alone, if no caller did.
func TestProcessesByPID(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"command": "sleep 1000 & echo $!; sleep 1001 & echo $!; wait; wait; echo both; exec sleep 1002"})
	_, events := f.stream(base+"/"+made.ID, "")
	var text string
	for strings.Count(text, "\n") < 2 {
		text += *nextEvent(t, events).data.Text
	}
	children := strings.Fields(text)
	first, err := strconv.Atoi(children[0])
	testbed.Must(t, err)
	for _, child := range children { // bash prints its number before it becomes sleep
		testbed.Until(t, "the child is sleep", func() bool {
			text, err := os.ReadFile("/proc/" + child + "/cmdline")
			return err == nil && strings.HasPrefix(string(text), "sleep")
		})
	}
	if p := get[wire.Process](f.bundle, http.StatusOK, "DELETE", base+"/"+children[0], nil); p.ID != "" || p.PID != first || p.State != "exited" || p.EndedAt == nil || p.Command != "sleep 1000" {
		t.Errorf("%+v", p)
	}
	f.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", base+"/"+children[0], nil)
	if p := get[wire.Process](f.bundle, http.StatusOK, "POST", base+"/"+children[1]+"/signal", `{"signal":"SIGKILL"}`); p.Command != "sleep 1001" {
		t.Errorf("%+v", p)
	}
	textUntil(t, events, "both\n")
	own := fmt.Sprint(base, "/", made.PID)
	if p := get[wire.Process](f.bundle, http.StatusOK, "POST", own+"/signal", `{"signal":"SIGCONT"}`); p.ID != made.ID {
		t.Errorf("%+v", p)
	}
	if p := get[wire.Process](f.bundle, http.StatusOK, "DELETE", own, nil); p.ID != made.ID || !p.Stopped {
		t.Errorf("%+v", p)
	}
	for _, none := range []int{os.Getpid(), 1 << 30} { // the agent's own, and one that there cannot be
		f.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", fmt.Sprint(base, "/", none), nil)
		f.problem(farm.CodeNotFound, http.StatusNotFound, "POST", fmt.Sprint(base, "/", none, "/signal"), `{"signal":"SIGKILL"}`)
	}
	for _, never := range []string{"0", "-1", "+1x"} {
		f.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", base+"/"+never, nil)
	}
}

// A process that fails is started again, with its id, output and input.
func TestAProcessIsStartedAgainOverHTTP(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	if made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"command": "true"}); made.Restart != "never" {
		t.Errorf("%+v", made)
	}
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"command": "read code; echo $code; exit $code", "stdin": true, "restart": "on-failure"})
	if made.Restart != "on-failure" || made.Restarts != 0 {
		t.Errorf("%+v", made)
	}
	one := base + "/" + made.ID
	_, events := f.stream(one, "")
	for _, line := range []string{"3\n", "0\n"} {
		get[wire.Written](f.bundle, http.StatusOK, "POST", one+"/stdin", line, "Content-Type", "application/octet-stream")
		if text, _ := textUntil(t, events, line); text != line {
			t.Errorf("%q, want %q", text, line)
		}
		if line == "3\n" {
			testbed.Until(t, "it is started again", func() bool { return get[wire.Process](f.bundle, http.StatusOK, "GET", one, nil).Restarts == 1 })
		}
	}
	if e := nextEvent(t, events); e.name != "exit" || e.data.ExitCode != 0 {
		t.Errorf("%+v", e)
	}
	if got := get[wire.Process](f.bundle, http.StatusOK, "GET", one, nil); got.Restarts != 1 || got.State != "exited" || *got.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
}

func TestAProcessIsStartedOncePerIdempotencyKey(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	sandbox := f.sandbox()
	base := "/v1/sandboxes/" + sandbox + "/processes"
	body := map[string]any{"command": "sleep 1000"}
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, body, "Idempotency-Key", "k1")
	if again := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, body, "Idempotency-Key", "k1"); again.ID != made.ID || again.PID != made.PID {
		t.Errorf("the same key: %+v, then %+v", made, again)
	}
	f.problem(farm.CodeConflict, http.StatusConflict, "POST", base, map[string]any{"command": "sleep 1001"}, "Idempotency-Key", "k1")
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", base, body, "Idempotency-Key", "")
	for _, headers := range [][]string{{"Idempotency-Key", "k2"}, nil} {
		if other := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, body, headers...); other.ID == made.ID {
			t.Errorf("headers %q: the process of another key", headers)
		}
	}
	for range 2 { // it ends, and is forgotten
		get[wire.Process](f.bundle, http.StatusOK, "DELETE", base+"/"+made.ID, nil)
	}
	if after := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, body, "Idempotency-Key", "k1"); after.PID == made.PID {
		t.Errorf("a process that is not listed any more: %+v", after)
	}
}

func TestATerminalOverHTTP(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"argv": []string{"sh"}, "pty": map[string]int{"cols": 90, "rows": 30}})
	one := base + "/" + made.ID
	if got := get[wire.Process](f.bundle, http.StatusOK, "POST", one+"/resize", map[string]int{"cols": 120, "rows": 40}); got.PTY == nil || got.PTY.Cols != 120 {
		t.Errorf("%+v", got)
	}
	get[wire.Written](f.bundle, http.StatusOK, "POST", one+"/stdin", "stty size\n", "Content-Type", "application/octet-stream")
	_, events := f.stream(one, "")
	all := ""
	for !strings.Contains(all, "40 120\r\n") {
		all += *nextEvent(t, events).data.Text
	}
	if got := get[wire.Process](f.bundle, http.StatusOK, "POST", one+"/signal", map[string]string{"signal": "SIGKILL"}); got.ID != made.ID {
		t.Errorf("%+v", got)
	}
	for {
		if e := nextEvent(t, events); e.name == "exit" {
			if e.data.ExitCode != 137 {
				t.Errorf("%+v", e)
			}
			break
		}
	}
}

// A worker ends while events are read: they go on in the same stream through another worker, and nothing is lost or repeated.
func TestEventsGoOnThroughAnotherWorker(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, map[string]any{"command": "while read line; do echo $line; done", "stdin": true})
	one := base + "/" + made.ID
	_, events := f.stream(one, "")
	for i := range 5 {
		line := fmt.Sprintf("line %d\n", i)
		get[wire.Written](f.bundle, http.StatusOK, "POST", one+"/stdin", line, "Content-Type", "application/octet-stream")
		if text, _ := textUntil(t, events, line); text != line {
			t.Errorf("%q, want %q", text, line)
		}
		old := f.workers[len(f.workers)-1]
		f.worker(fmt.Sprintf("wrk_%d", i))
		old.Stop()
		// Input that is sent on a connection whose end has not been noticed may have arrived, so it is answered 503. A read is sent again, and
		// notices the end.
		get[wire.Process](f.bundle, http.StatusOK, "GET", one, nil)
	}
}

func TestProcessesAreRefused(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxProcesses = 3
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "acme", SHA256: hash("reader"), Scopes: []string{"read"}})
	})
	mine, other, reads := []string{"X-API-Key", key}, []string{"X-API-Key", otherKey}, []string{"X-API-Key", "reader"}
	box := f.sandbox(mine...)
	base := "/v1/sandboxes/" + box + "/processes"
	for name, body := range map[string]string{
		"Nothing": `{}`, "Both": `{"command":"true","argv":["true"]}`, "Empty": `{"command":""}`, "NoArgv": `{"argv":[]}`, "EmptyArgv": `{"argv":[""]}`,
		"NoProgram": `{"argv":["no-such-program"]}`, "NUL": `{"command":"a\u0000b"}`, "NULArgv": `{"argv":["a","b\u0000"]}`, "Cwd": `{"command":"true","cwd":"no/such"}`, "NULCwd": `{"command":"true","cwd":"\u0000"}`,
		"Env": `{"command":"true","env":{"1":"x"}}`, "Name": `{"command":"true","name":"a\u0007"}`,
		"PTY0": `{"command":"true","pty":{"cols":0,"rows":0}}`, "PTY60000": `{"command":"true","pty":{"cols":60000,"rows":60000}}`, "PTY1001": `{"command":"true","pty":{"cols":80,"rows":1001}}`,
		"Restart": `{"command":"true","restart":"always"}`, "RestartNumber": `{"command":"true","restart":"1"}`,
		"Timeout0": `{"command":"true","timeout_seconds":0}`, "TimeoutLong": `{"command":"true","timeout_seconds":86401}`,
		"Hangup0": `{"command":"true","hangup_seconds":0}`,
	} {
		if p := f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", base, body, mine...); len(p.Detail) < 10 {
			t.Errorf("%s: %q", name, p.Detail)
		}
	}
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", base, `{"command":`, mine...)
	f.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", base, `{"comand":"true"}`, mine...)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "POST", base, `{"command":"true"}`, other...)
	f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", base, nil, other...)
	f.problem(farm.CodeUnauthorized, http.StatusForbidden, "POST", base, `{"command":"true"}`, reads...)
	if got := get[wire.Processes](f.bundle, http.StatusOK, "GET", base, nil, reads...); len(got.Items) != 0 {
		t.Errorf("%+v", got)
	}
	var made wire.Process
	for range 3 {
		made = get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"sleep 100"}`, mine...)
	}
	for range 3 {
		f.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", base, `{"command":"sleep 100"}`, mine...)
	}
	one := base + "/" + made.ID
	for _, path := range []string{"/processes/x", "/processes/" + farm.NewID(farm.ProcessPrefix), "/processes/" + farm.NewID(farm.ProcessPrefix) + "/events"} {
		f.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/sandboxes/"+box+path, nil, mine...)
	}
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", one+"/signal", `{"signal":"SIGNONE"}`, mine...)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", one+"/resize", `{"cols":0,"rows":10}`, mine...)
	f.problem(farm.CodeConflict, http.StatusConflict, "POST", one+"/resize", `{"cols":10,"rows":10}`, mine...)
	f.problem(farm.CodeConflict, http.StatusConflict, "POST", one+"/stdin", "x", append(mine, "Content-Type", "application/octet-stream")...)
	f.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", one+"/events?after=x", nil, mine...)
	_, err := f.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: "acme", ID: box}, To: farm.SandboxClosing})
	testbed.Must(t, err)
	f.problem(farm.CodeConflict, http.StatusConflict, "POST", base, `{"command":"true"}`, mine...)
	f.problem(farm.CodeConflict, http.StatusConflict, "GET", one+"/events", nil, mine...)
}

// Without a worker that can be reached, and in a farm without a live path, requests are 503.
func TestProcessesWithoutAWorker(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	base := "/v1/sandboxes/" + f.sandbox() + "/processes"
	f.workers[0].Stop()
	f.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "POST", base, `{"command":"true"}`)
	plain := setup(t)
	plain.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "GET", "/v1/sandboxes/"+plain.sandbox()+"/processes", nil)
}

func TestTheAuditNamesProcesses(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	base := "/v1/sandboxes/" + box + "/processes"
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", base, `{"command":"cat","stdin":true}`)
	one := base + "/" + made.ID
	f.do("POST", one+"/stdin", "secret text\n", "Content-Type", "application/octet-stream")
	f.do("POST", one+"/signal", `{"signal":"SIGTERM"}`)
	f.do("DELETE", one, nil)
	want := "DELETE /v1/sandboxes/:id/processes/:process 200, POST /v1/sandboxes/:id/processes/:process/signal 200, POST /v1/sandboxes/:id/processes 201"
	var got string
	for deadline := time.Now().Add(time.Minute); got != want && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		entries, _, err := f.store.Audit(t.Context(), "", store.TimeRange{}, store.Page{Limit: 10})
		testbed.Must(t, err)
		var routes []string
		for _, e := range entries {
			if e.Subject == made.ID && e.SandboxID == box {
				routes = append(routes, fmt.Sprint(e.Route, " ", e.Status))
			}
		}
		got = strings.Join(routes, ", ")
	}
	if got != want || strings.Contains(f.log.String(), "secret text") {
		t.Errorf("%s\nwant %s", got, want)
	}
}
