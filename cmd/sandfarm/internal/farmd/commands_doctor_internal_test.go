package farmd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/client"
)

// The farm that the other commands talk to may be another one than that of this folder, so doctor looks at it first.
func TestDoctorLooksAtTheFarmThatRuns(t *testing.T) {
	t.Parallel()
	type answers map[string]int
	tests := map[string]struct {
		gives        answers // by path; 200 for the others
		down         bool
		status, want string
	}{
		"Works":    {nil, false, StatusOK, "works"},
		"NotReady": {answers{"/readyz": http.StatusServiceUnavailable}, false, StatusProblem, "cannot do work"},
		"WrongKey": {answers{"/v1/limits": http.StatusUnauthorized}, false, StatusProblem, "works, but not for you"},
		"None":     {nil, true, StatusNote, "no farm answers at "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if status, ok := test.gives[r.URL.Path]; ok {
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(status)
				}
				_, _ = w.Write([]byte("{}"))
			}))
			defer web.Close()
			if test.down {
				web.Close()
			}
			f := doctorFarm(t.Context(), func() (*client.Client, error) { return client.New(web.URL) })
			if f.Status != test.status || !strings.Contains(f.Found, test.want) || !strings.Contains(f.Found, web.URL) {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestDoctorSaysWhatItLooksAt(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	for works, status := range map[bool]string{true: StatusNote, false: StatusOK} {
		f := doctorSettings(s, works)
		if f.Status != status || !strings.HasSuffix(f.Found, s.Data+", on which no farm runs") || (f.Advice != "") != works {
			t.Errorf("%+v", f)
		}
	}
}
