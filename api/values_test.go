package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A body of 15 MiB of tiny values once took half a GiB. Each way in refuses it before it is decoded.
func TestBodiesOfTooManyValuesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const large = http.StatusRequestEntityTooLarge
	list := func(n int) string { return "[1" + strings.Repeat(",1", n-2) + "]" } // the array counts as its first value
	many := list(farm.MaxBodyValues + 1)
	for target, body := range map[string]string{
		"/v1/run":              `{"code":"1","allow_hosts":` + many + `}`,
		"/v1/sandboxes":        `{"packages":` + many + `}`,
		"/v1/jobs/batch":       `{"jobs":` + many + `}`,
		"/v1/sandboxes?wait=1": many,
	} {
		if p := b.problem(farm.CodeTooLarge, large, "POST", target, body); !strings.Contains(p.Detail, "250000 values") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	answer, text := b.do("POST", "/mcp", many, "Content-Type", "application/json")
	if answer.StatusCode != large || !strings.Contains(string(text), "250000 values") {
		t.Errorf("/mcp: %d %s", answer.StatusCode, text)
	}
	// The limit itself is not refused: the field is.
	if p := b.problem(farm.CodeInvalid, http.StatusBadRequest, "POST", "/v1/run", `{"code":"1","x":`+list(farm.MaxBodyValues-2)+`}`); len(p.Errors) != 1 {
		t.Errorf("at the limit: %+v", p)
	}
	b.problem(farm.CodeTooLarge, large, "POST", "/v1/run", `{"code":"1","x":`+list(farm.MaxBodyValues-1)+`}`)
	if got := get[wire.Limits](b, http.StatusOK, "GET", "/v1/limits", nil).MaxBodyValues; got != farm.MaxBodyValues {
		t.Errorf("GET /v1/limits says %d", got)
	}
}

// The largest batch that the limits are made for.
func TestBatchOfManyValuesIsAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var env strings.Builder
	for i := range 240 {
		fmt.Fprintf(&env, `,"A%d":""`, i)
	}
	entry := `{"kind":"execute","sandbox_id":"sbx_none","code":"1","env":{` + env.String()[1:] + `}}`
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", `{"jobs":[`+entry+strings.Repeat(","+entry, 999)+`]}`)
	if len(got.Jobs) != 1000 || got.Jobs[999].Error == nil || got.Jobs[999].Error.Code != string(farm.CodeNotFound) {
		t.Errorf("%d entries", len(got.Jobs))
	}
}
