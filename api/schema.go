package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// schemas collects the JSON schemas of Go types by reflection; structs become components of their own.
type schemas struct {
	all    object
	bounds map[string]object
}

func newSchemas(bounds map[string]object) *schemas { return &schemas{all: object{}, bounds: bounds} }

// of returns the schema of an example's type.
func (s *schemas) of(example any) object { return s.schema(reflect.TypeOf(example)) }

// add makes sure that a component is there.
func (s *schemas) add(name string, example any) {
	if _, ok := s.all[name]; !ok {
		s.schema(reflect.TypeOf(example))
	}
}

func (s *schemas) schema(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return object{"type": "object"}
	case reflect.TypeFor[wire.Cursor]():
		return object{"type": []string{"string", "null"}}
	case reflect.TypeFor[wire.Result]():
		return s.result()
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.schema(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": s.schema(t.Elem())}
	case reflect.Map:
		out := object{"type": "object"}
		if t.Elem().Kind() != reflect.Interface {
			out["additionalProperties"] = s.schema(t.Elem())
		}
		return out
	default:
		return s.structure(t)
	}
}

// structure makes a component of a struct and returns a reference to it.
func (s *schemas) structure(t reflect.Type) object {
	name := componentName(t)
	reference := object{"$ref": "#/components/schemas/" + name}
	if _, ok := s.all[name]; ok {
		return reference
	}
	properties := object{}
	component := object{"type": "object", "properties": properties}
	s.all[name] = component // before its fields, which may refer to it
	required := []string{}
	request := strings.HasSuffix(name, "Request") || name == "InputFile"
	for i := range t.NumField() {
		f := t.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == "" || key == "-" {
			continue
		}
		properties[key] = s.field(name, key, f, request)
		if request && f.Tag.Get("required") == "true" || !request && !strings.Contains(options, "omitempty") {
			required = append(required, key)
		}
	}
	if len(required) > 0 {
		component["required"] = required
	}
	if request {
		component["additionalProperties"] = false // unknown fields are refused
	}
	return reference
}

func (s *schemas) field(component, key string, f reflect.StructField, request bool) object {
	out := maps.Clone(s.schema(f.Type))
	if enum := f.Tag.Get("enum"); enum != "" {
		out["enum"] = strings.Split(enum, ",")
	}
	if f.Type.Kind() == reflect.Pointer && !request && !strings.Contains(f.Tag.Get("json"), "omitempty") {
		out = object{"anyOf": []object{out, {"type": "null"}}}
	}
	if doc := f.Tag.Get("doc"); doc != "" {
		out["description"] = doc
	}
	if standard := f.Tag.Get("default"); standard != "" {
		out["default"] = standard
		if n, err := strconv.Atoi(standard); err == nil {
			out["default"] = n
		}
	}
	maps.Copy(out, s.bounds[component+"."+key])
	return out
}

// result is the union of the results of all kinds of jobs.
func (s *schemas) result() object {
	if _, ok := s.all["Result"]; !ok {
		s.all["Result"] = object{"anyOf": []object{
			s.of(wire.ExecuteResult{}), s.of(wire.CommandResult{}), s.of(wire.FileResult{}), s.of(wire.InstallResult{}), s.of(wire.NoteResult{}),
		}, "description": "what a job produced; which of these by its kind"}
	}
	return object{"$ref": "#/components/schemas/Result"}
}

// componentName is the type's name; a list is named after its items.
func componentName(t reflect.Type) string {
	name := t.Name()
	outer, inner, generic := strings.Cut(name, "[")
	if !generic {
		return name
	}
	inner = strings.TrimSuffix(inner, "]")
	return inner[strings.LastIndex(inner, ".")+1:] + outer
}
