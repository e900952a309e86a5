package agent_test

import (
	"bytes"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// read reads the next frame.
func read(t *testing.T, from *bytes.Reader) agent.Frame {
	t.Helper()
	f, err := agent.ReadFrame(from)
	if err != nil {
		t.Fatal(err)
	}
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
				if !bytes.Equal(f.Payload, want[i-1+j]) {
					t.Fatalf("frame %d has %d bytes that are not its own", f.Seq, len(f.Payload))
				}
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
			if err != nil {
				b.Fatal(err)
			}
			agent.ReleasePayload(f)
		}
	}
}
