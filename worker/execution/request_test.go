package execution

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An outline has all that the collector asks for, and nothing large. The request itself stays as it is.
func TestOutlineOfARequest(t *testing.T) {
	t.Parallel()
	whole := func() *farm.Request {
		return &farm.Request{
			Context: "c", Files: []farm.InputFile{{Path: "a", Content: []byte("x")}}, Install: &farm.InstallRequest{Packages: []string{"six"}},
			Execute: &farm.ExecuteRequest{Code: "print(1)", Language: "python", Context: "default"},
			Command: &farm.CommandRequest{Commands: []string{"a", "b"}, Cwd: "d", Background: true},
		}
	}
	r := whole()
	want := &farm.Request{
		Context: "c", Install: &farm.InstallRequest{Packages: []string{"six"}}, Execute: &farm.ExecuteRequest{Language: "python", Context: "default"},
		Command: &farm.CommandRequest{Commands: []string{"", ""}, Cwd: "d", Background: true},
	}
	if diff := cmp.Diff(want, outline(r)); diff != "" {
		t.Errorf("outline (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(whole(), r); diff != "" {
		t.Errorf("the request has changed (-want +got):\n%s", diff)
	}
}
