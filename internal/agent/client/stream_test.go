package client_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What waits in a stream is charged to nobody, so a stream is opened with the least window that yamux has: the header with which the worker opens
// it adds nothing to that.
func TestStreamsHaveTheLeastWindow(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.Options{"Plain": {}, "Index": {Egress: http.NotFoundHandler()}, "Proxy": {Egress: http.NotFoundHandler(), Proxy: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			local, remote := net.Pipe()
			c, err := client.New(local, o)
			testbed.Must(t, err)
			t.Cleanup(func() { _ = c.Close() })
			go func() { _, _ = c.Info(t.Context()) }()
			header := make([]byte, 12)
			_, err = io.ReadFull(remote, header)
			testbed.Must(t, err)
			kind, flags := header[1], binary.BigEndian.Uint16(header[2:])
			testbed.Require(t, kind == 1 && flags == 1, "the worker did not open a stream with % x", header)
			more := binary.BigEndian.Uint32(header[8:])
			testbed.Check(t, more == 0, "the agent may send %d bytes beyond 256 KiB ahead", more)
		})
	}
}

// spoil answers a call with what is no HTTP, so that the worker closes its stream, and returns the agent's end, which stays open.
func spoil(t *testing.T, c *client.Client, session *yamux.Session) (*yamux.Stream, error) {
	t.Helper()
	go func() { _, _ = c.Info(t.Context()) }()
	stream, err := session.AcceptStream()
	if err != nil {
		return nil, err
	}
	if _, err = io.WriteString(stream, "no HTTP\r\n\r\n"); err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, stream) // to the end of the worker's direction
	return stream, err
}

// yamux keeps what arrives on a stream that the worker has closed until the agent closes it.
func TestDataOnAClosedStreamIsDiscarded(t *testing.T) {
	t.Parallel()
	c, session := hostileAgent(t, client.Options{})
	stream, err := spoil(t, c, session)
	testbed.Must(t, err)
	testbed.Must(t, stream.SetWriteDeadline(time.Now().Add(hang)))
	n, err := stream.Write(make([]byte, 16*256<<10))
	testbed.Check(t, err == nil, "after %d bytes: %v", n, err) // it would stop at the window
	testbed.Must(t, stream.Close())
	lives(t, session, "data on a closed stream")
}

func TestStreamsThatOnlyTheWorkerHasClosedAreBounded(t *testing.T) {
	t.Parallel()
	const most = 512
	c, session := hostileAgent(t, client.Options{})
	for i := range most {
		_, err := spoil(t, c, session)
		testbed.Require(t, err == nil, "after %d streams: %v", i, err)
	}
	lives(t, session, "as many streams as may be closing")
	_, _ = spoil(t, c, session) // the session may end in the middle of it
	awaitEnd(t, c, "one more stream that the agent does not close")
}
