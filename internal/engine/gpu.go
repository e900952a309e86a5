package engine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Drivers that give containers GPUs.
const (
	DriverNvidia = "nvidia" // the engine calls nvidia-container-runtime-hook, which was on its PATH when it started
	DriverCDI    = "cdi"    // the engine reads descriptions of devices, such as /etc/cdi/nvidia.yaml
)

// cdiKind is the prefix of the names that NVIDIA's generator gives to GPUs.
const cdiKind = "nvidia.com/gpu="

// visibleDevices is the variable that NVIDIA's runtime reads for the devices of a container. Many CUDA images set it to "all".
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// noDevices is its value for no devices, and for devices that come from CDI.
const noDevices = "void"

// GPUSupport describes how an engine gives containers GPUs.
type GPUSupport struct {
	Driver string   // DriverNvidia or DriverCDI; empty: it cannot
	Names  []string // CDI: the devices that the engine knows, such as "nvidia.com/gpu=0"
}

// GPUSupport probes whether the engine can give containers GPUs: it starts a container from an empty image that requests the driver but
// no device.
func (e *Engine) GPUSupport(ctx context.Context) (s GPUSupport, err error) {
	nvidia, err := e.tryNvidia(ctx)
	if err != nil || nvidia {
		return GPUSupport{Driver: map[bool]string{true: DriverNvidia}[nvidia]}, err
	}
	info, err := e.systemInfo(ctx)
	if err != nil {
		return s, err
	}
	for _, d := range info.DiscoveredDevices {
		if d.Source == DriverCDI && strings.HasPrefix(d.ID, cdiKind) {
			s.Driver, s.Names = DriverCDI, append(s.Names, d.ID)
		}
	}
	return s, nil
}

// OfferGPUs returns those of these devices that the engine can give to containers, and by which driver; "" if it has none. index is the number
// of a device, by id. Create gives a container the devices that are offered.
func (e *Engine) OfferGPUs(ctx context.Context, devices []farm.GPUDevice, index map[string]string) ([]farm.GPUDevice, string, error) {
	support, err := e.GPUSupport(ctx)
	if err != nil {
		return nil, "", err
	}
	devices, names := support.offer(devices, index)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cdi = names
	return devices, support.Driver, nil
}

// offer returns the devices that can be given, and their names in CDI; nil: another driver gives them.
func (s GPUSupport) offer(devices []farm.GPUDevice, index map[string]string) (offered []farm.GPUDevice, names map[string]string) {
	switch s.Driver {
	case DriverNvidia:
		return devices, nil
	case DriverCDI:
		names = map[string]string{}
		for _, d := range devices {
			if name := s.cdiName(d.ID, index[d.ID]); name != "" {
				offered, names[d.ID] = append(offered, d), name
			}
		}
	}
	return offered, names
}

// cdiNames are the names of devices in CDI, as OfferGPUs found them; nil if another driver gives them.
func (e *Engine) cdiNames(devices []string) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range devices {
		if name := e.cdi[id]; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// cdiName returns the CDI name of a device: the first of these names that CDI knows; empty if CDI knows none.
func (s GPUSupport) cdiName(names ...string) string {
	for _, name := range names {
		if name != "" && slices.Contains(s.Names, cdiKind+name) {
			return cdiKind + name
		}
	}
	return ""
}

func (e *Engine) tryNvidia(ctx context.Context) (has bool, err error) {
	ref := e.namespace + "/probe:" + strings.ToLower(farm.NewID(""))
	if err := e.Import(ctx, ref, bytes.NewReader(make([]byte, 1024))); err != nil { // a tar without members
		return false, err
	}
	defer func() { err = errors.Join(err, e.RemoveImage(context.WithoutCancel(ctx), ref)) }()
	id, err := e.createHelper(ctx, "", e.nvidiaHelper(ref))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), id)) }()
	err = e.Start(ctx, id)
	switch {
	case err == nil, strings.Contains(err.Error(), "/not-there"): // the start failed only at the missing program
		return true, nil
	case cerrdefs.IsUnavailable(err), farm.CodeOf(err) == farm.CodeUnavailable, ctx.Err() != nil:
		return false, err
	default:
		return false, nil // "could not select device driver", which each version words differently
	}
}

// deviceRequests requests a sandbox's GPUs, and no others.
func (s *sandboxSpec) deviceRequests() []container.DeviceRequest {
	switch {
	case len(s.GPUs) == 0:
		return nil
	case len(s.CDI) > 0:
		return []container.DeviceRequest{{Driver: DriverCDI, DeviceIDs: s.CDI}}
	default:
		return []container.DeviceRequest{{Driver: DriverNvidia, DeviceIDs: s.GPUs, Capabilities: [][]string{{"gpu", "compute", "utility"}}}}
	}
}

// gpuEnv sets the variable of NVIDIA's runtime, so that neither the caller nor the image can choose devices by it. present says that the
// engine has that runtime.
func (s *sandboxSpec) gpuEnv(env map[string]string, present bool) {
	switch {
	case len(s.GPUs) > 0 && len(s.CDI) == 0:
		env[visibleDevices] = strings.Join(s.GPUs, ",")
	case len(s.GPUs) > 0, present:
		env[visibleDevices] = noDevices
	}
}
