package verbs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	for expires, want := range map[string]string{"1": "sandfarm: --expires 1 is 1 second; --expires 1d is 1 day\n", "366": "sandfarm: --expires 366 is 366 seconds; --expires 366d is 366 days\n", "367": "", "30d": ""} {
		if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--expires", expires); !strings.HasPrefix(r.stderr, want+"key_1: ") {
			t.Errorf("--expires %s: %+v, want %q first", expires, r, want)
		}
	}
	file := filepath.Join(t.TempDir(), "new.key")
	if r := f.sandfarm(t.Context(), "", "key", "create", "--tenant", "blue", "--save", file); r.code != 0 || r.out != "" || !strings.Contains(r.stderr, "The key is in "+file+", and nowhere else.") {
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

// A key without the scope admin cannot list or revoke keys; that --local can was said nowhere.
func TestRefusedOperatorsReadOfLocal(t *testing.T) {
	t.Parallel()
	const note = "sandfarm: On the farm's host, --local needs no key.\n"
	f := newFarm(t)
	refusal := f.gives(http.StatusForbidden, wire.Problem{Status: 403, Code: "unauthorized", Detail: "This needs an API key with the scope admin; yours has run."})
	f.Routes["GET /v1/keys"], f.Routes["DELETE /v1/keys/{id}"], f.Routes["GET /v1/jobs"] = refusal, refusal, refusal
	for _, c := range []struct {
		args  []string
		noted bool
	}{
		{[]string{"key", "ls"}, true},
		{[]string{"key", "revoke", "key_1"}, true},
		{[]string{"key", "ls", "--local"}, false},
		{[]string{"job", "ls"}, false},
	} {
		if r := f.sandfarm(t.Context(), "", c.args...); r.code != 1 || !strings.Contains(r.stderr, "yours has run.\n") || strings.HasSuffix(r.stderr, note) != c.noted {
			t.Errorf("%q: %+v", c.args, r)
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
		testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
		testbed.Must(t, os.Chmod(file, mode))
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

func TestTenantVerbs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	limit := 20.0
	tenant := wire.Tenant{
		Name: "acme", Own: map[string]float64{"max_sandboxes": 20, "max_cpus": 1.5, "max_gpus": 0},
		Quotas: []wire.Quota{{Name: "max_sandboxes", Limit: &limit, Used: 3}, {Name: "max_stored_mb", Used: 0.125}, {Name: "requests_per_minute"}},
	}
	f.Routes["GET /v1/tenants/acme"] = f.gives(200, tenant)
	f.Routes["GET /v1/tenants"] = f.gives(200, wire.List[wire.Tenant]{Items: []wire.Tenant{tenant}})
	f.Routes["PATCH /v1/tenants/acme"] = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		f.gives(200, tenant)(w, r)
	}
	usage := wire.Usage{Tenant: "acme", Quotas: tenant.Quotas, Days: []wire.DayUsage{{Day: "2026-11-22", CPUSeconds: 12.345, GPUSeconds: 7}}}
	f.Routes["GET /v1/usage"] = f.gives(200, usage)
	f.Routes["GET /v1/tenants/acme/usage"] = f.gives(200, usage)
	for name, test := range map[string]struct {
		args []string
		want []string // lines of words
	}{
		"Show":  {[]string{"tenant", "show", "acme"}, []string{"QUOTA USED LIMIT SET", "max_sandboxes 3 20 own", "max_stored_mb 0.13 - default", "requests_per_minute - - default"}},
		"Ls":    {[]string{"tenant", "ls"}, []string{"TENANT SANDBOXES MEMORY MiB RUNNING UNFINISHED STORED MiB", "acme 3/20 - - - 0.13/-"}},
		"Usage": {[]string{"usage"}, []string{"QUOTA USED LIMIT", "max_sandboxes 3 20", "max_stored_mb 0.13 -", "requests_per_minute - -", "", "DAY CPU S MEMORY GiB·S GPU S SANDBOX S STORED GiB·S", "2026-11-22 12.35 0 7 0 0"}},
		"Other": {[]string{"usage", "--tenant", "acme", "--days", "7"}, []string{"QUOTA USED LIMIT", "max_sandboxes 3 20", "max_stored_mb 0.13 -", "requests_per_minute - -", "", "DAY CPU S MEMORY GiB·S GPU S SANDBOX S STORED GiB·S", "2026-11-22 12.35 0 7 0 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := f.sandfarm(t.Context(), "", test.args...)
			var lines []string
			for line := range strings.Lines(got.out) {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
			if diff := cmp.Diff(test.want, lines); diff != "" || got.code != 0 {
				t.Errorf("%+v (-want +got):\n%s", got, diff)
			}
		})
	}
	// What is not named is not sent, so that it stays as it is, also if somebody else changes it now. 0 and -1 are values.
	got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--max-cpus", "default", "--max-running", "-1", "--max-memory-mb", "0")
	want := `{"set":{"max_memory_mb":0,"max_running":-1},"default":["max_cpus"]}`
	if got.code != 0 || strings.TrimSpace(sent) != want {
		t.Errorf("%+v, sent %s", got, sent)
	}
	for runtimes, want := range map[string]string{"runsc,runc": `{"set":{"runtimes":["runsc","runc"]}}`, "default": `{"default":["runtimes"]}`} {
		if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--runtimes", runtimes); got.code != 0 || strings.TrimSpace(sent) != want {
			t.Errorf("%+v, sent %s", got, sent)
		}
	}
	for hosts, want := range map[string]string{"a.example.com,GET;HEAD b.example.com": `{"set":{"allow_hosts":["a.example.com","GET;HEAD b.example.com"]}}`, "none": `{"set":{"allow_hosts":[]}}`, "default": `{"default":["allow_hosts"]}`} {
		if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--allow-hosts", hosts); got.code != 0 || strings.TrimSpace(sent) != want {
			t.Errorf("%+v, sent %s", got, sent)
		}
	}
	if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--max-gpus", "0"); got.stderr != "" {
		t.Errorf("a known tenant: %+v", got)
	}
	f.Routes["GET /v1/workers"] = f.gives(200, wire.Items[wire.Worker]{Items: []wire.Worker{{Runtimes: []string{"runsc", "runc"}}, {Runtimes: []string{"runc"}}}})
	if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--runtimes", "runsc,kata"); got.code != 0 || got.stderr != "note: No worker has the runtime kata. The farm has: runc, runsc.\n" {
		t.Errorf("a runtime that no worker has: %+v", got)
	}
	if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--runtimes", "runsc,runc"); got.stderr != "" {
		t.Errorf("runtimes of workers: %+v", got)
	}
	if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme"); got.stderr != "sandfarm: nothing to set is given. See \"sandfarm tenant set --help\"\n" {
		t.Errorf("nothing to set: %+v", got)
	}
	f.Routes["GET /v1/tenants/acme"] = f.gives(404, wire.Problem{Status: 404, Code: "not_found", Detail: "There is no tenant acme."})
	if got := f.sandfarm(t.Context(), "", "tenant", "set", "acme", "--max-gpus", "0"); got.code != 0 || got.stderr != "note: The tenant acme is new: it had no jobs and no quotas of its own.\n" {
		t.Errorf("a typo: %+v", got)
	}
	f.Routes["GET /v1/tenants/acme"] = f.gives(200, wire.Tenant{Name: "acme", Runtimes: []string{"runsc"}, AllowHosts: &[]string{}})
	if got := f.sandfarm(t.Context(), "", "tenant", "show", "acme"); !strings.HasSuffix(got.out, "runtimes of its sandboxes, the default first: runsc\nhosts of its sandboxes at most: none\n") {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"tenant", "set", "acme"}, {"tenant", "set", "acme", "--max-gpus", "many"}, {"tenant", "set"}} {
		if got := f.sandfarm(t.Context(), "", args...); got.code != 2 {
			t.Errorf("%v: %+v, want a usage error", args, got)
		}
	}
}

