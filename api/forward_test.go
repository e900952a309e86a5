package api_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// local returns both ends of a connection on this machine.
func local(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	agenttest.Must(t, err)
	defer func() { _ = l.Close() }()
	dialled, err := net.Dial("tcp", l.Addr().String())
	agenttest.Must(t, err)
	accepted, err := l.Accept()
	agenttest.Must(t, err)
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// Any protocol passes, and each direction ends by itself.
func TestForwardedConnections(t *testing.T) {
	t.Parallel()
	f := setupLive(t)
	box := f.sandbox()
	c, err := client.New(f.web.URL)
	agenttest.Must(t, err)
	port := agenttest.Serve(t, func(conn io.ReadWriter) {
		_, _ = io.WriteString(conn, "220 hello\r\n")
		_, _ = io.Copy(conn, conn)
		_, _ = io.WriteString(conn, "over")
	})
	ours, theirs := local(t)
	over := make(chan error, 1)
	go func() { over <- c.Forward(t.Context(), box, port, theirs) }()
	sent := bytes.Repeat([]byte("0123456789"), 1<<18)
	go func() {
		_, _ = ours.Write(sent)
		_ = ours.CloseWrite()
	}()
	got, err := io.ReadAll(ours)
	if err != nil || string(got) != "220 hello\r\n"+string(sent)+"over" {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	_, theirs = local(t)
	closed, err := strconv.Atoi(closedPort(t))
	agenttest.Must(t, err)
	if err := c.Forward(t.Context(), box, closed, theirs); err == nil || !strings.Contains(err.Error(), "Nothing listens on port") {
		t.Errorf("nothing listens: %v", err)
	}
	target := "/v1/sandboxes/" + box + "/tcp/" + strconv.Itoa(port)
	f.problem(farm.CodeInvalid, http.StatusUpgradeRequired, "GET", target, nil)
	f.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", target, nil, "Origin", "https://evil.example")
}

// A caller who is gone without a word holds neither the sandbox's server nor one of its connections for ever. One who is silent and there stays.
func TestForwardedConnectionsWhoseCallerIsGone(t *testing.T) {
	t.Parallel()
	f := setupLive(t, func(c *api.Config, _ *api.Deps) { c.Heartbeat, c.StallTimeout = time.Second, 5*time.Second })
	box := f.sandbox()
	ended := make(chan string, 2)
	port := agenttest.Serve(t, func(conn io.ReadWriter) {
		name := make([]byte, 4)
		_, _ = io.ReadFull(conn, name)
		_, _ = io.Copy(io.Discard, conn)
		ended <- string(name)
	})
	dial := func(name string, answers bool, pings chan<- struct{}) *websocket.Conn {
		ws, _, err := websocket.Dial(t.Context(), f.web.URL+"/v1/sandboxes/"+box+"/tcp/"+strconv.Itoa(port), &websocket.DialOptions{ //nolint:bodyclose // there is none
			OnPingReceived: func(context.Context, []byte) bool {
				if pings != nil {
					pings <- struct{}{}
				}
				return answers
			},
		})
		agenttest.Must(t, err)
		t.Cleanup(func() { _ = ws.CloseNow() })
		agenttest.Must(t, ws.Write(t.Context(), websocket.MessageBinary, []byte(name)))
		go func() { _, _, _ = ws.Read(t.Context()) }()
		return ws
	}
	pings := make(chan struct{}, 1000)
	there := dial("here", true, pings)
	dial("gone", false, nil)
	if got := <-ended; got != "gone" {
		t.Fatalf("the connection of %q has ended", got)
	}
	for range 8 {
		<-pings
	}
	agenttest.Must(t, there.Close(websocket.StatusNormalClosure, ""))
	if got := <-ended; got != "here" {
		t.Errorf("the connection of %q has ended", got)
	}
}
