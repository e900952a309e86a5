package store

import (
	"encoding/json"
	"strconv"
)

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