// A node is named by its id, or by the id or host of a worker on it; draining waits until nothing runs.
func TestWorkerVerbs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	left := wire.Drain{Node: "n1", State: "draining", Sandboxes: 2, Jobs: 1}
	f.Routes["GET /v1/workers"] = f.gives(200, wire.Items[wire.Worker]{Items: []wire.Worker{
		{ID: "wrk_1", Node: "n1", Host: "alpha", Drain: &left}, {ID: "wrk_2", Node: "n2", Host: "beta"}, {ID: "wrk_3", Node: "n3", Host: "beta"},
	}})
	f.Routes["POST /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, r *http.Request) {
		d := left
		d.Node = r.PathValue("id")
		f.gives(200, d)(w, r)
	}
	var asked atomic.Int32
	f.Routes["GET /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		f.gives(200, wire.Drain{Node: r.PathValue("id"), State: "drained"})(w, r)
	}
	f.Routes["DELETE /v1/nodes/{id}/drain"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	for args, want := range map[string]string{
		"worker drain n1":                     "n1: draining (sandboxes: 2, jobs: 1)\n",
		"worker drain alpha --idle hibernate": "n1: draining (sandboxes: 2, jobs: 1)\n",
		"worker drain wrk_2 --wait":           "n2: drained\n",
		"worker undrain alpha":                "n1 takes new sandboxes again\n",
	} {
		if got := f.sandfarm(t.Context(), "", strings.Fields(args)...); got.code != 0 || got.out != want && got.stderr != want {
			t.Errorf("%s: %+v, want %q", args, got, want)
		} else if waits := strings.Contains(got.stderr, "until the node's last sandbox is closed or expires; --idle close"); waits != strings.Contains(args, "--wait") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("the drain was read %d times, want once for --wait", asked.Load())
	}
	f.mu.Lock()
	requests := strings.Join(f.requests, "\n")
	f.mu.Unlock()
	for _, want := range []string{`POST /v1/nodes/n1/drain {"idle":"hibernate"}`, `POST /v1/nodes/n2/drain {"idle":"keep"}`, "DELETE /v1/nodes/n1/drain"} {
		if !strings.Contains(requests, want) {
			t.Errorf("no request %s in\n%s", want, requests)
		}
	}
	if got := f.sandfarm(t.Context(), "", "worker", "ls"); got.code != 0 || !strings.Contains(got.out, "draining (sandboxes: 2, jobs: 1)") {
		t.Errorf("ls: %+v", got)
	}
	for _, args := range []string{"worker drain beta", "worker drain", "worker drain n1 n2", "worker none"} {
		if got := f.sandfarm(t.Context(), "", strings.Fields(args)...); got.code != 2 {
			t.Errorf("%s: %+v, want a usage error", args, got)
		}
	}
}

