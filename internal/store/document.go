package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// InlineBytes is the largest value that a record keeps in Redis. A larger one is a document in the object store, and the record has a
// reference to it. It is a little below 32 KiB, so that a value and its header fit into one allocation of Redis of that size.
const InlineBytes = 32<<10 - 64

// Smaller limits of parts of records that stay in Redis together with a result.
const (
	shownBytes   = 8 << 10  // of a job's record with what it shows of its request
	sandboxBytes = 16 << 10 // of a sandbox's record
	messageBytes = 4 << 10  // of the message of a job's error
)

// Documents is the object store, as far as records need it. Package blob implements it. A missing object counts as removed.
type Documents interface {
	PutDocument(ctx context.Context, key string, data []byte) error
	GetDocument(ctx context.Context, key string) ([]byte, error) // CodeNotFound if there is none
	Delete(ctx context.Context, keys ...string) error
	DeletePrefix(ctx context.Context, prefix string) (deleted int, err error)
}

// dropTimeout bounds the removal of documents that are not needed: it continues after the caller has left.
const dropTimeout = 5 * time.Second

// reference begins a value that is the key of a document. All other values of records are JSON objects or arrays.
const reference = "@"

// errNoDocuments says that this Store was made without Options.Documents, which a process that only checks Redis may do.
var errNoDocuments = errors.New("read document: this process has no object store")

// documentKey names a document of a job.
func documentKey(job farm.Ref, name string) string { return farm.RecordsOf(job) + name }

// What the record of a job says of its documents, in the field docs.
const (
	withRequest   = "r" // its request, or the private part of it, is one; it is removed when the job ends
	withDocuments = "1" // it has others only
)

// isReference reports whether a value is a reference.
func isReference(value string) bool { return strings.HasPrefix(value, reference) }

// storeLarge returns the value that a record keeps: the data itself or, if that is longer than limit, a reference to a new document with this
// key. Without Options.Documents it is always the data.
func (s *Store) storeLarge(ctx context.Context, key string, data []byte, limit int) ([]byte, error) {
	if len(data) <= limit || s.documents == nil {
		return data, nil
	}
	if err := s.documents.PutDocument(ctx, key, data); err != nil {
		return nil, fmt.Errorf("store document: %w", err)
	}
	return []byte(reference + key), nil
}

