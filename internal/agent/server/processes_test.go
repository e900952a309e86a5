package server_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// spec is a command with the default limits.
func spec(command string) farm.ProcessSpec {
	return farm.ProcessSpec{Command: command, MaxProcesses: 4, MaxReaders: 2, Grace: 100 * time.Millisecond}
}

func startProcess(t *testing.T, l client.Live, s farm.ProcessSpec) farm.Process {
	t.Helper()
	p, err := l.StartProcess(t.Context(), farm.NewID(farm.ProcessPrefix), s)
	testbed.Must(t, err)
	return p
}

// follow reads the output of a process from a piece on, until done says that it is enough, or to the exit.
func follow(t *testing.T, l client.Live, id, reader string, from uint64, done func(text string) bool) (text string, dropped bool, next uint64, end *farm.ProcessEnd) {
	t.Helper()
	var all strings.Builder
	for next = from; ; {
		out, err := l.ProcessOutput(t.Context(), id, reader, next)
		testbed.Must(t, err)
		for {
			piece, err := out.Next(func(int) error { return nil })
			if errors.Is(err, io.EOF) {
				break
			}
			testbed.Must(t, err)
			next = piece.Seq + 1
			dropped = dropped || piece.Kind == farm.OutputDropped
			_, _ = all.Write(piece.Data)
			if piece.Kind == farm.OutputExit || done != nil && done(all.String()) {
				out.Close()
				return all.String(), dropped, next, piece.End
			}
		}
		out.Close()
	}
}

// A second kill answered like the first one while the killed process was not reaped.
func TestAKilledProcessIsNotThereToBeKilledAgain(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	for range 20 {
		p := startProcess(t, l, spec("sleep 1000"))
		_, err := l.SignalProcess(t.Context(), p.ID, "SIGKILL")
		testbed.Must(t, err)
		_, err = l.SignalProcess(t.Context(), p.ID, "SIGKILL")
		testbed.Require(t, farm.CodeOf(err) == farm.CodeConflict, "a second SIGKILL: %v", err)
	}
}

func contains(want string) func(string) bool {
	return func(text string) bool { return strings.Contains(text, want) }
}

func TestAProcessRunsBesideItsCaller(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	l := a.Live()
	s := spec(`echo "to $GREETING"; echo problem >&2; cat; exit 7`)
	s.Env, s.Name, s.Stdin = map[string]string{"GREETING": "you"}, "greeter", true
	p := startProcess(t, l, s)
	if p.PID < 1 || p.State != farm.ProcessRunning || p.Name != "greeter" || p.StartedAt.IsZero() || !p.Stdin || p.ExitCode != nil {
		t.Errorf("%+v", p)
	}
	again, err := l.StartProcess(t.Context(), p.ID, s)
	testbed.Check(t, err == nil && again.PID == p.PID, "a second start: %+v, %v", again, err)
	n, err := l.WriteProcess(t.Context(), p.ID, strings.NewReader("typed\n"), false)
	testbed.Check(t, err == nil && n == 6, "write: %d, %v", n, err)
	follow(t, l, p.ID, "one", 0, func(text string) bool {
		return strings.Contains(text, "typed\n") && strings.Contains(text, "problem\n")
	})
	if _, err := l.WriteProcess(t.Context(), p.ID, strings.NewReader("last\n"), true); err != nil {
		t.Error(err)
	}
	text, dropped, _, end := follow(t, l, p.ID, "two", 0, nil) // a second reader has all of it; stderr comes on a pipe of its own
	if strings.Replace(text, "problem\n", "", 1) != "to you\ntyped\nlast\n" || !strings.Contains(text, "problem\n") || dropped || end == nil || *end.ExitCode != 7 || end.Stopped || end.TimedOut {
		t.Errorf("%q, %v, %+v", text, dropped, end)
	}
	list, err := l.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].State != farm.ProcessExited || list[0].EndedAt.IsZero() || *list[0].ExitCode != 7 {
		t.Errorf("list %+v, %v", list, err)
	}
	_, err = l.WriteProcess(t.Context(), p.ID, strings.NewReader("x"), false)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "write to one that has ended: %v", err)
	_, err = l.SignalProcess(t.Context(), p.ID, "TERM")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "signal to one that has ended: %v", err)
	if _, err := l.EndProcess(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
	_, err = l.Process(t.Context(), p.ID)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "after it was removed: %v", err)
}

