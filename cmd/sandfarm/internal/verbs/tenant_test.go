package verbs_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestTenantVerbs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var sent string
	limit := 20.0
	tenant := wire.Tenant{
		Name: "acme", Own: map[string]float64{"max_sandboxes": 20, "max_cpus": 1.5, "max_gpus": 0},
		Quotas: []wire.Quota{{Name: "max_sandboxes", Limit: &limit, Used: 3}, {Name: "max_stored_mb", Used: 0.125}},
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
		"Show":  {[]string{"tenant", "show", "acme"}, []string{"QUOTA USED LIMIT SET", "max_sandboxes 3 20 own", "max_stored_mb 0.13 - default"}},
		"Ls":    {[]string{"tenant", "ls"}, []string{"TENANT SANDBOXES MEMORY MiB RUNNING UNFINISHED STORED MiB", "acme 3/20 - - - 0.13/-"}},
		"Usage": {[]string{"usage"}, []string{"QUOTA USED LIMIT", "max_sandboxes 3 20", "max_stored_mb 0.13 -", "", "DAY CPU S MEMORY GiB·S GPU S SANDBOX S STORED GiB·S", "2026-11-22 12.35 0 7 0 0"}},
		"Other": {[]string{"usage", "--tenant", "acme", "--days", "7"}, []string{"QUOTA USED LIMIT", "max_sandboxes 3 20", "max_stored_mb 0.13 -", "", "DAY CPU S MEMORY GiB·S GPU S SANDBOX S STORED GiB·S", "2026-11-22 12.35 0 7 0 0"}},
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
