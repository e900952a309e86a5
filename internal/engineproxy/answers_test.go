package engineproxy_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engineproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What the engine says about things of others does not reach the farm.
func TestAnswersAreFiltered(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	for target, want := range map[string]string{
		`/v1.41/containers/json?all=1&filters={"label":{"sandfarm.uid":true}}`: "20001",
		`/v1.41/volumes?filters={"label":{"sandfarm.namespace=farm":true}}`:    "farm-node",
		`/v1.41/images/json?filters={"label":{"sandfarm.image":true}}`:         "python",
		"/v1.41/info":                         "NCPU",
		"/v1.41/containers/" + ours + "/json": `"Pid":7`,
		"/v1.41/volumes/farm-agent-1":         "farm-agent-1",
		"/v1.41/images/python:1/json":         "sha256:1",
		"/v1.41/version":                      "Id",
		"/_ping":                              "Id",
	} {
		status, text := p.call(t, "GET", target, "")
		if status != http.StatusOK || strings.Contains(text, "secret") || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", target, status, text)
		}
	}
	if status, text := p.call(t, "GET", "/v1.41/volumes/none", ""); status != http.StatusNotFound || !strings.Contains(text, "no such volume") {
		t.Errorf("a volume that is missing: %d %s", status, text)
	}
}

// A worker asks through the proxy whether the engine can limit sandboxes, and refuses to run any if it cannot.
func TestLimitsOfTheEngineAreSeen(t *testing.T) {
	t.Parallel()
	if err := newProxy(t, nil).client(t).CheckLimits(t.Context()); err != nil {
		t.Error(err)
	}
}

// A name may belong to another container a moment later, so a container is used by its id.
func TestContainersAreUsedByTheirID(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	e := p.client(t)
	for range 2 { // the second time the id is known
		testbed.Must(t, e.Start(t.Context(), "farm-sbx_1"))
		testbed.Must(t, e.Start(t.Context(), ours))
	}
	testbed.Must(t, e.Update(t.Context(), "farm-sbx_1", "", farm.Resources{MemoryMB: 256, CPUs: 1, PIDs: 64}))
	testbed.Must(t, e.Remove(t.Context(), "farm-sbx_1"))
	changes := p.fake.changes()
	if len(changes) != 6 {
		t.Errorf("the engine got %v", changes)
	}
	for _, call := range changes {
		if !strings.Contains(call, "/containers/"+ours) {
			t.Errorf("the engine got %s", call)
		}
	}
}

// A worker that finds its image built makes it the latest of its repository.
func TestImageBecomesTheLatest(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	if err := p.client(t).Tag(t.Context(), "sandfarm/python:1", "sandfarm/python:latest"); err != nil {
		t.Error(err)
	}
}

func TestExecCarriesBytesUntilBothEnd(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	e := p.client(t)
	testbed.Must(t, e.Ping(t.Context()))
	for user, command := range map[string][]string{
		"0:0": {"/sandfarm/agent", "dial"}, "65533:0": {"/sandfarm/agent", "dial"}, "root": {"/sandfarm/agent", "dial"}, "": {"/sandfarm/agent", "dial"},
		"20000:20000": {"/sandfarm/agent", "dial"}, "65533:65533": {"/bin/sh"},
	} {
		if _, err := e.Dial(t.Context(), ours, command, user); err == nil || !strings.Contains(err.Error(), "engine proxy refuses") {
			t.Errorf("%v as %q: %v", command, user, err)
		}
	}
	conn, err := e.Dial(t.Context(), ours, []string{"/sandfarm/agent", "dial"}, "65533:65533")
	testbed.Must(t, err)
	frame := append([]byte{1, 0, 0, 0, 0, 0, 0x40, 0}, bytes.Repeat([]byte("x"), 0x4000)...)
	for range 20 {
		_, err = conn.Write(frame)
		testbed.Must(t, err)
	}
	if got, err := io.ReadAll(io.LimitReader(conn, 20*0x4000)); err != nil || len(got) != 20*0x4000 {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	testbed.Must(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "EOF") { // "bye" is no frame
		t.Errorf("after the end of the input: %v", err)
	}
	_ = conn.Close()
	if status, text := p.call(t, "POST", "/v1.41/exec/"+execID+"/start", `{"Detach":false,"Tty":false}`); status != http.StatusForbidden {
		t.Errorf("a second start: %d %s", status, text)
	}
}

func TestEngineThatIsDown(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	p.fake.Close()
	_, err := p.client(t).List(t.Context())
	if farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("code %q (%v), want unavailable", farm.CodeOf(err), err)
	}
}

func TestRefusalsAreLoggedOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := engineproxy.New(engineproxy.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			for range 1000 {
				p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1.41/swarm", nil))
			}
			time.Sleep(time.Second)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 3 || strings.Count(log.String(), "not_logged_before=999") != 2 {
			t.Errorf("%d lines:\n%s", lines, log.String())
		}
	})
}

// Serve replaces the socket of a dead proxy, never that of a live one, nor a file.
func TestServeOnASocket(t *testing.T) {
	t.Parallel()
	p := newProxy(t, nil)
	dir, err := os.MkdirTemp("", "sfp") // t.TempDir is too long for a socket
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "engine.sock")
	socket := engineproxy.Socket{Path: path, Mode: 0o600, MaxConnections: 8}
	serve := func() (stop func() error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- engineproxy.New(engineproxy.Config{Dial: p.engine.Connect, Log: slog.New(slog.DiscardHandler)}).Serve(ctx, socket, func() { close(ready) })
		}()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		}
		return func() error { cancel(); return <-ended }
	}
	stop := serve()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	e, err := engine.New(engine.Config{Host: "unix://" + path})
	testbed.Must(t, err)
	defer e.Close()
	if err := e.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	testbed.Must(t, err)
	_, _ = io.WriteString(conn, "GET /_ping HTTP/1.1\r\nHost: engine\r\n"+strings.Repeat("a:\n", 7200)+"\r\n") // the lines of a header are bounded
	if answer, _ := io.ReadAll(conn); strings.Contains(string(answer), " 200 ") {
		t.Errorf("a header of 7200 lines is answered with %q", answer)
	}
	_ = conn.Close()
	if err := p.proxy.Serve(t.Context(), socket, nil); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("a second proxy: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	testbed.Must(t, os.WriteFile(path, nil, 0o600))
	if err := p.proxy.Serve(t.Context(), socket, nil); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	testbed.Must(t, os.Remove(path))
	stop = serve()
	if err := stop(); err != nil {
		t.Error(err)
	}
}
