package api_test

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A field of a record goes through many places: farm record, store, wire type (which the Go client uses and OpenAPI is generated from), Python
// SDK. A test fails for each that is forgotten: FieldsAreStored of package storetest, the tests of this file, and test_contract.py of the SDK.

// jsonFields lists the JSON names of a struct's fields.
func jsonFields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func without(names []string, dropped ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(dropped, name) })
}

// shown maps a field of a record to the wire field that shows it; "": none.
var (
	shownOfSandbox = map[string]string{
		"ID": "id", "State": "state", "Reason": "reason", "CreatedAt": "created_at", "LastUsedAt": "last_used_at", "ExpiresAt": "expires_at", "ClosedAt": "closed_at",
		"Spec.Name": "name", "Spec.Image": "image", "Spec.Network": "network", "Spec.Resources": "resources", "Spec.GPU": "gpu", "Runtime": "runtime", "Spec.Runtime": "runtime", "Spec.Labels": "labels", "Spec.OnIdle": "on_idle",
		"Spec.TTLSeconds": "ttl_seconds", "Spec.IdleSeconds": "idle_seconds", "Spec.Env": "env_names", "Spec.AllowHosts": "allow_hosts", "Spec.Secrets": "secrets", "Spec.Authority": "",

		"Tenant": "", "Node": "", "Container": "", "ReadyAt": "", "Generation": "generation", "OneShot": "one_shot", "Pooled": "", "Expired": "", "Recent": "usage",
	}
	shownOfJob = map[string]string{
		"ID": "id", "Kind": "kind", "SandboxID": "sandbox_id", "State": "state", "Attempt": "attempt", "CreatedAt": "created_at", "StartedAt": "started_at",
		"FinishedAt": "finished_at", "Timings": "timings", "Result": "result", "Error": "error", "Outcome": "outcome", "ArtifactsGone": "result",

		"Tenant": "", "GracefulRequeues": "", "Worker": "", "Trace": "", "Queue": "", "Inline": "", "Hidden": "",
		"TimeoutSeconds": "request", "CallbackURL": "request", "Redacted": "request", "Truncated": "request",
	}
)

// TestFieldsOfRecordsReachCallers reads a sandbox and a job whose records have every field set: each field that callers see has a value.
func TestFieldsOfRecordsReachCallers(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	auth := []string{"Authorization", "Bearer " + key}

	var box farm.Sandbox
	storetest.Fill(&box)
	box.ID, box.Tenant = farm.NewID(farm.SandboxPrefix), "acme"
	_, err := b.store.RestoreSandbox(t.Context(), &box)
	testbed.Must(t, err)
	for _, name := range b.redis.Keys() {
		if strings.HasSuffix(name, ":sbx:"+box.ID) {
			b.redis.HSet(name, "recent", "500:1024") // as a sample a while after its start
		}
	}
	if _, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: "acme", ID: box.ID}, To: farm.SandboxLost}); err != nil { // it has ended then
		t.Fatal(err)
	}
	shows(t, "sandbox", get[map[string]any](b, http.StatusOK, "GET", "/v1/sandboxes/"+box.ID, nil, auth...), wire.Sandbox{}, farm.Sandbox{}, shownOfSandbox)

	made := get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=30", `{}`, auth...)
	out, err := b.store.Accept(t.Context(), storeExecute(made.Sandbox.ID))
	testbed.Must(t, err)
	ref := out.Job.Ref()
	_, err = b.store.Claim(t.Context(), ref, "w")
	testbed.Must(t, err)
	var job farm.Job
	storetest.Fill(&job)
	job.Result.Command, job.Result.File, job.Result.Install = nil, nil, nil
	_, err = b.store.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobFailed, Result: job.Result, Error: job.Error, Timings: job.Timings})
	testbed.Must(t, err)
	shows(t, "job", get[map[string]any](b, http.StatusOK, "GET", "/v1/jobs/"+ref.ID, nil, auth...), wire.Job{}, farm.Job{}, shownOfJob,
		"position", "estimate_seconds", "waiting") // of queued jobs
}

func storeExecute(sandbox string) store.Accept {
	a := storetest.Execute(sandbox)
	a.Job.Redacted = a.Request
	a.Job.CallbackURL, a.Job.TimeoutSeconds = "https://hooks.example.com/x", 9
	return a
}

// shows checks that an answer has a value for every wire field, and that a table says of every field of the record where callers see it.
func shows(t *testing.T, what string, answer map[string]any, sent, record any, shown map[string]string, empty ...string) {
	t.Helper()
	fields := jsonFields(reflect.TypeOf(sent))
	for _, name := range without(fields, empty...) {
		switch value := answer[name].(type) {
		case nil:
			t.Errorf("the %s's %q is missing or null in the answer: the record's field does not reach it", what, name)
		case map[string]any:
			if len(value) == 0 {
				t.Errorf("the %s's %q is empty", what, name)
			}
		case []any:
			if len(value) == 0 {
				t.Errorf("the %s's %q is empty", what, name)
			}
		default:
			if reflect.ValueOf(value).IsZero() {
				t.Errorf("the %s's %q is %v", what, name, value)
			}
		}
	}
	known := map[string]bool{}
	var walk func(kind reflect.Type, prefix string)
	walk = func(kind reflect.Type, prefix string) {
		for i := range kind.NumField() {
			name := prefix + kind.Field(i).Name
			if kind.Field(i).Type == reflect.TypeFor[farm.SandboxSpec]() {
				walk(kind.Field(i).Type, name+".")
				continue
			}
			known[name] = true
			to, ok := shown[name]
			if !ok {
				t.Errorf("%T.%s is new: say in this test which field of %T shows it, or that callers do not see it", record, name, sent)
			}
			if to != "" && !slices.Contains(fields, to) {
				t.Errorf("%T.%s is shown as %q, which %T does not have", record, name, to, sent)
			}
		}
	}
	walk(reflect.TypeOf(record), "")
	for name := range shown {
		if !known[name] {
			t.Errorf("%T has no field %s any more", record, name)
		}
	}
}
