package api_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/e2b/envd"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// e2bControl are the control routes of one sandbox.
func e2bControl(id string) [][2]string {
	at := "/e2b/sandboxes/" + id
	return [][2]string{
		{"GET", at},
		{"DELETE", at},
		{"POST", at + "/timeout"},
		{"POST", at + "/pause"},
		{"POST", at + "/connect"},
		{"GET", "/e2b/v2/sandboxes/" + id + "/logs"},
		{"GET", at + "/logs"},
		{"POST", "/e2b/v2/sandboxes/" + id + "/connect"},
		{"GET", at + "/metrics"},
	}
}

// e2bData are the routes of the data plane.
func e2bData() [][2]string {
	all := [][2]string{
		{"GET", "/e2b/health"},
		{"GET", "/e2b/files"},
		{"POST", "/e2b/files"},
		{"GET", "/files"},
		{"POST", "/files"},
		{"POST", "/e2b/execute"},
		{"POST", "/e2b/contexts"},
		{"GET", "/e2b/contexts"},
		{"DELETE", "/e2b/contexts/x"},
		{"POST", "/e2b/contexts/x/restart"},
	}
	for procedure := range e2b.Procedures() {
		all = append(all, [2]string{"POST", "/e2b" + procedure})
	}
	return all
}

// A key of another tenant finds no sandbox by any route, and one that is none gets nowhere.
func TestE2BKeysOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	made := b.e2bSandbox(key)
	for _, r := range e2bControl(made.SandboxID) {
		b.e2bFailure(http.StatusNotFound, "no sandbox", r[0], r[1], `{"timeout":60}`, "X-API-KEY", otherKey)
		for _, bad := range []string{"", " ", "e2b_", "e2b_zz", "e2b_00", wire.E2BKey("unknown"), key + "x", made.EnvdAccessToken, strings.Repeat("k", 8<<10)} {
			b.e2bFailure(http.StatusUnauthorized, "API key", r[0], r[1], `{"timeout":60}`, "X-API-KEY", bad)
		}
	}
	if list := get[[]e2bMade](b, http.StatusOK, "GET", "/e2b/v2/sandboxes", nil, "X-API-KEY", otherKey); len(list) != 0 {
		t.Errorf("another tenant lists %+v", list)
	}
	if answer, _ := b.do("GET", "/e2b/sandboxes/"+made.SandboxID, nil, "X-API-KEY", key); answer.StatusCode != http.StatusOK {
		t.Errorf("its own tenant: %d", answer.StatusCode)
	}
}

// No route of the data plane serves who has no token of this very sandbox.
func TestE2BTokensOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine, foreign := b.e2bSandbox(key), b.e2bSandbox(otherKey)
	for _, r := range e2bData() {
		for _, port := range []string{e2b.EnvdPort, e2b.InterpreterPort, "80", "x", ""} {
			for name, headers := range map[string][]string{
				"none":       nil,
				"foreign":    {"X-Access-Token", foreign.EnvdAccessToken, "E2b-Traffic-Access-Token", foreign.TrafficAccessToken},
				"an API key": {"X-API-KEY", key, "X-Access-Token", key},
				"long":       {"X-Access-Token", strings.Repeat("a", 4<<10) + "." + strings.Repeat("b", 4<<10)},
				"empty":      {"X-Access-Token", ".", "E2b-Traffic-Access-Token", ""},
			} {
				answer, text := b.do(r[0], r[1], `{}`, append(headers, "E2b-Sandbox-Id", mine.SandboxID, "E2b-Sandbox-Port", port, "Content-Type", "application/json")...)
				var out struct{ Code int }
				if err := json.Unmarshal(text, &out); err != nil || answer.StatusCode != http.StatusUnauthorized || out.Code != http.StatusUnauthorized {
					t.Errorf("%s %s at port %q, token %s: %d %s", r[0], r[1], port, name, answer.StatusCode, text)
				}
			}
		}
	}
}

