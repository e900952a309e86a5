// Package strict decodes JSON from callers and accepts nothing that was not asked for: one value of the right shape,
// known fields in their exact spelling, each once, valid UTF-8, no deep nesting, no bytes behind it. Its errors are
// sentences for the caller that name the field and say what was expected; they never show names of Go types.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxDepth is how deep arrays and objects may lie in each other. No body of the API needs more than four levels.
const MaxDepth = 32

// Error says what is wrong with a body. It counts as farm.CodeInvalid.
type Error struct{ Message string }

// Error gives the sentence.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the domain's error with the same sentence.
func (e *Error) Unwrap() error { return farm.Invalidf("%s", e.Message) }

// Decode fills the struct that into points to. It knows strings, booleans, numbers, structs, slices, maps with string
// keys, pointers to these, and json.RawMessage. null counts as absent for a field, and is an error elsewhere. A field
// with the tag required:"true" must be there. Every error is an *Error.
func Decode(data []byte, into any) error {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return errorf("the body is empty: send a JSON object")
	case !utf8.Valid(data):
		return errorf("the body is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return syntax(err)
	}
	d := &decoder{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	d.dec.UseNumber()
	return d.value("", reflect.ValueOf(into).Elem(), 0)
}

func errorf(format string, args ...any) *Error { return &Error{Message: fmt.Sprintf(format, args...)} }

func syntax(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if strings.Contains(e.Error(), "unexpected end") {
			return errorf("the body is not JSON: it ends too early")
		}
		return errorf("the body is not JSON: %s (byte %d)", e.Error(), e.Offset)
	}
	return errorf("the body is not JSON")
}

type decoder struct {
	data []byte
	dec  *json.Decoder
}

func (d *decoder) token() (json.Token, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, syntax(err)
	}
	return t, nil
}

// value reads one value into v, whose place in the body is at.
func (d *decoder) value(at string, v reflect.Value, depth int) error {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		raw, err := d.raw(depth)
		if err == nil {
			v.SetBytes(raw)
		}
		return err
	}
	t, err := d.token()
	if err != nil {
		return err
	}
	return d.assign(at, v, t, depth)
}

func (d *decoder) assign(at string, v reflect.Value, t json.Token, depth int) error {
	if depth > MaxDepth {
		return errorf("the body is nested too deeply: at most %d levels are allowed", MaxDepth)
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return d.assign(at, v.Elem(), t, depth)
	}
	ok := false
	switch v.Kind() {
	case reflect.Struct:
		if t == json.Delim('{') {
			return d.object(at, v, depth)
		}
	case reflect.Map:
		if t == json.Delim('{') {
			return d.mapping(at, v, depth)
		}
	case reflect.Slice:
		if t == json.Delim('[') {
			return d.list(at, v, depth)
		}
	case reflect.String:
		var s string
		if s, ok = t.(string); ok {
			v.SetString(s)
		}
	case reflect.Bool:
		var b bool
		if b, ok = t.(bool); ok {
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int64:
		if n, number := t.(json.Number); number {
			return whole(at, v, n)
		}
	case reflect.Float64:
		if n, number := t.(json.Number); number {
			f, err := strconv.ParseFloat(n.String(), 64)
			if err != nil {
				return errorf("%s is out of range", name(at))
			}
			v.SetFloat(f)
			ok = true
		}
	default:
		return errorf("%s cannot be given here", name(at))
	}
	if !ok {
		return errorf("%s must be %s, not %s", name(at), wanted(v.Kind()), given(t))
	}
	return nil
}

func whole(at string, v reflect.Value, n json.Number) error {
	i, err := strconv.ParseInt(n.String(), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && v.OverflowInt(i):
		return errorf("%s is out of range", name(at))
	case err != nil:
		return errorf("%s must be a whole number, not %s", name(at), short(n.String()))
	}
	v.SetInt(i)
	return nil
}

func (d *decoder) object(at string, v reflect.Value, depth int) error {
	fields := make(map[string]int, v.NumField())
	names := make([]string, 0, v.NumField())
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if key == "" || key == "-" {
			continue
		}
		fields[key] = i
		names = append(names, key)
	}
	seen := make(map[string]bool, len(fields))
	for d.dec.More() {
		key, err := d.key(at, seen)
		if err != nil {
			return err
		}
		place := join(at, key)
		i, known := fields[key]
		if !known {
			return errorf("%s is not a known field; known are %s", name(place), strings.Join(names, ", "))
		}
		if err := d.field(place, v.Field(i), depth+1); err != nil {
			return err
		}
		if v.Field(i).IsZero() && d.lastNull() {
			seen[key] = false // null counts as absent, but may still not come twice
		}
	}
	if _, err := d.token(); err != nil {
		return err
	}
	for _, key := range names {
		if v.Type().Field(fields[key]).Tag.Get("required") == "true" && !seen[key] {
			return errorf("%s is missing", name(join(at, key)))
		}
	}
	return nil
}

// lastNull reports whether the value that was just read is null.
func (d *decoder) lastNull() bool {
	return bytes.HasSuffix(d.data[:d.dec.InputOffset()], []byte("null"))
}

// field is value, but null leaves the field as it is.
func (d *decoder) field(at string, v reflect.Value, depth int) error {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		return d.value(at, v, depth)
	}
	t, err := d.token()
	if err != nil || t == nil {
		return err
	}
	return d.assign(at, v, t, depth)
}

func (d *decoder) mapping(at string, v reflect.Value, depth int) error {
	v.Set(reflect.MakeMap(v.Type()))
	seen := make(map[string]bool)
	for d.dec.More() {
		key, err := d.key(at, seen)
		if err != nil {
			return err
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(join(at, short(key)), element, depth+1); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), element)
	}
	_, err := d.token()
	return err
}

func (d *decoder) list(at string, v reflect.Value, depth int) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i := 0; d.dec.More(); i++ {
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(fmt.Sprintf("%s[%d]", at, i), element, depth+1); err != nil {
			return err
		}
		v.Set(reflect.Append(v, element))
	}
	_, err := d.token()
	return err
}

// key reads the name of a member and marks it as seen.
func (d *decoder) key(at string, seen map[string]bool) (string, error) {
	t, err := d.token()
	if err != nil {
		return "", err
	}
	key, _ := t.(string)
	if _, twice := seen[key]; twice {
		return "", errorf("%s is given twice", name(join(at, short(key))))
	}
	seen[key] = true
	return key, nil
}

// raw reads one value and gives its bytes, having looked at its depth.
func (d *decoder) raw(depth int) (json.RawMessage, error) {
	start := d.dec.InputOffset()
	for open := 0; ; {
		t, err := d.token()
		if err != nil {
			return nil, err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			open++
		case json.Delim('}'), json.Delim(']'):
			open--
		}
		if depth+open > MaxDepth {
			return nil, errorf("the body is nested too deeply: at most %d levels are allowed", MaxDepth)
		}
		if open == 0 {
			return bytes.Clone(bytes.TrimLeft(d.data[start:d.dec.InputOffset()], " \t\r\n:,")), nil
		}
	}
}

func join(at, key string) string {
	key = short(key)
	if at == "" {
		return key
	}
	return at + "." + key
}

func name(at string) string {
	if at == "" {
		return "the body"
	}
	return strconv.Quote(at)
}

func wanted(k reflect.Kind) string {
	switch k {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	default:
		return "a number"
	}
}

func given(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return strconv.FormatBool(t)
	case json.Number:
		return "a number"
	default:
		if t == json.Delim('{') {
			return "an object"
		}
		return "an array"
	}
}

// short keeps a caller's text from filling the answer.
func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
