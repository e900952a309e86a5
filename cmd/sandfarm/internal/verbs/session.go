package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// endOfInput is Ctrl-D.
const endOfInput = 4

// maxSide is the largest number of columns or rows that a farm takes.
const maxSide = 1000

// session connects the streams of this program to a process.
type session struct {
	*app
	c        *client.Client
	sandbox  string
	process  wire.Process
	input    bool // the process gets what comes from In
	attached *client.Attachment
}

// errLeft says that the user has left a process, which runs on.
var errLeft = errors.New("the user has left")

// run copies both ways until the process has exited, and returns its exit code as an error. errLeft: the user left it.
func (s *session) run(ctx context.Context) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	s.attached = s.c.Attach(s.sandbox, s.process.ID)
	var escape *escapes
	if s.process.PTY != nil {
		restore, err := s.raw()
		if err != nil {
			return err
		}
		defer restore()
		if s.typed() {
			escape = &escapes{}
		}
		if out, ok := s.Out.(*os.File); ok {
			defer resized(out, func() { s.resize(out) })()
			s.resize(out)
		}
	}
	if s.input {
		go func() { // it may wait for a key when all is over, which no system can end
			if s.copyIn(ctx, escape) {
				leave(errLeft)
			}
		}()
	}
	for out, err := range s.attached.Output(ctx) {
		switch {
		case errors.Is(context.Cause(ctx), errLeft):
			return errLeft
		case err != nil:
			return err
		}
		switch out.Kind {
		case wire.AttachStdout:
			_, err = s.Out.Write(out.Data)
		case wire.AttachStderr:
			_, err = s.Err.Write(out.Data)
		case wire.AttachDropped:
			_, err = fmt.Fprint(s.Err, "\r\nsandfarm: output before this was not kept\r\n")
		case wire.AttachExit:
			return s.ended(*out.Exit)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// ended is the end of the process as an error: its exit code, or that of a timeout.
func (s *session) ended(exit wire.ExitData) error {
	switch {
	case exit.TimedOut:
		fmt.Fprintln(s.Err, "sandfarm: the process was ended after its timeout; --timeout of exec sets a longer one")
		return &CodeError{Code: ExitTimeout}
	case exit.ExitCode != 0:
		return &CodeError{Code: exit.ExitCode}
	}
	return nil
}

// raw gives the process the keys as they are typed. restore undoes that.
func (s *session) raw() (restore func(), err error) {
	restore = func() {}
	if out, ok := s.Out.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		if undo, ok := controlSequences(out); ok {
			restore = undo
		}
	}
	in, ok := s.In.(*os.File)
	if !ok || !s.input || !term.IsTerminal(int(in.Fd())) {
		return restore, nil
	}
	state, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	screen := restore
	return func() { _ = term.Restore(int(in.Fd()), state); screen() }, nil
}

// resize tells the process the size of this terminal.
func (s *session) resize(out *os.File) {
	if size, ok := sizeOf(out); ok {
		s.attached.Resize(size)
	}
}

// sizeOf is the size of a terminal, within what a farm takes.
func sizeOf(out *os.File) (size wire.TerminalSize, ok bool) {
	cols, rows, err := term.GetSize(int(out.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return size, false
	}
	return wire.TerminalSize{Cols: min(cols, maxSide), Rows: min(rows, maxSide)}, true
}

// copyIn copies the input until it ends. leave means that the user wants to leave the process. escape is nil if the input is not a terminal.
func (s *session) copyIn(ctx context.Context, escape *escapes) (leave bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.In.Read(buf)
		keys := buf[:n]
		if escape != nil {
			var help bool
			if keys, help, leave = escape.filter(keys); help {
				_, _ = io.WriteString(s.Err, escapeHelp)
			}
		}
		if len(keys) > 0 && s.attached.Write(ctx, keys) != nil {
			return false // it has no input any more: only its output continues
		}
		if leave {
			return true
		}
		if err != nil {
			if s.process.PTY != nil && !s.typed() { // a terminal has no end of input but this key
				_ = s.attached.Write(ctx, []byte{endOfInput})
			}
			s.attached.End()
			return false
		}
	}
}

// escapes finds the escape sequences that a person types at the start of a line, as ssh has them. The zero value is at the start of a line.
type escapes struct {
	middle bool // of a line
	tilde  bool // it began with a tilde, which is held back
}

const escapeHelp = "\r\n~.  leave: the process runs on\r\n~?  this help\r\n~~  a tilde\r\n(Each at the start of a line.)\r\n"

// filter returns the keys for the process, whether the help was asked for, and whether to leave.
func (e *escapes) filter(keys []byte) (out []byte, help, leave bool) {
	for _, key := range keys {
		switch {
		case e.tilde:
			e.tilde, e.middle = false, true
			switch key {
			case '.':
				return out, help, true
			case '?':
				help, e.middle = true, false
				continue
			case '~':
			default:
				out = append(out, '~')
			}
		case key == '~' && !e.middle:
			e.tilde = true
			continue
		}
		out = append(out, key)
		e.middle = key != '\r' && key != '\n'
	}
	return out, help, false
}
