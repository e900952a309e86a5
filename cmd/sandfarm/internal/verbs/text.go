package verbs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// printable makes text safe for a terminal: code in a sandbox chooses the names of files.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return '�'
	}, s)
}

// escaping writes JSON, of which each Write has a whole value, with the characters that printable replaces as \uXXXX. They are in strings only.
type escaping struct{ io.Writer }

// Write implements io.Writer.
func (e escaping) Write(p []byte) (int, error) {
	var out bytes.Buffer
	for _, r := range string(p) {
		switch {
		case r < unicode.MaxASCII || unicode.IsGraphic(r):
			out.WriteRune(r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
		}
	}
	if _, err := e.Writer.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// cell is printable text for a cell of a table.
func cell(s string) string {
	s = strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(s))
	if s == "" {
		return "-"
	}
	return s
}

const (
	columnGap    = 2  // spaces between the columns of a table
	leastOfAPath = 24 // characters that a path keeps on a narrow terminal
)

// table prints rows below a header, in columns. On a terminal paths are shortened until a row fits a line.
func table(w io.Writer, head []string, rows [][]string) error {
	for _, row := range rows {
		for i := range row {
			row[i] = cell(row[i])
		}
	}
	if out, ok := w.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			fitPaths(head, rows, width)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// fitPaths shortens the cells of the column PATH in their middle, so that the rows have a width if they can.
func fitPaths(head []string, rows [][]string, width int) {
	path := slices.Index(head, "PATH")
	if path < 0 || width <= 0 {
		return
	}
	left := width
	for i := range head {
		widest := utf8.RuneCountInString(head[i])
		for _, row := range rows {
			widest = max(widest, utf8.RuneCountInString(row[i]))
		}
		if i != path {
			left -= widest + columnGap
		}
	}
	left = max(left, leastOfAPath)
	for _, row := range rows {
		if text := []rune(row[path]); len(text) > left {
			front := (left - 1) / 3
			row[path] = string(text[:front]) + "…" + string(text[len(text)-(left-1-front):]) // the end names the file
		}
	}
}

// size is a number of bytes for people, such as 22.8 KiB. Sizes and ages are by hand because they are shorter than the calls that would adapt
// go-humanize to these units and columns.
func size(n int64) string {
	const kilo = 1024
	if n < kilo {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/kilo, 0
	for value >= 1023.95 && unit < 3 {
		value /= kilo
		unit++
	}
	return fmt.Sprintf("%.1f %s", value, []string{"KiB", "MiB", "GiB", "TiB"}[unit])
}

// since is the rounded time since t, such as 3h ago; empty for the zero time.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(now.Sub(t)) + " ago"
}

// until is the rounded time until t, such as in 3h, and the day if that is not tomorrow; empty for the zero time.
func until(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	left := t.Sub(now)
	if left > 10*time.Minute {
		left = left.Round(time.Minute) // what was just asked for as 30d is not 29d
	}
	switch {
	case left >= 48*time.Hour:
		return "in " + span(left) + t.In(now.Location()).Format(" (2006-01-02)")
	case left > 0:
		return "in " + span(left)
	}
	return "over"
}

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
