package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// frame returns the header and body of a ZMTP frame.
func frame(flags byte, size uint64, body int) []byte {
	out := []byte{flags, byte(size)}
	if flags&zmtpLong != 0 {
		out = binary.BigEndian.AppendUint64([]byte{flags}, size)
	}
	return append(out, make([]byte, body)...)
}

func TestBoundedConnFailsBeforeAFrameThatIsTooLarge(t *testing.T) {
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
				t.Fatalf("read failed: %v, error %v", broke, err)
			}
			if !c.broke && len(got) != zmtpGreeting+len(c.sent) {
				t.Fatalf("got %d bytes", len(got))
			}
		})
	}
}

// A header may arrive in pieces.
func TestBoundedConnAcceptsASplitHeader(t *testing.T) {
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

func TestReopenPipeAcceptsOnlyPipes(t *testing.T) {
	t.Parallel()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	own, err := reopenPipe(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	// The sender's flags must not affect the reader: the sender blocks, the reader does not.
	if flags, err := unix.FcntlInt(uintptr(own), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %o, %v", flags, err)
	}
	if flags, err := unix.FcntlInt(uintptr(ends[0]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the sender's flags %o, %v", flags, err)
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
			t.Errorf("%s was accepted: %v", path, err)
		}
		_ = f.Close()
	}
}