// The route decides what a traffic token opens, whatever port a request names: no files, no processes, no health. Port 49999 has the routes of
// the code interpreter only.
func TestE2BTrafficTokenIsNoAccessToken(t *testing.T) {
	t.Parallel()
	f := setupLiveAgent(t, agenttest.StartWithFiles(t), withKeys, func(c *api.Config, _ *api.Deps) { c.PreviewDomain = "preview.example.com" })
	id := e2b.ShownID(f.sandbox("Authorization", "Bearer "+key))
	made := get[e2bMade](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+id+"/connect", `{}`, "X-API-KEY", key)
	interprets := func(path string) bool {
		return strings.HasPrefix(path, "/execute") || strings.HasPrefix(path, "/contexts")
	}
	for _, r := range e2bData() {
		path := strings.TrimPrefix(r[1], "/e2b")
		for name, at := range map[string][]string{
			"no port":            {"E2b-Sandbox-Id", id},
			"port of envd":       {"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", e2b.EnvdPort},
			"port 49999":         {"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", e2b.InterpreterPort},
			"another port":       {"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "8080"},
			"host of envd":       {"Host", e2b.EnvdPort + "-" + id + ".preview.example.com"},
			"host of port 49999": {"Host", e2b.InterpreterPort + "-" + id + ".preview.example.com"},
		} {
			target := r[1]
			if at[0] == "Host" {
				target = path
			}
			call := func(header, token string) (int, string) {
				answer, text := f.do(r[0], target, `{}`, append(at, header, token, "Content-Type", "application/json")...)
				return answer.StatusCode, string(text)
			}
			for _, header := range []string{"E2b-Traffic-Access-Token", "X-Access-Token"} {
				if got, text := call(header, made.TrafficAccessToken); (got == http.StatusUnauthorized) == interprets(path) {
					t.Errorf("%s %s, %s, the traffic token in %s: %d %s", r[0], target, name, header, got, text)
				}
			}
			got, text := call("X-Access-Token", made.EnvdAccessToken)
			if elsewhere := strings.HasSuffix(name, "49999") && !interprets(path) && path != "/health"; strings.Contains(text, "no such path") != elsewhere || got == http.StatusUnauthorized {
				t.Errorf("%s %s, %s, the access token: %d %s", r[0], target, name, got, text)
			}
		}
	}
}

// e2bBox is a sandbox of a farm with files, and the headers of requests to its envd.
func e2bBox(t *testing.T, options ...option) (f *liveFarm, dir string, headers []string) {
	t.Helper()
	f = setupLiveAgent(t, agenttest.StartWithFiles(t), append(options, withKeys)...)
	id := e2b.ShownID(f.sandbox("Authorization", "Bearer "+key))
	made := get[e2bMade](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+id+"/connect", `{}`, "X-API-KEY", key)
	return f, t.TempDir(), []string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", e2b.EnvdPort, "X-Access-Token", made.EnvdAccessToken}
}

// rpc makes a unary call. The error is the code of Connect, with its message.
func (f *liveFarm) rpc(procedure string, in any, headers []string) (map[string]any, string) {
	f.t.Helper()
	answer, text := f.do("POST", "/e2b"+procedure, in, append([]string{"Content-Type", "application/json"}, headers...)...)
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		f.t.Fatalf("%s: %d %s", procedure, answer.StatusCode, text)
	}
	if answer.StatusCode != http.StatusOK {
		return out, fmt.Sprint(out["code"], ": ", out["message"])
	}
	return out, ""
}

// envelope is a message of a stream.
func envelope(content string) string {
	return "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(content)))) + content
}

