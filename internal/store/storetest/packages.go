package storetest

import (
	"fmt"
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
	b := setup(t, factory)
	made := Create()
	b.accept(t, made)
	box := farm.Ref{Tenant: Tenant, ID: made.Sandbox.ID}
	install := func(from, to int) {
		a := Execute(box.ID)
		for i := from; i < to; i++ {
			a.Packages = append(a.Packages, fmt.Sprintf("p%d", i))
		}
		b.accept(t, a)
	}
	count := func() int {
		got, err := b.PackageJobs(t.Context(), box)
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	for from := 0; from < 10_000; from += 1000 {
		install(from, from+1000)
	}
	if n := count(); n != 10_000 {
		t.Fatalf("%d names at the limit, want 10000", n)
	}
	install(10_000, 10_001)
	if n := count(); n != 0 {
		t.Errorf("%d names over the limit, want none", n)
	}
}
