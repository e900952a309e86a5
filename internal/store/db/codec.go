package db

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// List is a JSON array of strings: never null, which Lua would not read as a list.
func List(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	data, err := json.Marshal(names)
	if err != nil {
		panic("encode strings: " + err.Error()) // strings always encode
	}
	return string(data)
}

// Reply is what a script gave. Missing and nil elements read as empty.
type Reply []any

// Text reads an element.
func (r Reply) Text(i int) string {
	if i >= len(r) {
		return ""
	}
	text, _ := r[i].(string)
	return text
}

// Number reads a whole number; 0 if there is none.
func (r Reply) Number(i int) int {
	n, _ := strconv.Atoi(r.Text(i))
	return n
}

// Fields reads an element of names and values that alternate, as HGETALL gives them.
func (r Reply) Fields(i int) map[string]string {
	if i >= len(r) {
		return nil
	}
	flat, _ := r[i].([]any)
	return Pairs(flat)
}

// Pairs makes a map of names and values that alternate.
func Pairs(flat []any) map[string]string {
	fields := make(map[string]string, len(flat)/2)
	for k := 0; k+1 < len(flat); k += 2 {
		name, _ := flat[k].(string)
		value, _ := flat[k+1].(string)
		fields[name] = value
	}
	return fields
}

// Rows reads an element of lists.
func (r Reply) Rows(i int) []Reply {
	if i >= len(r) {
		return nil
	}
	list, _ := r[i].([]any)
	rows := make([]Reply, 0, len(list))
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

// Encode encodes a part of a record, which an error names.
func Encode(what string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	return data, nil
}

// Moment reads a time as Micros wrote it.
func Moment(text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// Number reads a number; 0 if there is none.
func Number(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// Refs names records of a tenant.
func Refs(tenant string, ids []string) []farm.Ref {
	out := make([]farm.Ref, len(ids))
	for i, id := range ids {
		out[i] = farm.Ref{Tenant: tenant, ID: id}
	}
	return out
}

// Hint is the message on the cancel channel.
func Hint(ref farm.Ref) []byte {
	data, err := json.Marshal(ref)
	if err != nil {
		return []byte("{}") // two strings always encode; an empty hint makes workers check the flags
	}
	return data
}

// EventID reports whether s is "<seq>-<n>" or, unless whole, just "<seq>". The numbers are below 2^53, so that Lua holds them exactly.
func EventID(s string, whole bool) bool {
	seq, n, both := strings.Cut(s, "-")
	if whole && !both {
		return false
	}
	return counter(seq) && (!both || counter(n))
}

func counter(s string) bool {
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && n < 1<<53 && s[0] != '+'
}

// Clip shortens what a caller sent, for an error sentence.
func Clip(s string) string { return ClipText(s, 64) }

// ClipText cuts a text to some bytes.
func ClipText(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
