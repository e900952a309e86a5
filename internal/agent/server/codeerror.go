package server

import (
	"regexp"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	maxErrorValue     = 64 << 10
	maxTracebackBytes = 1 << 20
	lineCost          = 16 // of a line of a traceback beside its text: millions of empty ones are no less
)

// ansiPattern matches the control sequences of terminals.
var ansiPattern = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[ -/]+[0-~]|[@-Z\\\\-_])")

func stripANSI(s string) string {
	if !strings.Contains(s, "\x1b") {
		return s
	}
	return ansiPattern.ReplaceAllString(s, "")
}

// trimError takes colours out of an error and bounds it: the head of its value, the tail of its traceback.
func trimError(e *farm.CodeError) {
	if e == nil {
		return
	}
	e.Name, e.Value = cut(stripANSI(e.Name), maxErrorValue), cut(stripANSI(e.Value), maxErrorValue)
	lines, size := []string{}, 0
	for i := len(e.Traceback) - 1; i >= 0; i-- {
		line := cut(stripANSI(e.Traceback[i]), maxErrorValue)
		if size += len(line) + lineCost; size > maxTracebackBytes {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, line)
	}
	for i, j := 0, len(lines)-1; i < j; i, j = i+1, j-1 {
		lines[i], lines[j] = lines[j], lines[i]
	}
	e.Traceback = lines
}

func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
