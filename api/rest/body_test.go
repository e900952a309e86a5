package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
)

// Large bodies are decoded on the cores of their tenant, of which it has half: here it has none left.
func TestLargeBodiesAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits
	ctx, hold := budget.New(0).With(gone, "acme", 0)
	defer hold.Release()
	for err := error(nil); err == nil; {
		_, err = budget.Core(ctx, budget.SmallBytes+1)
	}
	for size, want := range map[int]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		for name, decode := range map[string]func(*gin.Context, int64, func([]byte) error) error{"DecodeJSON": rest.DecodeJSON, "DecodeAnyJSON": rest.DecodeAnyJSON} {
			c, _ := gin.CreateTestContext(httptest.NewRecorder())
			c.Request = httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(strings.Repeat(" ", size)))
			decoded := false
			err := decode(c, 1<<20, func(text []byte) error {
				decoded = len(text) == size
				return nil
			})
			if decoded != want || errors.Is(err, context.Canceled) == want {
				t.Errorf("%s of %d bytes, without a core: decoded %v, %v", name, size, decoded, err)
			}
		}
	}
}
