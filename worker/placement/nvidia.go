package placement

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// gpuTimeout bounds a query: the driver wakes every device, which takes seconds per device without persistence mode.
const gpuTimeout = time.Minute

// maxGPUOutput bounds the output, well above that of any machine.
const maxGPUOutput = 1 << 20

// GPUDevice is a GPU of this machine.
type GPUDevice struct {
	farm.GPUDevice        // the id is the driver's UUID
	Index          string // the number of the device, which may change with a restart
	Name           string // the driver's name, such as "NVIDIA A100-SXM4-80GB"
	MIG            bool   // the device is split into instances, which must be listed in worker.gpus
}

// gpuQuery lists the fields that nvidia-smi prints, in this order.
const gpuQuery = "--query-gpu=index,uuid,name,memory.total,mig.mode.current"

// GPUDevices lists the GPUs of this machine. A machine without nvidia-smi has none, which is not an error.
func GPUDevices(ctx context.Context) ([]GPUDevice, error) { return devices(ctx, "nvidia-smi") }

func devices(ctx context.Context, program string) ([]GPUDevice, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for nvidia-smi: %w", err)
	}
	ctx, done := context.WithTimeout(ctx, gpuTimeout)
	defer done()
	command := exec.CommandContext(ctx, path, gpuQuery, "--format=csv,noheader,nounits") //nolint:gosec // found on the PATH
	var stderr bytes.Buffer
	command.Stderr = &stderr
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		text := strings.Join(strings.Fields(string(out[:min(len(out), 300)])+" "+stderr.String()[:min(stderr.Len(), 300)]), " ")
		return nil, fmt.Errorf("ask nvidia-smi for devices: %w: %s", err, text)
	}
	return parseDevices(out[:min(len(out), maxGPUOutput)])
}

// parseDevices parses nvidia-smi's lines, such as "0, GPU-8f1c…, NVIDIA A100-SXM4-80GB, 81920, Disabled".
func parseDevices(out []byte) ([]GPUDevice, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, 5, true
	var list []GPUDevice
	for {
		line, err := r.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read nvidia-smi: %w", err)
		}
		d := GPUDevice{Index: line[0], Name: strings.TrimSpace(line[2]), MIG: strings.TrimSpace(line[4]) == "Enabled"}
		d.ID, d.Model = strings.TrimSpace(line[1]), farm.NormalGPUModel(line[2])
		d.MemoryMB, _ = strconv.Atoi(strings.TrimSpace(line[3])) // devices that share the machine's memory print "[N/A]"
		if !strings.HasPrefix(d.ID, "GPU-") || strings.ContainsAny(d.ID, ", ") {
			return nil, fmt.Errorf("read nvidia-smi: %q is not the UUID of a device", d.ID)
		}
		list = append(list, d)
	}
}
