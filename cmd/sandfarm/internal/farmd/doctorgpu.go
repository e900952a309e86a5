package farmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// doctorGPU checks which GPUs this host has, and whether the engine can pass them to sandboxes.
func doctorGPU(ctx context.Context, s *Settings) []Finding {
	if s.Engine.Kind == kindKubernetes { // they are the cluster's, which gives them out
		return nil
	}
	ctx, done := context.WithTimeout(ctx, 3*doctorTimeout)
	defer done()
	devices, err := placement.GPUDevices(ctx)
	switch {
	case err != nil:
		return []Finding{{What: "GPU", Status: StatusNote, Found: err.Error(), Advice: "Repair the NVIDIA driver until nvidia-smi lists the devices, or set worker.gpus to none."}}
	case len(devices) == 0 && len(s.Worker.GPUs) == 0:
		return []Finding{{What: "GPU", Status: StatusOK, Found: "none"}}
	}
	found := make([]string, 0, len(devices))
	cut := false
	for _, d := range devices {
		found = append(found, fmt.Sprintf("%s, %d MiB (model %s)", d.Name, d.MemoryMB, d.Model))
		cut = cut || d.MIG
	}
	out := []Finding{{What: "GPU", Status: StatusOK, Found: strings.Join(found, "; ")}}
	if len(s.Worker.GPUs) > 0 {
		out[0].Found = "from worker.gpus: " + strings.Join(s.Worker.GPUs, ", ")
	}
	if cut && len(s.Worker.GPUs) == 0 {
		out[0].Status, out[0].Advice = StatusNote, "Devices with MIG instances are not used: list the instances in worker.gpus (docs/gpu.md)."
	}
	return append(out, doctorGPUDriver(ctx, s))
}

func doctorGPUDriver(ctx context.Context, s *Settings) Finding {
	f := Finding{What: "GPU driver of the engine", Status: StatusNote}
	e, err := s.engine(Logger(s))
	if err != nil {
		f.Found, f.Advice = err.Error(), "Correct engine.host."
		return f
	}
	defer func() { _ = e.Close() }()
	support, err := e.GPUSupport(ctx)
	switch {
	case err != nil:
		f.Found, f.Advice = "the engine does not answer", "Start it."
	case support.Driver == "":
		f.Found = "none: sandboxes get no GPU"
		f.Advice = "Install nvidia-container-toolkit and restart the engine (its hook must be on the engine's PATH), or describe the devices by CDI: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (docs/gpu.md)."
	case support.Driver == engine.DriverCDI:
		f.Status, f.Found = StatusOK, "CDI: "+strings.Join(support.Names, ", ")
	default:
		f.Status, f.Found = StatusOK, support.Driver
	}
	return f
}