// streamed sends a body to a call with streams, and gives the status and the error of its last message.
func (f *liveFarm) streamed(procedure string, body any, headers []string) (int, string) {
	f.t.Helper()
	answer, text := f.do("POST", "/e2b"+procedure, body, append([]string{"Content-Type", "application/connect+json"}, headers...)...)
	for at := text; answer.StatusCode == http.StatusOK && len(at) >= 5; {
		size := 5 + int(binary.BigEndian.Uint32(at[1:5]))
		if at[0] == 2 {
			return answer.StatusCode, string(at[5:size])
		}
		at = at[size:]
	}
	return answer.StatusCode, string(text)
}

// cut sends text and leaves.
func (f *liveFarm) cut(text string) {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.web.URL, "http://"))
	testbed.Must(f.t, err)
	_, err = io.WriteString(conn, text)
	testbed.Must(f.t, err)
	testbed.Must(f.t, conn.Close())
}

const (
	startProcess = "/process.Process/Start"
	streamInput  = "/process.Process/StreamInput"
)

// The streams of a sandbox that is killed end with an error of which the SDKs make a time-out.
func TestE2BStreamsOfASandboxThatIsKilled(t *testing.T) {
	t.Parallel()
	f, dir, headers := e2bBox(t)
	id := headers[1]
	var streams []io.Reader
	for procedure, message := range map[string]string{
		startProcess:                      `{"process":{"cmd":"sleep","args":["600"]}}`,
		"/filesystem.Filesystem/WatchDir": `{"path":"` + dir + `"}`,
	} {
		streams = append(streams, e2bStream(t, f.web.URL, procedure, message, headers))
	}
	if answer, text := f.do("DELETE", "/e2b/sandboxes/"+id, nil, "X-API-KEY", key); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("%d %s", answer.StatusCode, text)
	}
	if answer, text := f.do("GET", "/e2b/health", nil, headers...); answer.StatusCode != http.StatusBadGateway {
		t.Errorf("health: %d %s", answer.StatusCode, text)
	}
	f.workers[0].Stop()
	for _, stream := range streams {
		text, err := io.ReadAll(stream)
		if err != nil || !strings.Contains(string(text), `"unavailable","message":"The sandbox was not found: the sandbox was killed`) {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// Messages that are not what they say are refused with Connect's codes.
func TestE2BMalformedMessages(t *testing.T) {
	t.Parallel()
	f, _, headers := e2bBox(t)
	for name, c := range map[string]struct{ procedure, body, want string }{
		"nothing":                 {startProcess, "", `"code":"`},
		"no envelope":             {startProcess, "{}", `"code":"`},
		"an envelope cut off":     {startProcess, envelope(`{"process":{"cmd":"/bin/true"}}`)[:20], `"invalid_argument"`},
		"a length cut off":        {startProcess, "\x00\x00", `"code":"`},
		"no JSON":                 {startProcess, envelope(`{`), `"invalid_argument"`},
		"another type":            {startProcess, envelope(`{"process":7}`), `"invalid_argument"`},
		"no program":              {startProcess, envelope(`{}`), `"invalid_argument"`},
		"packed":                  {startProcess, "\x01" + envelope(`{}`)[1:], `"code":"`},
		"100 MB, which never end": {startProcess, "\x00\x06\x40\x00\x00{", `"code":"`},
		"input of no process":     {streamInput, envelope(`{"data":{"input":{"stdin":"eA=="}}}`), `"invalid_argument"`},
		"input cut off":           {streamInput, envelope(`{"start":{}}`) + envelope(`{"start":{}}`)[:9], `"code":"`},
		"input of 100 MB":         {streamInput, "\x00\x06\x40\x00\x00{", `"resource_exhausted"`},
	} {
		if status, got := f.streamed(c.procedure, c.body, headers); status != http.StatusOK || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	if text := f.log.String(); strings.Contains(text, "panicked") {
		t.Errorf("a handler panicked: %s", text)
	}
}

// A caller who leaves in the middle of a message leaves nothing behind: the sandbox serves others.
func TestE2BStreamsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	f, _, headers := e2bBox(t)
	head := "Host: farm\r\nContent-Type: application/connect+json\r\n"
	for i := 0; i < len(headers); i += 2 {
		head += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	message := envelope(`{"process":{"cmd":"/bin/sh","args":["-c","echo started"]}}`)
	for _, cut := range []int{0, 1, 5, 6, len(message) - 1} {
		for _, procedure := range []string{startProcess, streamInput} {
			f.cut(fmt.Sprintf("POST /e2b%s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", procedure, head, len(message), message[:cut]))
			f.cut(fmt.Sprintf("POST /e2b%s HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", procedure, head, len(message), message[:cut]))
		}
	}
	if out, failed := f.rpc("/process.Process/List", map[string]any{}, headers); failed != "" || out["processes"] != nil {
		t.Errorf("%v %s", out, failed)
	}
	if text := f.log.String(); strings.Contains(text, "panicked") {
		t.Errorf("a handler panicked: %s", text)
	}
}

// One message of a stream of input has a limit, however many follow.
func TestE2BMessagesAtTheirLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	f, _, headers := e2bBox(t)
	for extra, want := range map[int]string{-1: "not found", 0: "not found", 1: "resource_exhausted"} {
		message := `{"start":{"process":{"pid":4000000000}},"x":"`
		message += strings.Repeat("x", limit+extra-len(message)-2) + `"}`
		if status, got := f.streamed(streamInput, envelope(message), headers); status != http.StatusOK || !strings.Contains(got, want) {
			t.Errorf("%d bytes: %d %.200s", len(message), status, got)
		}
	}
}

// A body has the farm's limit, and what is beyond it is not read.
func TestE2BBodiesAtTheirLimit(t *testing.T) {
	t.Parallel()
	const limit = 20_000
	f, _, headers := e2bBox(t, func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxBodyBytes, c.Limits.MaxCodeBytes, c.Limits.MaxInputBytes = limit, 1000, 1000
	})
	fill := func(begin string, size int) string { return begin + strings.Repeat(" ", size-len(begin)-1) + "}" }
	for extra, fits := range map[int]bool{-1: true, 0: true, 1: false} {
		if out, failed := f.rpc("/process.Process/List", fill("{", limit+extra), headers); (failed == "") != fits || !fits && fmt.Sprint(out["code"]) != "413" {
			t.Errorf("%d bytes of a call: %v", limit+extra, out)
		}
		if !fits {
			f.e2bFailure(http.StatusRequestEntityTooLarge, "", "POST", "/e2b/v2/sandboxes", fill(`{"templateID":"base"`, limit+extra), "X-API-KEY", key)
			f.e2bFailure(http.StatusRequestEntityTooLarge, "", "POST", "/e2b/execute", fill(`{"code":""`, limit+extra), headers...)
			continue
		}
		get[e2bMade](f.bundle, http.StatusCreated, "POST", "/e2b/v2/sandboxes", fill(`{"templateID":"base"`, limit+extra), "X-API-KEY", key)
	}
	endless := io.LimitReader(endlessly{}, 100<<20)
	if status, got := f.streamed(startProcess, endless, headers); status != http.StatusRequestEntityTooLarge {
		t.Errorf("100 MB: %d %.200s", status, got)
	}
}

func TestE2BBodiesOfTooManyValuesAreRefused(t *testing.T) {
	t.Parallel()
	f, _, headers := e2bBox(t)
	const large = http.StatusRequestEntityTooLarge
	many := "[1" + strings.Repeat(",1", farm.MaxBodyValues) + "]"
	f.e2bFailure(large, "", "POST", "/e2b/v2/sandboxes", `{"templateID":"base","volumeMounts":`+many+`}`, "X-API-KEY", key)
	f.e2bFailure(large, "", "POST", "/e2b/execute", `{"code":"1","x":`+many+`}`, headers...)
	if out, _ := f.rpc("/filesystem.Filesystem/Stat", `{"path":"/","x":`+many+`}`, headers); fmt.Sprint(out["code"]) != "413" {
		t.Errorf("a call: %v", out)
	}
	call := `{"process":{"cmd":"true","args":["a"` + strings.Repeat(`,"a"`, farm.MaxBodyValues) + `]}}`
	call += strings.Repeat(" ", 256-(len(call)-'"')%256) // a quotation mark in its length must not hide what follows
	message, err := proto.Marshal(&envd.StartRequest{Process: &envd.ProcessConfig{Cmd: "true", Args: make([]string, farm.MaxBodyValues)}})
	if err != nil {
		t.Fatal(err)
	}
	for kind, body := range map[string]string{"application/connect+json": call, "application/connect+proto": string(message)} {
		answer, text := f.do("POST", "/e2b"+envd.ProcessStartProcedure, envelope(body), append([]string{"Content-Type", kind, "Connect-Protocol-Version", "1"}, headers...)...)
		if answer.StatusCode != large {
			t.Errorf("%s: %d %.200s", kind, answer.StatusCode, text)
		}
	}
}

// endlessly is a reader of spaces.
type endlessly struct{}

func (endlessly) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{' '}, len(p))), nil }

