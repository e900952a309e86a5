package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// spec is that of a sandbox with every field but GPUs.
func spec() farm.ContainerSpec {
	return farm.ContainerSpec{
		SandboxID: "sbx_0abc", Generation: 3, Tenant: "Team Blue", Node: "node_x", Deadline: time.Unix(2_000_000_000, 0),
		Labels: map[string]string{"sandfarm.record": `{"id":1}`}, Image: "python@sha256:1", Agent: "farm@sha256:2",
		Command: []string{"/sandfarm/agent", "init", "$(HOME)"}, Env: map[string]string{"B": "2$(A)", "A": "$$1"},
		Resources: farm.Resources{MemoryMB: 512, CPUs: 1.5, PIDs: 64, DiskMB: 100},
	}
}

func engine(cfg Config) *Engine {
	cfg.Namespace = "boxes"
	return &Engine{cfg: cfg}
}

// The tests of the profile, one for each field: what a sandbox may do depends on each.
func TestPod(t *testing.T) {
	t.Parallel()
	p := engine(Config{MemoryOvercommit: 4, CPUOvercommit: 3}).pod(spec(), 20_123)
	box, install, link := p.Spec.Containers[0], p.Spec.InitContainers[0], p.Spec.InitContainers[1]
	all := []corev1.Container{install, link, box}
	quantities := func(l corev1.ResourceList) []int64 { return []int64{l.Memory().Value(), l.Cpu().MilliValue()} }
	sizes := map[string]string{}
	for _, v := range p.Spec.Volumes {
		sizes[v.Name] = string(v.EmptyDir.Medium) + " " + v.EmptyDir.SizeLimit.String()
	}
	mounts := map[string]string{}
	for _, m := range box.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	for name, c := range map[string]struct{ got, want any }{
		"name":                 {p.Name, "sbx-0abc"},
		"namespace":            {p.Namespace, "boxes"},
		"labels":               {p.Labels, map[string]string{"app.kubernetes.io/managed-by": "sandfarm", "sandfarm/role": "sandbox", "sandfarm/sandbox": "sbx_0abc"}},
		"gate":                 {p.Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: "sandfarm/start"}}},
		"restart":              {p.Spec.RestartPolicy, corev1.RestartPolicyNever},
		"guard":                {*p.Spec.ActiveDeadlineSeconds, int64(7_776_000)},
		"grace":                {*p.Spec.TerminationGracePeriodSeconds, int64(1)},
		"token":                {*p.Spec.AutomountServiceAccountToken, false},
		"addresses":            {*p.Spec.EnableServiceLinks, false},
		"hostname":             {p.Spec.Hostname, "sandbox"},
		"DNS":                  {p.Spec.DNSPolicy, corev1.DNSNone},
		"resolver":             {p.Spec.DNSConfig.Nameservers, []string{"127.0.0.1"}},
		"runtime":              {p.Spec.RuntimeClassName, (*string)(nil)},
		"not root":             {*p.Spec.SecurityContext.RunAsNonRoot, true},
		"user and group":       {[]int64{*p.Spec.SecurityContext.RunAsUser, *p.Spec.SecurityContext.RunAsGroup}, []int64{20_123, 20_123}},
		"seccomp":              {p.Spec.SecurityContext.SeccompProfile.Type, corev1.SeccompProfileTypeRuntimeDefault},
		"namespaces of a host": {p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC || p.Spec.ShareProcessNamespace != nil, false},
		"containers":           {slices.Concat(names(p.Spec.InitContainers), names(p.Spec.Containers)), []string{"install", "link", "sandbox"}},
		"image":                {box.Image, "python@sha256:1"},
		"command":              {box.Command, []string{"/sandfarm/agent", "init", "$$(HOME)"}},
		"processes":            {box.Args, []string{"--pids", "64"}},
		"env":                  {box.Env, []corev1.EnvVar{{Name: "A", Value: "$$$$1"}, {Name: "B", Value: "2$$(A)"}, {Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}}},
		"directory":            {box.WorkingDir, "/workspace"},
		"limits":               {quantities(box.Resources.Limits), []int64{512 << 20, 1500}},
		"requests":             {quantities(box.Resources.Requests), []int64{128 << 20, 500}},
		"volumes":              {sizes, map[string]string{"agent": " 256Mi", "workspace": "Memory 100Mi", "home": "Memory 400Mi", "tmp": "Memory 100Mi", "run": "Memory 64Mi"}},
		"mounts":               {mounts, map[string]string{"/sandfarm": "agent", "/workspace": "workspace", "/home/sandbox": "home", "/tmp": "tmp", "/run/sandfarm": "run"}},
		"agent is read-only":   {[]bool{box.VolumeMounts[0].ReadOnly, link.VolumeMounts[0].ReadOnly, install.VolumeMounts[0].ReadOnly}, []bool{true, true, false}},
		"link":                 {[]any{link.Image, link.Command, *link.RestartPolicy, *link.SecurityContext.RunAsUser}, []any{"farm@sha256:2", []string{"/sandfarm/agent", "wait"}, corev1.ContainerRestartPolicyAlways, int64(65533)}},
		"install":              {[]any{install.Image, install.Command, install.Args, *install.SecurityContext.RunAsUser}, []any{"farm@sha256:2", []string(nil), []string{"install-agent", "/sandfarm"}, int64(65533)}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, c := range all {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || *s.Privileged || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.Capabilities.Add != nil {
			t.Errorf("%s: %+v", c.Name, s)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Limits.Cpu().IsZero() || c.ImagePullPolicy != corev1.PullIfNotPresent || c.Lifecycle != nil || c.Ports != nil {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
}

// What goes into a Pod comes out of it.
func TestDescribe(t *testing.T) {
	t.Parallel()
	s := spec()
	p := engine(Config{}).pod(s, 20_123)
	p.UID = "u-1"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		{Name: "sandbox", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}}},
	}
	want := farm.Container{
		ID: "sbx-0abc/u-1", SandboxID: s.SandboxID, Generation: 3, Tenant: s.Tenant, Node: s.Node, Deadline: s.Deadline, Labels: s.Labels,
		OOMKilled: true, ExitCode: 137, Resources: farm.Resources{MemoryMB: 512, CPUs: 1.5}, Runtime: "default",
	}
	if diff := cmp.Diff(want, inspect(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A Pod that the cluster has ended says why, also if nothing is known of its containers: a kubelet that was away has not said it.
func TestEvictedPod(t *testing.T) {
	t.Parallel()
	p := engine(Config{}).pod(spec(), 20_123)
	p.Status = corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.",
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerSandbox, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	if c := inspect(p); c.Running || c.Reason != "the cluster has ended its Pod: Evicted: The node was low on resource: memory." {
		t.Errorf("%+v", c)
	}
}

func TestPodOfOtherSettings(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Resources, s.Generation, s.Deadline, s.Runtime = farm.Resources{}, 0, time.Time{}, "kata"
	p := engine(Config{Seccomp: "sandfarm.json", Runtime: "gvisor"}).pod(s, 20_123)
	seccomp := p.Spec.SecurityContext.SeccompProfile
	limits := farm.DefaultLimits()
	if c := inspect(p); seccomp.Type != corev1.SeccompProfileTypeLocalhost || *seccomp.LocalhostProfile != "sandfarm.json" || *p.Spec.RuntimeClassName != "kata" || c.Generation != 1 ||
		!c.Deadline.IsZero() || c.Resources.MemoryMB != limits.Memory.Default || c.Resources.CPUs != limits.CPUs.Default {
		t.Errorf("%+v", p)
	}
	if got := p.Spec.InitContainers[0].Args; !slices.Contains(got, "--readable") {
		t.Errorf("a kernel of its own executes only what it may read: %q", got)
	}
	s.Runtime = ""
	if p := engine(Config{Runtime: "gvisor"}).pod(s, 20_123); *p.Spec.RuntimeClassName != "gvisor" {
		t.Errorf("runtime %q", *p.Spec.RuntimeClassName)
	}
}

// A sandbox with GPUs asks for them as any Pod does, on machines with the model. No other sandbox has any, whatever its image or its caller says.
func TestPodWithGPUs(t *testing.T) {
	t.Parallel()
	e := engine(Config{GPUModels: []string{"NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-A100-PCIE-40GB"}})
	s := spec()
	s.GPU = &farm.GPU{Count: 2, Model: "a100"}
	p := e.pod(s, 20_123)
	box := p.Spec.Containers[0]
	var rules []corev1.NodeSelectorRequirement
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		rules = append(rules, term.MatchExpressions...)
	}
	gpus := func(l corev1.ResourceList) int64 { q := l["nvidia.com/gpu"]; return q.Value() }
	for name, c := range map[string]struct{ got, want any }{
		"limit and request": {[]int64{gpus(box.Resources.Limits), gpus(box.Resources.Requests)}, []int64{2, 2}},
		"memory":            {box.Resources.Limits.Memory().Value(), int64(512 << 20)},
		"machines":          {rules, []corev1.NodeSelectorRequirement{{Key: "nvidia.com/gpu.product", Operator: "In", Values: []string{"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB"}}}},
		"taint":             {p.Spec.Tolerations, []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists"}}},
		"variables":         {len(box.Env), 2},
		"/dev/shm":          {box.VolumeMounts[len(box.VolumeMounts)-1], corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	s.GPU.Model = ""
	if p := e.pod(s, 20_123); p.Spec.Affinity != nil {
		t.Errorf("of any model: %+v", p.Spec.Affinity)
	}
	s.GPU, s.Env = nil, map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	p = e.pod(s, 20_123)
	if box := p.Spec.Containers[0]; gpus(box.Resources.Limits) != 0 || p.Spec.Affinity != nil || p.Spec.Tolerations != nil || !slices.Equal(box.Env, []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}}) {
		t.Errorf("without GPUs: %+v", p.Spec)
	}
	for _, g := range []farm.GPU{{Count: 1, Model: "h100"}, {Count: 1, Model: "a10"}} {
		s.GPU = &g
		if _, err := e.Create(t.Context(), s); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("a model that the cluster has not: %v", err)
		}
	}
}

// A cluster that changes the Pods of sandboxes is found out. What it adds for itself is allowed.
func TestChanged(t *testing.T) {
	t.Parallel()
	want := engine(Config{}).pod(spec(), 20_123)
	for field, change := range map[string]func(*corev1.Pod){
		"": func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "x"}}
			p.Spec.ServiceAccountName = "default"
		},
		"spec.containers": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy"})
		},
		"spec.initContainers":       func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.InitContainers[1:] },
		"spec.volumes":              func(p *corev1.Pod) { p.Spec.Volumes[1].EmptyDir.SizeLimit = nil },
		"sandbox: resources.limits": func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits["memory"] = resource.MustParse("1Gi") },
		"sandbox: image":            func(p *corev1.Pod) { p.Spec.Containers[0].Image = "mirror/python" },
		"sandbox: env": func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "HTTP_PROXY"})
		},
		"link: securityContext":           func(p *corev1.Pod) { p.Spec.InitContainers[1].SecurityContext.RunAsUser = ptr(int64(0)) },
		"spec.hostNetwork":                func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"spec.securityContext":            func(p *corev1.Pod) { p.Spec.SecurityContext.SeccompProfile = nil },
		"sandbox: volumeMounts":           func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].ReadOnly = false },
		"automountServiceAccountToken":    func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil },
		"sandbox: command":                func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} },
		"spec.dnsConfig":                  func(p *corev1.Pod) { p.Spec.DNSConfig = nil },
		"sandbox: resources.requests":     func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil },
		"spec.runtimeClassName":           func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("runc") },
		"changes the Pods of sandboxes (": func(p *corev1.Pod) { p.Spec.HostPID = true },
	} {
		got := want.DeepCopy()
		got.Spec.Containers[0].Resources.Limits["ephemeral-storage"] = resource.MustParse("1Gi") // a LimitRange adds what is missing
		change(got)
		err := changed(want, got)
		if (err == nil) != (field == "") || err != nil && (!strings.Contains(err.Error(), field) || farm.CodeOf(err) != farm.CodeConflict) {
			t.Errorf("%q: %v", field, err)
		}
	}
}
