package storetest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Documents is an object store in memory. It counts what it is asked for, and fails with Err if that is set.
type Documents struct {
	mu         sync.Mutex
	objects    map[string][]byte
	puts, gets int
	err        error
}

// NewDocuments makes an empty one.
func NewDocuments() *Documents { return &Documents{objects: map[string][]byte{}} }

// Fail makes all calls fail with err; nil ends that.
func (d *Documents) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// Keys lists what is stored, in order.
func (d *Documents) Keys() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.objects))
}

// All copies what is stored, by key.
func (d *Documents) All() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.objects)
}

// Calls counts the calls that wrote and read a document.
func (d *Documents) Calls() (puts, gets int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.puts, d.gets
}

// PutDocument implements store.Documents.
func (d *Documents) PutDocument(_ context.Context, key string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.puts++
	if d.err == nil {
		d.objects[key] = slices.Clone(data)
	}
	return d.err
}

// GetDocument implements store.Documents.
func (d *Documents) GetDocument(_ context.Context, key string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gets++
	if d.err != nil {
		return nil, d.err
	}
	data, ok := d.objects[key]
	if !ok {
		return nil, farm.NotFoundf("There is no such object.")
	}
	return slices.Clone(data), nil
}

// Delete implements store.Documents.
func (d *Documents) Delete(_ context.Context, keys ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		delete(d.objects, key)
	}
	return d.err
}

// DeletePrefix implements store.Documents.
func (d *Documents) DeletePrefix(_ context.Context, prefix string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := len(d.objects)
	maps.DeleteFunc(d.objects, func(key string, _ []byte) bool { return strings.HasPrefix(key, prefix) })
	return before - len(d.objects), d.err
}
