package farmd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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
			s := &Settings{}
			s.API.Listen = strings.Replace(web.Listener.Addr().String(), "127.0.0.1", "0.0.0.0", 1) // is looked at over loopback
			f := doctorFarm(t.Context(), s, func(unnamed string) (*client.Client, error) { return client.New(unnamed) })
			if f.Status != test.status || !strings.Contains(f.Found, test.want) || !strings.Contains(f.Found, web.URL) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A farm of separate processes needs keys before it has one: that is its next step, and no problem.
func TestDoctorNamesTheFirstKey(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/limits" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = w.Write([]byte("{}"))
	}))
	defer web.Close()
	s := &Settings{}
	s.API.Listen, s.Redis.URL, s.Limits.MaxKeys = web.Listener.Addr().String(), "redis://"+miniredis.RunT(t).Addr(), 1
	look := func() Finding {
		return doctorFarm(t.Context(), s, func(unnamed string) (*client.Client, error) { return client.New(unnamed) })
	}
	if f := look(); f.Status != StatusNote || !strings.Contains(f.Advice, "sandfarm key create --local ") {
		t.Errorf("without a key: %+v", f)
	}
	if err := withStore(s, func(st *store.Store) error {
		return st.CreateKey(t.Context(), store.KeySum{1}, farm.Key{ID: "key_1", Tenant: "ops"})
	}); err != nil {
		t.Fatal(err)
	}
	if f := look(); f.Status != StatusProblem || strings.Contains(f.Advice, "key create") {
		t.Errorf("with a key: %+v", f)
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
	s.Redis.URL, s.S3.Endpoint = "redis://store:6379", "http://store:9000"
	for _, works := range []bool{true, false} { // a farm of separate processes has no data directory
		if f := doctorSettings(s, works); f.Status != StatusOK || f.Advice != "" || strings.Contains(f.Found, s.Data) {
			t.Errorf("%+v", f)
		}
	}
}
