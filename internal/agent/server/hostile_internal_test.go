package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// frame gives the head and body of a ZMTP frame.
func frame(flags byte, size uint64, body int) []byte {
	out := []byte{flags, byte(size)}
	if flags&zmtpLong != 0 {
		out = binary.BigEndian.AppendUint64([]byte{flags}, size)
	}
	return append(out, make([]byte, body)...)
}

func TestBoundedConnBreaksBeforeAFrameThatIsTooLarge(t *testing.T) {
	t.Parallel()
	greeting := make([]byte, zmtpGreeting)
	many := bytes.Repeat(frame(zmtpMore, 0, 0), maxChannelBytes/zmtpFrame+1)
	for name, c := range map[string]struct {
		sent  []byte
		broke bool
	}{
		"short frames":       {append(bytes.Repeat(frame(zmtpMore, 200, 200), 3), frame(0, 7, 7)...), false},
		"a long frame":       {frame(zmtpLong, 100_000, 100_000), false},
		"2^62 bytes":         {frame(zmtpLong, 1<<62, 0), true},
		"2^64-1 bytes":       {frame(zmtpLong, 1<<64-1, 0), true},
		"one byte too many":  {frame(zmtpLong, maxChannelBytes+1, 0), true},
		"after others":       {append(frame(0, 7, 7), frame(zmtpLong, 1<<40, 0)...), true},
		"frames without end": {many, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			go func() {
				_, _ = far.Write(append(bytes.Clone(greeting), c.sent...))
				_ = far.Close()
			}()
			got, err := io.ReadAll(&boundedConn{Conn: near, skip: zmtpGreeting})
			_ = near.Close()
			if broke := errors.Is(err, errChannelBytes); broke != c.broke {
				t.Fatalf("broke is %v: %v", broke, err)
			}
			if !c.broke && len(got) != zmtpGreeting+len(c.sent) {
				t.Fatalf("%d bytes came", len(got))
			}
		})
	}
}

// A head may come in pieces.
func TestBoundedConnPutsAHeadTogether(t *testing.T) {
	t.Parallel()
	c := &boundedConn{}
	head := frame(zmtpLong, 1<<40, 0)
	for i := range head[:len(head)-1] {
		if err := c.follow(head[i : i+1]); err != nil {
			t.Fatalf("after byte %d: %v", i, err)
		}
	}
	if err := c.follow(head[len(head)-1:]); !errors.Is(err, errChannelBytes) {
		t.Fatal(err)
	}
}

func TestReopenPipeTakesPipesOnly(t *testing.T) {
	t.Parallel()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	own, err := reopenPipe(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	// The giver's flags are not ours: it waits, and we do not.
	if flags, err := unix.FcntlInt(uintptr(own), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %o, %v", flags, err)
	}
	if flags, err := unix.FcntlInt(uintptr(ends[0]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the giver's flags %o, %v", flags, err)
	}
	for _, fd := range []int{own, ends[0], ends[1]} {
		_ = unix.Close(fd)
	}
	for _, path := range []string{"/dev/zero", "/dev/null", t.TempDir(), "/proc/self/exe"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reopenPipe(int(f.Fd())); !errors.Is(err, errNoPipes) {
			t.Errorf("%s was taken: %v", path, err)
		}
		_ = f.Close()
	}
}

// A log of empty frames takes no bytes of payload, but memory.
func TestFrameLogBoundsTheNumberOfFrames(t *testing.T) {
	t.Parallel()
	l := newFrameLog(1 << 30)
	for range keptFrames {
		l.append(agent.FrameDisplay, []byte("x"))
	}
	added := make(chan struct{})
	go func() {
		l.append(agent.FrameDisplay, []byte("x"))
		close(added)
	}()
	select {
	case <-added:
		t.Fatal("one more was taken")
	case <-time.After(20 * time.Millisecond):
	}
	l.ack(1)
	<-added
}

// User code may leave a pipe, a link or a file of its own in the agent's directory.
func TestPutFileDoesNotGoThroughWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("old"), 0o400) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":    func(path string) error { return os.Symlink(other, path) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if err := putFile(path, []byte("ours")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "ours" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, _ := os.ReadFile(other); string(got) != "theirs" {
		t.Errorf("the link's target holds %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// User code may put something else in the place of the staging directory: uploads go on, and nothing is written elsewhere.
func TestUploadsTakeTheStagingDirectoryBack(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(outside, path) },
		"file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			s, err := New(Config{Workspace: work, RunDir: t.TempDir(), HomeDir: work, TmpDir: work})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if err := plant(filepath.Join(work, stagingDir)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.write("f", 0o644, strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(work, "f")); err != nil || string(got) != "x" {
				t.Fatalf("%q, %v", got, err)
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Fatalf("written outside: %v", left)
			}
		})
	}
}

func TestATreeThatIsTooDeepIsTheCallersAffair(t *testing.T) {
	t.Parallel()
	if err := fileError(&os.PathError{Op: "openat", Path: "d", Err: unix.EMFILE}, "d"); farm.CodeOf(err) != farm.CodeTooLarge {
		t.Fatal(err)
	}
}

// A kernel may say of an error that it has millions of lines without a text.
func TestATracebackOfEmptyLinesIsBounded(t *testing.T) {
	t.Parallel()
	e := &farm.CodeError{Traceback: make([]string, 1<<20)}
	e.Traceback[len(e.Traceback)-1] = "the last line"
	trimError(e)
	if n := len(e.Traceback); n > maxTracebackBytes/lineCost+1 || e.Traceback[n-1] != "the last line" || e.Traceback[0] != "…" {
		t.Errorf("%d lines, the last %q", n, e.Traceback[n-1])
	}
}
