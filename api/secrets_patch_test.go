package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// New values of secrets are sealed, those of a sandbox that has them and no others, also when callers change several at the same time.
func TestSecretsGetNewValues(t *testing.T) {
	t.Parallel()
	option, keys := keeping(t)
	b := setup(t, option, allowing(t, "*.example.com"), func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxSecretBytes = 64
	})
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", `{"network":"allowlist","allow_hosts":["api.example.com"],"secrets":{
		"A":{"host":"api.example.com","header":"X-A","value":"first-value-of-a"},"B":{"host":"api.example.com","header":"X-B","value":"first-value-of-b"}}}`)
	target := "/v1/sandboxes/" + made.Sandbox.ID
	values := func() map[string]string {
		ref := farm.Ref{Tenant: "default", ID: made.Sandbox.ID}
		sealed, err := b.store.SandboxSecrets(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		bundle, err := keys.Open(ref, sealed)
		if err != nil || bundle.Authority == nil {
			t.Fatalf("%+v, %v", bundle.Authority, err)
		}
		return bundle.Values
	}
	for body, pointer := range map[string]string{
		`{"secrets":{"C":{"value":"value-of-another"}}}`:                                       "/secrets/C",
		`{"secrets":{"A":{"value":"1234567"}}}`:                                                "/secrets/A/value",
		`{"secrets":{"A":{"value":"` + strings.Repeat("v", 65) + `"}}}`:                        "/secrets/A/value",
		`{"secrets":{"A":{"value":"two\nlines-of-it"}}}`:                                       "/secrets/A/value",
		`{"name":"renamed","secrets":{"A":{"value":"good-value-of-a"},"B":{"value":"short"}}}`: "/secrets/B/value",
	} {
		p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", target, body)
		if diff := cmp.Diff([]string{pointer}, pointers(p)); diff != "" {
			t.Errorf("%s: %s %s", body, p.Detail, diff)
		}
	}
	for _, body := range []string{`{"secrets":{"A":{}}}`, `{"secrets":{"A":{"value":"good-value-of-a","host":"other.example.com"}}}`, `{"secrets":{"A":"good-value-of-a"}}`} {
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "PATCH", target, body)
	}
	if diff := cmp.Diff(map[string]string{"A": "first-value-of-a", "B": "first-value-of-b"}, values()); diff != "" {
		t.Error(diff)
	}
	longest := strings.Repeat("v", 64)
	got := get[wire.Sandbox](b, http.StatusOK, "PATCH", target, `{"name":"renamed","secrets":{"A":{"value":"`+longest+`"}}}`)
	if diff := cmp.Diff(map[string]string{"A": longest, "B": "first-value-of-b"}, values()); diff != "" || got.Name != "renamed" {
		t.Errorf("%s %s", got.Name, diff)
	}
	var both sync.WaitGroup
	for _, name := range []string{"A", "B"} {
		both.Go(func() {
			for i := range 3 {
				get[wire.Sandbox](b, http.StatusOK, "PATCH", target, fmt.Sprintf(`{"secrets":{%q:{"value":"value %d of %s"}}}`, name, 10000000+i, name))
			}
		})
	}
	both.Wait()
	if diff := cmp.Diff(map[string]string{"A": "value 10000002 of A", "B": "value 10000002 of B"}, values()); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(b.redis.Dump(), "10000002") {
		t.Error("a value is in Redis")
	}
	if text, _ := json.Marshal(get[wire.Sandbox](b, http.StatusOK, "GET", target, "")); strings.Contains(string(text), "10000002") {
		t.Errorf("a value is shown: %s", text)
	}
}

// Values are not formatted into a log by accident.
func TestNewSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	r := wire.UpdateRequest{Secrets: map[string]wire.NewSecret{"A": {Value: secretValue}}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, r); strings.Contains(text, secretValue) {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// A farm that has lost its key, or a sandbox that has no secrets, says so.
func TestNewSecretsNeedOldOnes(t *testing.T) {
	t.Parallel()
	option, _ := keeping(t)
	b := setup(t, option, allowing(t, "*.example.com"))
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", `{}`)
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/sandboxes/"+made.Sandbox.ID, `{"secrets":{"A":{"value":"a-value-of-it"}}}`)
	if !strings.Contains(p.Detail, "create another one") {
		t.Error(p.Detail)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "PATCH", "/v1/sandboxes/"+farm.NewID(farm.SandboxPrefix), `{"secrets":{"A":{"value":"a-value-of-it"}}}`)
	without := setup(t, allowing(t, "*.example.com"))
	made = get[wire.Created](without, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", `{}`)
	p = without.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/sandboxes/"+made.Sandbox.ID, `{"secrets":{"A":{"value":"a-value-of-it"}}}`)
	if !strings.Contains(p.Detail, "secrets.key") {
		t.Error(p.Detail)
	}
}