func TestScaleVerb(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/scale"] = f.gives(200, wire.Items[wire.NodeNeed]{Items: []wire.NodeNeed{
		{Kind: "cpu", Nodes: 2, Wanted: 5, Waiting: 9, OldestSeconds: 61, Capacity: wire.Room{MemoryMB: 4096, CPUs: 8}, Promised: wire.Room{MemoryMB: 2048, CPUs: 1}},
		{Kind: "gpu", Model: "a100", Nodes: 3, Wanted: 1, IdleNodes: 2},
	}})
	got := f.sandfarm(t.Context(), "", "scale")
	if got.code != 0 {
		t.Fatalf("scale: %+v", got)
	}
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	for i, want := range []string{
		"KIND MODEL NODES WANTED IDLE DRAINING FAILING WAITING OLDEST UNFIT RESERVED MEMORY RESERVED CORES", "cpu - 2 5 0 0 0 9 1m 0 2.0/4.0 GiB 1.0/8.0", "gpu a100 3 1 2 0 0 0 - 0 - -",
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Errorf("line %d of\n%s\nis not %q", i, got.out, want)
		}
	}
	if got := f.sandfarm(t.Context(), "", "scale", "--json"); got.code != 0 || !strings.Contains(got.out, `"wanted": 5`) && !strings.Contains(got.out, `"wanted":5`) {
		t.Errorf("scale --json: %+v", got)
	}
	if got := f.sandfarm(t.Context(), "", "scale", "more"); got.code != 2 {
		t.Errorf("scale more: %+v, want a usage error", got)
	}
}

