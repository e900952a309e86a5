package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"
	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// An engine that cannot limit one of these must not be used.
func TestEngineWithoutLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		info system.Info
		want []string
	}{
		{system.Info{MemoryLimit: true, PidsLimit: true, CPUCfsQuota: true}, nil},
		{system.Info{PidsLimit: true, CPUCfsQuota: true}, []string{"memory"}},
		{system.Info{MemoryLimit: true, CPUCfsQuota: true}, []string{"processes"}},
		{system.Info{MemoryLimit: true, PidsLimit: true}, []string{"cores"}},
		{system.Info{}, []string{"memory", "processes", "cores"}},
	} {
		if got := missingLimits(c.info); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.info, got, c.want)
		}
	}
}

// The profile of a sandbox goes by the name of its runtime, so no name may hide gVisor.
func TestARuntimeIsNamedAfterWhatItIs(t *testing.T) {
	t.Parallel()
	registered := map[string]system.RuntimeWithStatus{
		"runc": {Runtime: system.Runtime{Path: "runc"}}, "gvisor": {Runtime: system.Runtime{Path: "/opt/runsc/runsc"}},
		"runsc": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}}, "secure": {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}},
		"shim": {Runtime: system.Runtime{Type: "io.containerd.runsc.v1"}}, "crun": {Runtime: system.Runtime{Path: "/opt/runsc/crun"}},
	}
	for name, ok := range map[string]bool{"runc": true, "runsc": true, "gvisor": true, "crun": true, "missing": true, "secure": false, "shim": false} {
		if err := checkNames(registered, []string{"runc", name}); (err == nil) != ok || err != nil && farm.CodeOf(err) != farm.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAvailableMemory(t *testing.T) {
	t.Parallel()
	const text = "MemTotal:       8138204 kB\nMemFree:         123456 kB\nMemAvailable:    4194303 kB\nHugePages_Total:       0\n"
	for name, c := range map[string]struct {
		text        string
		total, want int
	}{
		"this machine":    {text, 8138204 >> 10, 4095},
		"another one":     {text, 8138204>>10 + 1, -1},
		"an old kernel":   {strings.Replace(text, "MemAvailable", "Other", 1), 8138204 >> 10, -1},
		"empty":           {"", 0, -1},
		"nothing is left": {strings.Replace(text, "4194303", "0", 1), 8138204 >> 10, 0},
	} {
		if got := availableMB(c.text, c.total); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got, c.want)
		}
	}
}

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

// A sandbox that names no runtime has the engine's default, by name and with the profile for it, and a Checker allows it.
func TestTheEnginesDefaultRuntimeIsNamed(t *testing.T) {
	t.Parallel()
	for name, limited := range map[string]bool{"runc": false, "runsc": true} {
		e, last := recorder(t)
		e.standard = name
		if _, err := e.Create(t.Context(), Spec{SandboxID: farm.NewID(farm.SandboxPrefix), Image: "python", UID: 70000, AgentVolume: "farm-agent-1", AgentMount: fillMount, Command: []string{"/sandfarm/agent"}, Tenant: "t", Node: "n"}); err != nil {
			t.Fatal(err)
		}
		var got container.CreateRequest
		if err := json.Unmarshal(last().body, &got); err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(got.HostConfig.Ulimits, func(l *container.Ulimit) bool { return l.Name == nproc })
		if got.HostConfig.Runtime != name || has != limited || (len(got.HostConfig.Sysctls) == 0) != limited {
			t.Errorf("default %s: runtime %q, a limit on processes %t, sysctls %v", name, got.HostConfig.Runtime, has, got.HostConfig.Sysctls)
		}
		if _, err := e.NewChecker(Rules{}).Create(t.Context(), last().name, last().body); err != nil {
			t.Errorf("default %s: %v", name, err)
		}
	}
}

func TestNextUID(t *testing.T) {
	t.Parallel()
	all := map[int]bool{}
	for uid := FirstUID; uid < FirstUID+UIDs; uid++ {
		all[uid] = true
	}
	if uid, err := nextUID(FirstUID, all); err == nil {
		t.Errorf("uid %d although all are used", uid)
	}
	delete(all, FirstUID+7)
	for _, after := range []int{FirstUID, FirstUID + 6, FirstUID + 7, FirstUID + 8, FirstUID + UIDs - 1} {
		if uid, err := nextUID(after, all); err != nil || uid != FirstUID+7 {
			t.Errorf("after %d: %d, %v", after, uid, err)
		}
	}
	last, err := nextUID(FirstUID+UIDs-1, nil)
	if err != nil || last != FirstUID {
		t.Errorf("after the last comes %d, %v", last, err)
	}
}
