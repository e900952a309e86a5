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
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// read reads the next frame.
func read(t *testing.T, from *bytes.Reader) agent.Frame {
	t.Helper()
	f, err := agent.ReadFrame(from)
	testbed.Must(t, err)
	return f
}

// Frames of output are read as they were written, whatever their sizes, while payloads of earlier ones are used again.
func TestReleasedPayloads(t *testing.T) {
	t.Parallel()
	const full = 64 << 10
	var stream []byte
	var want [][]byte
	for i, size := range []int{1, full/2 - 1, full / 2, full - 1, full, full + 1, 0, full, 3, full/2 + 7} {
		for _, kind := range []agent.FrameType{agent.FrameStdout, agent.FrameStderr, agent.FrameDisplay} {
			want = append(want, bytes.Repeat([]byte{byte('a' + i)}, size))
			stream = agent.AppendFrame(stream, agent.Frame{Seq: uint64(len(want)), Type: kind, Payload: want[len(want)-1]})
		}
	}
	for range 3 {
		from := bytes.NewReader(stream)
		var unread []agent.Frame
		for i := range want {
			unread = append(unread, read(t, from))
			if i%2 == 0 {
				continue
			}
			for j, f := range unread { // two at a time
				testbed.Require(t, bytes.Equal(f.Payload, want[i-1+j]), "frame %d has %d bytes that are not its own", f.Seq, len(f.Payload))
			}
			agent.ReleasePayload(unread[0])
			agent.ReleasePayload(agent.Frame{Type: unread[1].Type, Payload: unread[1].Payload[:len(unread[1].Payload)/2]}) // as if it was cut
			unread = unread[:0]
		}
	}
}

// BenchmarkReadOutput reads the output of a job that prints 64 MiB.
func BenchmarkReadOutput(b *testing.B) {
	stream := bytes.Repeat(agent.AppendFrame(nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: make([]byte, 64<<10)}), 1024)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		from := bytes.NewReader(stream)
		for range 1024 {
			f, err := agent.ReadFrame(from)
			testbed.Must(b, err)
			agent.ReleasePayload(f)
		}
	}
}

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
	testbed.Must(t, err)
	defer func() { _ = ours.Close() }()
	theirs, err := yamux.Server(agent.Joined(remote), config)
	testbed.Must(t, err)
	defer func() { _ = theirs.Close() }()
	stream, err := ours.Open()
	testbed.Must(t, err)
	end, err := theirs.Accept()
	testbed.Must(t, err)
	for _, size := range []int{1, 12, 100, 40<<10 - 1, 40 << 10, 40<<10 + 1, 100 << 10} {
		conn.mu.Lock()
		conn.sizes = nil
		conn.mu.Unlock()
		sent := bytes.Repeat([]byte{0}, size) // like a header of data
		_, err = stream.Write(sent)
		testbed.Must(t, err)
		got := make([]byte, size)
		_, err := io.ReadFull(end, got)
		testbed.Require(t, err == nil && bytes.Equal(got, sent), "%d bytes did not arrive: %v", size, err)
		want := []int{12 + size}
		if size > 40<<10 {
			want = []int{12, size}
		}
		conn.mu.Lock()
		sizes := slices.Clone(conn.sizes)
		conn.mu.Unlock()
		testbed.Check(t, slices.Equal(sizes, want), "%d bytes were written in pieces of %d, not %d", size, sizes, want)
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
		n, err := j.Write(header)
		testbed.Check(t, n == len(header) && err == nil, "header: %d, %v", n, err)
		n, err = j.Write(make([]byte, size))
		testbed.Check(t, n == 0 && errors.Is(err, io.ErrClosedPipe), "%d bytes: %d, %v", size, n, err)
	}
	_, err := agent.Joined(broken{}).Write([]byte{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5})
	testbed.Check(t, errors.Is(err, io.ErrClosedPipe), "another frame: %v", err)
}

// Frames come from agents. A stream yields frames within their bounds or an error, allocates nothing that admit refuses, and what was read
// is written as it was.
func FuzzReadFrame(f *testing.F) {
	good := agent.AppendFrame(nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: []byte("x\n")})
	good = agent.AppendFrame(good, agent.Frame{Seq: 2, Type: agent.FrameFinal, Payload: []byte(`{"exit_code":0}`)})
	for _, seed := range [][]byte{nil, good, good[:5], good[:20], bytes.Repeat([]byte{0xff}, agent.FrameHeaderBytes), append(make([]byte, 9), 0, 0, 0, 0)} {
		f.Add(seed)
	}
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, in []byte) {
		from := bytes.NewReader(in)
		var read []byte
		for {
			frame, err := agent.ReadAdmittedFrame(from, func(size int) error {
				testbed.Require(t, size >= 0 && size <= agent.MaxFrameBytes, "a payload of %d bytes is to be admitted", size)
				if size > limit {
					return bytes.ErrTooLarge
				}
				return nil
			})
			if err != nil {
				return
			}
			if frame.Type < agent.FrameStdout || frame.Type > agent.FrameMessage || len(frame.Payload) > limit {
				t.Fatalf("a frame of type %d with %d bytes", frame.Type, len(frame.Payload))
			}
			if read = agent.AppendFrame(read, frame); !bytes.HasPrefix(in, read) {
				t.Fatalf("frame %d is written differently than it was read", frame.Seq)
			}
		}
	})
}
