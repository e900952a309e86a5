package difftest_test

import (
	"fmt"
	"maps"
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
	Shown          *shown // nil in the last part
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
	c.last().Shown = &s
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
	{"displays", func(c cell) string { return c.text(func(p part) string { return p.Shown.display() }) }},
	{"metadata", func(c cell) string { return c.text(func(p part) string { return p.Shown.metadata() }) }},
	{"clears", func(c cell) string { return c.text(func(p part) string { return p.Shown.clear() }) }},
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
		if p.Shown != nil {
			text += fmt.Sprintf("display %s clear %s\n", p.Shown.display(), p.Shown.Clear)
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
