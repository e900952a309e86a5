//go:build !windows

package verbs

import (
	"os"
	"os/exec"
	"syscall"
)

// controlSequences makes a terminal follow control sequences: on these systems every terminal does.
func controlSequences(*os.File) (restore func(), ok bool) { return func() {}, true }

// ownGroup keeps the signals of the terminal and of this program's process group from a program that is started.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
