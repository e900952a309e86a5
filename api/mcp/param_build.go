package mcp

import "github.com/sandfarm/sandfarm/internal/farm"

// Param is a parameter of a tool of a Set: its schema and its check are made from the same words.
type Param = param

// Arguments are what a caller gave, checked against the parameters. What was left out or null is not among them.
type Arguments = arguments

// Text makes a parameter that takes a text, and may be left out.
func Text(name, doc string) Param { return param{name: name, kind: text, doc: doc} }

// Texts makes a parameter that takes an array of texts, and may be left out.
func Texts(name, doc string) Param { return param{name: name, kind: texts, doc: doc} }

// Flag makes a parameter that takes true or false, and may be left out.
func Flag(name, doc string) Param { return param{name: name, kind: flag, doc: doc} }

// Object makes a parameter that takes an object, and may be left out.
func Object(name, doc string) Param { return param{name: name, kind: fields, doc: doc} }

// Needed makes a parameter one that must be given.
func (p param) Needed() Param { p.required = true; return p }

// Or names the default of a parameter. It is told only: a tool applies it.
func (p param) Or(standard any) Param { p.standard = standard; return p }

// OrNull tells that null is taken, as if the parameter were left out, and is its default.
func (p param) OrNull() Param { p.null = true; return p }

// Name is the name of a parameter.
func (p param) Name() string { return p.name }

// Check takes the arguments of a call as they came, decoded from JSON. Its errors name the parameter.
func Check(params []Param, given any) (Arguments, error) { return check(params, given) }

// Has reports whether an argument was given.
func (a arguments) Has(name string) bool { return a.has(name) }

// Text gives a text, empty when none was given.
func (a arguments) Text(name string) string { return a.text(name) }

// Texts gives an array of texts, nil when none was given.
func (a arguments) Texts(name string) []string { return a.texts(name) }

// Flag gives a truth, or the standard when none was given.
func (a arguments) Flag(name string, standard bool) bool {
	if !a.has(name) {
		return standard
	}
	return a.flag(name)
}

// Object gives an object, nil when none was given.
func (a arguments) Object(name string) map[string]any {
	members, _ := a[name].(map[string]any)
	return members
}

// Required is the error for a parameter that a tool needs after all.
func Required(name, doc string) error { return farm.Invalidf("%s is missing: %s", name, doc) }
