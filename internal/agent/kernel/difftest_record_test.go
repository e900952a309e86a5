package kernel_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// shown is a displayed value, or the order to clear what is shown.
type shown struct {
	Number   int               // of the value in its execution; an update has the number of what it replaces
	Data     map[string]string // by MIME type
	Metadata string            // JSON; empty: none
	Clear    string            // "now" or "wait": no value, but clear_output
}

// part is output, and what was shown after it.
type part struct {
	Stdout, Stderr string
	Redacted       *shown // nil in the last part
}

// cell is what a caller sees of one cell.
type cell struct {
	Status    string // ok, error, died, or exit and a code
	Error     string // name and value
	Traceback string
	Count     int
	Parts     []part
	Next      string // the input that the kernel suggests next
}

// last returns the part to which output is added.
func (c *cell) last() *part {
	if len(c.Parts) == 0 {
		c.Parts = append(c.Parts, part{})
	}
	return &c.Parts[len(c.Parts)-1]
}

// show ends a part.
func (c *cell) show(s shown) {
	c.last().Redacted = &s
	c.Parts = append(c.Parts, part{})
}

// Aspects are what is compared. Each is a function of a cell; order is compared only if everything else that is shown is equal.
var aspects = []struct {
	name string
	text func(cell) string
}{
	{"status", func(c cell) string { return c.Status }},
	{"error", func(c cell) string { return c.Error }},
	{"traceback", func(c cell) string { return c.Traceback }},
	{"count", func(c cell) string { return fmt.Sprint(c.Count) }},
	{"stdout", func(c cell) string { return c.text(func(p part) string { return p.Stdout }) }},
	{"stderr", func(c cell) string { return c.text(func(p part) string { return p.Stderr }) }},
	{"displays", func(c cell) string { return c.text(func(p part) string { return p.Redacted.display() }) }},
	{"metadata", func(c cell) string { return c.text(func(p part) string { return p.Redacted.metadata() }) }},
	{"clears", func(c cell) string { return c.text(func(p part) string { return p.Redacted.clear() }) }},
	{"next", func(c cell) string { return c.Next }},
}

func (c cell) text(of func(part) string) string {
	var b strings.Builder
	for _, p := range c.Parts {
		b.WriteString(of(p))
	}
	return b.String()
}

func (s *shown) display() string {
	if s == nil || s.Clear != "" {
		return ""
	}
	var b strings.Builder
	for _, mime := range slices.Sorted(maps.Keys(s.Data)) {
		fmt.Fprintf(&b, "%d %s: %s\n", s.Number, mime, s.Data[mime])
	}
	return b.String()
}

func (s *shown) metadata() string {
	if s == nil || s.Metadata == "" {
		return ""
	}
	return fmt.Sprintf("%d: %s\n", s.Number, s.Metadata)
}

func (s *shown) clear() string {
	if s == nil || s.Clear == "" {
		return ""
	}
	return s.Clear + "\n"
}

// order describes all output in its order.
func (c cell) order() string {
	return c.text(func(p part) string {
		if p == (part{}) {
			return ""
		}
		text := fmt.Sprintf("stdout %q\nstderr %q\n", p.Stdout, p.Stderr)
		if p.Redacted != nil {
			text += fmt.Sprintf("display %s clear %s\n", p.Redacted.display(), p.Redacted.Clear)
		}
		return text
	})
}

// difference is an aspect in which two runs of a program differ.
type difference struct {
	aspect       string
	ours, theirs string
}

// diff describes the difference.
func (d difference) diff() string { return cmp.Diff(d.theirs, d.ours) }

// compare lists the aspects in which ours and theirs differ, in the order of aspects.
func compare(ours, theirs []cell) []difference {
	var found []difference
	each := func(name string, text func(cell) string) {
		a, b := render(ours, text), render(theirs, text)
		if a != b {
			found = append(found, difference{name, a, b})
		}
	}
	for _, aspect := range aspects {
		each(aspect.name, aspect.text)
	}
	seen := func(d difference) bool {
		return slices.Contains([]string{"stdout", "stderr", "displays", "clears"}, d.aspect)
	}
	if !slices.ContainsFunc(found, seen) {
		each("order", cell.order)
	}
	return found
}

