package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const secretValue = "sk-0123456789abcdef"

// keeping gives the farm a key for secrets.
func keeping(t *testing.T) (option, *secret.Keys) {
	t.Helper()
	keys, err := secret.NewKeys(make([]byte, secret.KeyBytes))
	testbed.Must(t, err)
	return func(c *api.Config, _ *api.Deps) { c.Secrets = keys }, keys
}

// secretBody is a create with one secret; empty fields are valid ones.
func secretBody(name, host, header, value string) string {
	or := func(text, otherwise string) string {
		if text == "" {
			return otherwise
		}
		return text
	}
	return fmt.Sprintf(`{"network":"allowlist","allow_hosts":["api.example.com","GET plain.example.com","*.wild.example.com","port.example.com:8443"],"env":{"TAKEN":"x"},
		"secrets":{%q:{"host":%q,"header":%q,"value":%q}}}`, or(name, "KEY"), or(host, "api.example.com"), or(header, "Authorization: Bearer"), or(value, secretValue))
}

// Where the network is refused, its hosts are not.
func TestSecretsOfANetworkThatIsOff(t *testing.T) {
	t.Parallel()
	option, _ := keeping(t)
	b := setup(t, option)
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", secretBody("", "", "", ""))
	if diff := cmp.Diff([]string{"/network"}, pointers(p)); diff != "" || !strings.Contains(p.Detail, "egress.allow") {
		t.Errorf("%s %s", p.Detail, diff)
	}
}

func TestSecretsAreChecked(t *testing.T) {
	t.Parallel()
	option, _ := keeping(t)
	b := setup(t, option, allowing(t, "*.example.com", "port.example.com:8443", "api.example.com"))
	for name, c := range map[string]struct{ body, pointer, detail string }{
		"Name":      {secretBody("1KEY", "", "", ""), "/secrets/1KEY", "environment variable"},
		"InEnv":     {secretBody("TAKEN", "", "", ""), "/secrets/TAKEN", "is in env too"},
		"Wildcard":  {secretBody("", "*.wild.example.com", "", ""), "/secrets/KEY/host", "one exact host"},
		"Address":   {secretBody("", "10.0.0.1", "", ""), "/secrets/KEY/host", "address"},
		"Port":      {secretBody("", "api.example.com:443", "", ""), "/secrets/KEY/host", "the port is always 443"},
		"URL":       {secretBody("", "https://api.example.com/", "", ""), "/secrets/KEY/host", "Write the name alone"},
		"NoRule":    {secretBody("", "other.example.com", "", ""), "/secrets/KEY/host", "no rule of allow_hosts allows other.example.com"},
		"OtherPort": {secretBody("", "port.example.com", "", ""), "/secrets/KEY/host", "no rule of allow_hosts"},
		"Header":    {secretBody("", "", "X Key", ""), "/secrets/KEY/header", "is not a header"},
		"Injected":  {secretBody("", "", "X-Key: a\nX-Other: b", ""), "/secrets/KEY/header", "is not a header"},
		"Host":      {secretBody("", "", "Host", ""), "/secrets/KEY/header", "the proxy sets it itself"},
		"Proxy":     {secretBody("", "", "proxy-authorization", ""), "/secrets/KEY/header", "the proxy sets it itself"},
		"Encoding":  {secretBody("", "", "Accept-Encoding", ""), "/secrets/KEY/header", "the proxy sets it itself"},
		"Short":     {secretBody("", "", "", "1234567"), "/secrets/KEY/value", "has 7 bytes; from 8 to 4096"},
		"ShortPart": {secretBody("", "", "", "Bearer 1234567"), "/secrets/KEY/value", "behind its first space"},
		"LineBreak": {secretBody("", "", "", "12345678\n9"), "/secrets/KEY/value", "no header can have"},
		"Network":   {`{"secrets":{"KEY":{"host":"api.example.com","header":"X-Key","value":"` + secretValue + `"}}}`, "/secrets", "need the network mode allowlist"},
		"Twice": {`{"network":"allowlist","allow_hosts":["api.example.com"],"secrets":{"A":{"host":"api.example.com","header":"x-key","value":"` + secretValue + `"},
			"B":{"host":"API.example.com.","header":"X_Key","value":"` + secretValue + `"}}}`, "/secrets/B/header", "the secret A sets this header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *b
			b.t = t
			for _, target := range []string{"/v1/sandboxes", "/v1/run"} {
				body := c.body
				if target == "/v1/run" {
					body = `{"code":"1",` + strings.Replace(body[1:], `"env":{"TAKEN":"x"},`, `"env":{"TAKEN":"x"},`, 1)
				}
				p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body)
				if diff := cmp.Diff([]string{c.pointer}, pointers(p)); diff != "" || !strings.Contains(p.Detail, c.detail) || strings.Contains(p.Detail, secretValue) {
					t.Errorf("%s: %s (-want +got):\n%s", target, p.Detail, diff)
				}
			}
		})
	}
}

