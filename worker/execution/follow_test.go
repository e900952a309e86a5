package execution

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// endless gives frames of one size without end.
type endless struct {
	size  int
	given atomic.Int64
}

func (e *endless) Next() (agent.Frame, error) {
	return agent.Frame{Seq: uint64(e.given.Add(1)), Type: agent.FrameDisplay, Payload: make([]byte, e.size)}, nil
}

func (e *endless) Close() error { return nil }

// Frames that wait in memory are bounded, however large they are.
func TestFramesReadAheadAreBounded(t *testing.T) {
	t.Parallel()
	for size, most := range map[int]int64{1: 33, readAhead / 4: 5, 2 * readAhead: 2} {
		synctest.Test(t, func(t *testing.T) {
			source := &endless{size: size}
			r := newFrameReader(t.Context(), source)
			synctest.Wait()
			if got := source.given.Load(); got != most {
				t.Errorf("%d frames of %d bytes are read ahead, want %d", got, size, most)
			}
			for range 10 {
				r.taken(<-r.frames)
			}
			synctest.Wait()
			if got := source.given.Load(); got != most+10 {
				t.Errorf("%d frames of %d bytes after ten, want %d", got, size, most+10)
			}
			r.stop()
		})
	}
}
