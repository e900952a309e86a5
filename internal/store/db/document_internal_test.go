package db

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// fakeDocuments stores documents in a map.
type fakeDocuments map[string][]byte

func (d fakeDocuments) PutDocument(_ context.Context, key string, data []byte) error {
	d[key] = data
	return nil
}

func (d fakeDocuments) GetDocument(_ context.Context, key string) ([]byte, error) {
	if data, ok := d[key]; ok {
		return data, nil
	}
	return nil, farm.NotFoundf("There is no such object.")
}

func (d fakeDocuments) Delete(context.Context, ...string) error           { return nil }
func (d fakeDocuments) DeletePrefix(context.Context, string) (int, error) { return 0, nil }

func TestSpillAtTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 10
	key := DocumentKey(farm.Ref{Tenant: "acme", ID: "job_1"}, "result")
	for size, spilled := range map[int]bool{0: false, limit - 1: false, limit: false, limit + 1: true} {
		documents := fakeDocuments{}
		d := &DB{Documents: documents}
		data := strings.Repeat("x", size)
		value, err := d.StoreLarge(t.Context(), key, []byte(data), limit)
		if err != nil || (string(value) != data) != spilled || (len(documents) == 1) != spilled {
			t.Errorf("StoreLarge of %d bytes = %q, %v, %d documents", size, value, err, len(documents))
		}
		if got, err := d.Resolve(t.Context(), string(value)); err != nil || got != data {
			t.Errorf("resolve of %d bytes = %q, %v", size, got, err)
		}
	}
}

func TestResolveWithoutTheDocument(t *testing.T) {
	t.Parallel()
	if _, err := (&DB{Documents: fakeDocuments{}}).Resolve(t.Context(), "@records/acme/job_1/result"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("resolve of a missing document = %v", err)
	}
	if _, err := (&DB{}).Resolve(t.Context(), "@records/acme/job_1/result"); !errors.Is(err, ErrNoDocuments) {
		t.Errorf("resolve without an object store = %v", err)
	}
}
