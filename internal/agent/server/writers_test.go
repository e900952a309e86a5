package server_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	if text, _, _, _ := follow(t, l, p.ID, "r", 0, nil); text != "abcdef-gh\nover\n" {
		t.Errorf("%q", text)
	}
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
	if text, _, _, _ := follow(t, l, p.ID, "s", 0, nil); strings.Count(text, "b\r\n") != 2 || !strings.HasSuffix(text, "over\r\n") {
		t.Errorf("%q", text)
	}
}

func TestLimitsOfWriters(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	s := spec("exec sleep 100") // it reads nothing
	s.Stdin = true
	p := startProcess(t, l, s)
	for size, want := range map[int]farm.Code{agent.InputBytes - 1: "", agent.InputBytes: "", agent.InputBytes + 1: farm.CodeInvalid} {
		if _, err := l.WriteProcessFrom(t.Context(), p.ID, "w", 0, make([]byte, size), false); (err == nil) != (want == "") || err != nil && farm.CodeOf(err) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	var at int64
	for { // until the pipe is full
		got, err := l.WriteProcessFrom(t.Context(), p.ID, "full", at, make([]byte, agent.InputBytes), false)
		agenttest.Must(t, err)
		if got < at+agent.InputBytes {
			break
		}
		at = got
	}
	if _, err := l.WriteProcessFrom(t.Context(), p.ID, strings.Repeat("w", 129), 0, nil, false); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("a long name: %v", err)
	}
	without := startProcess(t, l, spec("exec sleep 100"))
	if _, err := l.WriteProcessFrom(t.Context(), without.ID, "w", 0, []byte("x"), false); farm.CodeOf(err) != farm.CodeConflict {
		t.Errorf("without input: %v", err)
	}
	if _, err := l.WriteProcessFrom(t.Context(), farm.NewID(farm.ProcessPrefix), "w", 0, nil, false); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("no process: %v", err)
	}
}
