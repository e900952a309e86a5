package execution

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestLogJoinsOnlyUnreadFrames(t *testing.T) {
	t.Parallel()
	l := NewLog(1 << 20)
	l.Append(agent.FrameStdout, []byte("a"))
	l.Append(agent.FrameStdout, []byte("b"))
	frames, err := l.Next(t.Context(), 1)
	testbed.Require(t, err == nil && len(frames) == 1 && string(frames[0].Payload) == "ab", "frames = %v, %v", frames, err)
	l.Append(agent.FrameStdout, []byte("c"))
	l.Append(agent.FrameStderr, []byte("d"))
	l.Append(agent.FrameDisplay, []byte("e"))
	l.Append(agent.FrameDisplay, []byte("f"))
	frames, err = l.Next(t.Context(), 1)
	if err != nil || len(frames) != 5 || string(frames[0].Payload) != "ab" || string(frames[1].Payload) != "c" {
		t.Fatalf("frames = %v, %v", frames, err)
	}
	l.End([]byte("{}"))
	l.Append(agent.FrameStdout, []byte("late"))
	frames, err = l.Next(t.Context(), 6)
	testbed.Require(t, err == nil && len(frames) == 1 && frames[0].Type == agent.FrameFinal, "frames = %v, %v", frames, err)
	l.Ack(6)
	for from := range uint64(20) {
		frames, err = l.Next(t.Context(), 6+from)
		if err != nil || len(frames) != 1 || frames[0].Seq != 6 || frames[0].Type != agent.FrameFinal {
			t.Fatalf("final frame again, from %d: %v, %v", 6+from, frames, err)
		}
	}
}

// A frame has room for as much as the one before it had, and no more: much output in small pieces is not copied as it grows.
func TestAFrameHasTheRoomOfTheOneBefore(t *testing.T) {
	t.Parallel()
	l := NewRollingLog(1 << 20)
	first := bytes.Repeat([]byte{'a'}, 1000)
	for range 40 {
		l.Append(agent.FrameStdout, first)
	}
	_, err := l.Part(t.Context(), 1, 1<<20)
	testbed.Must(t, err) // what was read does not grow any more
	l.Append(agent.FrameStdout, []byte("b"))
	grown := &l.frames[1].Payload[0]
	for range 39 {
		l.Append(agent.FrameStdout, first)
	}
	if len(l.frames) != 2 || &l.frames[1].Payload[0] != grown || cap(l.frames[1].Payload) != 40_000 {
		t.Errorf("%d frames, the second one moved: %v, it has room for %d", len(l.frames), &l.frames[1].Payload[0] != grown, cap(l.frames[1].Payload))
	}
	l.Append(agent.FrameStderr, []byte("c"))
	room := cap(l.frames[2].Payload)
	testbed.Check(t, room == 1, "a frame of another kind has room for %d", room)
}

func TestEndedLogHasTheFinalFrame(t *testing.T) {
	t.Parallel()
	l := EndedLog(5, []byte("{}"))
	for from := range uint64(8) {
		frames, err := l.Next(t.Context(), from)
		if from < 5 {
			testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "frame %d, which is gone: %v, %v", from, frames, err)
		} else if err != nil || len(frames) != 1 || frames[0].Seq != 5 || string(frames[0].Payload) != "{}" {
			t.Errorf("from frame %d: %v, %v", from, frames, err)
		}
	}
	l.End([]byte("other"))
	first, last, _, ended := l.State()
	testbed.Check(t, first == 5 && last == 5 && ended, "state: %d to %d, ended %v", first, last, ended)
}

