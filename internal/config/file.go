package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxFileBytes bounds a configuration file: a wrong path (a log, a device) must not fill the memory.
const maxFileBytes = 4 << 20

// readFile reads a TOML file as a tree.
func readFile(name string) (map[string]any, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is not a configuration file: want a regular file of at most %d bytes", maxFileBytes)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, column := syntax.Position()
			return nil, fmt.Errorf("line %d, column %d: %w", row, column, err)
		}
		return nil, err
	}
	return tree, nil
}

// fill sets the fields from a tree of the file and returns its problems.
func fill(fields []field, tree map[string]any, path, source string) Problems {
	var problems Problems
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		at := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if at < 0 {
			problems = append(problems, Problem{Key: join(path, key), Source: source, Text: unknown(key, fields)})
			continue
		}
		problems = append(problems, fields[at].fill(tree[key], source)...)
	}
	return problems
}

func unknown(key string, fields []field) string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.key)
	}
	text := "is not a setting"
	if near := nearest(key, names); near != "" {
		return fmt.Sprintf("%s; did you mean %s?", text, near)
	}
	return fmt.Sprintf("%s; allowed here: %s", text, strings.Join(names, ", "))
}

func (f field) fill(raw any, source string) Problems {
	bad := func(format string, args ...any) Problems {
		p := Problem{Key: f.path, Source: source, Text: fmt.Sprintf(format, args...)}
		if !f.secret() {
			p.Value = show(raw)
		}
		return Problems{p}
	}
	switch f.kind {
	case kindTable:
		tree, ok := raw.(map[string]any)
		if !ok {
			return bad("is not a table; write [%s] on a line of its own and its settings below", f.path)
		}
		return fill(f.fields, tree, f.path, source)
	case kindTables:
		return f.fillTables(raw, source)
	case kindMap:
		tree, ok := raw.(map[string]any)
		if !ok {
			return bad(`is not a table; allowed: { name = "value" }`)
		}
		m := reflect.MakeMap(f.value.Type())
		for key, value := range tree {
			text, ok := value.(string)
			if !ok {
				return bad("has a %s that is not text", key)
			}
			m.SetMapIndex(reflect.ValueOf(key).Convert(f.value.Type().Key()), reflect.ValueOf(text).Convert(f.value.Type().Elem()))
		}
		f.value.Set(m)
	case kindList:
		items, ok := raw.([]any)
		if !ok {
			return bad(`is not a list; allowed: ["one", "two"]`)
		}
		list := reflect.MakeSlice(f.value.Type(), len(items), len(items))
		for i, item := range items {
			if _, isTable := item.(map[string]any); isTable && list.Index(i).Kind() == reflect.Struct {
				return f.fillTables(raw, source) // its items can be written either way
			}
			if err := assign(list.Index(i), item); err != nil {
				return bad("has an item at place %d that %v", i+1, err)
			}
		}
		f.value.Set(list)
	default:
		if err := assign(f.value, raw); err != nil {
			return bad("%v", err)
		}
	}
	if err := f.check(); err != nil {
		return bad("%v", err)
	}
	return nil
}

// fillTables sets a list of structs: each table starts from the defaults of its struct.
func (f field) fillTables(raw any, source string) Problems {
	items, ok := raw.([]any)
	if !ok {
		return Problems{{Key: f.path, Source: source, Text: fmt.Sprintf("is not a list of tables; write [[%s]] above each", f.path)}}
	}
	var problems Problems
	list := reflect.MakeSlice(f.value.Type(), len(items), len(items))
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", f.path, i)
		tree, ok := item.(map[string]any)
		if !ok {
			if f.kind == kindList && assign(list.Index(i), item) == nil {
				continue
			}
			problems = append(problems, Problem{Key: path, Source: source, Text: "is not a table"})
			continue
		}
		fields, err := fieldsOf(list.Index(i), path, "")
		if err != nil {
			return append(problems, Problem{Key: path, Text: err.Error()})
		}
		problems = append(problems, defaults(fields)...)
		problems = append(problems, fill(fields, tree, path, source)...)
	}
	f.value.Set(list)
	return problems
}

// assign sets a scalar from a TOML value. The types must agree: a number in quotes is a mistake, not a number.
func assign(v reflect.Value, raw any) error {
	text, isText := raw.(string)
	number, isInt := raw.(int64)
	float, isFloat := raw.(float64)
	flag, isBool := raw.(bool)
	_, custom := v.Addr().Interface().(interface{ UnmarshalText([]byte) error })
	switch {
	case custom || v.Type() == durationType || v.Kind() == reflect.String:
		if !isText {
			return mismatch(v, custom)
		}
		return parse(v, text)
	case v.Kind() == reflect.Bool && isBool:
		v.SetBool(flag)
	case v.CanInt() && isInt && !v.OverflowInt(number):
		v.SetInt(number)
	case v.CanUint() && isInt && number >= 0 && !v.OverflowUint(uint64(number)):
		v.SetUint(uint64(number)) //nolint:gosec // not negative: checked before
	case v.CanFloat() && isInt:
		v.SetFloat(float64(number))
	case v.CanFloat() && isFloat && float-float == 0:
		v.SetFloat(float)
	default:
		return mismatch(v, custom)
	}
	return nil
}

func mismatch(v reflect.Value, custom bool) error {
	switch {
	case v.Type() == durationType:
		return errors.New(`is not a duration; allowed: a number with its unit in quotes, as "30s"`)
	case custom || v.Kind() == reflect.String:
		return errors.New("is not text; write it in quotes")
	case v.Kind() == reflect.Bool:
		return errors.New("is not a switch; allowed: true or false, without quotes")
	case v.CanFloat():
		return errors.New("is not a number; allowed: as 4 or 0.5, without quotes")
	default:
		return fmt.Errorf("is not %s, without quotes", wholeNumber(v.Type()))
	}
}

// show is a value as a problem shows it: short, on one line.
func show(raw any) string {
	text := fmt.Sprint(raw)
	if s, ok := raw.(string); ok {
		text = fmt.Sprintf("%q", s)
	}
	if runes := []rune(text); len(runes) > 80 {
		text = string(runes[:77]) + "..."
	}
	return strings.ReplaceAll(text, "\n", " ")
}
