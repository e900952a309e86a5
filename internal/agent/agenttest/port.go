package agenttest

import (
	"io"
	"net"
	"testing"
)

// Serve listens on a port of this machine, which is that of the agent under test, until the test ends. It answers each connection with handle
// in a goroutine, and closes it then.
func Serve(tb testing.TB, handle func(io.ReadWriter)) (port int) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener ends with the test
	Must(tb, err)
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				handle(conn)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}