// e2bStream calls a procedure that answers with a stream, and returns when its start is sent.
func e2bStream(t *testing.T, address, procedure, message string, headers []string) io.ReadCloser {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/e2b"+procedure, strings.NewReader(envelope(message)))
	testbed.Must(t, err)
	request.Header.Set("Content-Type", "application/connect+json")
	for n := 0; n < len(headers); n += 2 {
		request.Header.Set(headers[n], headers[n+1])
	}
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer.Body
}

// e2bMessages reads the messages of a stream.
func e2bMessages(stream io.Reader) *bufio.Scanner {
	messages := bufio.NewScanner(stream)
	messages.Split(func(data []byte, _ bool) (int, []byte, error) {
		if len(data) < 5 || len(data) < 5+int(binary.BigEndian.Uint32(data[1:5])) {
			return 0, nil, nil
		}
		size := 5 + int(binary.BigEndian.Uint32(data[1:5]))
		return size, data[5:size], nil
	})
	return messages
}

// counting limits the requests of acme to a rate. begin starts another minute, with so many left of it; used returns how many of these were made, and
// takes the others.
func (f *liveFarm) counting(rate int) (begin func(left int), used func() int) {
	f.t.Helper()
	answer := f.asOperator("PUT", "/v1/tenants/acme", map[string]int{"requests_per_minute": rate})
	testbed.Require(f.t, answer.Code == http.StatusOK, "%d %s", answer.Code, answer.Body)
	quotas, now, whole := farm.DefaultQuotas(), time.Now(), rate
	quotas.RequestsPerMinute = rate
	begin = func(left int) {
		now, whole = now.Add(time.Hour), left
		f.redis.SetTime(now)
		_, _ = f.store.AdmitMore(f.t.Context(), "acme", rate-left, quotas)
	}
	used = func() int {
		left, _ := f.store.AdmitMore(f.t.Context(), "acme", rate, quotas)
		return whole - left
	}
	return begin, used
}

