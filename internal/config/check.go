package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// check checks a value against the tags oneof, min and max.
func (f field) check() error {
	if allowed := f.oneOf(); len(allowed) > 0 {
		for _, got := range f.strings() {
			if !slices.Contains(allowed, got) {
				return fmt.Errorf("is not allowed; allowed: %s", strings.Join(allowed, ", "))
			}
		}
	}
	low, high := f.bound("min"), f.bound("max")
	if f.kind != kindScalar || low == "" && high == "" {
		return nil
	}
	for _, side := range []struct {
		text string
		sign int
	}{{low, -1}, {high, 1}} {
		if side.text == "" {
			continue
		}
		limit := reflect.New(f.value.Type()).Elem()
		if err := parse(limit, side.text); err != nil {
			return fmt.Errorf("has a bound in the program that %w", err)
		}
		if compare(f.value, limit) == side.sign {
			return fmt.Errorf("is out of range; allowed: %s", rangeText(low, high))
		}
	}
	return nil
}

func (f field) strings() []string {
	switch {
	case f.kind == kindScalar && f.value.Kind() == reflect.String:
		return []string{f.value.String()}
	case f.kind == kindList && f.value.Type().Elem().Kind() == reflect.String:
		out := make([]string, f.value.Len())
		for i := range out {
			out[i] = f.value.Index(i).String()
		}
		return out
	default:
		return nil
	}
}

func compare(a, b reflect.Value) int {
	switch {
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	default:
		return 0
	}
}

func rangeText(low, high string) string {
	switch {
	case low == "":
		return "at most " + high
	case high == "":
		return "at least " + low
	default:
		return low + " to " + high
	}
}

// Problem is one problem of a configuration.
type Problem struct {
	Key    string // the setting, "api.listen"; empty: the file as a whole
	Source string // source of the value: the name of the file or of the environment variable
	Value  string // the value as written; empty for secrets and if there is none
	Text   string // what is wrong, and the allowed values
}

// String is the problem as one line.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Key)
	if p.Value != "" {
		fmt.Fprintf(&b, " = %s", p.Value)
	}
	if p.Source != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "(%s)", p.Source)
	}
	return b.String() + ": " + p.Text
}

// Problems is every problem of a configuration. Load returns it as an error; errors.AsType returns the list.
type Problems []Problem

// Error lists the problems, one on a line.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p)+1)
	if len(p) == 1 {
		lines = append(lines, "1 problem in the configuration:")
	} else {
		lines = append(lines, fmt.Sprintf("%d problems in the configuration:", len(p)))
	}
	for _, one := range p {
		lines = append(lines, "  "+one.String())
	}
	return strings.Join(lines, "\n")
}

// Err is p as an error: nil when there is no problem.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// nearest returns the name that differs from key in at most two letters (one for short keys), or "".
func nearest(key string, names []string) string {
	best, limit := "", 3
	if len(key) < 5 {
		limit = 2
	}
	if len(key) > 100 {
		return ""
	}
	for _, name := range names {
		if d := distance(key, name); d < limit {
			best, limit = name, d
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace) that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