// Each read looks back in time, and none of what it finds there is printed twice, or printed although the first line was to be a later one.
func TestAuditFollowsWithNewEntriesOnly(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now().Add(-30 * time.Second)
	entry := func(n int) wire.AuditEntry {
		return wire.AuditEntry{ID: fmt.Sprintf("e%02d", n), At: start.Add(time.Duration(n) * time.Second), Route: fmt.Sprintf("r%02d", n)}
	}
	const old, polls = 30, 3
	var reads atomic.Int64
	f.Routes["GET /v1/audit"] = func(w http.ResponseWriter, r *http.Request) {
		read := int(reads.Add(1)) - 1
		after, _ := time.Parse(time.RFC3339Nano, r.URL.Query().Get("created_after"))
		page := wire.List[wire.AuditEntry]{Items: []wire.AuditEntry{}}
		for n := old + read - 1; n >= 0; n-- { // a new one for each read after the first
			if e := entry(n); e.At.After(after) {
				page.Items = append(page.Items, e)
			}
		}
		if read == polls+1 {
			cancel()
		}
		_ = json.NewEncoder(w).Encode(page)
	}
	r := f.sandfarm(ctx, "", "audit", "--follow", "--limit", "1")
	head, entries, _ := strings.Cut(r.out, "\n")
	testbed.Diff(t, "header", "TIME STATUS TENANT KEY FROM ROUTE SUBJECT SANDBOX JOB", strings.Join(strings.Fields(head), " "))
	var got []string
	for line := range strings.Lines(entries) {
		cells := strings.Fields(line)
		got = append(got, cells[5])
		testbed.Diff(t, "empty cells", []string{"-", "-", "-"}, cells[6:])
		testbed.Check(t, strings.Index(line, cells[5]) == strings.Index(head, "ROUTE") && strings.LastIndex(line, "-") == strings.Index(head, "JOB"), "%q is not below %q", line, head)
	}
	if want := "r29 r30 r31 r32"; !strings.HasPrefix(strings.Join(got, " "), want) || len(got) > 5 {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTopWithoutATerminalPrintsOnePage(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/queues"] = f.gives(http.StatusOK, wire.Items[wire.Queue]{Items: []wire.Queue{{Name: "cpu", Depth: 2, OldestSeconds: 90}}})
	f.Routes["GET /v1/workers"] = f.gives(http.StatusOK, wire.Items[wire.Worker]{Items: []wire.Worker{{ID: "wrk_1", Host: "h", Queues: []string{"cpu"}, Slots: 4}}})
	for _, args := range [][]string{{"top"}, {"top", "--once"}} {
		got := f.sandfarm(t.Context(), "", args...)
		if got.code != 0 || strings.Contains(got.out, "\x1b") || !strings.Contains(got.out, "cpu    2        0        1m      -           h\n") {
			t.Errorf("%v: %d\n%s%s", args, got.code, got.out, got.stderr)
		}
	}
	f.Routes["GET /v1/activity"] = f.gives(http.StatusOK, wire.Items[wire.Minute]{Items: []wire.Minute{{Ended: 4}}})
	if got := f.sandfarm(t.Context(), "", "top", "--once"); !strings.Contains(got.out, "last hour: 4 jobs ended, 0 failed, timed out or lost, longest wait 0.0s\n") {
		t.Errorf("the last hour is missing:\n%s%s", got.out, got.stderr)
	}
	const part = "\nYour part of the farm: all of it needs the scope admin.\n"
	if got := f.sandfarm(t.Context(), "", "top", "--once"); strings.Contains(got.out, part) {
		t.Errorf("the whole is called a part:\n%s", got.out)
	}
	f.Routes["GET /v1/activity"] = f.gives(http.StatusForbidden, wire.Problem{Status: 403, Code: "unauthorized", Detail: "This needs an API key with the scope admin; yours has run."})
	if got := f.sandfarm(t.Context(), "", "top", "--once"); strings.Contains(got.out, part) { // a key of the settings sees all workers, but no last hour
		t.Errorf("the whole is called a part:\n%s", got.out)
	}
	whole := f.Routes["GET /v1/workers"]
	f.Routes["GET /v1/workers"] = f.gives(http.StatusOK, wire.Items[wire.Worker]{})
	if got := f.sandfarm(t.Context(), "", "top", "--once"); got.code != 0 || !strings.Contains(got.out, part) || !strings.HasSuffix(got.out, "No live worker has a sandbox of yours.\n") {
		t.Errorf("a part looks like the whole:\n%s%s", got.out, got.stderr)
	}
	f.Routes["GET /v1/workers"] = whole
	var both struct {
		Workers []wire.Worker
		Queues  []wire.Queue
	}
	got := f.sandfarm(t.Context(), "", "top", "--json")
	decode(t, got.out, &both)
	if len(both.Workers) != 1 || len(both.Queues) != 1 || both.Queues[0].OldestSeconds != 90 {
		t.Errorf("JSON: %+v", both)
	}
	if got := f.sandfarm(t.Context(), "", "top", "--every", "1ms"); got.code != 2 || !strings.Contains(got.stderr, "at least 100ms") {
		t.Errorf("--every 1ms: %d %s", got.code, got.stderr)
	}
}