// Calls to the sandbox for the entries of an answer count against requests_per_minute, each twenty as one: those of a list, and those of a stream of changes.
func TestE2BCallsForEntriesCountAsRequests(t *testing.T) {
	t.Parallel()
	const calls, rate = 20, 100
	f, dir, headers := e2bBox(t)
	begin, used := f.counting(rate)
	links := ""
	for outside, want := range map[int]int{calls - 1: 1, calls: 1, calls + 1: 2, 2 * calls: 2, 2*calls + 1: 3} {
		links = filepath.Join(dir, fmt.Sprint("links", outside))
		testbed.Must(t, os.Mkdir(links, 0o700))
		for n := range outside {
			testbed.Must(t, os.Symlink(fmt.Sprint("../missing", n), filepath.Join(links, fmt.Sprint(n))))
		}
		begin(rate)
		if _, failed := f.rpc("/filesystem.Filesystem/ListDir", map[string]any{"path": links}, headers); failed != "" || used() != want {
			t.Errorf("%d files outside: not %d requests, or %s", outside, want, failed)
		}
	}
	watched := filepath.Join(dir, "watched")
	testbed.Must(t, os.Mkdir(watched, 0o700))
	begin(rate)
	events := e2bMessages(e2bStream(t, f.web.URL, "/filesystem.Filesystem/WatchDir", `{"path":"`+watched+`","includeEntry":true}`, headers))
	for n := range calls + 1 {
		testbed.Must(t, os.Mkdir(filepath.Join(watched, fmt.Sprint(n)), 0o700)) // each is an answer of its own
		for events.Scan() && !strings.Contains(events.Text(), "EVENT_TYPE_CREATE") {
		}
		testbed.Check(t, strings.Contains(events.Text(), "FILE_TYPE_DIRECTORY"), "change %d has no entry: %s", n, events.Text())
	}
	if got := used(); got != 2 {
		t.Errorf("a stream with %d entries: %d requests", calls+1, got)
	}
	links = filepath.Join(dir, fmt.Sprint("links", calls+1))
	begin(1)
	if _, failed := f.rpc("/filesystem.Filesystem/ListDir", map[string]any{"path": links}, headers); !strings.HasPrefix(failed, "resource_exhausted") || !strings.Contains(failed, "requests_per_minute") {
		t.Errorf("beyond the quota: %s", failed)
	}
}

