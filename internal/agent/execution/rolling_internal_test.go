package execution

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A large frame takes the place of small ones that the reader has got, and waits for it at the first that it has not.
func TestALargeFrameDropsNothingUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewRollingLog(100)
		for i := range 10 { // 1 to 10: of two kinds in turns, which are not put together
			l.Append([]agent.FrameType{agent.FrameStdout, agent.FrameStderr}[i%2], bytes.Repeat([]byte{'a'}, 10))
		}
		done, err := l.Enter("r", 3, 1)
		testbed.Must(t, err)
		done()
		appended := make(chan struct{})
		go func() {
			l.Append(agent.FrameStdout, make([]byte, 50))
			close(appended)
		}()
		synctest.Wait()
		first, last, _, _ := l.State()
		testbed.Require(t, first == 3 && last == 10, "frames %d to %d are kept", first, last)
		for _, seq := range []uint64{5, 6} {
			if done, err = l.Enter("r", seq, 1); err != nil {
				t.Fatal(err)
			}
			done()
			synctest.Wait()
		}
		<-appended
		frames, err := l.Part(t.Context(), 6, 1000)
		testbed.Check(t, err == nil && len(frames) == 6 && frames[0].Seq == 6 && frames[0].Type != agent.FrameDropped, "%+v, %v", frames, err)
	})
}

// Readers that do not read are waited for once each, for ten seconds.
func TestReadersThatDoNotReadAreGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewRollingLog(10)
		l.Append(agent.FrameStdout, make([]byte, 10))
		for i, name := range []string{"a", "b"} {
			done, err := l.Enter(name, 0, 2)
			testbed.Must(t, err)
			done()
			began := time.Now()
			for range 3 {
				l.Append([]agent.FrameType{agent.FrameStderr, agent.FrameStdout}[i], make([]byte, 10))
				l.Append(agent.FrameDisplay, make([]byte, 10))
			}
			waited := time.Since(began)
			testbed.Check(t, waited == readerTimeout, "waited %s for %s", waited, name)
		}
	})
}

// A reader that is expected has the output from its beginning, if it comes within ten seconds; after that the writer goes on.
func TestAReaderThatIsExpectedMissesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		comes time.Duration
		first uint64
	}{{readerTimeout - 1, 1}, {readerTimeout + 1, 3}} {
		synctest.Test(t, func(t *testing.T) {
			l := NewRollingLog(20)
			l.Expect()
			written := make(chan struct{})
			go func() {
				defer close(written)
				for i := range 4 { // of two kinds in turns, which are not put together
					l.Append([]agent.FrameType{agent.FrameStdout, agent.FrameStderr}[i%2], make([]byte, 10))
				}
			}()
			time.Sleep(c.comes)
			first, _, _, _ := l.State()
			testbed.Check(t, first == c.first, "after %s the first frame is %d, want %d", c.comes, first, c.first)
			for seq := c.first; seq <= 4; seq++ {
				done, err := l.Enter("r", seq, 1)
				testbed.Must(t, err)
				frames, err := l.Part(t.Context(), seq, 1)
				done()
				testbed.Check(t, err == nil && frames[0].Seq == seq && frames[0].Type != agent.FrameDropped, "frame %d: %+v, %v", seq, frames, err)
			}
			<-written
		})
	}
}

// A log is unread once no answer has been sent for the time, whoever read before, and not while one waits for output.
func TestALogThatNobodyReads(t *testing.T) {
	t.Parallel()
	const after = time.Minute
	synctest.Test(t, func(t *testing.T) {
		l := NewRollingLog(10)
		began := time.Now()
		if !l.Unread(after) || time.Since(began) != after {
			t.Errorf("a log that was never read: after %s", time.Since(began))
		}
		done, err := l.Enter("r", 0, 1)
		testbed.Must(t, err)
		began = time.Now()
		time.AfterFunc(5*after/2, done)
		if !l.Unread(after) || time.Since(began) != 7*after/2 {
			t.Errorf("a log whose reader left: after %s", time.Since(began))
		}
		time.AfterFunc(after/2, func() { l.End(nil) })
		testbed.Check(t, !l.Unread(after), "a log that has ended is unread")
	})
}
