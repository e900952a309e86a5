package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// InlineBytes is the largest value that a record keeps in Redis. A larger one is a document in the object store, and the record has a
// reference to it. It is a little below 32 KiB, so that a value and its header fit into one allocation of Redis of that size.
const InlineBytes = 32<<10 - 64

// Documents is the object store, as far as records need it. Package blob implements it. A missing object counts as removed.
type Documents interface {
	PutDocument(ctx context.Context, key string, data []byte) error
	GetDocument(ctx context.Context, key string) ([]byte, error) // CodeNotFound if there is none
	Delete(ctx context.Context, keys ...string) error
	DeletePrefix(ctx context.Context, prefix string) (deleted int, err error)
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
func (d *DB) ReadDocument(ctx context.Context, value string, v any) (int, error) {
	text, err := d.Resolve(ctx, value)
	if farm.CodeOf(err) == farm.CodeNotFound {
		d.Log.WarnContext(ctx, "a document of a record is gone", "key", value)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return 0, fmt.Errorf("decode document: %w", err)
	}
	return len(text), nil
}

// DropDocuments removes documents that no record refers to. A failure is logged: the lifecycle rules of the bucket remove them later.
func (d *DB) DropDocuments(ctx context.Context, keys ...string) {
	if len(keys) == 0 || d.Documents == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DropTimeout)
	defer cancel()
	if err := d.Documents.Delete(ctx, keys...); err != nil {
		d.Log.WarnContext(ctx, "documents are left to the lifecycle rules", "first", keys[0], "error", err)
	}
}
