package agent_test

import (
	"bytes"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
)

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
				if size < 0 || size > agent.MaxFrameBytes {
					t.Fatalf("a payload of %d bytes is to be admitted", size)
				}
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