// A frame beyond the limit waits only while the log holds so much that a worker acknowledges it: a worker that has read less waits for more.
func TestLogIsFullAtItsLimit(t *testing.T) {
	t.Parallel()
	const limit, acknowledged = agent.LogBytes >> 20, agent.AckBytes >> 20
	for _, c := range []struct {
		held, size int
		full       bool
	}{
		{acknowledged, limit - acknowledged - 1, false},
		{acknowledged, limit - acknowledged, false},
		{acknowledged, limit - acknowledged + 1, true},
		{acknowledged - 1, limit - acknowledged + 1, false},
		{acknowledged - 1, 10 * limit, false},
		{limit - 1, 1, false},
		{limit, 1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLog(limit)
			l.Append(agent.FrameStdout, make([]byte, c.held))
			added := make(chan struct{})
			go func() {
				l.Append(agent.FrameStderr, make([]byte, c.size))
				close(added)
			}()
			synctest.Wait()
			_, last, _, _ := l.State()
			testbed.Check(t, (last == 1) == c.full, "%d bytes after %d: the last frame is %d, full %v", c.size, c.held, last, c.full)
			l.Ack(1)
			<-added
			first, last, bytes, _ := l.State()
			testbed.Check(t, first == 2 && last == 2 && bytes == c.size, "%d bytes after %d: state %d, %d, %d", c.size, c.held, first, last, bytes)
			_, err := l.Next(t.Context(), 1)
			testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "acknowledged frame: %v", err)
		})
	}
}

func TestUnblockedLogDropsOutputFarOverItsLimit(t *testing.T) {
	t.Parallel()
	l := NewLog(10)
	l.Unblock()
	for range 3 * unblockedBytes / MaxOutputFrame {
		l.Append(agent.FrameStdout, make([]byte, MaxOutputFrame))
	}
	_, _, bytes, _ := l.State()
	testbed.Require(t, bytes <= 10+unblockedBytes && bytes >= unblockedBytes-MaxOutputFrame, "the log keeps %d bytes", bytes)
}

func TestTrimError(t *testing.T) {
	t.Parallel()
	e := &farm.CodeError{Name: "\x1b[31mE\x1b[0m", Value: strings.Repeat("v", farm.MaxErrorValueBytes+1), Traceback: []string{"\x1b[1;32mline\x1b]8;;x\x07"}}
	for range 40 {
		e.Traceback = append(e.Traceback, strings.Repeat("t", maxErrorLine))
	}
	trimError(e)
	if e.Name != "E" || len(e.Value) != farm.MaxErrorValueBytes+len("…") || e.Traceback[0] != "…" || len(e.Traceback) > 17 {
		t.Fatalf("name %q, value of %d, %d lines beginning %.10q", e.Name, len(e.Value), len(e.Traceback), e.Traceback[0])
	}
	got := StripANSI("\x1b[1;32mline\x1b]8;;x\x07 \x1b(B")
	testbed.Require(t, got == "line ", "stripped = %q", got)
}

func TestFairLockIsGivenInOrder(t *testing.T) {
	t.Parallel()
	var l FairLock
	never := make(chan struct{})
	quit := make(chan struct{})
	close(quit)
	testbed.Require(t, l.Lock(never) && !l.Lock(quit), "a lock was granted twice, or a free one was not granted")
	turns := make(chan int, 3)
	for i := range 3 {
		go func() {
			l.Lock(never)
			turns <- i
		}()
		for waiting := 0; waiting <= i; {
			l.mu.Lock()
			waiting = len(l.waiting)
			l.mu.Unlock()
		}
	}
	for i := range 3 {
		l.Unlock()
		got := <-turns
		testbed.Require(t, got == i, "turn %d went to %d", i, got)
	}
	l.Unlock()
	testbed.Require(t, l.Lock(never), "the lock is not free")
}

// Empty frames have no payload, but use memory.
func TestLogBoundsTheNumberOfFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(1 << 30)
		for range keptFrames {
			l.Append(agent.FrameDisplay, []byte("x"))
		}
		added := make(chan struct{})
		go func() {
			l.Append(agent.FrameDisplay, []byte("x"))
			close(added)
		}()
		synctest.Wait()
		_, last, _, _ := l.State()
		testbed.Require(t, last == keptFrames, "the last frame is %d, want %d: one more was accepted", last, keptFrames)
		l.Ack(1)
		<-added
	})
}

// A kernel may send a traceback of millions of empty lines.
func TestATracebackOfEmptyLinesIsBounded(t *testing.T) {
	t.Parallel()
	e := &farm.CodeError{Traceback: make([]string, 1<<20)}
	e.Traceback[len(e.Traceback)-1] = "the last line"
	trimError(e)
	if n := len(e.Traceback); n > maxTracebackBytes/lineCost+1 || e.Traceback[n-1] != "the last line" || e.Traceback[0] != "…" {
		t.Errorf("%d lines, the last %q", n, e.Traceback[n-1])
	}
}

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
