package jupyter

import (
	"github.com/sandfarm/sandfarm/internal/farm"
)

// kernelOf is the id of the kernel of a sandbox: Jupyter's own server takes nothing but UUIDs in addresses.
func kernelOf(sandbox string) string { return farm.UUIDOf(farm.SandboxPrefix, sandbox) }

// sandboxOf is the sandbox of a kernel. An invalid id is not found.
func sandboxOf(kernel string) (string, error) {
	id := farm.FromUUID(farm.SandboxPrefix, kernel)
	if id == "" {
		return "", noKernel(kernel)
	}
	return id, nil
}

func noKernel(id string) error { return farm.NotFoundf("There is no kernel %q.", farm.Shorten(id)) }
