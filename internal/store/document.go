package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// reference begins a value that is the key of a document. All other values of records are JSON objects or arrays.
const reference = "@"

// errNoDocuments says that this Store was made without Options.Documents, which a process that only checks Redis may do.
var errNoDocuments = errors.New("read document: this process has no object store")

// documentKey names a document of a job.
func documentKey(job farm.Ref, name string) string { return documentPrefix(job) + name }

// documentPrefix begins the keys of all documents of a job.
func documentPrefix(job farm.Ref) string { return fmt.Sprintf("records/%s/%s/", job.Tenant, job.ID) }

// spill returns the value that a record keeps: the data itself or, if that is longer than limit, a reference to a new document with this
// key. Without Options.Documents it is always the data.
func (s *Store) spill(ctx context.Context, key string, data []byte, limit int) ([]byte, error) {
	if len(data) <= limit || s.documents == nil {
		return data, nil
	}
	if err := s.documents.PutDocument(ctx, key, data); err != nil {
		return nil, fmt.Errorf("store document: %w", err)
	}
	return []byte(reference + key), nil
}

// resolve returns the data of a value that spill made.
func (s *Store) resolve(ctx context.Context, value string) (string, error) {
	key, spilled := strings.CutPrefix(value, reference)
	if !spilled {
		return value, nil
	}
	if s.documents == nil {
		return "", errNoDocuments
	}
	data, err := s.documents.GetDocument(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read document: %w", err)
	}
	return string(data), nil
}
