// Package strict decodes JSON bodies strictly: one value of the right shape, known fields in their exact spelling, each once,
// valid UTF-8, no deep nesting, no bytes after the value. It reports all problems of a body at
// once, each with a pointer to the field and a sentence for the caller that never shows the name of a Go type.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxDepth is how deep arrays and objects may be nested. No body of the API needs more than four levels.
const MaxDepth = 32

// Decode fills the struct that into points to. It supports strings, booleans, numbers, structs, slices, maps with string
// keys, pointers to these, and json.RawMessage. null counts as absent for a field, and is an error elsewhere. A field
// with the tag required:"true" must be present. Every error is an *Error; unless it is Whole, the struct has the valid
// fields.
func Decode(data []byte, into any) error {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return Wholef("the body is empty: send a JSON object")
	case !utf8.Valid(data):
		return Wholef("the body is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		return syntax(err)
	}
	d := &decoder{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	d.dec.UseNumber()
	err := d.value(place{}, reflect.ValueOf(into).Elem(), 0)
	if whole, ok := errors.AsType[*Error](err); ok {
		return whole
	}
	return fieldsError(d.problems)
}

func syntax(err error) *Error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if strings.Contains(e.Error(), "unexpected end") {
			return Wholef("the body is not JSON: it ends too early")
		}
		return Wholef("the body is not JSON: %s (byte %d)", e.Error(), e.Offset)
	}
	return Wholef("the body is not JSON")
}

// place is the position of a value in the body, as text and as a pointer.
type place struct{ name, pointer string }

func (p place) field(key string) place {
	key = farm.Shorten(key)
	name := key
	if p.name != "" {
		name = p.name + "." + key
	}
	return place{name: name, pointer: Pointer(p.pointer, key)}
}

func (p place) element(i int) place {
	return place{name: fmt.Sprintf("%s[%d]", p.name, i), pointer: Pointer(p.pointer, strconv.Itoa(i))}
}

func (p place) String() string {
	if p.pointer == "" {
		return "the body"
	}
	return strconv.Quote(p.name)
}

// decoder reads the tokens of a body. Its methods return an error only if decoding cannot continue; problems of single
// fields are collected.
type decoder struct {
	data     []byte
	dec      *json.Decoder
	problems []farm.FieldError
}

// errFull stops decoding after MaxProblems problems.
var errFull = errors.New("too many problems")

// refuse adds a problem. Decoding continues after the value.
func (d *decoder) refuse(at place, format string, args ...any) error {
	d.problems = append(d.problems, farm.FieldError{Pointer: at.pointer, Detail: fmt.Sprintf(format, args...)})
	if len(d.problems) == MaxProblems {
		return errFull
	}
	return nil
}

func (d *decoder) token() (json.Token, error) {
	t, err := d.dec.Token()
	if err != nil {
		return nil, syntax(err)
	}
	return t, nil
}

// value reads one value into v.
func (d *decoder) value(at place, v reflect.Value, depth int) error {
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

func (d *decoder) assign(at place, v reflect.Value, t json.Token, depth int) error {
	if depth > MaxDepth {
		return errDepth()
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return d.assign(at, v.Elem(), t, depth)
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		return d.time(at, v, t, depth)
	}
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
		if s, ok := t.(string); ok {
			v.SetString(s)
			return nil
		}
	case reflect.Bool:
		if b, ok := t.(bool); ok {
			v.SetBool(b)
			return nil
		}
	case reflect.Int, reflect.Int64:
		if n, ok := t.(json.Number); ok {
			return d.whole(at, v, n)
		}
	case reflect.Float64:
		if n, ok := t.(json.Number); ok {
			f, err := strconv.ParseFloat(n.String(), 64)
			if err != nil {
				return d.refuse(at, "%s is out of range", at)
			}
			v.SetFloat(f)
			return nil
		}
	default:
	}
	if err := d.skip(t, depth); err != nil {
		return err
	}
	if at.pointer == "" {
		return Wholef("the body must be %s, not %s", wanted(v.Kind()), given(t))
	}
	return d.refuse(at, "%s must be %s, not %s", at, wanted(v.Kind()), given(t))
}

func (d *decoder) time(at place, v reflect.Value, t json.Token, depth int) error {
	text, ok := t.(string)
	if !ok {
		if err := d.skip(t, depth); err != nil {
			return err
		}
		return d.refuse(at, "%s must be a time, not %s", at, given(t))
	}
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return d.refuse(at, "%s must be a time such as 2026-11-23T07:00:32Z, not %q", at, farm.Shorten(text))
	}
	v.Set(reflect.ValueOf(parsed))
	return nil
}

func (d *decoder) whole(at place, v reflect.Value, n json.Number) error {
	i, err := strconv.ParseInt(n.String(), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && v.OverflowInt(i):
		return d.refuse(at, "%s is out of range", at)
	case err != nil:
		return d.refuse(at, "%s must be a whole number, not %s", at, farm.Shorten(n.String()))
	}
	v.SetInt(i)
	return nil
}