// So do the files of an upload. One that goes beyond the quota ends there.
func TestE2BFilesOfAnUploadCountAsRequests(t *testing.T) {
	t.Parallel()
	const calls, rate = 20, 100
	f, dir, headers := e2bBox(t)
	begin, used := f.counting(rate)
	upload := func(n, left int) (status int, written []os.DirEntry) {
		begin(left)
		to, body := filepath.Join(dir, fmt.Sprint(n, left)), &bytes.Buffer{}
		form := multipart.NewWriter(body)
		for i := range n {
			_, err := form.CreateFormFile("file", filepath.Join(to, fmt.Sprint(i)))
			testbed.Must(t, err)
		}
		_ = form.Close()
		answer, _ := f.do("POST", "/e2b/files", body.String(), append([]string{"Content-Type", form.FormDataContentType()}, headers...)...)
		written, _ = os.ReadDir(to)
		return answer.StatusCode, written
	}
	for files, want := range map[int]int{calls - 1: 1, calls: 1, calls + 1: 2, 2 * calls: 2, 2*calls + 1: 3} {
		status, written := upload(files, rate)
		if got := used(); status != http.StatusOK || len(written) != files || got != want {
			t.Errorf("%d files: %d, %d are written, and %d requests counted, want %d", files, status, len(written), got, want)
		}
	}
	if status, written := upload(2*calls, 1); status != http.StatusTooManyRequests || len(written) != calls {
		t.Errorf("beyond the quota: %d, and %d files are written", status, len(written))
	}
}

// So do messages of a stream of input: each is a call to the sandbox.
func TestE2BMessagesOfAStreamCountAsRequests(t *testing.T) {
	t.Parallel()
	const messages, rate = 20, 100
	f, _, headers := e2bBox(t)
	begin, used := f.counting(rate)
	for sent, want := range map[int]int{messages - 1: 1, messages: 1, messages + 1: 2} {
		begin(rate)
		if status, got := f.streamed(streamInput, strings.Repeat(envelope(`{"keepalive":{}}`), sent), headers); status != http.StatusOK || strings.Contains(got, "error") {
			t.Errorf("%d messages: %d %s", sent, status, got)
		}
		if got := used(); got != want {
			t.Errorf("%d messages count as %d requests, want %d", sent, got, want)
		}
	}
}
