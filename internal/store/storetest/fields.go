package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// fieldsAreStored accepts a create whose job, request and sandbox have every field set, and reads them back: a field that the codec forgets
// fails here. Fields that the store itself sets are listed.
func fieldsAreStored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var job farm.Job
	var box farm.Sandbox
	var request farm.Request
	Fill(&job)
	Fill(&box)
	Fill(&request)
	job.Tenant, job.Kind, job.SandboxID, job.Inline, job.Hidden, request.Close = Tenant, farm.KindCreate, box.ID, false, false, nil
	box.Tenant = Tenant
	b.accept(t, store.Accept{Job: &job, Request: &request, Sandbox: &box})

	jobFields := cmpopts.IgnoreFields(farm.Job{}, "State", "Attempt", "GracefulRequeues", "Worker", "StartedAt", "FinishedAt", "Timings", "Result", "Error", "Outcome", "ArtifactsGone")
	testbed.Diff(t, "job", &job, b.job(t, job.Ref()), jobFields)
	for name := range box.Spec.Env {
		box.Spec.Env = map[string]string{name: ""} // the values are in the request only
	}
	ref := farm.Ref{Tenant: Tenant, ID: box.ID}
	boxFields := cmpopts.IgnoreFields(farm.Sandbox{}, "State", "ReadyAt", "LastUsedAt", "ClosedAt", "Generation", "Expired", "Recent")
	testbed.Diff(t, "sandbox", &box, b.sandbox(t, ref), boxFields)

	testbed.Diff(t, "request", &request, b.claim(t, job.Ref(), "w").Request)

	other := box // restored from its container's label
	other.ID = farm.NewID(farm.SandboxPrefix)
	if restored, err := b.RestoreSandbox(t.Context(), &other); err != nil || !restored {
		t.Fatalf("RestoreSandbox = %v, %v", restored, err)
	}
	boxFields = cmpopts.IgnoreFields(farm.Sandbox{}, "State", "ReadyAt", "ClosedAt", "Expired", "Recent")
	testbed.Diff(t, "sandbox", &other, b.sandbox(t, farm.Ref{Tenant: Tenant, ID: other.ID}), boxFields)

	plain := b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)).Job // the fields that are set at a job's end
	b.claim(t, plain.Ref(), "w")
	_, err := b.Finish(t.Context(), store.Finish{
		Ref: plain.Ref(), Attempt: 1, State: farm.JobFailed, Result: job.Result, Error: job.Error, Timings: job.Timings,
	})
	testbed.Must(t, err)
	ended := b.job(t, plain.Ref())
	testbed.Diff(t, "result", job.Result, ended.Result)
	testbed.Diff(t, "error", job.Error, ended.Error)
	if ended.Timings.RunMS != job.Timings.RunMS || ended.Timings.UploadMS != job.Timings.UploadMS || ended.Worker != "w" || ended.Outcome != farm.OutcomeFailed || ended.FinishedAt.IsZero() {
		t.Errorf("ended job = %+v", ended)
	}

	artifact := job.Result.Artifacts[0]
	artifact.JobID = plain.ID
	artifact.ID, artifact.Tenant, artifact.ExpiresAt = farm.ArtifactID(plain.ID, "other"), Tenant, b.clock.Now().Add(1e12)
	testbed.Must(t, b.AddArtifacts(t.Context(), 0, []farm.Artifact{artifact}))
	stored, err := b.Artifact(t.Context(), farm.Ref{Tenant: Tenant, ID: artifact.ID})
	diff := cmp.Diff(&artifact, stored)
	testbed.Check(t, diff == "" && err == nil, "artifact: %v (-added +stored):\n%s", err, diff)
}

// FillTime is what Fill sets times to.
var FillTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Fill sets every field of a struct, and of the structs in it, to a value that is not zero, so that a test sees which of them are lost.
func Fill(v any) { fill(reflect.ValueOf(v).Elem(), "x") }

