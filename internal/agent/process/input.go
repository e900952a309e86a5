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

// inputTimeout is how long a process may not read its input before a write to it is given up.
const inputTimeout = 10 * time.Second

// endOfInput is what a terminal takes for the end of the input at the start of a line: control-D.
const endOfInput = 4

// Input writes to the input of a process. It is safe for concurrent use: the bytes of a Write stay together. A nil Input is closed.
type Input struct {
	terminal bool
	writers  writers

	writing sync.Mutex
	mu      sync.Mutex
	file    *os.File      // nil: the process waits until it is started again
	changed chan struct{} // closed and replaced with file and closed
	lasts   bool          // Keep was called
	closed  bool
}

// newInput takes over fd.
func newInput(fd int, terminal bool) *Input {
	i := &Input{terminal: terminal, changed: make(chan struct{})}
	i.renew(fd)
	return i
}

// Keep makes the input outlive the end of its process: it continues with the next one, and what is written meanwhile waits for that.
func (i *Input) Keep() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lasts = true
}

// next is the input of a process with the descriptor fd: i, which continues with it, or a new one if i is nil.
func (i *Input) next(fd int, terminal bool) *Input {
	if i == nil {
		return newInput(fd, terminal)
	}
	i.renew(fd)
	return i
}

// renew takes over fd, the input of a process that is started. An input that was closed stays so.
func (i *Input) renew(fd int) {
	_ = unix.SetNonblock(fd, true)
	file := os.NewFile(uintptr(fd), "input") //nolint:gosec // a descriptor is small
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		_ = file.Close()
		return
	}
	i.file = file
	i.notify()
}

// leave closes the input of a process that has ended.
func (i *Input) leave() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.file != nil {
		_ = i.file.Close()
	}
	i.file, i.closed = nil, i.closed || !i.lasts
	i.notify()
}

// notify wakes the goroutines that wait for a change. The caller holds mu.
func (i *Input) notify() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// open returns the file of the process that runs now, other than gone. If there is none yet, it waits for it: nil after inputTimeout.
func (i *Input) open(gone *os.File) (*os.File, error) {
	timer := time.NewTimer(inputTimeout)
	defer timer.Stop()
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.closed && (i.file == nil || i.file == gone) {
		changed := i.changed
		i.mu.Unlock()
		late := false
		select {
		case <-changed:
		case <-timer.C:
			late = true
		}
		i.mu.Lock()
		if late {
			return nil, nil
		}
	}
	if i.closed {
		return nil, errNoInput
	}
	return i.file, nil
}

// Write writes all bytes. It fails with CodeConflict if the process has closed its input or does not read it; n is how many it may get.
func (i *Input) Write(p []byte) (n int, err error) {
	if i == nil {
		return 0, errNoInput
	}
	i.writing.Lock()
	defer i.writing.Unlock()
	unread := func() error {
		return farm.Wrap(errUnread, farm.CodeConflict, "The process has not read its input for %d seconds: %d of %d bytes were written.", int(inputTimeout.Seconds()), n, len(p))
	}
	var gone *os.File // whose process has ended or has closed its input
	for n < len(p) {
		file, err := i.open(gone)
		if err != nil {
			return n, err
		}
		if file == nil {
			return n, unread()
		}
		_ = file.SetWriteDeadline(time.Now().Add(inputTimeout))
		written, err := file.Write(p[n:])
		n += written
		ended := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrClosed)
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded) && written > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n, unread()
		case ended && i.isLasting():
			gone = file
		case ended:
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

var errNoTerminal = farm.Conflictf("The process has no terminal: start it with pty.")

// Resize sets the size of the terminal, if its process runs. CodeConflict if it has none.
func (i *Input) Resize(size farm.TerminalSize) error {
	if i == nil || !i.terminal {
		return errNoTerminal
	}
	i.mu.Lock()
	file, closed := i.file, i.closed
	i.mu.Unlock()
	if closed {
		return errNoTerminal
	}
	if file == nil {
		return nil
	}
	raw, err := file.SyscallConn()
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
	if i.closed {
		return
	}
	if i.closed = true; i.file != nil {
		_ = i.file.Close()
	}
	i.notify()
}

func (i *Input) isLasting() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lasts
}
