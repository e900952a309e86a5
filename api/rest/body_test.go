package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Large bodies are decoded on the cores of their tenant, of which it has half: here it has none left.
func TestLargeBodiesAreDecodedOnACore(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits
	memory := budget.New(0)
	ctx, hold := memory.With(gone, "acme", 0)
	defer hold.Release()
	for err := error(nil); err == nil; {
		_, err = budget.Core(ctx, budget.SmallBytes+1)
	}
	many := func(values int) string { return "[" + strings.Repeat("1,", values-2) + "1]" } // the list is one of them
	for body, want := range map[string]bool{                                               // each value counts as 64 bytes, and there is always one
		strings.Repeat(" ", budget.SmallBytes-64): true, strings.Repeat(" ", budget.SmallBytes-63): false, many(992): true, many(993): false,
	} {
		for name, decode := range map[string]func(*gin.Context, int64, func([]byte) error) error{"DecodeJSON": rest.DecodeJSON, "DecodeAnyJSON": rest.DecodeAnyJSON} {
			ctx, hold := memory.With(gone, "acme", 0)
			defer hold.Release()
			c, _ := gin.CreateTestContext(httptest.NewRecorder())
			c.Request = httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
			decoded := false
			err := decode(c, 1<<20, func(text []byte) error {
				decoded = string(text) == body
				return nil
			})
			if decoded != want || errors.Is(err, context.Canceled) == want {
				t.Errorf("%s of %d bytes %.10q…, without a core: decoded %v, %v", name, len(body), body, decoded, err)
			}
		}
	}
}

// What a request holds is encoded on a core, too. A caller that has left gets no answer in any case.
func TestLargeAnswersAreEncodedOnACore(t *testing.T) {
	t.Parallel()
	for held, want := range map[int64]bool{budget.SmallBytes: true, budget.SmallBytes + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ctx, hold := budget.New(1<<30).With(ctx, "acme", 0)
			defer hold.Release()
			testbed.Must(t, budget.Charge(ctx, held))
			var all []func()
			go func() { // until there is none left
				for leave, err := budget.Core(ctx, budget.SmallBytes+1); err == nil; leave, err = budget.Core(ctx, budget.SmallBytes+1) {
					all = append(all, leave)
				}
			}()
			synctest.Wait()
			answer := httptest.NewRecorder()
			c, _ := gin.CreateTestContext(answer)
			c.Request = httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			go func() { _ = rest.Reply(c, http.StatusOK, "x") }()
			synctest.Wait()
			if got := answer.Body.Len() > 0; got != want {
				t.Errorf("a request that holds %d bytes, without a core: answered %v", held, got)
			}
			cancel()
			synctest.Wait()
			if answer.Body.Len() == 0 {
				t.Errorf("a request that holds %d bytes is not answered", held)
			}
		})
	}
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	for code, want := range map[farm.Code]int{
		farm.CodeInvalid: 422, farm.CodeUnauthorized: 401, farm.CodeNotFound: 404, farm.CodeConflict: 409, farm.CodeTooLarge: 413,
		farm.CodeExhausted: 429, farm.CodeUnavailable: 503, farm.CodeInternal: 500,
	} {
		if got := rest.StatusOf(farm.Errorf(code, "why")); got != want {
			t.Errorf("%s is %d, want %d", code, got, want)
		}
	}
	if got := rest.StatusOf(errors.New("a bug")); got != 500 {
		t.Errorf("an error without a code is %d", got)
	}
}