func TestSecretsNeedAKeyOfTheFarm(t *testing.T) {
	t.Parallel()
	b := setup(t, allowing(t, "*.example.com", "port.example.com:8443"))
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", secretBody("", "", "", ""))
	if diff := cmp.Diff([]string{"/secrets"}, pointers(p)); diff != "" || !strings.Contains(p.Detail, "secrets.key") {
		t.Errorf("%s %s", p.Detail, diff)
	}
}

func TestSecretsAreLimited(t *testing.T) {
	t.Parallel()
	option, _ := keeping(t)
	b := setup(t, option, allowing(t, "*.example.com", "port.example.com:8443"), func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxSecrets, c.Limits.MaxSecretBytes = 3, 64
	})
	for n, status := range map[int]int{2: http.StatusAccepted, 3: http.StatusAccepted, 4: http.StatusUnprocessableEntity} {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"KEY%d":{"host":"api.example.com","header":"X-Key-%d","value":%q}`, i, i, secretValue))
		}
		body := `{"network":"allowlist","allow_hosts":["api.example.com"],"secrets":{` + strings.Join(list, ",") + `}}`
		if status != http.StatusAccepted {
			b.problem(farm.CodeInvalid, status, "POST", "/v1/sandboxes", body)
			continue
		}
		if made := get[wire.Created](b, status, "POST", "/v1/sandboxes", body); len(made.Sandbox.Secrets) != n {
			t.Errorf("%d secrets: %q", n, made.Sandbox.Secrets)
		}
	}
	for n, status := range map[int]int{63: http.StatusAccepted, 64: http.StatusAccepted, 65: http.StatusUnprocessableEntity} {
		body := secretBody("", "", "", strings.Repeat("v", n))
		if status != http.StatusAccepted {
			b.problem(farm.CodeInvalid, status, "POST", "/v1/sandboxes", body)
			continue
		}
		get[wire.Created](b, status, "POST", "/v1/sandboxes", body)
	}
	for n, status := range map[int]int{127: http.StatusAccepted, 128: http.StatusAccepted, 129: http.StatusUnprocessableEntity} {
		body := secretBody(strings.Repeat("N", n), "", "", "")
		if status == http.StatusAccepted {
			get[wire.Created](b, status, "POST", "/v1/sandboxes", body)
			continue
		}
		if p := b.problem(farm.CodeInvalid, status, "POST", "/v1/sandboxes", body); !strings.Contains(p.Detail, "has 129 bytes; at most 128 are allowed") || len(p.Detail) > 300 {
			t.Errorf("a name of %d bytes: %s", n, p.Detail)
		}
	}
}

// The values of the secrets of one host have a limit together, those of a new sandbox and new ones.
func TestSecretsOfOneHostAreLimited(t *testing.T) {
	t.Parallel()
	option, _ := keeping(t)
	b := setup(t, option, allowing(t, "*.example.com"))
	body := func(last int, host string) string {
		return fmt.Sprintf(`{"network":"allowlist","allow_hosts":["*.example.com"],"secrets":{"A":{"host":"api.example.com","header":"X-A","value":%q},
			"B":{"host":%q,"header":"X-B","value":%q},"C":{"host":"api.example.com","header":"X-C","value":"12345678"}}}`,
			strings.Repeat("a", 4096), host, strings.Repeat("b", last))
	}
	const room = farm.MaxHostSecretBytes - 4096 - 8
	for last, status := range map[int]int{room - 1: http.StatusAccepted, room: http.StatusAccepted, room + 1: http.StatusUnprocessableEntity} {
		if answer, text := b.do("POST", "/v1/sandboxes", body(last, "api.example.com")); answer.StatusCode != status {
			t.Errorf("%d bytes: %d %s", last, answer.StatusCode, text)
		}
	}
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", body(room+1, "other.example.com"))
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", body(room, "api.example.com"))
	for last, status := range map[int]int{8: http.StatusOK, 9: http.StatusUnprocessableEntity} {
		answer, text := b.do("PATCH", "/v1/sandboxes/"+made.Sandbox.ID, fmt.Sprintf(`{"secrets":{"C":{"value":%q}}}`, strings.Repeat("c", last)))
		if answer.StatusCode != status {
			t.Errorf("a new value of %d bytes: %d %s", last, answer.StatusCode, text)
		}
	}
}

// The value is sealed, and nowhere else: not in the sandbox, its job, the request, the audit or any other key of Redis.
func TestSecretsAreNowhereToBeRead(t *testing.T) {
	t.Parallel()
	option, keys := keeping(t)
	b := setup(t, option, withAdmin, allowing(t, "*.example.com", "port.example.com:8443"))
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", secretBody("", "", "", ""), asAcme()...)
	run := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/run?wait=0", `{"code":"1",`+secretBody("", "", "", "")[1:], asAcme()...)
	testbed.Diff(t, "", []string{"KEY"}, made.Sandbox.Secrets)
	testbed.Diff(t, "", []string{"KEY"}, run.Request.Secrets)
	for _, target := range []string{"/v1/sandboxes/" + made.Sandbox.ID, "/v1/jobs/" + made.Job.ID, "/v1/jobs/" + made.Job.ID + "/request", "/v1/jobs/" + run.ID + "/request", "/v1/audit"} {
		auth := asAcme()
		if target == "/v1/audit" {
			auth = asOps()
		}
		if _, text := b.do("GET", target, nil, auth...); strings.Contains(string(text), secretValue) || !strings.HasPrefix(target, "/v1/audit") && !strings.Contains(string(text), "KEY") {
			t.Errorf("GET %s: %s", target, text)
		}
	}
	if strings.Contains(b.redis.Dump(), secretValue) {
		t.Error("the value is in Redis")
	}
	for _, id := range []string{made.Sandbox.ID, run.SandboxID} {
		ref := farm.Ref{Tenant: "acme", ID: id}
		sealed, err := b.store.SandboxSecrets(t.Context(), ref)
		if err != nil || bytes.Contains(sealed, []byte(secretValue)) {
			t.Fatalf("sealed: %q, %v", sealed, err)
		}
		bundle, err := keys.Open(ref, sealed)
		if err != nil || bundle.Values["KEY"] != secretValue {
			t.Errorf("%+v, %v", bundle.Values, err)
		}
		box, err := b.store.Sandbox(t.Context(), ref)
		testbed.Must(t, err)
		want := []farm.Secret{{Name: "KEY", Host: "api.example.com", Header: "Authorization", Scheme: "Bearer"}}
		if diff := cmp.Diff(want, box.Spec.Secrets); diff != "" || !bytes.Equal(box.Spec.Authority, bundle.Authority.Certificate) {
			t.Errorf("the record (-want +got):\n%s", diff)
		}
		if _, err := secret.NewIssuer(bundle.Authority, time.Now); err != nil {
			t.Error(err)
		}
	}
}

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
		testbed.Must(t, err)
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
		testbed.Diff(t, fmt.Sprintf("%s: %s", body, p.Detail), []string{pointer}, pointers(p))
	}
	for _, body := range []string{`{"secrets":{"A":{}}}`, `{"secrets":{"A":{"value":"good-value-of-a","host":"other.example.com"}}}`, `{"secrets":{"A":"good-value-of-a"}}`} {
		b.problem(farm.CodeInvalid, http.StatusBadRequest, "PATCH", target, body)
	}
	testbed.Diff(t, "", map[string]string{"A": "first-value-of-a", "B": "first-value-of-b"}, values())
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
	testbed.Diff(t, "", map[string]string{"A": "value 10000002 of A", "B": "value 10000002 of B"}, values())
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
