package kernel

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

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
