package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// kind is the JSON type of a parameter.
type kind string

const (
	text   kind = "string"
	whole  kind = "integer"
	number kind = "number"
	flag   kind = "boolean"
	texts  kind = "array" // of strings
	fields kind = "object"
)

// param is one parameter of a tool. Its schema and its check come from the same fields.
type param struct {
	name     string
	kind     kind
	doc      string
	required bool
	standard any      // default in the schema; nil: none
	low, top float64  // limits of numbers; none if top is zero
	enum     []string // accepted texts; nil: any
	unlisted []string // of enum, those that the schema does not offer: the farm refuses them and says why
	hidden   bool     // the schema does not offer it at all; likewise
	null     bool     // the schema allows null; a parameter that is not required always accepts it
}

func (p param) schema() map[string]any {
	out := map[string]any{"type": p.kind, "description": p.doc}
	if p.kind == texts {
		out["items"] = map[string]any{"type": text}
	}
	if p.standard != nil {
		out["default"] = p.standard
	}
	if p.top != 0 {
		out["minimum"], out["maximum"] = p.low, p.top
	}
	if p.enum != nil {
		out["enum"] = p.offered()
	}
	if p.null {
		delete(out, "type")
		out["anyOf"], out["default"] = []map[string]any{{"type": p.kind}, {"type": "null"}}, nil
	}
	return out
}

// offered are the texts of enum that the schema has.
func (p param) offered() []string {
	return slices.DeleteFunc(slices.Clone(p.enum), func(s string) bool { return slices.Contains(p.unlisted, s) })
}

// inputSchema is the schema of a tool's arguments.
func inputSchema(params []param) (json.RawMessage, error) {
	properties := make(map[string]any, len(params))
	required := []string{}
	for _, p := range params {
		if p.hidden {
			continue
		}
		properties[p.name] = p.schema()
		if p.required {
			required = append(required, p.name)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	encoded, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	return encoded, nil
}

// arguments are the checked arguments of a call. It has no entry for an argument that is absent or null.
type arguments map[string]any

// check checks the arguments of a call. Errors name the parameter.
func check(params []param, given any) (arguments, error) {
	if given == nil {
		given = map[string]any{}
	}
	values, ok := given.(map[string]any)
	if !ok {
		return nil, farm.Invalidf("The arguments must be an object with the parameters as members; they are %s.", describe(given))
	}
	for name := range values {
		if !slices.ContainsFunc(params, func(p param) bool { return p.name == name }) {
			return nil, farm.Invalidf("There is no parameter %q. The parameters are %s.", farm.Shorten(name), namesOf(params))
		}
	}
	args := make(arguments, len(values))
	for _, p := range params {
		value := values[p.name]
		if value == nil {
			if p.required {
				return nil, Required(p.name, p.doc)
			}
			continue
		}
		taken, err := p.take(value)
		if err != nil {
			return nil, err
		}
		args[p.name] = taken
	}
	return args, nil
}

func namesOf(params []param) string {
	if len(params) == 0 {
		return "none"
	}
	names := make([]string, 0, len(params))
	for _, p := range params {
		switch {
		case p.required:
			names = append(names, p.name+" (required)")
		case !p.hidden:
			names = append(names, p.name)
		}
	}
	return strings.Join(names, ", ")
}

// take checks one value and returns it as a string, int, float64, bool, []string or map.
func (p param) take(value any) (any, error) {
	switch p.kind {
	case text:
		s, ok := value.(string)
		switch {
		case !ok:
			return nil, farm.Invalidf("%s must be a text, not %s.", p.name, describe(value))
		case p.enum != nil && !slices.Contains(p.enum, s):
			return nil, farm.Invalidf("%s is %q; it must be one of %s.", p.name, farm.Shorten(s), strings.Join(p.offered(), ", "))
		}
		return s, nil
	case flag:
		b, ok := value.(bool)
		if !ok {
			return nil, farm.Invalidf("%s must be true or false, not %s.", p.name, describe(value))
		}
		return b, nil
	case texts:
		return p.takeTexts(value)
	case fields:
		members, ok := value.(map[string]any)
		if !ok {
			return nil, farm.Invalidf("%s must be an object, not %s.", p.name, describe(value))
		}
		return members, nil
	default:
		return p.takeNumber(value)
	}
}

func (p param) takeTexts(value any) (any, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, farm.Invalidf("%s must be an array of texts, not %s.", p.name, describe(value))
	}
	out := make([]string, len(list))
	for i, element := range list {
		if out[i], ok = element.(string); !ok {
			return nil, farm.Invalidf("%s[%d] must be a text, not %s.", p.name, i, describe(element))
		}
	}
	return out, nil
}

// takeNumber also takes a number in a text, as some models write it.
func (p param) takeNumber(value any) (any, error) {
	f, ok := value.(float64)
	if s, isText := value.(string); isText {
		var err error
		f, err = strconv.ParseFloat(s, 64)
		ok = err == nil
	}
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, farm.Invalidf("%s must be a number, not %s.", p.name, describe(value))
	}
	if p.kind == whole && (f != math.Trunc(f) || math.Abs(f) > 1<<31) {
		return nil, farm.Invalidf("%s is %g; it must be a whole number.", p.name, f)
	}
	if p.top != 0 && (f < p.low || f > p.top) {
		return nil, farm.Invalidf("%s is %g; it must be from %g to %g.", p.name, f, p.low, p.top)
	}
	if p.kind == whole {
		return int(f), nil
	}
	return f, nil
}

// describe describes a JSON value in words.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the text %q", farm.Shorten(v))
	case float64:
		return fmt.Sprintf("the number %g", v)
	case bool:
		return fmt.Sprintf("%t", v)
	case []any:
		return "an array"
	default:
		return "an object"
	}
}

func (a arguments) has(name string) bool { _, ok := a[name]; return ok }

func (a arguments) text(name string) string { s, _ := a[name].(string); return s }

// optional is the text, or nil if it is absent.
func (a arguments) optional(name string) *string {
	if s, ok := a[name].(string); ok {
		return &s
	}
	return nil
}

func (a arguments) whole(name string) *int {
	if n, ok := a[name].(int); ok {
		return &n
	}
	return nil
}

// fraction is the number, or nil if it is absent.
func (a arguments) fraction(name string) *float64 {
	if f, ok := a[name].(float64); ok {
		return &f
	}
	return nil
}

func (a arguments) number(name string, standard float64) float64 {
	if f, ok := a[name].(float64); ok {
		return f
	}
	return standard
}

func (a arguments) flag(name string) bool { b, _ := a[name].(bool); return b }

func (a arguments) texts(name string) []string { list, _ := a[name].([]string); return list }

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

// Required is the error for a parameter that this call needs; doc describes it.
func Required(name, doc string) error { return farm.Invalidf("%s", missing(name, doc)) }

// missing is the sentence about a parameter that is missing.
func missing(name, doc string) string {
	doc = strings.ToLower(doc[:1]) + doc[1:]
	if strings.HasPrefix(doc, "from ") {
		doc = "the one " + doc
	}
	return name + " is missing: give " + doc
}