func TestATerminal(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("")
	s.Argv, s.Terminal = []string{"sh", "-c", `test -t 0 && test -t 1 && test -t 2 && echo "tty $TERM"; stty size; while read line; do echo "got $line"; done; echo over`}, &farm.TerminalSize{Cols: 91, Rows: 37}
	p := startProcess(t, l, s)
	follow(t, l, p.ID, "r", 0, contains("tty xterm-256color\r\n37 91\r\n"))
	_, err := l.WriteProcess(t.Context(), p.ID, strings.NewReader("hello\n"), false)
	testbed.Must(t, err)
	follow(t, l, p.ID, "r", 0, contains("got hello\r\n"))
	_, err = l.WriteProcess(t.Context(), p.ID, strings.NewReader(""), true)
	testbed.Must(t, err) // control-D
	text, _, _, end := follow(t, l, p.ID, "r", 0, nil)
	testbed.Check(t, strings.HasSuffix(text, "over\r\n") && end != nil && *end.ExitCode == 0, "%q, %+v", text, end)
}

// A program that nobody reads gets SIGHUP, as when its window is closed.
func TestATerminalHangsUp(t *testing.T) {
	t.Parallel()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // under nohup programs that are started ignore it, as this one does
	l := agenttest.StartPlain(t).Live()
	s := spec("exec sleep 1000")
	s.Terminal, s.Hangup = &farm.TerminalSize{Cols: 80, Rows: 24}, time.Millisecond
	p := startProcess(t, l, s)
	testbed.Until(t, "the program has hung up", func() bool {
		got, err := l.Process(t.Context(), p.ID) // which is no reading
		testbed.Must(t, err)
		return got.State == farm.ProcessExited && *got.ExitCode == 128+int(syscall.SIGHUP)
	})
}

func TestATerminalIsResized(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("trap 'stty size; echo resized' WINCH; echo up; while :; do sleep 0.02; done")
	s.Terminal = &farm.TerminalSize{Cols: 91, Rows: 37}
	p := startProcess(t, l, s)
	follow(t, l, p.ID, "r", 0, contains("up\r\n"))
	got, err := l.ResizeProcess(t.Context(), p.ID, farm.TerminalSize{Cols: 100, Rows: 50})
	testbed.Check(t, err == nil && *got.Terminal == (farm.TerminalSize{Cols: 100, Rows: 50}), "resize: %+v, %v", got, err)
	follow(t, l, p.ID, "r", 0, contains("50 100\r\nresized\r\n"))
}

// All bytes arrive at a reader that is slower than the process, in several answers and over two connections.
func TestAReaderGetsEveryByte(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	const lines = 900_000 // some 6 MB: six windows
	for name, terminal := range map[string]*farm.TerminalSize{"Pipe": nil, "Terminal": {Cols: 80, Rows: 24}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(fmt.Sprintf("read go; seq %d", lines))
			s.Stdin, s.Terminal = true, terminal
			l := a.Live()
			p := startProcess(t, l, s)
			reader := "r"
			out, err := l.ProcessOutput(t.Context(), p.ID, reader, 0) // it is a reader from here on
			testbed.Must(t, err)
			_, err = l.WriteProcess(t.Context(), p.ID, strings.NewReader("\n"), false)
			testbed.Must(t, err)
			_, err = out.Next(func(int) error { return nil })
			testbed.Must(t, err)
			out.Close() // its worker dies in the middle, and another one goes on
			other := agenttest.Connect(t, a.Server).Live()
			text, dropped, _, end := follow(t, other, p.ID, reader, 1, nil)
			text = strings.TrimPrefix(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
			testbed.Check(t, !dropped && end != nil && *end.ExitCode == 0, "dropped %v, end %+v", dropped, end)
			at := 1
			for line := range strings.Lines(text) {
				testbed.Require(t, line == fmt.Sprintf("%d\n", at), "line %d is %q", at, line)
				at++
			}
			testbed.Check(t, at == lines+1, "%d lines", at-1)
		})
	}
}

