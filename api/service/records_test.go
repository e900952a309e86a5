package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The list of packages, and a lookup of many, reads each job that installed some once: one has up to a hundred, and a long result.
func TestPackagesReadAJobOnce(t *testing.T) {
	t.Parallel()
	documents := storetest.NewDocuments()
	st := records(t, documents)
	s := service.New(service.Deps{Submitter: submitter{st}, Store: st}, service.Options{})
	out, err := s.Run(t.Context(), service.Call{Tenant: "acme"}, wire.RunRequest{Code: "1", Packages: []string{"numpy", "pandas", "six"}})
	testbed.Must(t, err)
	ref := farm.Ref{Tenant: "acme", ID: out.Job.ID}
	_, err = st.Claim(t.Context(), ref, "w")
	testbed.Must(t, err)
	_, err = st.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{
		Stdout: strings.Repeat("x", 1<<20), Installed: []farm.PackageOutcome{{Name: "six", Status: farm.PackageFailed, Message: "of it"}},
	}}})
	testbed.Must(t, err)
	_, before := documents.Calls()
	ctx, hold := budget.New(64<<20).With(t.Context(), "acme", time.Minute)
	t.Cleanup(hold.Release)
	list, err := s.PackageList(ctx, "acme", out.Job.SandboxID)
	testbed.Must(t, err)
	_, after := documents.Calls()
	testbed.Diff(t, "documents that were read", 1, after-before)
	testbed.Check(t, budget.Held(ctx) < 1<<20, "%d bytes are held afterwards", budget.Held(ctx))
	var got []string
	for _, p := range list.Items {
		got = append(got, p.Name+" "+p.Status+" "+p.Message)
	}
	failed := "was not installed: the job " + out.Job.ID + " ended as completed."
	testbed.Diff(t, "packages", []string{"numpy failed numpy " + failed, "pandas failed pandas " + failed, "six failed of it"}, got)

	_, before = documents.Calls()
	lookup := s.Packages("acme", out.Job.SandboxID)
	for _, want := range list.Items {
		p, err := lookup.Package(ctx, want.Manager, want.Name)
		testbed.Must(t, err)
		p.Message, _, _ = strings.Cut(p.Message, " The sandbox ") // it has not started, and nobody can look
		testbed.Diff(t, "a lookup", want, p)
	}
	_, after = documents.Calls()
	testbed.Diff(t, "documents that were read for lookups", 1, after-before)
	testbed.Check(t, budget.Held(ctx) < 1<<20, "%d bytes are held after lookups", budget.Held(ctx))
}

// Each twenty jobs that installed packages of a sandbox count as a request, and what is queued is counted without its records.
func TestListsOfJobsReadFewRecords(t *testing.T) {
	t.Parallel()
	documents := storetest.NewDocuments()
	st := records(t, documents)
	counted, refused := 0, error(nil)
	more := func(_ context.Context, _ string, n int) (int, error) { counted += n; return n, refused }
	s := service.New(service.Deps{Submitter: submitter{st}, Store: st, Queues: depths{{Name: "cpu"}}, More: more}, service.Options{})
	call := service.Call{Tenant: "acme"}
	made, err := s.CreateSandbox(t.Context(), call, wire.CreateRequest{})
	testbed.Must(t, err)
	box := made.Sandbox.ID
	jobs := 0
	for _, c := range []struct{ jobs, more int }{{1, 0}, {20, 0}, {21, 1}, {40, 1}, {41, 2}} {
		for ; jobs < c.jobs; jobs++ {
			_, err := s.Install(t.Context(), call, box, wire.PackagesRequest{Packages: []string{fmt.Sprint("p", jobs)}})
			testbed.Must(t, err)
		}
		counted = 0
		list, err := s.PackageList(t.Context(), "acme", box)
		testbed.Must(t, err)
		testbed.Check(t, counted == c.more && len(list.Items) == jobs, "a list of %d packages counts %d requests more, want %d", len(list.Items), counted, c.more)
		counted = 0
		lookup := s.Packages("acme", box)
		for _, p := range list.Items {
			_, err := lookup.Package(t.Context(), p.Manager, p.Name)
			testbed.Must(t, err)
		}
		testbed.Diff(t, fmt.Sprintf("requests that a lookup of %d packages counts as more", jobs), c.more, counted)
	}
	refused = errors.New("beyond the quota")
	_, err = s.PackageList(t.Context(), "acme", box)
	testbed.Check(t, errors.Is(err, refused), "beyond the quota: %v", err)
	refused = nil

	_, err = s.Execute(t.Context(), call, box, wire.ExecuteRequest{Code: strings.Repeat("x", 100<<10)})
	testbed.Must(t, err)
	_, before := documents.Calls()
	queues, err := s.OwnQueues(t.Context(), "acme")
	testbed.Must(t, err)
	_, after := documents.Calls()
	testbed.Check(t, after == before && len(queues.Items) == 1 && queues.Items[0].Depth == jobs+2, "%d documents were read for %+v", after-before, queues.Items)
}

// depths are queues that never change.
type depths []farm.QueueDepth

func (d depths) Depths(context.Context) ([]farm.QueueDepth, error) { return d, nil }

// departing is a submitter whose caller leaves before the job is accepted.
type departing struct {
	submitter
	leave func()
}

func (l departing) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	l.leave()
	if err := ctx.Err(); err != nil {
		return store.Accepted{}, err
	}
	return l.submitter.Submit(ctx, a)
}

// The create of a caller that leaves is accepted if it has a member of the pool, which would be nobody's.
func TestACallerThatLeavesKeepsNoMember(t *testing.T) {
	t.Parallel()
	st := records(t, storetest.NewDocuments())
	testbed.Must(t, st.Heartbeat(t.Context(), farm.Worker{
		ID: "p", Node: "n1", Queues: []string{"cpu"}, Capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 100}, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}},
		Pool: []farm.PoolStock{{Image: "python", Target: 1, Ready: 1}},
	}))
	m := store.Member{ID: farm.NewID(farm.SandboxPrefix), Node: "n1", Image: "python", Network: farm.NetworkPackages}
	l := farm.DefaultLimits()
	m.Resources = farm.Resources{MemoryMB: l.Memory.Default, CPUs: l.CPUs.Default, PIDs: l.PIDs.Default, DiskMB: l.Disk.Default}
	testbed.Must(t, st.BeginMember(t.Context(), m))
	testbed.Must(t, st.MemberReady(t.Context(), m))
	ctx, leave := context.WithCancel(t.Context())
	s := service.New(service.Deps{Submitter: departing{submitter{st}, leave}, Store: st}, service.Options{})
	out, err := s.CreateSandbox(ctx, service.Call{Tenant: "acme"}, wire.CreateRequest{})
	testbed.Check(t, err == nil && out.Sandbox != nil && out.Sandbox.ID == m.ID, "the create of the pool: %v, %+v", err, out.Sandbox)
	_, err = s.CreateSandbox(ctx, service.Call{Tenant: "acme"}, wire.CreateRequest{})
	testbed.Check(t, errors.Is(err, context.Canceled), "another one: %v", err)
}
