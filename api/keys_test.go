package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func bearer(secret string) []string { return []string{"Authorization", "Bearer " + secret} }

func (b *bundle) newKey(r wire.KeyRequest, by string) wire.NewKey {
	b.t.Helper()
	return get[wire.NewKey](b, http.StatusCreated, "POST", "/v1/keys", r, bearer(by)...)
}

// status is the status of a list of jobs with a key.
func (b *bundle) status(secret string) int {
	b.t.Helper()
	answer, _ := b.do("GET", "/v1/jobs", nil, bearer(secret)...)
	return answer.StatusCode
}

// refused waits until a key is refused.
func (b *bundle) refused(secret string) {
	b.t.Helper()
	testbed.Until(b.t, "the revoked key is refused", func() bool { return b.status(secret) == http.StatusUnauthorized })
}

func TestAKeysLife(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	made := b.newKey(wire.KeyRequest{Tenant: "blue", Name: "build bot", ExpiresSeconds: new(3600)}, "admin")
	if !strings.HasPrefix(made.Secret, "sf_") || len(made.Secret) != 51 || !farm.ValidID(farm.KeyPrefix, made.Key.ID) ||
		made.Key.ExpiresAt.Sub(*made.Key.CreatedAt) != time.Hour || made.Key.LastUsedAt != nil {
		t.Fatalf("%+v", made)
	}
	testbed.Diff(t, "scopes", []string{"run"}, made.Key.Scopes)
	// It counts at once, and gives the tenant what is its own.
	box := b.sandbox(bearer(made.Secret)...)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/sandboxes/"+box, nil, bearer("run")...)
	// The secret is nowhere but in the answer.
	for _, name := range b.redis.Keys() {
		if dump := b.redis.Dump(); strings.Contains(dump, made.Secret) || strings.Contains(name, made.Secret) {
			t.Fatal("Redis holds the secret")
		}
	}
	if strings.Contains(b.log.String(), made.Secret) {
		t.Error("the log holds the secret")
	}
	list := func() []wire.Key {
		return get[wire.List[wire.Key]](b, http.StatusOK, "GET", "/v1/keys?tenant=blue", nil, bearer("admin")...).Items
	}
	testbed.Until(t, "the last use is noted", func() bool {
		listed := list()
		if len(listed) != 1 || listed[0].ID != made.Key.ID || listed[0].Origin != "api" || listed[0].Name != "build bot" {
			t.Fatalf("%+v", listed)
		}
		return listed[0].LastUsedAt != nil
	})
	if answer, _ := b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("revoke: status %d", answer.StatusCode)
	}
	b.refused(made.Secret)
	if listed := list(); len(listed) != 0 {
		t.Errorf("%+v is still listed", listed)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...)
}

func TestKeyRequestsAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	for body, pointer := range map[string]string{
		`{"tenant":""}`:        "/tenant",
		`{"tenant":"{"}`:       "/tenant",
		`{"tenant":"a:"}`:      "/tenant",
		`{"tenant":"a/../b"}`:  "/tenant",
		`{"tenant":"tänant"}`:  "/tenant",
		`{"tenant":"a\u0000"}`: "/tenant",
		`{"tenant":"` + strings.Repeat("a", farm.MaxTenantBytes+1) + `"}`:             "/tenant",
		`{"tenant":"a","name":"` + strings.Repeat("a", farm.MaxKeyNameBytes+1) + `"}`: "/name",
		`{"tenant":"a","name":"a\nb"}`:                                                "/name",
		`{"tenant":"a","scopes":["root"]}`:                                            "/scopes",
		`{"tenant":"a","scopes":[""]}`:                                                "/scopes",
		`{"tenant":"a","scopes":[]}`:                                                  "/scopes",
		`{"tenant":"a","expires_seconds":0}`:                                          "/expires_seconds",
		`{"tenant":"a","expires_seconds":-1}`:                                         "/expires_seconds",
		fmt.Sprintf(`{"tenant":"a","expires_seconds":%d}`, farm.MaxKeySeconds+1):      "/expires_seconds",
	} {
		p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/keys", body, bearer("admin")...)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v", body, p.Errors)
		}
	}
	for _, good := range []wire.KeyRequest{
		{Tenant: strings.Repeat("a", farm.MaxTenantBytes), Name: strings.Repeat("a", farm.MaxKeyNameBytes), ExpiresSeconds: new(farm.MaxKeySeconds)},
		{Tenant: "A.b-c_1", Scopes: []string{"read", "metrics", "admin", "run"}, ExpiresSeconds: new(1)},
	} {
		b.newKey(good, "admin")
	}
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", "/v1/keys?cursor=nonsense", nil, bearer("admin")...)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", "/v1/keys/x", nil, bearer("admin")...)
}

func TestKeysArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	want := map[string]bool{}
	for range 7 {
		want[b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin").Key.ID] = true
	}
	cursor, pages := "", 0
	settings := 0
	for {
		page := get[wire.List[wire.Key]](b, http.StatusOK, "GET", "/v1/keys?limit=3&cursor="+cursor, nil, bearer("admin")...)
		pages++
		for _, key := range page.Items {
			if key.Origin == "settings" {
				settings++
			} else if !want[key.ID] {
				t.Errorf("%s is listed twice", key.ID)
			}
			delete(want, key.ID)
		}
		if cursor = string(page.NextCursor); cursor == "" {
			break
		}
	}
	if len(want) != 0 || pages != 4 || settings != len(farm.Scopes()) {
		t.Errorf("%d pages, %d keys of the settings, %v are missing", pages, settings, want)
	}
}

func TestAKeyOfTheSettingsIsNotRevoked(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	for _, key := range get[wire.List[wire.Key]](b, http.StatusOK, "GET", "/v1/keys", nil, bearer("admin")...).Items {
		b.problem(farm.CodeConflict, http.StatusConflict, "DELETE", "/v1/keys/"+key.ID, nil, bearer("admin")...)
	}
}

// firstKey makes a key as the operator does on the farm's host.
func (b *bundle) firstKey(r wire.KeyRequest) wire.NewKey {
	b.t.Helper()
	answer := b.asOperator("POST", "/v1/keys", r)
	if answer.Code != http.StatusCreated {
		b.t.Fatalf("status %d: %s", answer.Code, answer.Body)
	}
	return decode[wire.NewKey](b.t, answer.Body.Bytes())
}

// asOperator sends a request to the handler of the operator.
func (b *bundle) asOperator(method, target string, body any) *httptest.ResponseRecorder {
	b.t.Helper()
	text, err := json.Marshal(body)
	testbed.Must(b.t, err)
	request := httptest.NewRequestWithContext(b.t.Context(), method, target, bytes.NewReader(text))
	request.Host = "127.0.0.1"
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	b.server.Operator().ServeHTTP(answer, request)
	return answer
}

