package jobs

import (
	"context"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// oneDocument is an object store with one document, whatever its key.
type oneDocument string

func (oneDocument) PutDocument(context.Context, string, []byte) error     { return nil }
func (d oneDocument) GetDocument(context.Context, string) ([]byte, error) { return []byte(d), nil }
func (oneDocument) Delete(context.Context, ...string) error               { return nil }
func (oneDocument) DeletePrefix(context.Context, string) (int, error)     { return 0, nil }

func TestRequestOfAClaimCanBeForgotten(t *testing.T) {
	t.Parallel()
	s := &Store{DB: &db.DB{Documents: oneDocument(`{"context":"c"}`)}}
	c := &Claim{Job: &farm.Job{ID: "job_1"}, request: db.Reference + "k"}
	for range 2 {
		err := s.LoadRequest(t.Context(), c)
		testbed.Require(t, err == nil && c.Request != nil && c.Request.Context == "c", "LoadRequest = %v, %+v", err, c.Request)
		testbed.Check(t, c.ForgetRequest() && c.Request == nil, "ForgetRequest left %+v", c.Request)
	}
	inline := &Claim{Job: c.Job, Request: &farm.Request{}}
	testbed.Check(t, !inline.ForgetRequest() && inline.Request != nil, "ForgetRequest dropped a request that is no document")
}
