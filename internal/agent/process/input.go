package process

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// inputPatience is how long a process may not read its input before a write to it is given up.
const inputPatience = 10 * time.Second

// endOfInput is what a terminal takes for the end of the input at the start of a line: control-D.
const endOfInput = 4

// Input writes to the input of a process. It is safe for concurrent use: the bytes of a Write stay together. A nil Input is closed.
type Input struct {
	file     *os.File
	terminal bool
	writers  writers

	writing sync.Mutex
	mu      sync.Mutex
	closed  bool
}

// newInput takes over fd.
func newInput(fd int, terminal bool) *Input {
	_ = unix.SetNonblock(fd, true)
	return &Input{file: os.NewFile(uintptr(fd), "input"), terminal: terminal} //nolint:gosec // a descriptor is small
}

// Write writes all bytes. It fails with CodeConflict if the process has closed its input or does not read it; n is how many it may get.
func (i *Input) Write(p []byte) (n int, err error) {
	if i == nil {
		return 0, errNoInput
	}
	i.writing.Lock()
	defer i.writing.Unlock()
	for n < len(p) {
		if i.isClosed() {
			return n, errNoInput
		}
		_ = i.file.SetWriteDeadline(time.Now().Add(inputPatience))
		written, err := i.file.Write(p[n:])
		n += written
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded) && written > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n, farm.Wrap(errUnread, farm.CodeConflict, "The process has not read its input for %d seconds: %d of %d bytes were written.", int(inputPatience.Seconds()), n, len(p))
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO), errors.Is(err, os.ErrClosed):
			return n, errNoInput
		default:
			return n, farm.Wrap(err, farm.CodeConflict, "The input of the process cannot be written")
		}
	}
	return n, nil
}

var errUnread = errors.New("the process does not read its input")

var errNoInput = farm.Conflictf("The process has no open input: start it with stdin or a terminal, and write before it is closed.")

// End ends the input. For a terminal it types control-D, which ends the input of a program that reads lines.
func (i *Input) End() error {
	if i == nil {
		return errNoInput
	}
	if i.terminal {
		_, err := i.Write([]byte{endOfInput})
		return err
	}
	i.Close()
	return nil
}

// Resize sets the size of the terminal. CodeConflict if there is none.
func (i *Input) Resize(size farm.TerminalSize) error {
	if i == nil || !i.terminal || i.isClosed() {
		return farm.Conflictf("The process has no terminal: start it with pty.")
	}
	raw, err := i.file.SyscallConn()
	if err != nil {
		return errNoInput
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = setSize(int(fd), size) }); err != nil { //nolint:gosec // a descriptor is small
		return errNoInput
	}
	return set
}

// Close closes the input. It may be called again.
func (i *Input) Close() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.closed {
		i.closed = true
		_ = i.file.Close()
	}
}

func (i *Input) isClosed() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.closed
}
