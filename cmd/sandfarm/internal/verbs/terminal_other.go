//go:build !windows

package verbs

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// controlSequences makes a terminal follow control sequences: on these systems every terminal does.
func controlSequences(*os.File) (restore func(), ok bool) { return func() {}, true }

// ownGroup keeps the signals of the terminal and of this program's process group from a program that is started.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// hasInput reports whether a file, or a pipe at this moment, has something to read. It neither waits nor reads. A file of which a part was read belongs
// to another program, such as the shell whose loop reads it.
func hasInput(in *os.File) bool {
	info, err := in.Stat()
	switch {
	case err != nil:
		return false
	case info.Mode().IsRegular():
		at, err := in.Seek(0, io.SeekCurrent)
		return err == nil && at == 0 && info.Size() > 0
	case info.Mode()&os.ModeNamedPipe == 0:
		return false
	}
	request := uint(0x4004667f) // FIONREAD of macOS and BSD, which has no common name
	if runtime.GOOS == "linux" {
		request = 0x541b
	}
	n, err := unix.IoctlGetInt(int(in.Fd()), request)
	return err == nil && n > 0
}
