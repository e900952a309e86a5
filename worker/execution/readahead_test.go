package execution

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// frames gives frames of one size, without end or until it fails.
type frames struct {
	size  int
	given atomic.Int64
	fails int64 // number of the frame that fails; 0: none
}

func (s *frames) NextAdmitted(admit func(int) error) (agent.Frame, error) {
	if err := admit(s.size); err != nil {
		return agent.Frame{}, err
	}
	n := s.given.Add(1)
	if n == s.fails {
		return agent.Frame{}, errors.New("the stream broke")
	}
	return agent.Frame{Seq: uint64(n), Type: agent.FrameDisplay, Payload: make([]byte, s.size)}, nil
}

func (s *frames) Close() error { return nil }

const (
	mib      = 1 << 20
	small    = 16 * mib / 8 / 2 / budget.SmallBytes // frames of 64 KiB that one tenant's share of 16 MiB has
	largest  = (16*mib - 16*mib/8) / 2              // bytes of large frames that its share has
	displays = largest / (mib * valueWeight)        // of 1 MiB
)

// Frames that wait in memory are bounded, however large they are and however many executions a tenant has.
func TestFramesReadAheadAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ size, executions, limit int }{
		"Tiny":       {1, 1, readAhead + 1},
		"Small":      {budget.SmallBytes, 1, small},
		"SmallMany":  {budget.SmallBytes, 10, small},
		"Large":      {mib, 1, displays},
		"LargeMany":  {mib, 10, displays},
		"ShareAlone": {40 * mib, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				memory := budget.New(16 * mib)
				var readers []*frameReader
				count := func() (n int) {
					synctest.Wait()
					for _, r := range readers {
						n += int(r.source.(*frames).given.Load())
					}
					return n
				}
				for range c.executions {
					readers = append(readers, newFrameReader(t.Context(), &frames{size: c.size}, memory, "acme"))
					synctest.Wait()
				}
				// Each execution can hold one frame of ordinary size without charge.
				free := 0
				if c.size <= budget.SmallBytes {
					free = c.executions
				}
				got := count()
				testbed.Check(t, got <= c.limit+free && got >= c.limit, "%d frames are read ahead, want %d", got, c.limit)
				other := newFrameReader(t.Context(), &frames{size: c.size}, memory, "rival")
				synctest.Wait()
				testbed.Check(t, len(other.frames) != 0, "another tenant's execution reads nothing")
				other.stop()
				for _, r := range readers {
					r.stop()
				}
				if got := memory.Stats(); got.Used != 0 || got.Accounts != 0 {
					t.Errorf("at the end %+v", got)
				}
			})
		})
	}
}

// An execution goes on although other executions of its tenant have used up the share: frame by frame.
func TestSmallFramesNeverWaitForOtherExecutions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New(16 * mib)
		hold, ok := memory.TryAcquire("acme", budget.SmallBytes)
		for ok {
			defer hold.Release()
			hold, ok = memory.TryAcquire("acme", budget.SmallBytes)
		}
		r := newFrameReader(t.Context(), &frames{size: budget.SmallBytes}, memory, "acme")
		for i := range 5 {
			synctest.Wait()
			got := r.source.(*frames).given.Load()
			testbed.Check(t, got == int64(i)+1, "%d frames were read, want %d", got, i+1)
			r.handled(<-r.frames)
		}
		r.stop()
	})
}

// A stream that breaks within a frame gives back what the frame was charged.
func TestBrokenFrameHoldsNoMemory(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 * mib)
	r := newFrameReader(t.Context(), &frames{size: mib, fails: 2}, memory, "acme")
	r.handled(<-r.frames)
	item := <-r.frames
	testbed.Check(t, item.err != nil, "frame 2 = %+v, want an error", item)
	r.stop()
	got := memory.Stats().Used
	testbed.Check(t, got == 0, "%d bytes are held", got)
}
