package verbs_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

// The value of a secret comes from a variable or a file, and is in no output.
func TestSecretsAreReadFromTheEnvironmentOrAFile(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	f.Routes["POST /v1/sandboxes"] = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		f.gives(202, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: wire.Job{ID: "job_1"}})(w, r)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("value in a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	create := func(secret string) outputs {
		return f.sandfarm(t.Context(), "", "sandbox", "create", "--no-wait", "--network", "allowlist", "--secret", secret)
	}
	got := create("TOKEN=api.example.com:Authorization: Bearer@" + file)
	if want := `"secrets":{"TOKEN":{"host":"api.example.com","header":"Authorization: Bearer","value":"value in a file"}}`; got.code != 0 || !strings.Contains(sent, want) || strings.Contains(got.out+got.stderr, "value in") {
		t.Errorf("%+v, sent %s", got, sent)
	}
	for _, wrong := range []string{"TOKEN", "TOKEN=api.example.com", "=a:b", "NOT_SET_HERE=api.example.com:X-Key", "TOKEN=a:b@/does/not/exist"} {
		if got := create(wrong); got.code != 2 {
			t.Errorf("%s: %+v, want a usage error", wrong, got)
		}
	}
}

// New values come from the same places, and are in no output either.
func TestSecretsGetNewValuesFromTheSamePlaces(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	f.Routes["PATCH /v1/sandboxes/sbx_1"] = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		f.gives(200, wire.Sandbox{ID: "sbx_1"})(w, r)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("value in a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := f.sandfarm(t.Context(), "", "sandbox", "secret", "sbx_1", "TOKEN@"+file)
	if want := `{"secrets":{"TOKEN":{"value":"value in a file"}}}`; got.code != 0 || strings.TrimSpace(sent) != want || strings.Contains(got.out+got.stderr, "value in") {
		t.Errorf("%+v, sent %s", got, sent)
	}
	for _, wrong := range [][]string{{"NOT_SET_HERE"}, {"@" + file}, {"TOKEN@/does/not/exist"}, {"TOKEN@" + file, "TOKEN@" + file}, {}} {
		if got := f.sandfarm(t.Context(), "", append([]string{"sandbox", "secret", "sbx_1"}, wrong...)...); got.code != 2 {
			t.Errorf("%q: %+v, want a usage error", wrong, got)
		}
	}
}

// Without hosts a sandbox would lose all of them by a slip.
func TestAllowNeedsHostsOrNone(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	f.Routes["PATCH /v1/sandboxes/sbx_1"] = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = strings.TrimSpace(string(body))
		f.gives(200, wire.Sandbox{ID: "sbx_1"})(w, r)
	}
	for args, want := range map[string]string{
		"": "", "a.example.com --none": "", "--none": `{"allow_hosts":[]}`, "a.example.com GET,HEAD": `{"allow_hosts":["a.example.com","GET,HEAD"]}`,
	} {
		sent = ""
		got := f.sandfarm(t.Context(), "", append([]string{"sandbox", "allow", "sbx_1"}, strings.Fields(args)...)...)
		if sent != want || (got.code == 2) != (want == "") {
			t.Errorf("%q: %+v, sent %s", args, got, sent)
		}
	}
}
