package sshproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	// maxSide is the largest number of columns or rows that a farm takes.
	maxSide = 1000
	// MaxVariables is how many variables a session takes from its client. More are refused.
	MaxVariables = 256
	// failedCode is the exit code when there is no process, as OpenSSH has it for a connection.
	failedCode = 255
)

// LoginShell starts the best shell of an image as ssh does.
const LoginShell = "if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// session is one shell, command or subsystem.
type session struct {
	*server
	channel ssh.Channel
	size    *wire.TerminalSize
	env     map[string]string
	begun   bool // a session has one program
	work    sync.WaitGroup

	attached *client.Attachment // of the program; nil: it is a subsystem, or none
	process  string
	exited   chan struct{} // is closed after the exit
}

// session serves one channel until the client closes it.
func (s *server) session(ctx context.Context, made ssh.NewChannel) {
	channel, requests, err := made.Accept()
	if err != nil {
		return
	}
	one := &session{server: s, channel: channel, env: map[string]string{}, exited: make(chan struct{})}
	ctx, done := context.WithCancel(ctx)
	for r := range requests {
		ok := one.take(ctx, r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	one.hangUp(ctx)
	done()
	_ = channel.Close()
	one.work.Wait()
}

// take does what a request asks for, and reports whether it was done.
func (s *session) take(ctx context.Context, r *ssh.Request) bool {
	switch r.Type {
	case "pty-req":
		var want struct {
			Term          string
			Cols, Rows    uint32
			Width, Height uint32
			Modes         string
		}
		if ssh.Unmarshal(r.Payload, &want) != nil || s.begun {
			return false
		}
		s.size = sizeOf(want.Cols, want.Rows)
		return want.Term == "" || s.set("TERM", want.Term)
	case "env":
		var v struct{ Name, Value string }
		return ssh.Unmarshal(r.Payload, &v) == nil && !s.begun && s.set(v.Name, v.Value)
	case "window-change":
		var want struct{ Cols, Rows, Width, Height uint32 }
		if ssh.Unmarshal(r.Payload, &want) != nil || s.attached == nil || s.size == nil {
			return false
		}
		s.attached.Resize(*sizeOf(want.Cols, want.Rows))
		return true
	case "signal":
		var v struct{ Name string }
		if ssh.Unmarshal(r.Payload, &v) != nil || s.attached == nil {
			return false
		}
		_, err := s.Client.SignalProcess(ctx, s.Sandbox, s.process, "SIG"+v.Name)
		return err == nil
	case "shell":
		return s.begin(ctx, LoginShell)
	case "exec":
		var v struct{ Command string }
		return ssh.Unmarshal(r.Payload, &v) == nil && s.begin(ctx, v.Command)
	case "subsystem":
		var v struct{ Name string }
		if ssh.Unmarshal(r.Payload, &v) != nil || v.Name != "sftp" || s.begun {
			return false
		}
		s.begun = true
		s.work.Go(func() { s.end(s.serveFiles(ctx)) })
		return true
	default: // agents, X11
		return false
	}
}

func (s *session) set(name, value string) bool {
	if _, known := s.env[name]; !variableName.MatchString(name) || !known && len(s.env) >= MaxVariables {
		return false
	}
	s.env[name] = value
	return true
}

// sizeOf is the size of a terminal within what a farm takes. A client without one sends zeros.
func sizeOf(cols, rows uint32) *wire.TerminalSize {
	return &wire.TerminalSize{Cols: int(min(cmp.Or(cols, 80), maxSide)), Rows: int(min(cmp.Or(rows, 24), maxSide))}
}

// begin starts a program. What the farm says against it goes to the client's standard error.
func (s *session) begin(ctx context.Context, command string) bool {
	if s.begun {
		return false
	}
	s.begun = true
	made, err := s.Client.StartProcess(ctx, s.Sandbox, wire.ProcessRequest{Command: &command, Name: "ssh", PTY: s.size, Stdin: true, Env: s.env})
	if err != nil {
		s.work.Go(func() {
			_, _ = fmt.Fprintf(s.channel.Stderr(), "sandfarm: %s\r\n", err)
			s.end(failedCode)
		})
		return true
	}
	s.attached, s.process = s.Client.Attach(s.Sandbox, made.ID), made.ID
	s.work.Go(func() { s.end(s.output(ctx)) })
	s.work.Go(func() { s.input(ctx) })
	return true
}

// output copies the output until the exit, and returns the exit code.
func (s *session) output(ctx context.Context) int {
	for out, err := range s.attached.Output(ctx) {
		if err == nil {
			switch out.Kind {
			case wire.AttachStdout:
				_, err = s.channel.Write(out.Data)
			case wire.AttachStderr:
				_, err = s.channel.Stderr().Write(out.Data)
			case wire.AttachDropped:
				_, err = fmt.Fprint(s.channel.Stderr(), "\r\nsandfarm: output before this was not kept\r\n")
			case wire.AttachExit:
				close(s.exited)
				return out.Exit.ExitCode
			}
		}
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, io.EOF) {
				_, _ = fmt.Fprintf(s.channel.Stderr(), "\r\nsandfarm: %s\r\n", err)
			}
			return failedCode
		}
	}
	return failedCode
}

// input copies the input until it ends, or the process stops reading.
func (s *session) input(ctx context.Context) {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.channel.Read(buf)
		if n > 0 && s.attached.Write(ctx, buf[:n]) != nil {
			_, _ = io.Copy(io.Discard, s.channel) // the client must not stall
			return
		}
		if err != nil {
			s.attached.End()
			return
		}
	}
}

// end says how a program ended, and closes the channel.
func (s *session) end(code int) {
	_ = s.channel.CloseWrite()
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)})) //nolint:gosec // exit codes are small
	_ = s.channel.Close()
}

// hangUp tells a program that runs that its client has left, as the kernel tells those of a terminal that is gone. One that ignores it runs on.
func (s *session) hangUp(ctx context.Context) {
	if s.attached == nil {
		return
	}
	select {
	case <-s.exited:
		return
	default:
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer done()
	if _, err := s.Client.SignalProcess(ctx, s.Sandbox, s.process, "SIGHUP"); err != nil {
		s.Log.DebugContext(ctx, "the hangup of a client was not sent to its process", slog.Any("error", err))
	}
}