// render describes an aspect of all cells.
func render(cells []cell, text func(cell) string) string {
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "cell %d: %s\n", i+1, text(c))
	}
	return b.String()
}

// finish normalises the output of a cell. settle: all of it comes first, with its lines sorted.
func (c *cell) finish(dir string, settle bool) {
	for i := range c.Parts {
		p := &c.Parts[i]
		p.Stdout, p.Stderr = normal(p.Stdout, dir), normal(p.Stderr, dir)
	}
	if !settle || len(c.Parts) == 0 {
		return
	}
	out, err := c.text(func(p part) string { return p.Stdout }), c.text(func(p part) string { return p.Stderr })
	for i := range c.Parts {
		c.Parts[i].Stdout, c.Parts[i].Stderr = "", ""
	}
	c.Parts[0].Stdout, c.Parts[0].Stderr = sortLines(out), sortLines(err)
}

// replacements make text comparable that differs from run to run.
var replacements = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`), ""},                                                          // colours
	{regexp.MustCompile(`\b0x[0-9a-f]{6,}`), "0xADDRESS"},                                                      // addresses
	{regexp.MustCompile(`(\b|_)[0-9a-f]{32}\b`), "HEX32"},                                                      // identifiers of widgets, figures and maps
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "UUID"},                              // of Bokeh's documents
	{regexp.MustCompile(`[^\s"'<]*/ipykernel_\d+/\d+\.py`), "CELL.py"},                                         // the file of a cell
	{regexp.MustCompile(`\bat [0-9a-f]{8,}\b`), "at ADDRESS"},                                                  // addresses without 0x
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?`), "DATE"},                                  // in pictures
	{regexp.MustCompile(`(?m)^ +\d+(/\d+)?( +\d+\.\d{3}){4}|\d+\.\d{3} seconds`), "PROFILE"},                   // %prun
	{regexp.MustCompile(`\d+(\.\d+)?(e\+\d+)? ?(ns|μs|µs|us|ms|s|min)\b`), "TIME"},                             // %time, %timeit
	{regexp.MustCompile(`(?m)^(Compiler|Parser) *: TIME\n`), ""},                                               // %time, if it took long
	{regexp.MustCompile(`\d+ loops? each`), "N loops each"},                                                    // %timeit
	{regexp.MustCompile(`object at 0xADDRESS`), "object at ADDRESS"},                                           // the same, in one word
	{regexp.MustCompile(`\[\d+\.\d\d[a-z]*/s\]|\d+(\.\d+)?(it|B)/s|\d\d:\d\d(<\d\d:\d\d)?, +TIME/it`), "RATE"}, // progress bars
}

// normal normalises text. dir is the folder that has the workspace, the home directory and the temporary files of the kernel.
func normal(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	for _, r := range replacements {
		text = r.pattern.ReplaceAllString(text, r.with)
	}
	return text
}

// hidden matches the first line of a traceback's part that shows code of a kernel, which no caller's code is.
var hidden = regexp.MustCompile(`^(File |~?/?)[^\n]*(/ipykernel/|DIR/run/)[^\n]*\.py`)

// normalTraceback normalises a traceback and leaves out the frames of the kernels.
func normalTraceback(parts []string, dir string) string {
	var kept []string
	for _, part := range parts {
		if part = strings.TrimRight(normal(part, dir), "\n"); !hidden.MatchString(part) {
			kept = append(kept, part)
		}
	}
	return strings.Join(slices.Compact(kept), "\n") // frames of a recursion are equal; our kernel leaves out most of them
}

// normalValue normalises one representation of a displayed value: pictures without newlines, objects as compact JSON.
func normalValue(mime, value, dir string) string {
	if strings.HasPrefix(mime, "image/") && mime != "image/svg+xml" || mime == "application/pdf" {
		return strings.Join(strings.Fields(value), "")
	}
	var object any
	if strings.HasSuffix(mime, "json") && json.Unmarshal([]byte(value), &object) == nil {
		raw, err := json.Marshal(object)
		if err == nil {
			value = string(raw)
		}
	}
	return normal(value, dir)
}

// sortLines sorts the lines of a text.
func sortLines(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// normalMetadata normalises the metadata of a bundle.
func normalMetadata(metadata map[string]any) string {
	if len(metadata) == 0 {
		return ""
	}
	raw, err := json.Marshal(metadata)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
