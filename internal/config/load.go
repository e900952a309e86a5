// Package config fills a struct from defaults, a TOML file and the environment, in this order, and reports every problem
// at once: unknown keys, values that do not parse and values that are not allowed, each with its key, the value and the
// allowed values. It also renders a commented example file and the list of settings from the same struct, so that neither
// can drift from the code. It defines no settings: services declare theirs, the program combines them.
//
// A setting is an exported field of the struct or of a struct nested in it. Its tags are:
//
//	toml    key in the file; absent: that of tag json, or the field's name in snake_case; "-": no setting
//	env     full name of its environment variable; absent: prefix, sections and key in upper case joined by "_"; "-": none
//	default value if neither file nor environment gives one; absent: the value that the field already has
//	doc     description
//	oneof   the allowed values of a string or a list, separated by blanks
//	min     smallest allowed number or duration
//	max     largest allowed number or duration
//	secret  "true": its value is never part of a problem
//
// Types: string, bool, signed and unsigned integers, floats, time.Duration ("30s"), anything with UnmarshalText, lists of
// these (comma-separated outside the file), map[string]string ("a=b,c=d" outside the file), nested structs (a table) and
// lists of structs (an array of tables, in the file only; text as well if the struct has UnmarshalText).
package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Options are the sources of settings.
type Options struct {
	File      string   // TOML file; empty: none. A missing file is a problem
	EnvPrefix string   // prefix of environment variables; empty: DefaultPrefix
	Environ   []string // "NAME=value"; nil: the process's own environment
}

// Load fills target, a pointer to a struct, with its defaults, then the file, then the environment. An empty environment
// variable counts as not set. Load returns all problems at once, as Problems; target then has the values that could be
// read. Any other error is a fault of the struct.
func Load(target any, o Options) error {
	fields, err := settings(target, o.EnvPrefix)
	if err != nil {
		return err
	}
	problems := defaults(fields)
	if o.File != "" {
		tree, err := readFile(o.File)
		if err != nil {
			problems = append(problems, Problem{Source: o.File, Text: err.Error()})
		} else {
			problems = append(problems, fill(fields, tree, "", o.File)...)
		}
	}
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	problems = append(problems, fromEnv(fields, environ)...)
	return problems.Err()
}

// UnknownEnv lists the variables of environ (nil: the process's own) that begin with the prefix and that no setting of
// target reads, usually a typing mistake. Allowed lists other names that the program or its clients use.
func UnknownEnv(target any, o Options, allowed ...string) []string {
	fields, err := settings(target, o.EnvPrefix)
	if err != nil {
		return nil
	}
	known := slices.Clone(allowed)
	each(fields, func(f field) { known = append(known, f.env) })
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	var out []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefixOf(o.EnvPrefix)+"_") && !slices.Contains(known, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func settings(v any, prefix string) ([]field, error) {
	root, err := target(v)
	if err != nil {
		return nil, err
	}
	return fieldsOf(root, "", prefixOf(prefix))
}

func prefixOf(prefix string) string {
	if prefix == "" {
		return DefaultPrefix
	}
	return prefix
}

// each calls fn for every setting that is not a table.
func each(fields []field, fn func(field)) {
	for _, f := range fields {
		if f.kind == kindTable {
			each(f.fields, fn)
			continue
		}
		fn(f)
	}
}

func defaults(fields []field) Problems {
	var problems Problems
	each(fields, func(f field) {
		text, ok := f.tag.Lookup("default")
		if !ok || f.kind == kindTables {
			return
		}
		if text == "" && f.kind == kindScalar {
			f.value.SetZero()
			return
		}
		if err := f.parseText(text); err != nil {
			problems = append(problems, Problem{Key: f.path, Source: "default", Value: show(text), Text: err.Error()})
		}
	})
	return problems
}

func fromEnv(fields []field, environ []string) Problems {
	values := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && value != "" {
			values[name] = value
		}
	}
	var problems Problems
	each(fields, func(f field) {
		text, ok := values[f.env]
		if !ok || f.env == "" {
			return
		}
		err := f.parseText(text)
		if err == nil {
			err = f.check()
		}
		if err != nil {
			p := Problem{Key: f.path, Source: f.env, Text: err.Error()}
			switch {
			case f.secret() && f.kind == kindList: // its text has no value
			case f.secret():
				p.Text = fmt.Sprintf("does not hold what is allowed (%s)", allowedText(f))
			default:
				p.Value = show(text)
			}
			problems = append(problems, p)
		}
	})
	return problems
}
