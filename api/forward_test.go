package api_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

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
