package farmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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
