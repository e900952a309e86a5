package kube

import (
	"cmp"
	"encoding/json"
	"maps"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// The labels of Pods of sandboxes, by which they are selected.
const (
	labelRole    = "sandfarm/role"
	roleSandbox  = "sandbox"
	labelSandbox = "sandfarm/sandbox" // id of the sandbox
)

// Annotations of those Pods: what containers of other engines have in labels, which are too short here.
const (
	noteLabels     = "sandfarm/labels" // farm.ContainerSpec.Labels, as JSON
	noteGeneration = "sandfarm/generation"
	noteTenant     = "sandfarm/tenant"
	noteNode       = "sandfarm/node"
	noteDeadline   = "sandfarm/deadline" // seconds since 1970
	noteOwner      = "sandfarm/note"     // see Note
)

// The containers of a Pod. All share its network namespace, and with it the agent's socket.
const (
	containerSandbox = "sandbox"
	containerInstall = "install" // copies the agent into the volume, and ends
	containerLink    = "link"    // has another user than the sandbox, through whom workers reach the agent; it ends with the sandbox
)

// GPUs, as NVIDIA's device plugin and its discovery of features name them.
const (
	resourceGPU = "nvidia.com/gpu"
	labelGPU    = "nvidia.com/gpu.product" // of a machine: the model of its GPUs, such as NVIDIA-A100-SXM4-80GB
	visibleGPUs = "NVIDIA_VISIBLE_DEVICES" // what NVIDIA's runtime reads; many CUDA images set it to all
)

const (
	gate       = "sandfarm/start" // keeps a Pod from being scheduled until Start
	agentMount = "agent"          // volume with the agent
	linkUser   = 65533            // user id of link and install, who may connect to the agent
	agentSize  = 256 << 20        // bytes of that volume: the agent has 8 MiB, the installer 25
	linkMemory = 64 << 20         // bytes: copies of a stream
	killAfter  = 1                // seconds that the kubelet gives programs to end; 0 would remove the Pod before they have ended
	// lastGuard ends a Pod in any case. Before that the agent ends its sandbox by the deadline of the sandbox, which may be moved later; that of a Pod may not.
	lastGuard = 90 * 24 * time.Hour
)

// name is that of a sandbox's Pod. Names of Pods have no underscores.
func name(sandboxID string) string { return strings.ReplaceAll(strings.ToLower(sandboxID), "_", "-") }

// pod is the hardened profile: the Pod of a sandbox, with a user id. The package's tests check each field.
func (e *Engine) pod(s farm.ContainerSpec, uid int) *corev1.Pod {
	labels, _ := json.Marshal(s.Labels) // of strings
	notes := map[string]string{
		noteLabels: string(labels), noteGeneration: strconv.Itoa(max(s.Generation, 1)), noteTenant: s.Tenant, noteNode: s.Node,
	}
	if !s.Deadline.IsZero() {
		notes[noteDeadline] = strconv.FormatInt(s.Deadline.Unix(), 10)
	}
	never, restart := false, corev1.ContainerRestartPolicyAlways
	link := e.helper(containerLink, s.Agent)
	link.Command, link.Args, link.RestartPolicy = []string{farm.AgentDir + "/agent", "wait"}, nil, &restart
	link.VolumeMounts[0].ReadOnly = true
	install := e.helper(containerInstall, s.Agent)
	install.Args = []string{"install-agent", farm.AgentDir}
	runtime := cmp.Or(s.Runtime, e.ownRuntime())
	if farm.OwnKernel(runtime) {
		install.Args = append(install.Args, "--readable") // gVisor executes only what its user may read
	}
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name(s.SandboxID), Namespace: e.cfg.Namespace, Annotations: notes,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "sandfarm", labelRole: roleSandbox, labelSandbox: s.SandboxID},
		},
		Spec: corev1.PodSpec{
			SchedulingGates:               []corev1.PodSchedulingGate{{Name: gate}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         ptr(int64(lastGuard / time.Second)),
			TerminationGracePeriodSeconds: ptr(int64(killAfter)),
			AutomountServiceAccountToken:  &never,
			EnableServiceLinks:            &never, // they are variables with the addresses of all services
			Hostname:                      "sandbox",
			DNSPolicy:                     corev1.DNSNone, // what a sandbox reaches, it reaches over the agent's stream
			DNSConfig:                     &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}},
			NodeSelector:                  map[string]string{corev1.LabelArchStable: goruntime.GOARCH, corev1.LabelOSStable: "linux"},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr(true), RunAsUser: ptr(int64(uid)), RunAsGroup: ptr(int64(uid)), SeccompProfile: e.seccomp(),
			},
			InitContainers: []corev1.Container{install, link},
			Containers:     []corev1.Container{e.sandbox(s)},
			Volumes:        volumes(s),
		},
	}
	if runtime != defaultRuntime {
		p.Spec.RuntimeClassName = &runtime
	}
	if s.GPU.Wanted() {
		p.Spec.Tolerations = []corev1.Toleration{{Key: resourceGPU, Operator: corev1.TolerationOpExists}} // the taint of such machines
		if models := e.gpuModels(s.GPU.Model); s.GPU.Model != "" {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: labelGPU, Operator: corev1.NodeSelectorOpIn, Values: models}}}},
			}}}
		}
	}
	return p
}

