package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// longRequestsAreStoredOnce: the worker and the callers read the long part of a request from one document. What callers may not see is
// stored beside it, and only until the job ends.
func longRequestsAreStoredOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	const secret = "secret"
	for name, c := range map[string]struct {
		command   bool
		env       map[string]string
		documents int // while the job is unfinished: whole, shown, and the private part if it is long
	}{
		"Code":              {documents: 2},
		"CodeAndVariable":   {env: map[string]string{"A": secret}, documents: 2},
		"CodeAndLongSecret": {env: map[string]string{"A": secret + large}, documents: 3},
		"Commands":          {command: true, env: map[string]string{"A": secret}, documents: 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := Execute(box.ID)
			whole := &farm.Request{Context: "c"}
			request := *whole
			hidden := map[string]string{}
			for key := range c.env {
				hidden[key] = ""
			}
			if c.command {
				a.Job.Kind = farm.KindCommand
				request.Command = &farm.CommandRequest{Commands: []string{"true", large}, Cwd: "d", Env: c.env}
				whole.Command = &farm.CommandRequest{Commands: []string{"true", large}, Cwd: "d", Env: hidden}
				a.Job.Shown = &farm.Request{Command: &farm.CommandRequest{Commands: []string{"true", large[:9000]}}}
			} else {
				request.Execute = &farm.ExecuteRequest{Code: large, Language: "python", Env: c.env}
				whole.Execute = &farm.ExecuteRequest{Code: large, Language: "python", Env: hidden}
				a.Job.Shown = &farm.Request{Execute: &farm.ExecuteRequest{Code: large[:9000]}}
			}
			a.Job.ShownCut, a.Request, a.Whole = true, &request, whole
			ref := b.accept(t, a).Job.Ref()
			b.wantDocuments(t, "after the acceptance", c.documents)
			if n := b.largest(t, ref.ID); n > store.InlineBytes {
				t.Errorf("Redis has a value of %d bytes", n)
			}
			size := 0
			for _, text := range b.documents.All() {
				size += len(text)
			}
			if most := len(large) + len(c.env["A"]) + 10_000; size > most {
				t.Errorf("%d bytes are stored, want at most %d", size, most)
			}

			claim := b.claim(t, ref, "w")
			for range 2 {
				if err := b.LoadRequest(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(&request, claim.Request, cmp.Comparer(sameEnv)); diff != "" {
					t.Errorf("request of the claim (-want +got):\n%s", diff)
				}
				if !claim.ForgetRequest() {
					t.Error("the request is not forgotten")
				}
			}
			visible := func(when string) {
				t.Helper()
				got, err := b.WholeRequest(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(whole, got, cmp.Comparer(sameEnv)); diff != "" {
					t.Errorf("whole request %s (-want +got):\n%s", when, diff)
				}
			}
			visible("while the job runs")
			if _, err := b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted}); err != nil {
				t.Fatal(err)
			}
			visible("after the end")
			b.wantDocuments(t, "after the end", 2)
			for key, text := range b.documents.All() {
				if strings.Contains(string(text), secret) {
					t.Errorf("the document %s has the value of a variable", key)
				}
			}
			b.clock.forward(time.Duration(farm.DefaultLimits().RetentionSeconds)*time.Second + 2*time.Hour)
			b.trim(t, store.Trimmed{Documented: 1})
			b.wantDocuments(t, "after the retention", 0)
			_, err := b.WholeRequest(t.Context(), ref)
			wantCode(t, "WholeRequest", err, farm.CodeNotFound)
		})
	}
}

// sameEnv compares variables: none are an empty map or nil.
func sameEnv(a, b map[string]string) bool { return len(a) == 0 && len(b) == 0 || cmp.Equal(a, b) }
