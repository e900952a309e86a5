package rest_test

import (
	"errors"
	"testing"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