// Without a reader, and with one that never reads, a process runs on and its end is kept.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	p := startProcess(t, l, spec("seq 900000"))
	testbed.Until(t, "the process ends", func() bool {
		got, err := l.Process(t.Context(), p.ID)
		return err == nil && got.State == farm.ProcessExited
	})
	text, dropped, _, _ := follow(t, l, p.ID, "late", 1, nil)
	if !dropped || !strings.HasSuffix(text, "\n899999\n900000\n") || len(text) > agent.WindowBytes+64<<10 || len(text) < agent.WindowBytes/2 {
		t.Errorf("dropped %v, %d bytes", dropped, len(text))
	}
	s := spec("read go; seq 900000")
	s.Stdin = true
	p = startProcess(t, l, s)
	out, err := l.ProcessOutput(t.Context(), p.ID, "asleep", 0) // it never reads
	testbed.Must(t, err)
	defer out.Close()
	_, err = l.WriteProcess(t.Context(), p.ID, strings.NewReader("\n"), false)
	testbed.Must(t, err)
	testbed.Until(t, "the process ends", func() bool {
		got, err := l.Process(t.Context(), p.ID)
		return err == nil && got.State == farm.ProcessExited
	})
}

func TestEndingProcesses(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	for name, c := range map[string]struct {
		command string
		exit    int
	}{
		"Plain":           {"echo up; exec sleep 100", 128 + int(syscall.SIGTERM)},
		"Handler":         {"trap 'exit 3' TERM; echo up; sleep 100 & wait", 3},
		"IgnoresSIGTERM":  {"trap '' TERM; echo up; sleep 100", 128 + int(syscall.SIGKILL)},
		"LeavesItsGroup":  {"setsid sh -c 'echo up; sleep 100' & wait", 128 + int(syscall.SIGTERM)},
		"ManyInItsGroups": {"for i in 1 2 3 4 5; do sleep 100 & done; echo up; wait", 128 + int(syscall.SIGTERM)},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(c.command)
			if c.exit != 128+int(syscall.SIGKILL) {
				s.Grace = time.Minute
			}
			p := startProcess(t, l, s)
			follow(t, l, p.ID, "r", 0, contains("up\n"))
			got, err := l.EndProcess(t.Context(), p.ID)
			testbed.Check(t, err == nil && got.State == farm.ProcessExited && *got.ExitCode == c.exit && got.Stopped, "%+v, %v", got, err)
			got, err = l.Process(t.Context(), p.ID)
			testbed.Check(t, err == nil && got.State == farm.ProcessExited && got.Stopped, "afterwards: %+v, %v", got, err)
		})
	}
	s := spec("exec sleep 100")
	s.Timeout = 50 * time.Millisecond
	p := startProcess(t, l, s)
	_, _, _, end := follow(t, l, p.ID, "r", 0, nil)
	testbed.Check(t, end != nil && end.TimedOut && !end.Stopped, "after its time: %+v", end)
	p = startProcess(t, l, spec("trap 'echo one' USR1; echo up; while :; do sleep 0.05; done"))
	follow(t, l, p.ID, "r", 0, contains("up\n"))
	_, err := l.SignalProcess(t.Context(), p.ID, "SIGUSR1")
	testbed.Must(t, err)
	follow(t, l, p.ID, "r", 0, contains("one\n"))
}

func TestLimitsOfProcesses(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	var last farm.Process
	for range 4 { // limit-1 and the limit
		last = startProcess(t, l, spec("exec sleep 100"))
	}
	for range 3 {
		_, err := l.StartProcess(t.Context(), farm.NewID(farm.ProcessPrefix), spec("true"))
		testbed.Require(t, farm.CodeOf(err) == farm.CodeExhausted, "one more: %v", err)
	}
	_, err := l.EndProcess(t.Context(), last.ID)
	testbed.Must(t, err)
	p := startProcess(t, l, spec("exec sleep 100"))
	for _, reader := range []string{"a", "b"} {
		out, err := l.ProcessOutput(t.Context(), p.ID, reader, 0)
		testbed.Must(t, err)
		defer out.Close()
	}
	testbed.Until(t, "the readers before it wait", func() bool {
		_, err := l.ProcessOutput(t.Context(), p.ID, "c", 0)
		return farm.CodeOf(err) == farm.CodeExhausted
	})
	testbed.Must(t, l.LeaveProcess(t.Context(), p.ID, "a"))
	out, err := l.ProcessOutput(t.Context(), p.ID, "c", 0)
	testbed.Must(t, err)
	out.Close()
	_, err = l.EndProcess(t.Context(), p.ID)
	testbed.Must(t, err)
	for range 70 { // of those that have ended the last 64 are kept
		p := startProcess(t, l, spec("exit 0"))
		follow(t, l, p.ID, "r", 0, nil)
	}
	testbed.Until(t, "64 of those that have ended are kept", func() bool {
		list, err := l.Processes(t.Context())
		return err == nil && len(list) == 3+64
	})
}

