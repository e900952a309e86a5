package mcp

import "github.com/sandfarm/sandfarm/internal/farm"

// Param is a parameter of a tool of a Set. Its schema and its check come from the same fields.
type Param = param

// Arguments are the checked arguments of a call, without those that are absent or null.
type Arguments = arguments

// Text makes an optional parameter that takes a text.
func Text(name, doc string) Param { return param{name: name, kind: text, doc: doc} }

// Texts makes an optional parameter that takes an array of texts.
func Texts(name, doc string) Param { return param{name: name, kind: texts, doc: doc} }

// Flag makes an optional parameter that takes true or false.
func Flag(name, doc string) Param { return param{name: name, kind: flag, doc: doc} }

// Object makes an optional parameter that takes an object.
func Object(name, doc string) Param { return param{name: name, kind: fields, doc: doc} }

// Needed makes a parameter required.
func (p param) Needed() Param { p.required = true; return p }

// Or sets the default in the parameter's schema. The tool itself must apply it.
func (p param) Or(standard any) Param { p.standard = standard; return p }

// OrNull allows null in the parameter's schema and makes it the default. Null is the same as an absent argument.
func (p param) OrNull() Param { p.null = true; return p }

// Name is the name of a parameter.
func (p param) Name() string { return p.name }

// Check checks the arguments of a call as decoded from JSON. Errors name the parameter.
func Check(params []Param, given any) (Arguments, error) { return check(params, given) }

// Has reports whether an argument was given.
func (a arguments) Has(name string) bool { return a.has(name) }

// Text returns a text, empty if it is absent.
func (a arguments) Text(name string) string { return a.text(name) }

// Texts returns an array of texts, nil if it is absent.
func (a arguments) Texts(name string) []string { return a.texts(name) }

// Flag returns a flag, or the standard if it is absent.
func (a arguments) Flag(name string, standard bool) bool {
	if !a.has(name) {
		return standard
	}
	return a.flag(name)
}

// Object returns an object, nil if it is absent.
func (a arguments) Object(name string) map[string]any {
	members, _ := a[name].(map[string]any)
	return members
}

// Required is the error for an optional parameter that this call needs.
func Required(name, doc string) error { return farm.Invalidf("%s is missing: %s", name, doc) }
