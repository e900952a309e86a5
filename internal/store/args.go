package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// bind is the Lua code that gives a script its arguments by name, as the fields of the table arg: the names are the lua tags of a struct's
// fields, from ARGV[first] on in their order. values sends them in that order, so a name and its value cannot get out of step.
func bind(args any, first int) string {
	var b strings.Builder
	b.WriteString("local arg = {")
	for i, name := range argNames(reflect.TypeOf(args)) {
		fmt.Fprintf(&b, "%s = ARGV[%d], ", name, first+i)
	}
	b.WriteString("}\n")
	return b.String()
}

// values are the arguments of a script that bind names. Every field is sent, also a zero one. A bool is "1" or "", a list a JSON array, [] if
// it is empty.
func values(args any) []any {
	v := reflect.ValueOf(args)
	out := make([]any, v.NumField())
	for i := range out {
		out[i] = argValue(v.Field(i))
	}
	return out
}

func argValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Bool:
		return flag(v.Bool())
	case reflect.Int, reflect.Int64:
		return v.Int() // in decimal; Lua holds integers exactly up to 2^53
	case reflect.Uint64:
		return v.Uint()
	case reflect.String:
		return v.String()
	}
	switch value := v.Interface().(type) {
	case []byte:
		return value
	case []string:
		return list(value)
	}
	panic(fmt.Sprintf("an argument of a script cannot be a %s", v.Type()))
}

// list is a JSON array of strings: never null, which Lua would not read as a list.
func list(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	data, err := json.Marshal(names)
	if err != nil {
		panic("encode strings: " + err.Error()) // strings always encode
	}
	return string(data)
}

// argNames reads the lua tags of a struct's fields, in their order.
func argNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		if names[i] = t.Field(i).Tag.Get("lua"); names[i] == "" {
			panic(fmt.Sprintf("field %s of %s has no lua tag", t.Field(i).Name, t))
		}
	}
	return names
}

// reply is what a script gave. Missing and nil elements read as empty.
type reply []any

func (r reply) text(i int) string {
	if i >= len(r) {
		return ""
	}
	text, _ := r[i].(string)
	return text
}

// number reads a whole number; 0 if there is none.
func (r reply) number(i int) int {
	n, _ := strconv.Atoi(r.text(i))
	return n
}

// fields reads an element of names and values that alternate, as HGETALL gives them.
func (r reply) fields(i int) map[string]string {
	if i >= len(r) {
		return nil
	}
	flat, _ := r[i].([]any)
	return pairs(flat)
}

// pairs makes a map of names and values that alternate.
func pairs(flat []any) map[string]string {
	fields := make(map[string]string, len(flat)/2)
	for k := 0; k+1 < len(flat); k += 2 {
		name, _ := flat[k].(string)
		value, _ := flat[k+1].(string)
		fields[name] = value
	}
	return fields
}

func (r reply) rows(i int) []reply {
	if i >= len(r) {
		return nil
	}
	list, _ := r[i].([]any)
	rows := make([]reply, 0, len(list))
	for _, item := range list {
		if row, ok := item.([]any); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// flag is a boolean in Redis.
func flag(b bool) string {
	if b {
		return "1"
	}
	return ""
}
