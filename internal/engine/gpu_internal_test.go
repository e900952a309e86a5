package engine

import (
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A sandbox with GPUs differs from one without only in its requested devices and shared memory.
func TestHostConfigWithGPUs(t *testing.T) {
	t.Parallel()
	with := spec()
	with.GPUs = []string{"GPU-1", "GPU-2"}
	want := hostConfig(spec(), hostFacts{seccomp: "{}"})
	want.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia", DeviceIDs: []string{"GPU-1", "GPU-2"}, Capabilities: [][]string{{"gpu", "compute", "utility"}}}}
	want.Tmpfs["/dev/shm"] = strings.Replace(want.Tmpfs["/dev/shm"], "size=64m", "size=1024m", 1)
	if diff := cmp.Diff(want, hostConfig(with, hostFacts{seccomp: "{}"})); diff != "" {
		t.Errorf("host config (-want +got):\n%s", diff)
	}
	with.CDI = []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}
	want.DeviceRequests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: with.CDI}}
	if diff := cmp.Diff(want, hostConfig(with, hostFacts{seccomp: "{}"})); diff != "" {
		t.Errorf("host config with CDI (-want +got):\n%s", diff)
	}
	with.CDI = with.CDI[:1]
	if code := farm.CodeOf(with.validate()); code != farm.CodeInvalid {
		t.Errorf("fewer names than devices: %q, want invalid", code)
	}
}

// Neither the caller's variables nor the image's give a sandbox devices.
func TestVisibleDevicesAreNotTheCallers(t *testing.T) {
	t.Parallel()
	e := &Engine{namespace: "test"}
	for name, c := range map[string]struct {
		gpus, cdi []string
		env       map[string]string
		nvidia    bool
		want      []string
	}{
		"PlainEngine":    {want: []string{}},
		"NvidiaEngine":   {nvidia: true, want: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		"CallerWantsAll": {nvidia: true, env: map[string]string{"A": "1", "NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"A=1", "NVIDIA_VISIBLE_DEVICES=void"}},
		"OwnDevices":     {gpus: []string{"2", "3"}, env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"NVIDIA_VISIBLE_DEVICES=2,3"}},
		"OwnDevicesCDI":  {gpus: []string{"2"}, cdi: []string{"nvidia.com/gpu=2"}, env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, want: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec()
			s.GPUs, s.CDI, s.Env = c.gpus, c.cdi, c.env
			config := e.containerConfig(s, c.nvidia)
			if diff := cmp.Diff(c.want, config.Env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if got := (Container{Labels: config.Labels}).GPUs(); !cmp.Equal(c.gpus, got) {
				t.Errorf("the label says %v", got)
			}
		})
	}
}

func TestCDIName(t *testing.T) {
	t.Parallel()
	s := GPUSupport{Driver: DriverCDI, Names: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1", "nvidia.com/gpu=all"}}
	if a, b, none := s.CDIName("GPU-0", "0"), s.CDIName("GPU-1", "1"), s.CDIName("", "2"); a != "nvidia.com/gpu=0" || b != "nvidia.com/gpu=GPU-1" || none != "" {
		t.Errorf("names %q, %q, %q", a, b, none)
	}
}
