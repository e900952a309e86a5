package verbs_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// keyRoutes plays the routes of API keys.
func (f *fakeFarm) keyRoutes() {
	now := time.Now()
	key := wire.Key{ID: "key_1", Tenant: "blue", Name: "bot", Scopes: []string{"run", "read"}, Origin: "api", CreatedAt: &now}
	f.Routes["POST /v1/keys"] = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			f.t.Error("a create of a key has an Idempotency-Key, which the farm does not honour")
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(wire.NewKey{Key: key, Secret: "sf_secret"})
	}
	f.Routes["GET /v1/keys"] = func(w http.ResponseWriter, _ *http.Request) {
		settings := wire.Key{ID: "key_2", Tenant: "ops", Scopes: []string{}, Origin: "settings"}
		_ = json.NewEncoder(w).Encode(wire.List[wire.Key]{Items: []wire.Key{key, settings}})
	}
	f.Routes["DELETE /v1/keys/{id}"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
}

func TestKeyCreate(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.keyRoutes()
	r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--name", "bot", "--scope", "run", "--scope", "read", "--expires", "30d")
	if r.code != 0 || r.out != "sf_secret\n" || !strings.Contains(r.stderr, "key_1: tenant blue, scopes run, read") {
		t.Errorf("%+v", r)
	}
	if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--e2b"); r.code != 0 || r.out != "e2b_73665f736563726574\n" {
		t.Errorf("for E2B: %+v", r)
	}
	if want := `"tenant":"blue","name":"bot","scopes":["run","read"],"expires_seconds":2592000`; !strings.Contains(strings.Join(f.asked(), "\n"), want) {
		t.Errorf("%s lacks %s", strings.Join(f.asked(), "\n"), want)
	}
	if r := f.sandfarm(t.Context(), "", "key", "create"); r.code != 2 || !strings.Contains(r.stderr, "--tenant is missing") {
		t.Errorf("without a tenant: %+v", r)
	}
	for expires, code := range map[string]int{"0d": 2, "0s": 2, "1s": 0} {
		if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--expires", expires); r.code != code {
			t.Errorf("--expires %s: %+v", expires, r)
		}
	}
	file := filepath.Join(t.TempDir(), "new.key")
	if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--save", file); r.code != 0 || r.out != "" {
		t.Errorf("%+v", r)
	}
	info, err := os.Stat(file)
	if text, _ := os.ReadFile(file); err != nil || info.Mode().Perm() != 0o600 || string(text) != "sf_secret\n" {
		t.Errorf("%v, %v, %q", info, err, text)
	}
	if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--save", file); r.code == 0 || !strings.Contains(r.stderr, "no key was made: the file "+file+" of --save exists") {
		t.Error("an old key file is overwritten")
	}
}

func TestFirstKeyNamesTheTenantOfEarlierWork(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.keyRoutes()
	withKeys := f.Routes["GET /v1/keys"]
	const note = "belongs to the tenant default"
	for _, c := range []struct {
		name  string
		keys  bool
		args  []string
		noted bool
	}{
		{"first", false, []string{"--local", "--tenant", "ops"}, true},
		{"of the tenant itself", false, []string{"--local", "--tenant", "default"}, false},
		{"second", true, []string{"--local", "--tenant", "ops"}, false},
		{"over the API", true, []string{"--tenant", "ops"}, false},
	} {
		f.Routes["GET /v1/keys"] = withKeys
		if !c.keys {
			f.Routes["GET /v1/keys"] = func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(wire.List[wire.Key]{Items: []wire.Key{}})
			}
		}
		r := f.sandfarm(t.Context(), "", append([]string{"key", "create"}, c.args...)...)
		if r.code != 0 || r.out != "sf_secret\n" || strings.Contains(r.stderr, note) != c.noted {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

func TestKeyLsAndRevoke(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.keyRoutes()
	r := f.sandfarm(t.Context(), "", "key", "ls", "--tenant", "blue")
	for _, want := range []string{"key_1", "blue", "bot", "run, read", "never", "CREATED", "0s ago", "key_2", "in the settings", "the whole fleet"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q lacks %q", r.out, want)
		}
	}
	if r := f.sandfarm(t.Context(), "", "key", "revoke", "key_1", "key_3"); r.code != 0 || r.stderr != "revoked key_1\nrevoked key_3\n" || !strings.Contains(strings.Join(f.asked(), "\n"), "DELETE /v1/keys/key_1") || !strings.Contains(strings.Join(f.asked(), "\n"), "DELETE /v1/keys/key_3") {
		t.Errorf("%+v, requests %s", r, strings.Join(f.asked(), "\n"))
	}
}

// Who revokes the last key that can make others reads where the next one is made.
func TestKeyRevokeOfTheLastAdmin(t *testing.T) {
	t.Parallel()
	const note = "note: No key is left that can make others (scope admin). On the farm's host, sandfarm key create --local --tenant NAME --scope admin --scope run makes one. If no key is left at all, everyone on that machine may use the farm after a restart, unless api.require_keys (SANDFARM_API_REQUIRE_KEYS) is set.\n"
	past := time.Now().Add(-time.Minute)
	f := newFarm(t)
	f.keyRoutes()
	f.Routes["GET /v1/keys"] = f.gives(http.StatusOK, wire.List[wire.Key]{Items: []wire.Key{
		{ID: "key_1", Scopes: []string{"admin", "run"}},
		{ID: "key_2", Scopes: []string{"admin"}},
		{ID: "key_3", Scopes: []string{"run"}},
		{ID: "key_4", Scopes: []string{"admin"}, ExpiresAt: &past},
	}})
	for args, want := range map[string]string{
		"key_1": "revoked key_1\n", "key_3 key_4": "revoked key_3\nrevoked key_4\n", "key_1 key_2": "revoked key_1\nrevoked key_2\n" + note,
	} {
		if r := f.sandfarm(t.Context(), "", append([]string{"key", "revoke"}, strings.Fields(args)...)...); r.code != 0 || r.stderr != want {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.keyRoutes()
	f.Key = "sf_secret"
	file := filepath.Join(t.TempDir(), "key")
	write := func(mode os.FileMode, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(0o600, "sf_secret\n")
	if r := f.sandfarm(t.Context(), "", "key", "ls", "--key-file", file); r.code != 0 {
		t.Errorf("%+v", r)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o610} {
		write(mode, "sf_secret\n")
		if r := f.sandfarm(t.Context(), "", "key", "ls", "--key-file", file); r.code == 0 || !strings.Contains(r.stderr, "chmod 600") {
			t.Errorf("mode %o: %+v", mode, r)
		}
	}
	write(0o600, strings.Repeat("x", 5000))
	if r := f.sandfarm(t.Context(), "", "key", "ls", "--key-file", file); r.code == 0 || !strings.Contains(r.stderr, "no key file") {
		t.Errorf("%+v", r)
	}
	if r := f.sandfarm(t.Context(), "", "key", "ls", "--key-file", file+"x"); r.code == 0 {
		t.Errorf("%+v", r)
	}
}
