package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func packagesNameTheirLastJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	made := Create()
	made.Packages = []string{"six"}
	b.accept(t, made)
	box := farm.Ref{Tenant: Tenant, ID: made.Sandbox.ID}
	later := Execute(box.ID)
	later.Job.Kind, later.Packages = farm.KindInstall, []string{"six", "npm:left-pad"}
	b.accept(t, later)

	for name, c := range map[string]struct {
		names []string
		want  map[string]string
	}{
		"All":  {nil, map[string]string{"six": later.Job.ID, "npm:left-pad": later.Job.ID}},
		"Some": {[]string{"six", "unknown"}, map[string]string{"six": later.Job.ID}},
		"None": {[]string{"unknown"}, map[string]string{}},
	} {
		got, err := b.PackageJobs(t.Context(), box, c.names...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got, err := b.PackageJobs(t.Context(), farm.Ref{Tenant: "other", ID: box.ID}); err != nil || len(got) != 0 {
		t.Errorf("another tenant sees %v, %v", got, err)
	}
	other := Create()
	refused := Execute(other.Sandbox.ID) // the sandbox does not exist
	refused.Packages = []string{"six"}
	if _, err := b.Accept(t.Context(), refused); farm.CodeOf(err) != farm.CodeNotFound {
		t.Fatalf("Accept: %v", err)
	}
	if got, err := b.PackageJobs(t.Context(), farm.Ref{Tenant: Tenant, ID: other.Sandbox.ID}); err != nil || len(got) != 0 {
		t.Errorf("a refused job left %v, %v", got, err)
	}
}

func packagesAreBounded(t *testing.T, factory Factory) {
	const bytes = 64 << 10 // of the names and the ids of their jobs
	b := setup(t, factory)
	made := Create()
	b.accept(t, made)
	box := farm.Ref{Tenant: Tenant, ID: made.Sandbox.ID}
	install := func(names ...string) {
		a := Execute(box.ID)
		a.Packages = names
		b.accept(t, a)
	}
	have := func() map[string]string {
		got, err := b.PackageJobs(t.Context(), box)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	name := func(i, length int) string {
		return fmt.Sprintf("p%d%s", i, strings.Repeat("x", length))[:length]
	}
	id := len(farm.NewID(farm.JobPrefix))
	left := bytes - 1
	for i := 0; left > 1000+id; i++ { // up to one byte below the limit
		length := min(200, left-id)
		install(name(i, length))
		left -= length + id
	}
	before := len(have())
	install(name(0, 200)) // again: it is there already
	install(name(9999, left-id))
	if n := len(have()); n != before+1 {
		t.Fatalf("%d names one byte below the limit, want %d", n, before+1)
	}
	longer := b.rdb.HDel(t.Context(), b.prefix+"{acme}:pkg:"+box.ID, name(9999, left-id)).Val()
	install(name(9999, left-id+1))
	if n := len(have()); longer != 1 || n != before+1 {
		t.Fatalf("%d names at the limit, want %d", n, before+1)
	}
	b.rdb.HDel(t.Context(), b.prefix+"{acme}:pkg:"+box.ID, name(9999, left-id+1))
	install(name(9999, left-id+2))
	if got := have(); len(got) != 1 || got[name(9999, left-id+2)] == "" {
		t.Errorf("%d names one byte above the limit, want those of the last job", len(got))
	}
	install("a", "a", "b")
	if n := len(have()); n != 3 {
		t.Errorf("%d names after a further job, want 3", n)
	}
	var many []string
	for i := range 1500 {
		many = append(many, name(i, 20))
	}
	install(many...)
	if n := len(have()); n != len(many) {
		t.Errorf("%d names of a job that has more than fit, want them all", n)
	}
}