func TestProcessesThatDoNotStart(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	terminal := func(cols, rows int) *farm.TerminalSize { return &farm.TerminalSize{Cols: cols, Rows: rows} }
	for name, change := range map[string]func(*farm.ProcessSpec){
		"Nothing":      func(s *farm.ProcessSpec) { s.Command = "" },
		"Both":         func(s *farm.ProcessSpec) { s.Argv = []string{"true"} },
		"NoProgram":    func(s *farm.ProcessSpec) { s.Command, s.Argv = "", []string{"no-such-program"} },
		"NoFile":       func(s *farm.ProcessSpec) { s.Command, s.Argv = "", []string{"/no/such/file"} },
		"Directory":    func(s *farm.ProcessSpec) { s.Command, s.Argv = "", []string{"/tmp"} },
		"Empty":        func(s *farm.ProcessSpec) { s.Command, s.Argv = "", []string{""} },
		"Cwd":          func(s *farm.ProcessSpec) { s.Cwd = "no/such/directory" },
		"NUL":          func(s *farm.ProcessSpec) { s.Command = "echo \x00" },
		"NoColumns":    func(s *farm.ProcessSpec) { s.Terminal = terminal(0, 0) },
		"ManyColumns":  func(s *farm.ProcessSpec) { s.Terminal = terminal(60000, 60000) },
		"BeyondColums": func(s *farm.ProcessSpec) { s.Terminal = terminal(farm.MaxTerminalSide+1, 24) },
		"Negative":     func(s *farm.ProcessSpec) { s.Terminal = terminal(80, -1) },
		"LongArgument": func(s *farm.ProcessSpec) { s.Command, s.Argv = "", []string{"true", strings.Repeat("x", 1<<20)} },
	} {
		s := spec("true")
		change(&s)
		p, err := l.StartProcess(t.Context(), farm.NewID(farm.ProcessPrefix), s)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "%s: %+v, %v", name, p, err)
	}
	list, err := l.Processes(t.Context())
	testbed.Check(t, err == nil && len(list) == 0, "%d processes are left, %v", len(list), err)
	for _, side := range []int{1, farm.MaxTerminalSide - 1, farm.MaxTerminalSide} {
		s := spec("stty size")
		s.Terminal = terminal(side, side)
		p := startProcess(t, l, s)
		text, _, _, _ := follow(t, l, p.ID, "r", 0, nil)
		testbed.Check(t, text == fmt.Sprintf("%d %d\r\n", side, side), "%d: %q", side, text)
	}
	p := startProcess(t, l, spec("exec sleep 100"))
	for name, err := range map[string]error{
		"unknown signal": third(l.SignalProcess(t.Context(), p.ID, "SIGNONE")),
		"unknown size":   third(l.ResizeProcess(t.Context(), p.ID, farm.TerminalSize{Cols: 0, Rows: 1})),
	} {
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "%s: %v", name, err)
	}
	_, err = l.ResizeProcess(t.Context(), p.ID, farm.TerminalSize{Cols: 80, Rows: 24})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "resize of a pipe: %v", err)
	_, err = l.WriteProcess(t.Context(), p.ID, strings.NewReader("x"), false)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "write without an input: %v", err)
	_, err = l.Process(t.Context(), farm.NewID(farm.ProcessPrefix))
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "unknown process: %v", err)
}

func third[T any](_ T, err error) error { return err }
