package farmd

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	testbed.Must(t, withStore(s, func(st *store.Store) error {
		return st.CreateKey(t.Context(), store.KeySum{1}, farm.Key{ID: "key_1", Tenant: "ops"})
	}))
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

// A program from go install has no agent: doctor says so before a sandbox fails.
func TestDoctorReportsAMissingAgent(t *testing.T) {
	t.Parallel()
	if f := doctorAgent("pdp11"); f.Status != StatusProblem || !strings.Contains(f.Found, "linux/pdp11") || !strings.Contains(f.Advice, "make build") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorComparesTheHostsNumbers(t *testing.T) {
	t.Parallel()
	const need = 3 << 20 / 384 * 1024 // 3 GiB of memory, 384 bytes for each file
	for _, c := range []struct {
		files, terminals, kernel, timestamps string
		want                                 [3]string
	}{
		{fmt.Sprint(need - 1), "2303", "6.12.41+deb13-amd64", "1", [3]string{StatusNote, StatusNote, StatusNote}},
		{fmt.Sprint(need), "2304", "6.12.41+deb13-amd64", "0", [3]string{StatusOK, StatusOK, StatusOK}},
		{"9223372036854775807", "65536", "6.13.0", "1", [3]string{StatusOK, StatusOK, StatusOK}},
		{"many", "", "", "", [3]string{StatusNote, StatusNote, StatusNote}},
	} {
		proc := t.TempDir()
		for name, text := range map[string]string{
			"fs/file-max": c.files, "kernel/pty/max": c.terminals, "kernel/osrelease": c.kernel, "net/core/tstamp_allow_data": c.timestamps,
		} {
			path := filepath.Join(proc, name)
			testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			testbed.Must(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		}
		for i, f := range doctorHost(proc, 10, 3<<10) {
			if f.Status != c.want[i] || (f.Advice == "") != (f.Status == StatusOK) {
				t.Errorf("%+v: %+v", c, f)
			}
		}
	}
	for _, f := range doctorHost(t.TempDir(), 10, 3<<10) {
		if f.Status != StatusNote || f.Advice == "" {
			t.Errorf("without sysctls: %+v", f)
		}
	}
}

func TestDoctorNamesQuotasWithoutABound(t *testing.T) {
	t.Parallel()
	s := defaultSettings()
	if found := doctorQuotas(s); len(found) != 0 {
		t.Errorf("without keys: %+v", found)
	}
	s.API.RequireKeys = true
	const all = "max_sandboxes, max_memory_mb, max_stored_mb, requests_per_minute, max_connections"
	for _, keys := range [][]api.KeyConfig{nil, {{Tenant: "acme"}}} {
		s.API.Keys = keys
		if found := doctorQuotas(s); len(found) != 1 || found[0].Status != StatusNote || !strings.HasSuffix(found[0].Found, ": "+all) || !strings.Contains(found[0].Advice, "max_queued is 100000") {
			t.Errorf("without quotas: %+v", found)
		}
	}
	for _, name := range strings.Split(all, ", ") {
		s.Limits.Quotas.Set(farm.QuotaName(name), 0) // none at all is a bound
	}
	if found := doctorQuotas(s); len(found) != 1 || found[0].Status != StatusOK || !strings.Contains(found[0].Found, "max_queued is 100000") {
		t.Errorf("with quotas: %+v", found)
	}
	s.Limits.Quotas.MaxStoredMB = farm.NoQuota
	if found := doctorQuotas(s); !strings.HasSuffix(found[0].Found, ": max_stored_mb") {
		t.Errorf("with all but one: %+v", found)
	}
}

// An operator learns that sandboxes cannot hibernate before a caller does.
func TestDoctorNamesAnEngineWithoutCheckpoints(t *testing.T) {
	t.Parallel()
	if f := doctorCheckpoints("runsc", nil); f.Status != StatusOK {
		t.Errorf("%+v", f)
	}
	if f := doctorCheckpoints("runsc", errors.New("set it")); f.Status != StatusNote || !strings.Contains(f.Found, "set it") {
		t.Errorf("%+v", f)
	}
}

func TestKubernetesImages(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	list, err := KubernetesSettings{Images: []string{"python=r.example.com/p@" + digest, "mine=r.example.com/m:1"}}.images()
	testbed.Must(t, err)
	for i := range list {
		if list[i].Name == "python" && (list[i].Description == "" || len(list[i].Languages) == 0) {
			t.Errorf("an image of the farm is not described: %+v", list[i])
		}
		list[i].Description, list[i].Languages = "", nil
	}
	want := []farm.Image{
		{Name: "python", Ref: "r.example.com/p@" + digest, ID: "r.example.com/p@" + digest, Digests: []string{digest}},
		{Name: "mine", Ref: "r.example.com/m:1", ID: "r.example.com/m:1"},
	}
	testbed.Diff(t, "-want +got", want, list)
}

func TestKubernetesSettingsAreChecked(t *testing.T) {
	t.Parallel()
	for says, s := range map[string]KubernetesSettings{
		"agent_image is not set": {Images: []string{"a=b"}},
		"images is empty":        {AgentImage: "x"},
		`contains "python"`:      {AgentImage: "x", Images: []string{"python"}},
		"names the image a twice": {
			AgentImage: "x", Images: []string{"a=b", "a=c"},
		},
	} {
		if err := s.validate(kindKubernetes); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", s, err, says)
		}
	}
	if err := (KubernetesSettings{}).validate(kindDocker); err != nil {
		t.Errorf("a farm with Docker needs none: %v", err)
	}
	s := defaultSettings()
	s.Engine.Kind = kindKubernetes
	if _, err := s.engine(nil); !errors.Is(err, errDockerOnly) {
		t.Errorf("a command for Docker: %v", err)
	}
}

// In a cluster the engine may be silent for longer, unless the operator says otherwise.
func TestEngineTimeoutOfACluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind      string
		set, want time.Duration
	}{{kindDocker, 0, 0}, {kindKubernetes, 0, apiServerTimeout}, {kindKubernetes, time.Minute, time.Minute}} {
		s := defaultSettings()
		s.Engine.Kind, s.Worker.EngineTimeout = c.kind, c.set
		if s.share(); s.Worker.EngineTimeout != c.want {
			t.Errorf("%+v: %s", c, s.Worker.EngineTimeout)
		}
	}
}

// Users of a Pod can execute the agent; they can read it only if their kernel needs that.
func TestInstallAgent(t *testing.T) {
	t.Parallel()
	for readable, mode := range map[bool]os.FileMode{false: 0o111, true: 0o555} {
		dir := t.TempDir()
		for range 2 { // a container that is started again
			testbed.Must(t, installAgent(dir, readable))
		}
		info, err := os.Stat(filepath.Join(dir, "agent"))
		if err != nil || info.Mode().Perm() != mode || info.Size() < 1<<20 {
			t.Errorf("readable %v: %v, %v", readable, info, err)
		}
	}
}

// The installer comes with the agent, if the image that brings the agent has it.
func TestInstallAgentWithUV(t *testing.T) {
	path, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "uv"), []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", path)
	testbed.Must(t, installAgent(dir, false))
	if info, err := os.Stat(filepath.Join(dir, "uv")); err != nil || info.Mode().Perm() != 0o111 || info.Size() != 10 {
		t.Errorf("%v, %v", info, err)
	}
}