// Nobody who reaches the API of a farm without keys can shut the others out: not by making its first key, and not by a quota of its one tenant.
func TestAFarmWithoutKeysStaysOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{`{"tenant":"mine"}`, `{"tenant":"mine","scopes":["run"]}`, `{"tenant":"mine","scopes":["admin"]}`, `{}`} {
		if p := b.problem(farm.CodeConflict, http.StatusConflict, "POST", "/v1/keys", body); !strings.Contains(p.Detail, "sandfarm key create --local") {
			t.Errorf("%s: %s", body, p.Detail)
		}
	}
	for _, name := range []string{"requests_per_minute", "max_connections"} {
		b.problem(farm.CodeConflict, http.StatusConflict, "PUT", "/v1/tenants/default", `{"`+name+`":0}`)
		b.problem(farm.CodeConflict, http.StatusConflict, "PATCH", "/v1/tenants/default", `{"set":{"`+name+`":0}}`)
	}
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/default", `{"requests_per_minute":600,"max_sandboxes":0}`)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute":0}`)
	for _, scopes := range [][]string{nil, {"run"}, {"read", "metrics"}} { // no key could make another one
		if answer := b.asOperator("POST", "/v1/keys", wire.KeyRequest{Tenant: "ops", Scopes: scopes}); answer.Code != http.StatusConflict || !strings.Contains(answer.Body.String(), "scope admin") {
			t.Errorf("a first key with the scopes %v: %d %s", scopes, answer.Code, answer.Body)
		}
	}
	if status := b.status(""); status != http.StatusOK {
		t.Fatalf("the farm is closed: %d", status)
	}
	made := b.firstKey(wire.KeyRequest{Tenant: "ops", Scopes: []string{"admin"}})
	b.newKey(wire.KeyRequest{Tenant: "blue"}, made.Secret)
}

// The first key closes a farm that had none; the farm stays closed when the key is gone.
func TestTheFirstKeyClosesTheFarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if answer, _ := b.do("GET", "/v1/jobs", nil); answer.StatusCode != http.StatusOK {
		t.Fatalf("status %d", answer.StatusCode)
	}
	made := b.firstKey(wire.KeyRequest{Tenant: "ops", Scopes: []string{"admin"}})
	b.refused("")
	testbed.Diff(t, "status with the key", http.StatusOK, b.status(made.Secret))
	// A proxy in front may use any name now.
	if answer, _ := b.do("GET", "/v1/jobs", nil, append(bearer(made.Secret), "Host", "farm.example")...); answer.StatusCode != http.StatusOK {
		t.Errorf("under another name: status %d", answer.StatusCode)
	}
	b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer(made.Secret)...)
	b.refused(made.Secret)
	testbed.Diff(t, "status without any key left", http.StatusUnauthorized, b.status(""))
}

func TestALostRedisKeepsTheKeysOfTheSettings(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	made := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	if status := b.status(made.Secret); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	b.redis.FlushAll()
	b.refused(made.Secret)
	testbed.Diff(t, "status of a key of the settings", http.StatusOK, b.status("run"))
	b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
}

func TestARevokedKeyEndsItsEventStream(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes, func(c *api.Config, _ *api.Deps) { c.Heartbeat = time.Hour })
	made := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	box := b.sandbox(bearer(made.Secret)...)
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`, bearer(made.Secret)...)
	request, err := http.NewRequestWithContext(t.Context(), "GET", b.web.URL+"/v1/jobs/"+job.ID+"/events", nil)
	testbed.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+made.Secret)
	answer, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "begun") { // the code runs
	}
	b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...)
	rest, err := io.ReadAll(answer.Body) // ends only if the server ends it: the job runs on
	if err != nil || strings.Contains(string(rest), "completed") {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	close(b.worker.gate)
}

func TestARevokedKeyEndsItsWait(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	made := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	box := b.sandbox(bearer(made.Secret)...)
	done := make(chan wire.Problem)
	go func() {
		answer, text := b.do("POST", "/v1/sandboxes/"+box+"/execute?wait=60", `{"code":"block"}`, bearer(made.Secret)...)
		done <- wire.Problem{Status: answer.StatusCode, Detail: string(text)}
	}()
	for len(get[wire.List[wire.Job]](b, http.StatusOK, "GET", "/v1/jobs?state=running", nil, bearer(made.Secret)...).Items) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...)
	if p := <-done; p.Status != http.StatusUnauthorized || !strings.Contains(p.Detail, "revoked") {
		t.Errorf("answered %d: %s", p.Status, p.Detail)
	}
	close(b.worker.gate)
}

// An upload ends whether its caller goes on sending or stalls.
func TestARevokedKeyEndsItsUpload(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"sending": 50 * time.Millisecond, "stalled": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, withScopes, func(c *api.Config, _ *api.Deps) { c.StallTimeout = time.Hour })
			made := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
			box := b.sandbox(bearer(made.Secret)...)
			body, feed := io.Pipe()
			begun, over := make(chan struct{}), make(chan struct{})
			go func() {
				_, _ = feed.Write(make([]byte, 64<<10))
				close(begun)
				for {
					select {
					case <-over:
						_ = feed.Close()
						return
					case <-time.After(pause):
						_, _ = feed.Write(make([]byte, 1<<10))
					}
				}
			}()
			go func() {
				<-begun
				b.do("DELETE", "/v1/keys/"+made.Key.ID, nil, bearer("admin")...)
			}()
			answer, text := b.do("PUT", "/v1/sandboxes/"+box+"/files/a.bin", io.Reader(body), bearer(made.Secret)...)
			close(over)
			if answer.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "revoked") {
				t.Errorf("answered %d: %s", answer.StatusCode, text)
			}
			if len(b.worker.files.files) != 0 {
				t.Error("the file was written")
			}
		})
	}
}
