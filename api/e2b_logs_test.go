package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// e2bLine is a line of a log.
type e2bLine struct {
	Timestamp      time.Time
	Level, Message string
	Fields         map[string]string
}

// e2bLogs reads a log by the newer route.
func (f *liveFarm) e2bLogs(box, query string) (out []e2bLine) {
	f.t.Helper()
	return get[struct{ Logs []e2bLine }](f.bundle, http.StatusOK, "GET", "/e2b/v2/sandboxes/"+e2b.ShownID(box)+"/logs"+query, nil, "X-API-KEY", key).Logs
}

func messages(lines []e2bLine) (out []string) {
	for _, l := range lines {
		out = append(out, l.Level+" "+l.Fields["logger"]+": "+l.Message)
	}
	return out
}

func TestE2BLogs(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys)
	bearer := []string{"Authorization", "Bearer " + key}
	box := f.sandbox(bearer...)
	get[wire.Job](f.bundle, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"print(1)"}`, bearer...)
	made := get[wire.Process](f.bundle, http.StatusCreated, "POST", "/v1/sandboxes/"+box+"/processes", `{"command":"exit 3","name":"server"}`, bearer...)
	var all []e2bLine
	testbed.Until(t, "the end of the process", func() bool {
		all = f.e2bLogs(box, "")
		return strings.Contains(fmt.Sprint(messages(all)), "The process ended.")
	})
	want := []string{
		"info job: The job create started.", "info job: The job create is completed.", "info job: The job execute started.", "info job: The job execute is completed.",
		"info process: The process started.", "info process: The process ended.",
	}
	if got := messages(all); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
	if end := all[len(all)-1].Fields; end["exit_code"] != "3" || end["process_id"] != made.ID || end["command"] != "exit 3" || end["name"] != "server" {
		t.Errorf("the process ended with %v", end)
	}
	third := all[2].Timestamp.UnixMilli()
	for query, count := range map[string]int{
		"?limit=1": 1, "?limit=0": 0, "?limit=1000": 6, "?level=info": 6, "?level=error": 0, "?search=process": 2, "?search=" + url.QueryEscape(strings.Repeat("x", 256)): 0,
		"?cursor=0": 6, "?cursor=9007199254740991": 0, "?direction=backward&cursor=0": 0,
	} {
		if got := f.e2bLogs(box, query); len(got) != count {
			t.Errorf("%s: %d lines, want %d", query, len(got), count)
		}
	}
	for _, l := range f.e2bLogs(box, fmt.Sprintf("?cursor=%d", third)) {
		if l.Timestamp.UnixMilli() < third {
			t.Errorf("from %d: %+v", third, l)
		}
	}
	for _, l := range f.e2bLogs(box, fmt.Sprintf("?direction=backward&cursor=%d", third)) {
		if l.Timestamp.UnixMilli() >= third {
			t.Errorf("before %d: %+v", third, l)
		}
	}
	if back := f.e2bLogs(box, "?direction=backward&limit=1"); len(back) != 1 || back[0].Message != "The process ended." {
		t.Errorf("backward: %+v", back)
	}
	old := get[struct {
		Logs []struct {
			Timestamp time.Time
			Line      string
		}
		LogEntries []e2bLine
	}](f.bundle, http.StatusOK, "GET", "/e2b/sandboxes/"+e2b.ShownID(box)+"/logs?start="+fmt.Sprint(all[5].Timestamp.UnixMilli())+"&limit=1000", nil, "X-API-KEY", key)
	var line map[string]string
	if n := len(old.Logs); n == 0 || len(old.LogEntries) != n || json.Unmarshal([]byte(old.Logs[n-1].Line), &line) != nil || line["level"] != "info" || line["logger"] != "process" || line["message"] != "The process ended." {
		t.Errorf("the older route: %+v", old)
	}
	at := "/e2b/v2/sandboxes/" + e2b.ShownID(box) + "/logs"
	for query, words := range map[string]string{
		"?limit=1001": "limit", "?limit=-1": "limit", "?limit=x": "limit", "?cursor=-1": "cursor", "?cursor=9007199254740992": "cursor", "?direction=up": "direction", "?level=loud": "level",
		"?search=" + strings.Repeat("x", 257): "search",
	} {
		f.e2bFailure(http.StatusBadRequest, words, "GET", at+query, nil, "X-API-KEY", key)
	}
	if answer, _ := f.do("DELETE", "/e2b/sandboxes/"+e2b.ShownID(box), nil, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("kill: %d", answer.StatusCode)
	}
	testbed.Until(t, "the line of the end", func() bool {
		return strings.Contains(fmt.Sprint(messages(f.e2bLogs(box, "?direction=backward"))), "info sandbox: The sandbox is closed.")
	})
}

// Each page of jobs that a log reads beyond the first counts as a request.
func TestE2BLogsCountTheirPages(t *testing.T) {
	t.Parallel()
	const page, rate = 200, 100
	f := setupLive(t, withKeys)
	box := f.sandbox("Authorization", "Bearer "+key) // its create is a job, too
	begin, used := f.counting(rate)
	jobs := 1
	for _, c := range []struct{ jobs, requests int }{{page - 1, 1}, {page + 1, 2}, {2*page + 1, 3}} {
		for ; jobs < c.jobs; jobs++ {
			_, err := f.store.Accept(t.Context(), storetest.Execute(box))
			testbed.Must(t, err)
		}
		begin(rate)
		f.e2bLogs(box, "")
		if got := used(); got != c.requests {
			t.Errorf("a log of %d jobs counts as %d requests, want %d", jobs, got, c.requests)
		}
	}
}

// SDKs without a URL for all sandboxes reach a sandbox at hosts below the domain of the answer to its create.
func TestE2BHosts(t *testing.T) {
	t.Parallel()
	f := setupLive(t, withKeys, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = "preview.example.com" })
	box, port := f.sandbox("Authorization", "Bearer "+key), guest(t, func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	id := e2b.ShownID(box)
	made := get[struct{ Domain, EnvdAccessToken, TrafficAccessToken string }](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+id+"/connect", `{}`, "X-API-KEY", key)
	if made.Domain != "preview.example.com" {
		t.Fatalf("domain %q", made.Domain)
	}
	at := func(port, method, target string, headers ...string) (int, string) {
		answer, text := f.do(method, target, nil, append([]string{"Host", port + "-" + id + "." + made.Domain}, headers...)...)
		return answer.StatusCode, string(text)
	}
	access, traffic := []string{"X-Access-Token", made.EnvdAccessToken}, []string{"E2b-Traffic-Access-Token", made.TrafficAccessToken}
	other := f.sandbox("Authorization", "Bearer "+key)
	foreign := get[struct{ EnvdAccessToken, TrafficAccessToken string }](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+e2b.ShownID(other)+"/connect", `{}`, "X-API-KEY", key)
	for name, c := range map[string]struct {
		port, target string
		headers      []string
		want         int
	}{
		"envd":                          {e2b.EnvdPort, "/health", access, http.StatusNoContent},
		"envd without a token":          {e2b.EnvdPort, "/health", nil, http.StatusUnauthorized},
		"envd for traffic":              {e2b.EnvdPort, "/health", traffic, http.StatusUnauthorized},
		"envd of another sandbox":       {e2b.EnvdPort, "/health", []string{"X-Access-Token", foreign.EnvdAccessToken}, http.StatusUnauthorized},
		"a route of the farm":           {e2b.EnvdPort, "/v1/sandboxes", []string{"Authorization", "Bearer " + key}, http.StatusNotFound},
		"control":                       {e2b.EnvdPort, "/sandboxes/" + id, []string{"X-API-KEY", key}, http.StatusNotFound},
		"the interpreter":               {e2b.InterpreterPort, "/contexts", traffic, http.StatusOK},
		"its health":                    {e2b.InterpreterPort, "/health", access, http.StatusOK},
		"its health, for traffic":       {e2b.InterpreterPort, "/health", traffic, http.StatusUnauthorized},
		"the interpreter, no token":     {e2b.InterpreterPort, "/health", nil, http.StatusUnauthorized},
		"a port":                        {port, "/", traffic, http.StatusOK},
		"a port by the other token":     {port, "/", access, http.StatusOK},
		"a port without a token":        {port, "/", nil, http.StatusUnauthorized},
		"a port of another sandbox":     {port, "/", []string{"E2b-Traffic-Access-Token", foreign.TrafficAccessToken}, http.StatusUnauthorized},
		"another one named by a header": {port, "/", []string{"E2b-Sandbox-Id", e2b.ShownID(other), "E2b-Traffic-Access-Token", foreign.TrafficAccessToken}, http.StatusUnauthorized},
	} {
		if got, text := at(c.port, "GET", c.target, c.headers...); got != c.want {
			t.Errorf("%s: %d %s", name, got, text)
		}
	}
	_, text := at(port, "GET", "/")
	if !strings.Contains(text, e2b.HeaderTraffic) {
		t.Errorf("without a token: %s", text)
	}
	_, text = at(port, "GET", "/", append(traffic, "X-Access-Token", "the server's own")...)
	if strings.Contains(text, made.TrafficAccessToken) || !strings.Contains(text, "the server's own") {
		t.Errorf("the server got %s", text)
	}
	if _, text := at(port, "GET", "/", append(traffic, access...)...); strings.Contains(text, made.EnvdAccessToken) {
		t.Errorf("the server got %s", text)
	}
	f.do("DELETE", "/e2b/sandboxes/"+id, nil, "X-API-KEY", key)
	for _, port := range []string{e2b.EnvdPort, port} {
		if got, text := at(port, "GET", "/health", access...); got != http.StatusBadGateway || !strings.Contains(text, "was not found") {
			t.Errorf("after its end: %d %s", got, text)
		}
	}
}
