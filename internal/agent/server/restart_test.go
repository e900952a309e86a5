package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// failing is a process that is started again when it fails.
func failing(command string, restarts int) farm.ProcessSpec {
	s := spec(command)
	s.Restart, s.MaxRestarts, s.MaxProcesses = farm.RestartOnFailure, restarts, 20
	return s
}

// becomes waits until a process is as done says.
func becomes(t *testing.T, l client.Live, id string, done func(farm.Process) bool) farm.Process {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		p, err := l.Process(t.Context(), id)
		testbed.Must(t, err)
		if done(p) {
			return p
		}
		testbed.Require(t, !time.Now().After(deadline), "still %+v", p)
	}
}

func TestAProcessThatFailsIsStartedAgain(t *testing.T) {
	t.Parallel()
	const limit = 2
	l := agenttest.StartPlain(t).Live()
	for _, c := range []struct {
		name           string
		restart        farm.Restart
		failures       int
		runs, exitCode int
	}{
		{"Never", farm.RestartNever, 1, 1, 3},
		{"NotSaid", "", 1, 1, 3},
		{"WithoutAFailure", farm.RestartOnFailure, 0, 1, 0},
		{"BelowTheLimit", farm.RestartOnFailure, limit - 1, limit, 0},
		{"AtTheLimit", farm.RestartOnFailure, limit, limit + 1, 0},
		{"BeyondTheLimit", farm.RestartOnFailure, limit + 1, limit + 1, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := failing(fmt.Sprintf(`n=$(cat %[1]s 2>/dev/null || echo 0); echo "run $n"; echo $((n+1)) > %[1]s; test $n -ge %[2]d || exit 3`, c.name, c.failures), limit)
			s.Restart = c.restart
			p := startProcess(t, l, s)
			want := ""
			for i := range c.runs {
				want += fmt.Sprintf("run %d\n", i)
			}
			text, dropped, _, end := follow(t, l, p.ID, "r", 0, nil)
			if text != want || dropped || end == nil || *end.ExitCode != c.exitCode || end.Stopped || end.TimedOut {
				t.Errorf("%q, %v, %+v", text, dropped, end)
			}
			got, err := l.Process(t.Context(), p.ID)
			if err != nil || got.Restarts != c.runs-1 || got.Restart != c.restart || got.State != farm.ProcessExited || *got.ExitCode != c.exitCode || !got.StartedAt.Equal(p.StartedAt) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestInputGoesOnWithTheNextRun(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	for name, terminal := range map[string]*farm.TerminalSize{"Pipe": nil, "Terminal": {Cols: 91, Rows: 37}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := failing(`echo "up $$"; read line; echo "got $line"; stty size 2>/dev/null; test "$line" = c || exit 1`, 5)
			s.Stdin, s.Terminal = true, terminal
			p := startProcess(t, l, s)
			if terminal != nil {
				_, err := l.ResizeProcess(t.Context(), p.ID, farm.TerminalSize{Cols: 100, Rows: 50})
				testbed.Must(t, err)
			}
			position := int64(0)
			for i, line := range []string{"a\n", "b\n", "c\n"} {
				if line == "b\n" { // also while no process runs
					becomes(t, l, p.ID, func(p farm.Process) bool { return p.PID == 0 || p.Restarts == i })
				} else {
					becomes(t, l, p.ID, func(now farm.Process) bool { return now.Restarts == i && now.PID != 0 })
				}
				var err error
				position, err = l.WriteProcessFrom(t.Context(), p.ID, "w", position, []byte(line), false)
				testbed.Must(t, err)
				follow(t, l, p.ID, "r", 0, contains("got "+line[:1]))
			}
			text, _, _, end := follow(t, l, p.ID, "r", 0, nil)
			testbed.Check(t, end != nil && *end.ExitCode == 0 && strings.Count(text, "up ") == 3, "%q, %+v", text, end)
			if terminal != nil && !strings.Contains(text[strings.Index(text, "got c"):], "50 100\r\n") {
				t.Errorf("the last terminal has another size: %q", text)
			}
			_, err := l.WriteProcess(t.Context(), p.ID, strings.NewReader("x"), false)
			testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "a write after the last run: %v", err)
		})
	}
}

