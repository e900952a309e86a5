package verbs

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandfarm/sandfarm/api/wire"
)

// specFlags describe a new sandbox.
type specFlags struct {
	image, network string
	runtime        string
	memory, disk   string
	cpus           float64
	pids, gpu      int
	gpuModel       string
	hosts, hidden  []string
	set            *pflag.FlagSet
	registered     []string
}

func (f *specFlags) add(flags *pflag.FlagSet) {
	before := map[string]bool{}
	flags.VisitAll(func(flag *pflag.Flag) { before[flag.Name] = true })
	flags.StringVar(&f.image, "image", "", "image of the sandbox (\"sandfarm image ls\" lists them)")
	flags.StringVar(&f.memory, "memory", "", "memory, such as 512m or 2g")
	flags.Float64Var(&f.cpus, "cpus", 0, "cores, such as 0.5 or 2")
	flags.IntVar(&f.pids, "pids", 0, "maximum number of processes and threads")
	flags.StringVar(&f.disk, "disk", "", "size of the workspace, such as 1g")
	flags.StringVar(&f.network, "network", "", "network of the sandbox: none, packages, or allowlist where the operator has set egress.allow")
	flags.StringArrayVar(&f.hosts, "allow-host", nil, "host that --network allowlist reaches, such as api.github.com or '*.example.com:8443' (repeatable)")
	flags.StringArrayVar(&f.hidden, "secret", nil, "secret NAME=HOST:HEADER, such as TOKEN=api.github.com:'Authorization: Bearer': a header that the farm adds to requests for the host; code finds a placeholder in NAME. The value is that of the variable NAME here, or the content of FILE with NAME=HOST:HEADER@FILE (repeatable)")
	flags.StringVar(&f.runtime, "runtime", "", "OCI runtime of the sandbox, such as runsc (gVisor), within what the operator allows")
	flags.IntVar(&f.gpu, "gpu", 0, "number of GPUs")
	flags.StringVar(&f.gpuModel, "gpu-model", "", "model of the GPUs, such as a100; one GPU without --gpu")
	f.set = flags
	flags.VisitAll(func(flag *pflag.Flag) {
		if !before[flag.Name] {
			f.registered = append(f.registered, flag.Name)
		}
	})
}

// used reports whether any of the flags was given.
func (f *specFlags) used() bool { return len(f.given()) > 0 }

// names lists the flags that were given.
func (f *specFlags) names() string { return strings.Join(f.given(), ", ") }

func (f *specFlags) given() []string {
	var given []string
	for _, name := range f.registered {
		if f.set.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	return given
}

func (f *specFlags) resources() (*wire.ResourcesRequest, error) {
	memory, err := megabytes("memory", f.memory)
	if err != nil {
		return nil, err
	}
	disk, err := megabytes("disk", f.disk)
	if err != nil {
		return nil, err
	}
	out := wire.ResourcesRequest{MemoryMB: memory, DiskMB: disk}
	if f.set.Changed("cpus") {
		out.CPUs = &f.cpus
	}
	if f.set.Changed("pids") {
		out.PIDs = &f.pids
	}
	if out == (wire.ResourcesRequest{}) {
		return nil, nil
	}
	return &out, nil
}

func (f *specFlags) gpus() *wire.GPURequest {
	request := wire.GPURequest{Model: f.gpuModel}
	if f.set.Changed("gpu") {
		request.Count = &f.gpu
	}
	if request == (wire.GPURequest{}) {
		return nil
	}
	return &request
}