// gpuModels are the values of labelGPU that a caller's name of a model matches.
func (e *Engine) gpuModels(name string) (values []string) {
	for _, value := range e.cfg.GPUModels {
		if (farm.GPUDevice{Model: farm.NormalGPUModel(value)}).Is(name) {
			values = append(values, value)
		}
	}
	return values
}

// sandbox is the container of the sandbox itself.
func (e *Engine) sandbox(s farm.ContainerSpec) corev1.Container {
	c := corev1.Container{
		Name: containerSandbox, Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: farm.Workspace,
		Command: literal(s.Command), Args: processLimit(s.Resources), Resources: e.requirements(s.Resources), SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{{Name: agentMount, MountPath: farm.AgentDir, ReadOnly: true}},
	}
	env := map[string]string{}
	maps.Copy(env, s.Env)
	if s.GPU.Wanted() {
		count := *resource.NewQuantity(int64(s.GPU.Count), resource.DecimalSI)
		c.Resources.Limits[resourceGPU], c.Resources.Requests[resourceGPU] = count, count
	} else { // the variable of an image or of a caller would open the devices of the machine
		env[visibleGPUs] = "void"
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: key, Value: escape(env[key])})
	}
	for _, w := range writable(s) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: w.name, MountPath: w.path})
	}
	return c
}

// helper is a container of the agent's image.
func (*Engine) helper(name, image string) corev1.Container {
	security := restricted()
	security.RunAsUser, security.RunAsGroup = ptr(int64(linkUser)), ptr(int64(linkUser))
	return corev1.Container{
		Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, SecurityContext: security,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // so that Start can say what is wrong
		Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{corev1.ResourceMemory: quantity(linkMemory), corev1.ResourceCPU: resource.MustParse("1")},
			Requests: corev1.ResourceList{corev1.ResourceMemory: quantity(linkMemory / 4), corev1.ResourceCPU: resource.MustParse("10m")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: agentMount, MountPath: farm.AgentDir}},
	}
}

// restricted is what the restricted Pod Security standard asks of a container, and a root file system that cannot be written.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr(false), Privileged: ptr(false), ReadOnlyRootFilesystem: ptr(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func (e *Engine) seccomp() *corev1.SeccompProfile {
	if e.cfg.Seccomp == "" {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &e.cfg.Seccomp}
}

// requirements are limits of memory and cores, and the requests by which the cluster places the Pod.
func (e *Engine) requirements(r farm.Resources) corev1.ResourceRequirements {
	r = r.OrDefault()
	memory, milli := int64(r.MemoryMB)<<20, int64(r.CPUs*1000)
	return corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: quantity(memory), corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)},
		Requests: corev1.ResourceList{
			corev1.ResourceMemory: quantity(share(memory, e.cfg.MemoryOvercommit)), corev1.ResourceCPU: *resource.NewMilliQuantity(share(milli, e.cfg.CPUOvercommit), resource.DecimalSI),
		},
	}
}

// processLimit is what tells the agent the limit of processes, which a Pod has not: the agent limits itself and all that it starts.
func processLimit(r farm.Resources) []string {
	return []string{"--pids", strconv.Itoa(r.OrDefault().PIDs)}
}

// share is a limit divided by how often it is promised: at most the limit, and at least 1.
func share(limit int64, overcommit float64) int64 {
	return max(int64(float64(limit)/max(overcommit, 1)), 1)
}

// place is a writable directory. All are in memory, so all count against the sandbox's limit. On the machine's disk is only the file of the
// termination message, which the kubelet does not bound (docs/kubernetes.md).
type place struct {
	name, path string
	mb         int
}

func writable(s farm.ContainerSpec) []place {
	disk := s.Resources.OrDefault().DiskMB
	list := []place{
		{"workspace", farm.Workspace, disk}, {"home", farm.HomeDir, farm.HomeFactor * disk}, {"tmp", "/tmp", disk}, {"run", farm.RunDir, farm.RunMB},
	}
	if s.GPU.Wanted() {
		list = append(list, place{"shm", "/dev/shm", farm.GPUShmMB})
	}
	return list
}

func volumes(s farm.ContainerSpec) []corev1.Volume {
	list := []corev1.Volume{{Name: agentMount, VolumeSource: emptyDir("", agentSize)}}
	for _, w := range writable(s) {
		list = append(list, corev1.Volume{Name: w.name, VolumeSource: emptyDir(corev1.StorageMediumMemory, int64(w.mb)<<20)})
	}
	return list
}

func emptyDir(medium corev1.StorageMedium, size int64) corev1.VolumeSource {
	limit := quantity(size)
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium, SizeLimit: &limit}}
}

// literal escapes what the kubelet would replace in arguments.
func literal(arguments []string) []string {
	list := make([]string, len(arguments))
	for i, a := range arguments {
		list[i] = escape(a)
	}
	return list
}