func fill(v reflect.Value, path string) {
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes(fmt.Appendf(nil, `{"a":%q}`, path))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7.5)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, path)
		fill(value, path)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(FillTime))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	default:
		panic(fmt.Sprintf("storetest.Fill does not know how to fill a %s; add it", v.Type()))
	}
}

// Lists and numbers reach a script unchanged: an empty list stays empty, every byte of a name is kept, and integers up to 2^53 are exact.
func argumentsReachScripts(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for _, packages := range [][]string{nil, {}, {"plain"}, {`quote"d`, `back\slash`, "ünï", "</script>", "a b", "1e400", "12345678901234567890"}} {
		a := Execute(box.ID)
		a.Packages = packages
		b.accept(t, a)
		if len(packages) == 0 {
			continue
		}
		want := map[string]string{}
		for _, name := range packages {
			want[name] = a.Job.ID
		}
		found, err := b.PackageJobs(t.Context(), box, packages...)
		diff := cmp.Diff(want, found)
		testbed.Check(t, diff == "" && err == nil, "PackageJobs: %v (-want +got):\n%s", err, diff)
	}
	all, err := b.PackageJobs(t.Context(), box)
	testbed.Check(t, err == nil && len(all) == 8, "packages of the sandbox: %v, %v; want 8", all, err)

	const last = 1<<53 - 2 // the event of the final state gets the next number, the largest that Lua holds exactly
	other := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(other.ID)).Job
	b.claim(t, job.Ref(), "w")
	timings := farm.Timings{RunMS: 1234567890.125, UploadMS: 0.001}
	_, err = b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Timings: timings, LastEvent: last})
	testbed.Must(t, err)
	id, err := b.LastEvent(t.Context(), job.Ref())
	testbed.Check(t, err == nil && id == "9007199254740991-0", "last event = %q, %v", id, err)
	got := b.job(t, job.Ref()).Timings
	testbed.Check(t, got.RunMS == timings.RunMS && got.UploadMS == timings.UploadMS, "timings = %+v, want %+v", got, timings)
}

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
		testbed.Must(t, err)
		testbed.Diff(t, name, c.want, got)
	}
	got, err := b.PackageJobs(t.Context(), farm.Ref{Tenant: "other", ID: box.ID})
	testbed.Check(t, err == nil && len(got) == 0, "another tenant sees %v, %v", got, err)
	other := Create()
	refused := Execute(other.Sandbox.ID) // the sandbox does not exist
	refused.Packages = []string{"six"}
	_, err = b.Accept(t.Context(), refused)
	testbed.Require(t, farm.CodeOf(err) == farm.CodeNotFound, "Accept: %v", err)
	got, err = b.PackageJobs(t.Context(), farm.Ref{Tenant: Tenant, ID: other.Sandbox.ID})
	testbed.Check(t, err == nil && len(got) == 0, "a refused job left %v, %v", got, err)
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
		testbed.Must(t, err)
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
	n := len(have())
	testbed.Require(t, n == before+1, "%d names one byte below the limit, want %d", n, before+1)
	longer := b.rdb.HDel(t.Context(), b.prefix+"{acme}:pkg:"+box.ID, name(9999, left-id)).Val()
	install(name(9999, left-id+1))
	n = len(have())
	testbed.Require(t, longer == 1 && n == before+1, "%d names at the limit, want %d", n, before+1)
	b.rdb.HDel(t.Context(), b.prefix+"{acme}:pkg:"+box.ID, name(9999, left-id+1))
	install(name(9999, left-id+2))
	got := have()
	testbed.Check(t, len(got) == 1 && got[name(9999, left-id+2)] != "", "%d names one byte above the limit, want those of the last job", len(got))
	install("a", "a", "b")
	testbed.Diff(t, "names after a further job", 3, len(have()))
	var many []string
	for i := range 1500 {
		many = append(many, name(i, 20))
	}
	install(many...)
	testbed.Diff(t, "names of a job that has more than fit", len(many), len(have()))
}