func TestAProcessThatFailsEnds(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	t.Run("ByDelete", func(t *testing.T) {
		t.Parallel()
		p := startProcess(t, l, failing("exit 4", 1000))
		waiting := becomes(t, l, p.ID, func(p farm.Process) bool { return p.PID == 0 && p.Restarts > 4 }) // for seconds
		testbed.Check(t, waiting.State == farm.ProcessRunning, "while it waits: %+v", waiting)
		_, err := l.SignalProcess(t.Context(), p.ID, "TERM")
		testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "a signal to nothing: %v", err)
		got, err := l.EndProcess(t.Context(), p.ID)
		testbed.Check(t, err == nil && got.State == farm.ProcessExited && got.Stopped && *got.ExitCode == 4, "%+v, %v", got, err)
	})
	t.Run("ByItsTimeout", func(t *testing.T) {
		t.Parallel()
		s := failing("exit 4", 1000)
		s.Timeout = 500 * time.Millisecond
		_, _, _, end := follow(t, l, startProcess(t, l, s).ID, "r", 0, nil)
		testbed.Check(t, end != nil && end.TimedOut && !end.Stopped, "%+v", end)
	})
	t.Run("WithWhatItStarted", func(t *testing.T) {
		t.Parallel()
		text, _, _, end := follow(t, l, startProcess(t, l, failing(`if test -f child; then grep -h '^State:.[RSD]' /proc/$(cat child)/status 2>/dev/null; echo over; exit 0; fi; sleep 1000 & echo $! > child; exit 1`, 1)).ID, "r", 0, nil)
		testbed.Check(t, text == "over\n" && *end.ExitCode == 0, "%q, %+v", text, end)
	})
	t.Run("WhenItCannotStart", func(t *testing.T) {
		t.Parallel()
		s := failing("mkdir gone", 2)
		follow(t, l, startProcess(t, l, s).ID, "r", 0, nil)
		s.Command, s.Cwd = `rmdir "$PWD"; exit 1`, "gone"
		text, _, _, end := follow(t, l, startProcess(t, l, s).ID, "r", 0, nil)
		testbed.Check(t, *end.ExitCode == 126 && strings.Count(text, "cannot start the process again: The directory") == 2, "%q, %+v", text, end)
	})
	t.Run("NotByAnUnknownPolicy", func(t *testing.T) {
		t.Parallel()
		s := failing("exit 1", 1)
		s.Restart = "always"
		_, err := l.StartProcess(t.Context(), farm.NewID(farm.ProcessPrefix), s)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "an unknown policy: %v", err)
	})
}

// What a writer sends again is written once, also where a part of it was written before, and so is its end.
func TestAWriterGoesOn(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("cat; echo over")
	s.Stdin = true
	p := startProcess(t, l, s)
	for _, c := range []struct {
		writer string
		from   int64
		text   string
		end    bool
		want   int64
		code   farm.Code
	}{
		{"one", 0, "abc", false, 3, ""},
		{"one", 0, "abc", false, 3, ""},
		{"one", 1, "bcdef", false, 6, ""},
		{"two", 0, "-", false, 1, ""},
		{"one", 7, "z", false, 0, farm.CodeConflict},
		{"new", 1, "z", false, 0, farm.CodeConflict},
		{"one", 6, "", false, 6, ""},
		{"one", 2, "c", false, 3, ""},
		{"one", 6, "gh\n", true, 10, ""},
		{"one", 6, "gh\n", true, 10, ""},
		{"one", 0, "abcdefgh\n", false, 9, ""},
		{"two", 1, "late", false, 0, farm.CodeConflict},
	} {
		got, err := l.WriteProcessFrom(t.Context(), p.ID, c.writer, c.from, []byte(c.text), c.end)
		if got != c.want && c.code == "" || (c.code == "") != (err == nil) || err != nil && farm.CodeOf(err) != c.code {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	text, _, _, _ := follow(t, l, p.ID, "r", 0, nil)
	testbed.Check(t, text == "abcdef-gh\nover\n", "%q", text)
}

// The end of a terminal's input is a key, and is typed once.
func TestAWriterEndsATerminalOnce(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("cat; cat; echo over")
	s.Terminal = &farm.TerminalSize{Cols: 80, Rows: 24}
	p := startProcess(t, l, s)
	for range 3 {
		if got, err := l.WriteProcessFrom(t.Context(), p.ID, "one", 0, []byte("a\n"), true); err != nil || got != 3 {
			t.Fatal(got, err)
		}
	}
	follow(t, l, p.ID, "r", 0, contains("a\r\na\r\n"))
	if got, err := l.WriteProcessFrom(t.Context(), p.ID, "one", 3, []byte("b\n"), true); err != nil || got != 6 {
		t.Fatal(got, err)
	}
	text, _, _, _ := follow(t, l, p.ID, "s", 0, nil)
	testbed.Check(t, strings.Count(text, "b\r\n") == 2 && strings.HasSuffix(text, "over\r\n"), "%q", text)
}

func TestLimitsOfWriters(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("exec sleep 100") // it reads nothing
	s.Stdin = true
	p := startProcess(t, l, s)
	for size, want := range map[int]farm.Code{agent.InputBytes - 1: "", agent.InputBytes: "", agent.InputBytes + 1: farm.CodeInvalid} {
		_, err := l.WriteProcessFrom(t.Context(), p.ID, "w", 0, make([]byte, size), false)
		testbed.Check(t, (err == nil) == (want == "") && (err == nil || farm.CodeOf(err) == want), "%d bytes: %v", size, err)
	}
	var at int64
	for { // until the pipe is full
		got, err := l.WriteProcessFrom(t.Context(), p.ID, "full", at, make([]byte, agent.InputBytes), false)
		testbed.Must(t, err)
		if got < at+agent.InputBytes {
			break
		}
		at = got
	}
	_, err := l.WriteProcessFrom(t.Context(), p.ID, strings.Repeat("w", 129), 0, nil, false)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "a long name: %v", err)
	without := startProcess(t, l, spec("exec sleep 100"))
	_, err = l.WriteProcessFrom(t.Context(), without.ID, "w", 0, []byte("x"), false)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeConflict, "without input: %v", err)
	_, err = l.WriteProcessFrom(t.Context(), farm.NewID(farm.ProcessPrefix), "w", 0, nil, false)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "no process: %v", err)
}
