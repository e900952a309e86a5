package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// allowing gives the farm an egress.allow.
func allowing(t *testing.T, rules ...string) option {
	t.Helper()
	return func(c *api.Config, _ *api.Deps) {
		for _, text := range rules {
			r, err := farm.ParseHostRule(text)
			testbed.Must(t, err)
			c.Allow = append(c.Allow, r)
		}
	}
}

func TestHostsAreCheckedAgainstTheCeiling(t *testing.T) {
	t.Parallel()
	b := setup(t, allowing(t, "*.example.com", "GET plain.example.org:8080"))
	for name, c := range map[string]struct{ body, pointer, detail string }{
		"Other":        {`{"network":"allowlist","allow_hosts":["a.example.com","evil.example.net"]}`, "/allow_hosts/1", `the rule "evil.example.net" is not within what this farm allows (its setting egress.allow): "*.example.com", "GET plain.example.org:8080"`},
		"Wider":        {`{"network":"allowlist","allow_hosts":["example.com"]}`, "/allow_hosts/0", "is not within what this farm allows"},
		"Port":         {`{"network":"allowlist","allow_hosts":["a.example.com:22"]}`, "/allow_hosts/0", "is not within what this farm allows"},
		"Method":       {`{"network":"allowlist","allow_hosts":["plain.example.org:8080"]}`, "/allow_hosts/0", "is not within what this farm allows"},
		"Any":          {`{"network":"allowlist","allow_hosts":["*"]}`, "/allow_hosts/0", "is for operators"},
		"Address":      {`{"network":"allowlist","allow_hosts":["127.0.0.1"]}`, "/allow_hosts/0", "127.0.0.1"},
		"OtherNetwork": {`{"network":"packages","allow_hosts":["a.example.com"]}`, "/allow_hosts", "needs the network mode allowlist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *b
			b.t = t
			for _, target := range []string{"/v1/sandboxes", "/v1/run"} {
				body := c.body
				if target == "/v1/run" {
					body = `{"code":"1",` + body[1:]
				}
				p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, body)
				if diff := cmp.Diff([]string{c.pointer}, pointers(p)); diff != "" || !strings.Contains(p.Detail, c.detail) {
					t.Errorf("%s: %s (-want +got):\n%s", target, p.Detail, diff)
				}
			}
		})
	}
	off := setup(t)
	for _, body := range []string{`{"network":"allowlist","allow_hosts":["a.example.com"]}`, `{"allow_hosts":["a.example.com"]}`} {
		if p := off.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body); !strings.Contains(p.Detail, "egress.allow") {
			t.Errorf("not enabled: %s", p.Detail)
		}
	}
}

func TestHostsOfASandboxAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t, allowing(t, "*"), func(c *api.Config, _ *api.Deps) {
		c.Limits = farm.DefaultLimits()
		c.Limits.MaxAllowHosts = 5
	})
	for n := 4; n <= 6; n++ {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"h%d.example.com"`, i)
		}
		body := `{"network":"allowlist","allow_hosts":[` + strings.Join(list, ",") + `]}`
		if n > 5 {
			p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", body)
			if !strings.Contains(p.Detail, "has 6 rules; at most 5") {
				t.Error(p.Detail)
			}
			continue
		}
		if made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", body); len(made.Sandbox.AllowHosts) != n {
			t.Errorf("%d hosts: %q", n, made.Sandbox.AllowHosts)
		}
	}
}

func TestHostsAreChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, allowing(t, "*.example.com"))
	made := get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", `{"network":"allowlist","allow_hosts":["A.Example.com.","a.example.com"]}`).Sandbox
	testbed.Diff(t, "hosts", []string{"a.example.com"}, made.AllowHosts)
	target := "/v1/sandboxes/" + made.ID
	for _, hosts := range []string{`["b.example.com","*.c.example.com"]`, `[]`} {
		got := get[wire.Sandbox](b, http.StatusOK, "PATCH", target, `{"allow_hosts":`+hosts+`}`).AllowHosts
		if fmt.Sprintf("%q", got) != strings.ReplaceAll(hosts, ",", " ") {
			t.Errorf("%q, want %s", got, hosts)
		}
	}
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", target, `{"allow_hosts":["evil.example.net"]}`)
	plain := b.sandbox()
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/sandboxes/"+plain, `{"allow_hosts":[]}`)
	if !strings.Contains(p.Detail, "this sandbox has packages") {
		t.Error(p.Detail)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "PATCH", "/v1/sandboxes/"+farm.NewID(farm.SandboxPrefix), `{"allow_hosts":[]}`)
}

// A tenant's sandboxes reach what both the farm's and the tenant's list allow.
func TestHostsOfATenant(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin, allowing(t, "*.example.com", "GET,HEAD data.example.org"))
	const ask = `{"network": "allowlist", "allow_hosts": ["a.example.com"]}`
	b.asked(ask)
	set := get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"allow_hosts": ["B.example.com", "GET;HEAD data.example.org", "*.example.net"]}}`, asOps()...)
	testbed.Diff(t, "the tenant's list", &[]string{"b.example.com", "GET,HEAD data.example.org", "*.example.net"}, set.AllowHosts)
	refused := func(host, want string) {
		t.Helper()
		p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", `{"network": "allowlist", "allow_hosts": ["`+host+`"]}`, asAcme()...)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != "/allow_hosts/0" || !strings.Contains(p.Errors[0].Detail, want) {
			t.Errorf("%s: %+v", host, p.Errors)
		}
	}
	refused("a.example.com", `the rule "a.example.com" is not within what your tenant may reach: "b.example.com", "GET,HEAD data.example.org", "*.example.net"`)
	refused("data.example.org", "not within what this farm allows")
	refused("x.example.net", "not within what this farm allows")
	box := b.asked(`{"network": "allowlist", "allow_hosts": ["b.example.com", "GET data.example.org"]}`)
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/sandboxes/"+box.ID, `{"allow_hosts": ["a.example.com"]}`, asAcme()...)

	get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"allow_hosts": []}}`, asOps()...)
	refused("b.example.com", "what your tenant may reach: no host")
	for _, change := range []struct{ method, body string }{{"PATCH", `{"default": ["allow_hosts"]}`}, {"PUT", `{}`}} {
		get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", `{"set": {"allow_hosts": []}}`, asOps()...)
		if set := get[wire.Tenant](b, http.StatusOK, change.method, "/v1/tenants/acme", change.body, asOps()...); set.AllowHosts != nil {
			t.Errorf("after %s %s: %q", change.method, change.body, *set.AllowHosts)
		}
		b.asked(ask)
	}
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/tenants/acme", `{"set": {"allow_hosts": []}, "default": ["allow_hosts"]}`, asOps()...)
	for n, ok := range map[int]bool{farm.MaxTenantHosts - 1: true, farm.MaxTenantHosts: true, farm.MaxTenantHosts + 1: false} {
		body := `{"set": {"allow_hosts": ["a.example.com"` + strings.Repeat(`, "a.example.com"`, n-1) + `]}}`
		if ok {
			get[wire.Tenant](b, http.StatusOK, "PATCH", "/v1/tenants/acme", body, asOps()...)
			continue
		}
		b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/tenants/acme", body, asOps()...)
	}
	p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "PATCH", "/v1/tenants/acme", `{"set": {"allow_hosts": ["10.0.0.1"]}}`, asOps()...)
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "/set/allow_hosts" || !strings.Contains(p.Errors[0].Detail, "10.0.0.1") {
		t.Errorf("an address: %+v", p.Errors)
	}
}

func TestEgressLogIsPaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.sandbox()
	for i := range 5 {
		e := farm.EgressEntry{At: time.Unix(int64(i), 0), Host: fmt.Sprintf("h%d.example.com", i), Port: 443, Method: "CONNECT", Verdict: "denied", Reason: "no rule", Missed: i}
		_, err := b.store.AppendEgress(t.Context(), store.EgressAppend{Sandbox: farm.Ref{Tenant: "default", ID: id}, Entries: []farm.EgressEntry{e}})
		testbed.Must(t, err)
	}
	target, after, seen := "/v1/sandboxes/"+id+"/egress?limit=2", "", 0
	for range 3 {
		page := get[wire.List[wire.EgressEntry]](b, http.StatusOK, "GET", target+after, nil)
		for _, e := range page.Items {
			if e.Host != fmt.Sprintf("h%d.example.com", seen) || e.Missed != seen || e.Reason == "" {
				t.Errorf("%+v", e)
			}
			seen++
			after = "&after=" + e.ID
		}
		if last := page.NextCursor == ""; last != (seen == 5) {
			t.Errorf("after %d entries: next_cursor %q", seen, page.NextCursor)
		}
	}
	testbed.Diff(t, "entries", 5, seen)
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "GET", "/v1/sandboxes/"+id+"/egress?after=x", nil)
	b.problem(farm.CodeInvalid, http.StatusBadRequest, "GET", "/v1/sandboxes/"+id+"/egress?limit=1001", nil)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", "/v1/sandboxes/"+farm.NewID(farm.SandboxPrefix)+"/egress", nil)
}
