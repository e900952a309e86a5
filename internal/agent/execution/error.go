package execution

import (
	"regexp"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	maxErrorLine      = 64 << 10 // of the traceback, and of the name
	maxTracebackBytes = 1 << 20
	lineCost          = 16 // what a traceback line counts in addition to its text, so that the number of empty lines is bounded
)

// ansiPattern matches the control sequences of terminals.
var ansiPattern = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[ -/]+[0-~]|[@-Z\\\\-_])")

// StripANSI removes the control sequences of terminals, such as colours.
func StripANSI(s string) string {
	if !strings.Contains(s, "\x1b") {
		return s
	}
	return ansiPattern.ReplaceAllString(s, "")
}

// trimError removes colours from an error and bounds it: it keeps the head of its value and the tail of its traceback.
func trimError(e *farm.CodeError) {
	if e == nil {
		return
	}
	e.Name, e.Value = Cut(StripANSI(e.Name), maxErrorLine), Cut(StripANSI(e.Value), farm.MaxErrorValueBytes)
	lines, size := []string{}, 0
	for i := len(e.Traceback) - 1; i >= 0; i-- {
		line := Cut(StripANSI(e.Traceback[i]), maxErrorLine)
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

// Cut makes a text valid UTF-8 of at most n bytes, with an ellipsis where it was cut.
func Cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
