package engineproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engineproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Containers of the fake engine.
var (
	ours   = strings.Repeat("a", 64)
	theirs = strings.Repeat("b", 64)
	helper = strings.Repeat("c", 64)
	builds = strings.Repeat("d", 64)
	execID = strings.Repeat("e", 64)
)

// fakeEngine answers like an engine with a container of the farm "farm", one of another program, a helper, and one whose network a build shares.
type fakeEngine struct {
	*httptest.Server

	mu   sync.Mutex
	seen []string // method, path and query
	body []string
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	f := &fakeEngine{}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.seen, f.body = append(f.seen, r.Method+" "+r.RequestURI), append(f.body, string(body))
	f.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/v1.41")
	w.Header().Set("Api-Version", "1.41")
	describe := func(id, namespace, role string) {
		_, _ = fmt.Fprintf(w, `{"Id":%q,"Config":{"Labels":{"sandfarm.namespace":%q,"sandfarm.role":%q}},"HostConfig":{},"State":{"Running":true,"Pid":7}}`, id, namespace, role)
	}
	switch {
	case path == "/exec/"+execID+"/start":
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "tcp")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.Copy(conn, rw) // an echo until the end of the input,
		_, _ = io.WriteString(conn, "bye")
	case path == "/info":
		_, _ = io.WriteString(w, `{"NCPU":4,"MemoryLimit":true,"PidsLimit":true,"CpuCfsQuota":true,"HttpProxy":"http://user:secret@proxy","Runtimes":{"runc":{}},"ID":"X"}`)
	case path == "/containers/json":
		_, _ = fmt.Fprintf(w, `[{"Id":%q,"Labels":{"sandfarm.namespace":"farm","x":"ours"}},{"Id":%q,"Names":["/secret"],"Labels":{"sandfarm.namespace":"other","sandfarm.uid":"20001","x":"secret"}}]`, ours, theirs)
	case path == "/volumes" && r.Method == http.MethodGet:
		_, _ = io.WriteString(w, `{"Volumes":[{"Name":"farm-node","Labels":{"sandfarm.namespace":"farm"}},{"Name":"secret","Labels":null}],"Warnings":["secret"]}`)
	case path == "/images/json":
		_, _ = io.WriteString(w, `[{"Id":"1","Labels":{"sandfarm.image":"python"}},{"Id":"secret","Labels":null}]`)
	case path == "/containers/"+ours+"/json", path == "/containers/farm-sbx_1/json":
		describe(ours, "farm", "sandbox")
	case path == "/containers/"+helper+"/json":
		describe(helper, "farm", "helper")
	case path == "/containers/"+builds+"/json":
		describe(builds, "farm", "build")
	case strings.HasPrefix(path, "/containers/") && strings.HasSuffix(path, "/json"):
		describe(theirs, "other", "sandbox")
	case strings.HasSuffix(path, "/exec"):
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"Id":%q}`, execID)
	case path == "/volumes/farm-agent-1":
		_, _ = io.WriteString(w, `{"Name":"farm-agent-1","Driver":"local","Labels":{"sandfarm.namespace":"farm","sandfarm.role":"agent"}}`)
	case path == "/volumes/farm-agent-host": // a directory of the host
		_, _ = io.WriteString(w, `{"Name":"farm-agent-host","Driver":"local","Options":{"type":"none"},"Labels":{"sandfarm.namespace":"farm","sandfarm.role":"agent"}}`)
	case path == "/volumes/none":
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"message":"no such volume"}`)
	case strings.HasPrefix(path, "/volumes/") && r.Method == http.MethodGet:
		_, _ = io.WriteString(w, `{"Name":"x","Driver":"local","Labels":{"sandfarm.namespace":"other"}}`)
	case path == "/images/python:1/json", path == "/images/python:5000/other:1/json", path == "/images/sandfarm/python:1/json":
		_, _ = io.WriteString(w, `{"Id":"sha256:1","Config":{"Labels":{"sandfarm.image":"python"}}}`)
	case path == "/images/postgres:1/json":
		_, _ = io.WriteString(w, `{"Id":"sha256:3","Config":{"Labels":{"sandfarm.image":"postgres"},"Volumes":{"/data":{}}}}`)
	case strings.HasSuffix(path, "/json"):
		_, _ = io.WriteString(w, `{"Id":"sha256:2","Config":{"Env":["PASSWORD=secret"]}}`)
	default:
		_, _ = fmt.Fprintf(w, `{"Id":%q}`, ours)
	}
}

// changes lists what reached the engine and is more than a question.
func (f *fakeEngine) changes() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.seen {
		if !strings.HasPrefix(call, "GET ") && !strings.HasPrefix(call, "HEAD ") {
			all = append(all, call)
		}
	}
	return all
}

// proxied is a proxy before a fake engine, with the address at which it listens.
type proxied struct {
	fake    *fakeEngine
	engine  *engine.Engine
	proxy   *engineproxy.Proxy
	address string
}

const maxBody = 1 << 20

func newProxy(t *testing.T, change func(*engineproxy.Config)) *proxied {
	t.Helper()
	fake := newFakeEngine(t)
	e, err := engine.New(engine.Config{Host: "tcp://" + fake.Listener.Addr().String(), Namespace: "farm"})
	testbed.Must(t, err)
	cfg := engineproxy.Config{
		Namespace: "farm", Checker: e.NewChecker(engine.Rules{}), Dial: e.Connect, MaxBody: maxBody, Log: slog.New(slog.DiscardHandler),
		Exec: func(user string, command []string) bool {
			return user == "65533:65533" && slices.Equal(command, []string{"/sandfarm/agent", "dial"})
		},
	}
	if change != nil {
		change(&cfg)
	}
	p := engineproxy.New(cfg)
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		server.Close()
		_ = e.Close()
	})
	return &proxied{fake: fake, engine: e, proxy: p, address: server.Listener.Addr().String()}
}

// raw sends bytes and reads the answer's status and body.
func (p *proxied) raw(t *testing.T, request string) (int, string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.address)
	testbed.Must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	testbed.Must(t, err)
	return readAnswer(t, conn)
}

// call sends a request with a body, which may be empty.
func (p *proxied) call(t *testing.T, method, target, body string) (int, string) {
	t.Helper()
	return p.raw(t, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, len(body), body))
}

// client is package engine's own client, through the proxy.
func (p *proxied) client(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.New(engine.Config{Host: "tcp://" + p.address, Namespace: "farm"})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// body is a create that is accepted, as the client sends it.
func sandboxBody(t *testing.T, change func(*farm.ContainerSpec)) (name, body string) {
	t.Helper()
	fake := newFakeEngine(t)
	e, err := engine.New(engine.Config{Host: "tcp://" + fake.Listener.Addr().String(), Namespace: "farm"})
	testbed.Must(t, err)
	defer e.Close()
	s := farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Image: "python:1", Command: []string{"/sandfarm/agent", "init"}, Agent: "farm-agent-1",
	}
	if change != nil {
		change(&s)
	}
	_, err = e.Create(context.WithoutCancel(t.Context()), s)
	testbed.Must(t, err)
	create := slices.IndexFunc(fake.seen, func(call string) bool { return strings.Contains(call, "/containers/create") })
	return e.Name(s.SandboxID), fake.body[create]
}

// edit changes a JSON document.
func edit(t *testing.T, body string, change func(map[string]any)) string {
	t.Helper()
	var doc map[string]any
	testbed.Must(t, json.Unmarshal([]byte(body), &doc))
	change(doc)
	out, err := json.Marshal(doc)
	testbed.Must(t, err)
	return string(out)
}
