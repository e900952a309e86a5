package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// DefaultPrefix is the prefix of environment variables unless Options or a function names another.
const DefaultPrefix = "SANDFARM"

type kind int

const (
	kindScalar kind = iota // one value that a string can express
	kindList               // list of scalars
	kindMap                // map[string]string
	kindTable              // nested struct
	kindTables             // list of structs
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// field is one setting, or a table of settings, found in a struct.
type field struct {
	path   string // "api.listen"
	key    string // "listen"
	env    string // "" when there is none
	kind   kind
	value  reflect.Value
	tag    reflect.StructTag
	fields []field // of a table
}

func (f field) doc() string             { return strings.TrimSpace(f.tag.Get("doc")) }
func (f field) oneOf() []string         { return strings.Fields(f.tag.Get("oneof")) }
func (f field) bound(tag string) string { return f.tag.Get(tag) }

// secret reports whether the value of a setting is never shown. That of a list of tables with a secret is none, where one text has all of it.
func (f field) secret() bool {
	if f.kind == kindList && f.value.Type().Elem().Kind() == reflect.Struct {
		t := f.value.Type().Elem()
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("secret") == "true" {
				return true
			}
		}
	}
	return f.tag.Get("secret") == "true"
}

// target returns the struct behind a pointer, or an error.
func target(v any) (reflect.Value, error) {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() || p.Elem().Kind() != reflect.Struct {
		return reflect.Value{}, fmt.Errorf("read settings: target is %T, want a pointer to a struct", v)
	}
	return p.Elem(), nil
}

// fieldsOf lists the settings of a struct in the order of its fields, including the fields of embedded structs.
func fieldsOf(v reflect.Value, path, prefix string) ([]field, error) {
	var out []field
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		key := sf.Tag.Get("toml")
		if !sf.IsExported() || key == "-" {
			continue
		}
		if sf.Anonymous && key == "" && sf.Type.Kind() == reflect.Struct {
			inner, err := fieldsOf(v.Field(i), path, prefix)
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
			continue
		}
		if key == "" {
			key, _, _ = strings.Cut(sf.Tag.Get("json"), ",")
		}
		if key == "" || key == "-" {
			key = snake(sf.Name)
		}
		f, err := newField(v.Field(i), sf, join(path, key), key, prefix)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func newField(v reflect.Value, sf reflect.StructField, path, key, prefix string) (field, error) {
	k, ok := kindOf(sf.Type)
	if !ok {
		return field{}, fmt.Errorf("read settings: %s has type %s, which no setting can have", path, sf.Type)
	}
	f := field{path: path, key: key, kind: k, value: v, tag: sf.Tag}
	switch env := sf.Tag.Get("env"); {
	case k == kindTable:
		var err error
		if f.fields, err = fieldsOf(v, path, prefix); err != nil {
			return field{}, err
		}
	case k == kindTables || env == "-" || prefix == "":
	case env != "":
		f.env = env
	default:
		f.env = prefix + "_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(path))
	}
	return f, nil
}

func kindOf(t reflect.Type) (kind, bool) {
	switch {
	case isScalar(t):
		return kindScalar, true
	case t.Kind() == reflect.Struct:
		return kindTable, true
	case t.Kind() == reflect.Slice && isScalar(t.Elem()):
		return kindList, true
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return kindTables, true
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String:
		return kindMap, true
	default:
		return 0, false
	}
}

func isScalar(t reflect.Type) bool {
	if reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	default:
		return false
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// snake turns a Go name into a key: "IdleSeconds" to "idle_seconds", "PublicURL" to "public_url".
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
