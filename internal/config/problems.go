package config

import (
	"fmt"
	"strings"
)

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
