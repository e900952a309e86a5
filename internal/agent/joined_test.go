package agent_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// counted notes the size of each write to a connection.
type counted struct {
	net.Conn
	mu    sync.Mutex
	sizes []int
}

func (c *counted) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.sizes = append(c.sizes, len(b))
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func TestJoinedWritesAMessageAtOnce(t *testing.T) {
	t.Parallel()
	config := yamux.DefaultConfig()
	config.EnableKeepAlive, config.LogOutput = false, io.Discard
	local, remote := net.Pipe()
	conn := &counted{Conn: local}
	ours, err := yamux.Client(agent.Joined(conn), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close() }()
	theirs, err := yamux.Server(agent.Joined(remote), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	stream, err := ours.Open()
	if err != nil {
		t.Fatal(err)
	}
	end, err := theirs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 12, 100, 40<<10 - 1, 40 << 10, 40<<10 + 1, 100 << 10} {
		conn.mu.Lock()
		conn.sizes = nil
		conn.mu.Unlock()
		sent := bytes.Repeat([]byte{0}, size) // like a header of data
		if _, err := stream.Write(sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if _, err := io.ReadFull(end, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes did not arrive: %v", size, err)
		}
		want := []int{12 + size}
		if size > 40<<10 {
			want = []int{12, size}
		}
		conn.mu.Lock()
		sizes := slices.Clone(conn.sizes)
		conn.mu.Unlock()
		if !slices.Equal(sizes, want) {
			t.Errorf("%d bytes were written in pieces of %d, not %d", size, sizes, want)
		}
	}
}

// broken refuses to write.
type broken struct{ io.ReadWriteCloser }

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestJoinedReportsErrors(t *testing.T) {
	t.Parallel()
	header := []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5}
	for _, size := range []int{5, 41 << 10} {
		j := agent.Joined(broken{})
		if n, err := j.Write(header); n != len(header) || err != nil {
			t.Errorf("header: %d, %v", n, err)
		}
		if n, err := j.Write(make([]byte, size)); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
	}
	if _, err := agent.Joined(broken{}).Write([]byte{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("another frame: %v", err)
	}
}
