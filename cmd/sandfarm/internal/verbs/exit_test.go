package verbs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
)

// TestErrorsAreJSON has each kind of error with --json: it is one line of JSON on stderr, and stdout is empty.
func TestErrorsAreJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"FromTheFarm":     {[]string{"--json", "job", "get", "job_1"}, 1, `{"code":"not_found","message":"There is no job \"job_1\"."}`},
		"Two":             {[]string{"job", "cancel", "job_1", "job_2", "--json"}, 1, `{"code":"not_found","message":"cancel job_1: There is no job \"job_1\". cancel job_2: There is no job \"job_2\"."}`},
		"Usage":           {[]string{"--json", "job", "get"}, 2, `{"code":"usage","message":"the job's ID is missing. See \"sandfarm job get --help\""}`},
		"NoFile":          {[]string{"run", "--json", "/nowhere.py"}, 1, `{"code":"error","message":"there is no file /nowhere.py here"}`},
		"KernelsName":     {[]string{"cp", "sbx_1:no.txt", "."}, 1, `sandfarm: /workspace/no.txt does not exist.`},
		"TextWithoutJSON": {[]string{"job", "get", "job_1"}, 1, `sandfarm: There is no job "job_1".`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			none := func(w http.ResponseWriter, r *http.Request) {
				f.answer(w, http.StatusNotFound, wire.Problem{Status: 404, Code: "not_found", Detail: `There is no job "` + r.URL.Path[len("/v1/jobs/"):] + `".`})
			}
			f.Routes["GET /v1/sandboxes/sbx_1/fs"] = f.gives(http.StatusNotFound, wire.Problem{Status: 404, Code: "not_found", Detail: "ENOENT: /workspace/no.txt does not exist."})
			for _, id := range []string{"job_1", "job_2"} {
				f.Routes["GET /v1/jobs/"+id], f.Routes["DELETE /v1/jobs/"+id] = none, none
			}
			got := f.sandfarm(t.Context(), "", test.args...)
			if diff := cmp.Diff(test.stderr, strings.TrimSuffix(got.stderr, "\n")); got.code != test.code || got.out != "" || diff != "" {
				t.Errorf("code %d, stdout %q, stderr (-want +got):\n%s", got.code, got.out, diff)
			}
		})
	}
}
