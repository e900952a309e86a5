package server

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// askTimeout bounds a question to a program of the image: a starved sandbox is slow.
	askTimeout = 30 * time.Second
	// maxAnswerBytes bounds its answer.
	maxAnswerBytes = 4 << 20
)

// python is the Python of the image, found out once. The zero path means that there is none.
type python struct {
	once    sync.Once
	path    string
	Version string   `json:"version"` // such as 3.13
	Path    []string `json:"path"`    // sys.path without the directory of the script
}

// python gives the image's Python: the one that kernels use.
func (s *Server) python() *python {
	p := &s.interpreter
	p.once.Do(func() {
		path := lookPath(s.image, "python3", "python")
		if path == "" {
			return
		}
		const question = `import json, sys; print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "path": [p for p in sys.path if p.startswith("/")]}))`
		raw, err := s.ask([]string{path, "-c", question}, s.image, s.cfg.HomeDir)
		if err == nil && json.Unmarshal(raw, p) == nil {
			p.path = path
		}
	})
	return p
}

// ask runs a program and gives what it prints. An exit code other than 0 is an error.
func (s *Server) ask(argv, env []string, dir string) ([]byte, error) {
	null, err := openNull()
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer closeFD(null)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	_ = unix.SetNonblock(pipe[0], true)
	out := os.NewFile(uintptr(pipe[0]), "answer") //nolint:gosec // a descriptor is small
	defer func() { _ = out.Close() }()
	p, err := s.reaper.start(argv, env, dir, []uintptr{uintptr(null), uintptr(pipe[1]), uintptr(null)}) //nolint:gosec // descriptors are small
	closeFD(pipe[1])
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(argv[0]), err)
	}
	_ = out.SetReadDeadline(time.Now().Add(askTimeout))
	raw, err := io.ReadAll(io.LimitReader(out, maxAnswerBytes))
	if err != nil {
		s.reaper.signal(p, syscall.SIGKILL)
	}
	timer := time.AfterFunc(askTimeout, func() { s.reaper.signal(p, syscall.SIGKILL) })
	defer timer.Stop()
	<-p.done
	if err == nil && p.code() != 0 {
		err = fmt.Errorf("it ended with exit code %d", p.code())
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", filepath.Base(argv[0]), err)
	}
	return raw, nil
}