func (d *decoder) object(at place, v reflect.Value, depth int) error {
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
		key, ok, err := d.key(at, seen, depth)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		here := at.field(key)
		i, known := fields[key]
		if !known {
			if _, err := d.raw(depth + 1); err != nil {
				return err
			}
			if err := d.refuse(here, "%s is not a known field; known are %s", here, strings.Join(names, ", ")); err != nil {
				return err
			}
			continue
		}
		null, err := d.field(here, v.Field(i), depth+1)
		if err != nil {
			return err
		}
		seen[key] = !null // null counts as absent, but a second occurrence is still an error
	}
	if _, err := d.token(); err != nil {
		return err
	}
	for _, key := range names {
		if v.Type().Field(fields[key]).Tag.Get("required") == "true" && !seen[key] {
			if err := d.refuse(at.field(key), "%s is missing", at.field(key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// field is value, but null leaves the field as it is.
func (d *decoder) field(at place, v reflect.Value, depth int) (null bool, err error) {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		return false, d.value(at, v, depth)
	}
	t, err := d.token()
	if err != nil || t == nil {
		return t == nil, err
	}
	return false, d.assign(at, v, t, depth)
}

func (d *decoder) mapping(at place, v reflect.Value, depth int) error {
	v.Set(reflect.MakeMap(v.Type()))
	seen := make(map[string]bool)
	for d.dec.More() {
		key, ok, err := d.key(at, seen, depth)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(at.field(key), element, depth+1); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), element)
	}
	_, err := d.token()
	return err
}

func (d *decoder) list(at place, v reflect.Value, depth int) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i := 0; d.dec.More(); i++ {
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(at.element(i), element, depth+1); err != nil {
			return err
		}
		v.Set(reflect.Append(v, element))
	}
	_, err := d.token()
	return err
}

// key reads the name of a member. ok is false for a repeated name: then its value is skipped.
func (d *decoder) key(at place, seen map[string]bool, depth int) (key string, ok bool, err error) {
	t, err := d.token()
	if err != nil {
		return "", false, err
	}
	key, _ = t.(string)
	if _, twice := seen[key]; !twice {
		seen[key] = true
		return key, true, nil
	}
	if _, err := d.raw(depth + 1); err != nil {
		return "", false, err
	}
	return "", false, d.refuse(at.field(key), "%s is given twice", at.field(key))
}

// raw reads one value and returns its bytes.
func (d *decoder) raw(depth int) (json.RawMessage, error) {
	start := d.dec.InputOffset()
	t, err := d.token()
	if err != nil {
		return nil, err
	}
	if err := d.skip(t, depth); err != nil {
		return nil, err
	}
	return bytes.Clone(bytes.TrimLeft(d.data[start:d.dec.InputOffset()], " \t\r\n:,")), nil
}

// skip reads the rest of the value that starts with a token.
func (d *decoder) skip(t json.Token, depth int) error {
	for open := 0; ; {
		switch t {
		case json.Delim('{'), json.Delim('['):
			open++
		case json.Delim('}'), json.Delim(']'):
			open--
		}
		if depth+open > MaxDepth {
			return errDepth()
		}
		if open == 0 {
			return nil
		}
		var err error
		if t, err = d.token(); err != nil {
			return err
		}
	}
}

func errDepth() *Error {
	return Wholef("the body is nested too deeply: at most %d levels are allowed", MaxDepth)
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

// MaxProblems is how many problems of a body are reported.
const MaxProblems = 20

// Error says what is wrong with the form of a body. It counts as farm.CodeInvalid.
type Error struct {
	// Fields are the problems, at least one and at most MaxProblems.
	Fields []farm.FieldError
	// Whole means that no part of the body could be read.
	Whole bool
}

// Wholef is an error of the body as a whole.
func Wholef(format string, args ...any) *Error {
	return &Error{Whole: true, Fields: []farm.FieldError{{Detail: fmt.Sprintf(format, args...)}}}
}

func fieldsError(fields []farm.FieldError) error {
	if len(fields) == 0 {
		return nil
	}
	return &Error{Fields: fields}
}

// Error returns the sentences of the problems.
func (e *Error) Error() string { return farm.FieldsError(farm.CodeInvalid, e.Fields).Message }

// Unwrap returns the domain's error with the same fields.
func (e *Error) Unwrap() error { return farm.FieldsError(farm.CodeInvalid, e.Fields) }

// Fields returns the problems of single fields that Decode found. Any other error is returned as is.
func Fields(err error) ([]farm.FieldError, error) {
	if e, ok := errors.AsType[*Error](err); ok && !e.Whole {
		return e.Fields, nil
	}
	return nil, err
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer adds keys to a JSON pointer, escaped by RFC 6901.
func Pointer(pointer string, keys ...string) string {
	for _, key := range keys {
		pointer += "/" + pointerEscapes.Replace(key)
	}
	return pointer
}