// escape makes the kubelet leave a text as it is: it replaces $(NAME), and two dollar signs by one.
func escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func ptr[T any](v T) *T { return &v }

// changed reports what the cluster has changed in a Pod of ours: webhooks and limit ranges may do so, and then the Pod is not what callers were
// promised.
func changed(want, got *corev1.Pod) error {
	what := ""
	differs := func(field string, want, got any) {
		if what == "" && !equality.Semantic.DeepEqual(want, got) {
			what = field
		}
	}
	differs("spec.containers", names(want.Spec.Containers), names(got.Spec.Containers))
	differs("spec.initContainers", names(want.Spec.InitContainers), names(got.Spec.InitContainers))
	differs("spec.runtimeClassName", want.Spec.RuntimeClassName, got.Spec.RuntimeClassName)
	differs("spec.securityContext", want.Spec.SecurityContext, got.Spec.SecurityContext)
	differs("spec.automountServiceAccountToken", want.Spec.AutomountServiceAccountToken, got.Spec.AutomountServiceAccountToken)
	differs("spec.dnsConfig", want.Spec.DNSConfig, got.Spec.DNSConfig)
	differs("spec.hostNetwork, hostPID or hostIPC", false, got.Spec.HostNetwork || got.Spec.HostPID || got.Spec.HostIPC)
	differs("spec.volumes", want.Spec.Volumes, got.Spec.Volumes)
	if what == "" {
		all := slices.Concat(got.Spec.InitContainers, got.Spec.Containers)
		for i, w := range slices.Concat(want.Spec.InitContainers, want.Spec.Containers) {
			g := all[i]
			differs(w.Name+": image", w.Image, g.Image)
			differs(w.Name+": command", slices.Concat(w.Command, w.Args), slices.Concat(g.Command, g.Args))
			differs(w.Name+": env", w.Env, g.Env)
			differs(w.Name+": securityContext", w.SecurityContext, g.SecurityContext)
			differs(w.Name+": volumeMounts", w.VolumeMounts, g.VolumeMounts)
			differs(w.Name+": resources.limits", ours(w.Resources.Limits, g.Resources.Limits), w.Resources.Limits)
			differs(w.Name+": resources.requests", ours(w.Resources.Requests, g.Resources.Requests), w.Resources.Requests)
		}
	}
	if what == "" {
		return nil
	}
	return farm.Conflictf("The cluster changes the Pods of sandboxes (%s), by a webhook or a LimitRange of the namespace %s. Take the namespace out of it.", what, want.Namespace)
}

func names(list []corev1.Container) (all []string) {
	for _, c := range list {
		all = append(all, c.Name)
	}
	return all
}

// ours are those resources that we set: a LimitRange may add others, such as ephemeral storage.
func ours(want, got corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for key := range want {
		if value, ok := got[key]; ok {
			list[key] = value
		}
	}
	return list
}

// describe is what a Pod says about its sandbox's container.
func describe(p *corev1.Pod) farm.Container {
	notes := p.Annotations
	c := farm.Container{
		ID: containerID(p), SandboxID: p.Labels[labelSandbox], Generation: generation(p), Tenant: notes[noteTenant], Node: notes[noteNode],
		Labels: map[string]string{},
	}
	_ = json.Unmarshal([]byte(notes[noteLabels]), &c.Labels) // a Pod of ours has it
	if seconds, err := strconv.ParseInt(notes[noteDeadline], 10, 64); err == nil {
		c.Deadline = time.Unix(seconds, 0)
	}
	c.Running = state(p).Running != nil && !ended(p) // a kubelet that was away may not have said how the container ended
	return c
}

// inspect is describe, with the fields of a single container.
func inspect(p *corev1.Pod) farm.Container {
	c := describe(p)
	c.Runtime = defaultRuntime
	if p.Spec.RuntimeClassName != nil {
		c.Runtime = *p.Spec.RuntimeClassName
	}
	for _, one := range p.Spec.Containers {
		if one.Name == containerSandbox {
			limits := one.Resources.Limits
			c.Resources = farm.Resources{MemoryMB: int(limits.Memory().Value() >> 20), CPUs: float64(limits.Cpu().MilliValue()) / 1000}
		}
	}
	if end := state(p).Terminated; end != nil {
		c.OOMKilled, c.ExitCode = end.Reason == "OOMKilled", int(end.ExitCode)
	}
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
		c.Reason = "the cluster has ended its Pod: " + p.Status.Reason + ": " + shorten(p.Status.Message)
	}
	return c
}

// state is that of the sandbox's container; zero if the kubelet has not said any.
func state(p *corev1.Pod) corev1.ContainerState {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == containerSandbox {
			return s.State
		}
	}
	return corev1.ContainerState{}
}

// ended reports whether a Pod runs no more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// containerID names a Pod for good: its name alone is that of its successors, too.
func containerID(p *corev1.Pod) string { return p.Name + "/" + string(p.UID) }

// generation is that of the sandbox that a Pod was made for.
func generation(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Annotations[noteGeneration])
	if err != nil {
		return 1
	}
	return n
}
