package process

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
