package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// jsonDepth is how deep values may be nested in a body. Those of this package are five deep.
const jsonDepth = 32

// parseJSON reads one JSON document. Keys keep their spelling, numbers their digits. A key that is repeated is an error, and so is
// anything after the document: two programs that read it would see different values.
func parseJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	value, err := parseValue(d, jsonDepth)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something after the JSON document")
	}
	return value, nil
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = errors.New("the JSON document is incomplete")
	}
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, fmt.Errorf("the JSON document is nested more than %d deep", jsonDepth)
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string) // the decoder accepts only strings here
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the key %q is repeated", name)
			}
			if object[name], err = parseValue(d, depth-1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := parseValue(d, depth-1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := d.Token()
		return list, err
	default:
		return token, nil
	}
}

// difference names the first place at which two values of parseJSON differ. It never has a value: variables may be secret.
func difference(path string, a, b any) (string, bool) {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return place(path), true
		}
		all := maps.Clone(a)
		maps.Copy(all, b)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			inner := key
			if path != "" {
				inner = path + "." + key
			}
			left, inA := a[key]
			right, inB := b[key]
			if inA != inB {
				return inner, true
			}
			if found, differs := difference(inner, left, right); differs {
				return found, true
			}
		}
		return "", false
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return place(path), true
		}
		for i := range a {
			if found, differs := difference(fmt.Sprintf("%s[%d]", path, i), a[i], b[i]); differs {
				return found, true
			}
		}
		return "", false
	default:
		if a != b { // never a panic: a is neither a map nor a slice
			return place(path), true
		}
		return "", false
	}
}

// place names a path for an error.
func place(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}
