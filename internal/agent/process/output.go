package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// outputTimeout bounds the run of a program by Reaper.Output: in a sandbox with little CPU even short programs take long.
const outputTimeout = 30 * time.Second

// MaxOutputBytes bounds the result of Reaper.Output.
const MaxOutputBytes = 4 << 20

// Output runs a program of the image and returns its output. An exit code other than 0 is an error.
func (r *Reaper) Output(argv, env []string, dir string) ([]byte, error) {
	null, err := OpenNull()
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer func() { _ = syscall.Close(null) }()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	_ = unix.SetNonblock(pipe[0], true)
	out := os.NewFile(uintptr(pipe[0]), "output") //nolint:gosec // a descriptor is small
	defer func() { _ = out.Close() }()
	p, err := r.Start(argv, env, dir, []uintptr{uintptr(null), uintptr(pipe[1]), uintptr(null)}) //nolint:gosec // descriptors are small
	_ = syscall.Close(pipe[1])
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(argv[0]), err)
	}
	_ = out.SetReadDeadline(time.Now().Add(outputTimeout))
	raw, err := io.ReadAll(io.LimitReader(out, MaxOutputBytes))
	if err != nil {
		r.Signal(p, syscall.SIGKILL)
	}
	timer := time.AfterFunc(outputTimeout, func() { r.Signal(p, syscall.SIGKILL) })
	defer timer.Stop()
	<-p.Done()
	if err == nil && p.ExitCode() != 0 {
		err = fmt.Errorf("exit code %d", p.ExitCode())
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", filepath.Base(argv[0]), err)
	}
	return raw, nil
}

// tailBytes is how much a Tail keeps.
const tailBytes = 64 << 10

// Tail keeps the end of a stream. The zero value is empty. It is safe for concurrent use.
type Tail struct {
	mu   sync.Mutex
	data []byte
}

// Add appends the next bytes of the stream.
func (t *Tail) Add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append([]byte(nil), t.data[over:]...)
	}
}

// String returns the end of the stream as text, without colours.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return execution.StripANSI(strings.ToValidUTF8(string(t.data), "\uFFFD"))
}

// knownWriters is how many writers of one input are remembered, the last used ones: far more than write at once.
const knownWriters = 256

// writers know how far each writer of an input has come, so that what is sent again is not written again. The zero value knows none.
type writers struct {
	mu   sync.Mutex
	used []*writer // the last used one last
}

// writer is one writer of an input.
type writer struct {
	name string

	mu       sync.Mutex // held while its bytes are written
	position int64      // bytes that it has written, and one for the end of the input
}

// get finds a writer, or begins one that has written nothing.
func (w *writers) get(name string) *writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.IndexFunc(w.used, func(known *writer) bool { return known.name == name })
	one := &writer{name: name}
	if at >= 0 {
		one = w.used[at]
		w.used = slices.Delete(w.used, at, at+1)
	} else if len(w.used) >= knownWriters {
		w.used = slices.Delete(w.used, 0, 1)
	}
	w.used = append(w.used, one)
	return one
}

// WriteFrom writes p, whose first byte has the position from among all that the writer of a name writes, and ends the input then if end says so;
// the end has a position, too. What that writer has written before is skipped, so a call can be repeated. It returns the position behind what is
// written of p and end: less than all if the process reads nothing for ten seconds. CodeConflict: the process has no open input, or bytes before
// from are missing.
func (i *Input) WriteFrom(name string, from int64, p []byte, end bool) (position int64, err error) {
	if i == nil {
		return 0, errNoInput
	}
	w := i.writers.get(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	last := from + int64(len(p))
	if from < 0 || from > w.position {
		return 0, farm.Conflictf("The input has %d bytes of this writer, so it cannot continue at %d.", w.position, from)
	}
	if w.position < last {
		n, err := i.Write(p[w.position-from:])
		if w.position += int64(n); err != nil && !errors.Is(err, errUnread) {
			return w.position, err
		}
	}
	if !end || w.position < last {
		return min(w.position, last), nil
	}
	if w.position == last {
		if err := i.End(); err != nil {
			return w.position, err
		}
		w.position++
	}
	return last + 1, nil
}
