package placement

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxGPUMemoryMB is more than any device has, to catch mistakes such as bytes in place of MiB.
const maxGPUMemoryMB = 100 << 20

// listedGPUs reads worker.gpus. A list in the environment is one text with commas, so an item may be any part of a device's
// description; "model=" begins a description. listed is false when the setting is empty and the driver is to be asked.
func listedGPUs(items []string) (devices []farm.GPUDevice, listed bool, err error) {
	if len(items) == 0 {
		return nil, false, nil
	}
	text := strings.Join(items, ",")
	if text == "none" {
		return nil, true, nil
	}
	var groups []gpuGroup
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "model" {
			groups = append(groups, gpuGroup{count: 1})
		}
		if len(groups) == 0 {
			return nil, true, fmt.Errorf("worker.gpus begins with %q; allowed: none, or model= and then memory_mb=, count= and id= of each device", name)
		}
		if err := groups[len(groups)-1].set(name, value); err != nil {
			return nil, true, err
		}
	}
	seen := map[string]bool{}
	for _, g := range groups {
		for range g.count {
			d := g.device
			if d.ID == "" {
				d.ID = strconv.Itoa(len(devices))
			}
			if seen[d.ID] {
				return nil, true, fmt.Errorf("worker.gpus names the device %s twice", d.ID)
			}
			seen[d.ID], devices = true, append(devices, d)
		}
	}
	if len(devices) > farm.MaxGPUs {
		return nil, true, fmt.Errorf("worker.gpus lists %d devices; at most %d are allowed", len(devices), farm.MaxGPUs)
	}
	return devices, true, nil
}

// gpuGroup describes one or more devices of one kind.
type gpuGroup struct {
	device farm.GPUDevice
	count  int
}

// gpuID matches what an engine accepts as a device: an index, or the UUID of a device or of a MIG instance.
var gpuID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:/._-]{0,127}$`)

func (g *gpuGroup) set(name, value string) (err error) {
	number := func(most int) int {
		n, perr := strconv.Atoi(value)
		if perr != nil || n < 1 || n > most {
			err = fmt.Errorf("worker.gpus: %s is %q; 1 to %d are allowed", name, value, most)
		}
		return n
	}
	switch name {
	case "model":
		if g.device.Model = farm.NormalGPUModel(value); g.device.Model == "" || len(g.device.Model) > farm.MaxGPUModelBytes {
			return fmt.Errorf("worker.gpus: %q is not a model; write it as in model=A100", value)
		}
	case "memory_mb":
		g.device.MemoryMB = number(maxGPUMemoryMB)
	case "count":
		g.count = number(farm.MaxGPUs)
	case "id":
		if g.device.ID = value; !gpuID.MatchString(value) {
			return fmt.Errorf("worker.gpus: %q is not an id of a device; use the number or the UUID that nvidia-smi shows", value)
		}
	default:
		return fmt.Errorf("worker.gpus holds %q; allowed: none, or model=, memory_mb=, count= and id= of each device", name)
	}
	return err
}
