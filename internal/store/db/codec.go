package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
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

// Encode is farm.Encode of a part of a record, which an error names.
func Encode(what string, v any) ([]byte, error) {
	data, err := farm.Encode(v)
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

// InlineBytes is the largest value that a record keeps in Redis. A larger one is a document in the object store, and the record has a
// reference to it. It is a little below 32 KiB, so that a value and its header fit into one allocation of Redis of that size.
const InlineBytes = 32<<10 - 64

// Documents is the object store, as far as records need it. Package blob implements it. A missing object counts as removed.
type Documents interface {
	PutDocument(ctx context.Context, key string, data []byte) error
	GetDocument(ctx context.Context, key string) ([]byte, error) // CodeNotFound if there is none
	Delete(ctx context.Context, keys ...string) error
	DeletePrefix(ctx context.Context, prefix string, but ...string) (deleted int, err error)
	AbortUploads(ctx context.Context, prefix string, before time.Time) (aborted int, err error)
}

// DropTimeout bounds the removal of documents that are not needed: it continues after the caller has left.
const DropTimeout = 5 * time.Second

// Reference begins a value that is the key of a document. All other values of records are JSON objects or arrays.
const Reference = "@"

// ErrNoDocuments says that this Store was made without Options.Documents, which a process that only checks Redis may do.
var ErrNoDocuments = errors.New("read document: this process has no object store")

// DocumentKey names a document of a job.
func DocumentKey(job farm.Ref, name string) string { return farm.RecordsOf(job) + name }

// IsReference reports whether a value is a reference.
func IsReference(value string) bool { return strings.HasPrefix(value, Reference) }

// StoreLarge returns the value that a record keeps: the data itself or, if that is longer than limit, a reference to a new document with this
// key. Without Options.Documents it is always the data.
func (d *DB) StoreLarge(ctx context.Context, key string, data []byte, limit int) ([]byte, error) {
	if len(data) <= limit || d.Documents == nil {
		return data, nil
	}
	if err := d.Documents.PutDocument(ctx, key, data); err != nil {
		return nil, fmt.Errorf("store document: %w", err)
	}
	return []byte(Reference + key), nil
}

// Resolve returns the data of a value that StoreLarge returned.
func (d *DB) Resolve(ctx context.Context, value string) (string, error) {
	key, isDocument := strings.CutPrefix(value, Reference)
	if !isDocument {
		return value, nil
	}
	if d.Documents == nil {
		return "", ErrNoDocuments
	}
	data, err := d.Documents.GetDocument(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read document: %w", err)
	}
	return string(data), nil
}

// ReadDocument decodes the data of a value that StoreLarge returned, and returns its length. It leaves v unchanged if the object is lost.
// A large one is decoded on a core of the tenant of ctx (budget.Core).
func (d *DB) ReadDocument(ctx context.Context, value string, v any) (int, error) {
	text, err := d.Resolve(ctx, value)
	if farm.CodeOf(err) == farm.CodeNotFound {
		d.Log.WarnContext(ctx, "a document of a record is gone", "key", value)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	leave, err := budget.Core(ctx, len(text))
	if err != nil {
		return 0, err
	}
	defer leave()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return 0, fmt.Errorf("decode document: %w", err)
	}
	return len(text), nil
}

// DropDocuments removes documents that no record refers to. A failure is logged: they go with the others of their record, or when they are old.
func (d *DB) DropDocuments(ctx context.Context, keys ...string) {
	if len(keys) == 0 || d.Documents == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DropTimeout)
	defer cancel()
	if err := d.Documents.Delete(ctx, keys...); err != nil {
		d.Log.WarnContext(ctx, "documents are left to the scheduler", "first", keys[0], "error", err)
	}
}
