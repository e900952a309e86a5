package store

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
	key := documentKey(farm.Ref{Tenant: "acme", ID: "job_1"}, "result")
	for size, spilled := range map[int]bool{0: false, limit - 1: false, limit: false, limit + 1: true} {
		documents := fakeDocuments{}
		s := &Store{documents: documents}
		data := strings.Repeat("x", size)
		value, err := s.storeLarge(t.Context(), key, []byte(data), limit)
		if err != nil || (string(value) != data) != spilled || (len(documents) == 1) != spilled {
			t.Errorf("storeLarge of %d bytes = %q, %v, %d documents", size, value, err, len(documents))
		}
		if got, err := s.resolve(t.Context(), string(value)); err != nil || got != data {
			t.Errorf("resolve of %d bytes = %q, %v", size, got, err)
		}
	}
}

func TestResolveWithoutTheDocument(t *testing.T) {
	t.Parallel()
	if _, err := (&Store{documents: fakeDocuments{}}).resolve(t.Context(), "@records/acme/job_1/result"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("resolve of a missing document = %v", err)
	}
	if _, err := (&Store{}).resolve(t.Context(), "@records/acme/job_1/result"); !errors.Is(err, errNoDocuments) {
		t.Errorf("resolve without an object store = %v", err)
	}
}

func TestRequestOfAClaimCanBeForgotten(t *testing.T) {
	t.Parallel()
	s := &Store{documents: fakeDocuments{"k": []byte(`{"context":"c"}`)}}
	c := &Claim{Job: &farm.Job{ID: "job_1"}, request: reference + "k"}
	for range 2 {
		if err := s.LoadRequest(t.Context(), c); err != nil || c.Request == nil || c.Request.Context != "c" {
			t.Fatalf("LoadRequest = %v, %+v", err, c.Request)
		}
		if !c.ForgetRequest() || c.Request != nil {
			t.Errorf("ForgetRequest left %+v", c.Request)
		}
	}
	inline := &Claim{Job: c.Job, Request: &farm.Request{}}
	if inline.ForgetRequest() || inline.Request == nil {
		t.Error("ForgetRequest dropped a request that is no document")
	}
}
