package verbs

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// controlSequences makes a console follow control sequences, which older ones do only on request. restore undoes that.
func controlSequences(out *os.File) (restore func(), ok bool) {
	console := windows.Handle(out.Fd())
	var before uint32
	if err := windows.GetConsoleMode(console, &before); err != nil {
		return nil, false
	}
	if err := windows.SetConsoleMode(console, before|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING); err != nil {
		return nil, false
	}
	return func() { _ = windows.SetConsoleMode(console, before) }, true
}

// ownGroup keeps Ctrl-C in the console from a program that is started.
func ownGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// hasInput reports whether a file has something to read. Here nobody knows without waiting.
func hasInput(*os.File) bool { return false }
