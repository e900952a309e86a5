package process

import (
	"bytes"
	"io"
	"os"
	"strconv"
)

const (
	// maxLine bounds the files of /proc that hold one line.
	maxLine = 4 << 10
	// maxEnviron bounds how much of a process's environment is searched for marks: more than an exec takes (execve(2): 6 MiB).
	maxEnviron = 6 << 20
)

// procFile reads the beginning of a file of /proc; nil if it cannot be read.
func procFile(path string, most int64) []byte {
	f, err := os.Open("/proc/" + path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return text
}

// arguments reads what a process was started with, each argument ended by a NUL. In the middle of an exec, and when the process has wiped
// them, they are empty.
func arguments(pid int) []byte { return procFile(strconv.Itoa(pid)+"/cmdline", maxLine) }

// environment reads the environment that a process was started with. known is false while that cannot be said: in the middle of an exec
// /proc shows neither arguments nor an environment.
func environment(pid int) (env []byte, known bool) {
	for range 2 { // an exec may end after the first look
		if env = procFile(strconv.Itoa(pid)+"/environ", maxEnviron); len(env) > 0 {
			return env, true
		}
		if len(bytes.Trim(arguments(pid), "\x00")) == 0 {
			return nil, false
		}
	}
	return nil, true
}

// hasEntry reports whether an environment has an entry that begins with prefix.
func hasEntry(env []byte, prefix string) bool {
	return bytes.HasPrefix(env, []byte(prefix)) || bytes.Contains(env, append([]byte{0}, prefix...))
}