// resolve returns the data of a value that storeLarge returned.
func (s *Store) resolve(ctx context.Context, value string) (string, error) {
	key, isDocument := strings.CutPrefix(value, reference)
	if !isDocument {
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

// documents are objects that one step writes, before the records that refer to them.
type documents struct {
	tenant string
	list   []document
}

type document struct {
	entry string // of the index of documents: the id of the job or of the sandbox
	key   string
	data  []byte
}

// add makes value a reference to a new document of a record if it is longer than limit. It returns how many bytes the document has.
func (d *documents) add(record farm.Ref, name string, value *[]byte, limit int) int {
	size := len(*value)
	if size <= limit {
		return 0
	}
	key := documentKey(record, name)
	d.list = append(d.list, document{record.ID, key, *value})
	*value = []byte(reference + key)
	return size
}

// largeParts makes documents of the arguments that are too large for Redis. whole is the document of a request of which args.Request is the private part; nil: none.
func (s *Store) largeParts(args *acceptArgs, whole []byte, tenant string) documents {
	docs := documents{tenant: tenant}
	if s.documents == nil {
		return docs
	}
	job, box := farm.Ref{Tenant: tenant, ID: args.ID}, farm.Ref{Tenant: tenant, ID: args.Sandbox}
	inline := InlineBytes
	if whole != nil { // the reference to it is part of the value
		inline -= len(reference) + len(documentKey(job, wholeDocument)) + len(privateSeparator)
	}
	shown := docs.add(job, "shown", &args.Shown, 0)
	args.RequestSize = docs.add(job, requestDocument, &args.Request, inline)
	args.SandboxSpilled = docs.add(box, "sandbox", &args.SandboxDoc, sandboxBytes) > 0
	switch {
	case args.RequestSize > 0:
		args.Documents = withRequest
	case shown > 0, whole != nil:
		args.Documents = withDocuments
	}
	if whole != nil {
		private := args.Request
		docs.add(job, wholeDocument, &whole, 0)
		if args.Request = whole; len(private) > 0 {
			args.Request = slices.Concat(args.Request, []byte(privateSeparator), private)
		}
	}
	return docs
}

// put charges documents to what the tenant may store, and then writes them. Until their records are accepted they are kept like uploads: a process
// that dies leaves them for an hour. CodeExhausted: the storage of the tenant is full.
func (s *Store) put(ctx context.Context, docs documents) error {
	sizes := map[string]int64{}
	for _, doc := range docs.list {
		sizes[doc.entry] += int64(len(doc.data))
	}
	for entry, size := range sizes {
		if err := s.keep(ctx, docs.tenant, entry, size); err != nil {
			if len(sizes) > 1 && farm.CodeOf(err) == farm.CodeExhausted {
				s.drop(ctx, docs)
			}
			return err
		}
	}
	for _, doc := range docs.list {
		if err := s.documents.PutDocument(ctx, doc.key, doc.data); err != nil {
			s.drop(ctx, docs)
			return fmt.Errorf("store document: %w", err)
		}
	}
	return nil
}

// drop removes documents that no record refers to, and what they count.
func (s *Store) drop(ctx context.Context, docs documents) {
	if len(docs.list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	keys, entries := []string{}, []string{}
	for _, doc := range docs.list {
		keys, entries = append(keys, doc.key), append(entries, doc.entry)
	}
	slices.Sort(entries)
	err := s.documents.Delete(ctx, keys...)
	for _, entry := range slices.Compact(entries) {
		if err == nil {
			err = s.keep(ctx, docs.tenant, entry, 0)
		}
	}
	if err != nil {
		s.log.WarnContext(ctx, "documents are left for an hour", "first", keys[0], "error", err)
	}
}

// readJob reads a job with its documents from its hash. If an object is lost, what it held is missing in the job.
func (s *Store) readJob(ctx context.Context, fields map[string]string) (*farm.Job, error) {
	job, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	_, err = s.readDocuments(ctx, job, fields)
	return job, err
}

// readDocuments adds the documents that the fields refer to to a job. It returns how many bytes they have.
func (s *Store) readDocuments(ctx context.Context, job *farm.Job, fields map[string]string) (size int, err error) {
	if shown := fields["shown"]; shown != "" {
		if size, err = s.readDocument(ctx, shown, &job.Shown); err != nil {
			return 0, fmt.Errorf("read shown request of job %s: %w", job.ID, err)
		}
	}
	if result := fields["result"]; isReference(result) {
		n, err := s.readDocument(ctx, result, &job.Result)
		if err != nil {
			return 0, fmt.Errorf("read result of job %s: %w", job.ID, err)
		}
		size += n
	}
	return size, nil
}

// readSandbox reads a sandbox from its hash.
func (s *Store) readSandbox(ctx context.Context, fields map[string]string) (*farm.Sandbox, error) {
	doc, err := s.resolve(ctx, fields["doc"])
	if err != nil {
		return nil, fmt.Errorf("read sandbox record: %w", err)
	}
	fields["doc"] = doc
	return decodeSandbox(fields)
}

// readDocument decodes the data of a value that storeLarge returned, and returns its length. It leaves v unchanged if the object is lost.
func (s *Store) readDocument(ctx context.Context, value string, v any) (int, error) {
	text, err := s.resolve(ctx, value)
	if farm.CodeOf(err) == farm.CodeNotFound {
		s.log.WarnContext(ctx, "a document of a record is gone", "key", value)
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

// dropDocuments removes documents that no record refers to. A failure is logged: the lifecycle rules of the bucket remove them later.
func (s *Store) dropDocuments(ctx context.Context, keys ...string) {
	if len(keys) == 0 || s.documents == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	if err := s.documents.Delete(ctx, keys...); err != nil {
		s.log.WarnContext(ctx, "documents are left to the lifecycle rules", "first", keys[0], "error", err)
	}
}

// trimDocuments removes the documents of records that have expired or were removed. It returns how many records they belonged to.
func (s *Store) trimDocuments(ctx context.Context, tenant string) (records int, err error) {
	if s.documents == nil {
		return 0, nil
	}
	const stretch = 100
	index := s.Index(tenant, IndexDocuments)
	for {
		ids, err := s.rdb.ZRangeByScore(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: micros(s.now()), Count: stretch}).Result()
		if err != nil {
			return records, wrap("list expired documents", err)
		}
		for _, id := range ids {
			if _, err := s.documents.DeletePrefix(ctx, keptPrefix(tenant, id)); err != nil {
				return records, fmt.Errorf("remove documents of %s: %w", id, err)
			}
			if err := s.keep(ctx, tenant, id, 0); err != nil {
				return records, err
			}
			records++
		}
		if len(ids) < stretch {
			return records, nil
		}
	}
}
