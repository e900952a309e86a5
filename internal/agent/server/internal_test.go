package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestFrameLogJoinsOnlyWhatNobodyHasSeen(t *testing.T) {
	t.Parallel()
	l := newFrameLog(1 << 20)
	l.append(agent.FrameStdout, []byte("a"))
	l.append(agent.FrameStdout, []byte("b"))
	frames, err := l.next(t.Context(), 1)
	if err != nil || len(frames) != 1 || string(frames[0].Payload) != "ab" {
		t.Fatalf("frames = %v, %v", frames, err)
	}
	l.append(agent.FrameStdout, []byte("c"))
	l.append(agent.FrameStderr, []byte("d"))
	l.append(agent.FrameDisplay, []byte("e"))
	l.append(agent.FrameDisplay, []byte("f"))
	frames, err = l.next(t.Context(), 1)
	if err != nil || len(frames) != 5 || string(frames[0].Payload) != "ab" || string(frames[1].Payload) != "c" {
		t.Fatalf("frames = %v, %v", frames, err)
	}
	l.end([]byte("{}"))
	l.append(agent.FrameStdout, []byte("late"))
	frames, err = l.next(t.Context(), 6)
	if err != nil || len(frames) != 1 || frames[0].Type != agent.FrameFinal {
		t.Fatalf("frames = %v, %v", frames, err)
	}
	if _, err := l.next(t.Context(), 7); farm.CodeOf(err) != farm.CodeInvalid {
		t.Fatalf("behind the end: %v", err)
	}
}

func TestFrameLogIsFullAtItsLimit(t *testing.T) {
	t.Parallel()
	for _, size := range []int{9, 10, 11} { // the limit is 10, and 1 is there
		l := newFrameLog(11)
		l.append(agent.FrameStdout, []byte("x"))
		added := make(chan struct{})
		go func() {
			l.append(agent.FrameStderr, make([]byte, size))
			close(added)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := l.next(ctx, 2)
		cancel()
		if full := errors.Is(err, context.DeadlineExceeded); full != (size > 10) {
			t.Errorf("%d bytes: full %v, %v", size, full, err)
		}
		l.ack(1)
		<-added
		if first, last, bytes, _ := l.state(); first != 2 || last != 2 || bytes != size {
			t.Errorf("%d bytes: state %d, %d, %d", size, first, last, bytes)
		}
		if _, err := l.next(t.Context(), 1); farm.CodeOf(err) != farm.CodeConflict {
			t.Errorf("acknowledged frame: %v", err)
		}
	}
}

func TestFrameLogForcedDropsWhatIsFarOverItsLimit(t *testing.T) {
	t.Parallel()
	l := newFrameLog(10)
	l.force()
	for range 3 * forcedBytes / outputFrameBytes {
		l.append(agent.FrameStdout, make([]byte, outputFrameBytes))
	}
	if _, _, bytes, _ := l.state(); bytes > 10+forcedBytes || bytes < forcedBytes-outputFrameBytes {
		t.Fatalf("%d bytes are kept", bytes)
	}
}

func TestCodecRoundTripAndForgery(t *testing.T) {
	t.Parallel()
	c := newCodec()
	m, err := c.request("execute_request", map[string]string{"code": "1"}, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := c.pack(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.unpack(append([][]byte{[]byte("address")}, frames...))
	if err != nil || got.Header != m.Header || string(got.Content) != `{"code":"1"}` {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := newCodec().unpack(frames); err == nil {
		t.Error("a foreign key is accepted")
	}
	if _, err := c.unpack(frames[:4]); err == nil {
		t.Error("a short message is accepted")
	}
	if _, err := c.unpack(nil); err == nil {
		t.Error("an empty message is accepted")
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	p, ok := parseStat(7, "7 (a) Z (b) S 1 7 6 0 -1")
	if !ok || p != (procInfo{pid: 7, parent: 1, group: 7, session: 6}) {
		t.Fatalf("p = %+v, %v", p, ok)
	}
	for _, bad := range []string{"", "7 (a) S", "7 (a) S x y z"} {
		if _, ok := parseStat(7, bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestTrimError(t *testing.T) {
	t.Parallel()
	e := &farm.CodeError{Name: "\x1b[31mE\x1b[0m", Value: strings.Repeat("v", maxErrorValue+1), Traceback: []string{"\x1b[1;32mline\x1b]8;;x\x07"}}
	for range 40 {
		e.Traceback = append(e.Traceback, strings.Repeat("t", maxErrorValue))
	}
	trimError(e)
	if e.Name != "E" || len(e.Value) > maxErrorValue+3 || e.Traceback[0] != "…" || len(e.Traceback) > 17 {
		t.Fatalf("name %q, value of %d, %d lines beginning %.10q", e.Name, len(e.Value), len(e.Traceback), e.Traceback[0])
	}
	if got := stripANSI("\x1b[1;32mline\x1b]8;;x\x07 \x1b(B"); got != "line " {
		t.Fatalf("stripped = %q", got)
	}
}

func TestLineIsGivenInOrder(t *testing.T) {
	t.Parallel()
	var l line
	never := make(chan struct{})
	quit := make(chan struct{})
	close(quit)
	if !l.acquire(never) || l.acquire(quit) {
		t.Fatal("a held line was given, or a free one was not")
	}
	turns := make(chan int, 3)
	for i := range 3 {
		go func() {
			l.acquire(never)
			turns <- i
		}()
		for waiting := 0; waiting <= i; {
			l.mu.Lock()
			waiting = len(l.waiting)
			l.mu.Unlock()
		}
	}
	for i := range 3 {
		l.release()
		if got := <-turns; got != i {
			t.Fatalf("turn %d went to %d", i, got)
		}
	}
	l.release()
	if !l.acquire(never) {
		t.Fatal("the line is not free")
	}
}

func TestOOMKills(t *testing.T) {
	t.Parallel()
	if n := statNumber("oom 3\noom_kill_disable 1\noom_kill 12\n", "oom_kill"); n != 12 {
		t.Fatalf("n = %d", n)
	}
	if n := statNumber("low 0\n", "oom_kill"); n != 0 {
		t.Fatalf("n = %d", n)
	}
}
