package verbs

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// kernelOptions say what the sandboxes of kernels are like.
type kernelOptions struct {
	sandbox, network, memory, idle string
	packages                       []string
}

// kernelFlags adds the flags of kernelOptions to a command.
func (a *app) kernelFlags(c *cobra.Command, o *kernelOptions) {
	f := c.Flags()
	f.StringVar(&o.sandbox, "sandbox", "", "`ID` of a sandbox that all notebooks use")
	f.StringSliceVar(&o.packages, "packages", nil, "`PACKAGES` to install in each new sandbox first")
	f.StringVar(&o.network, "network", "", "network of new sandboxes: none, packages, or allowlist where the operator has set egress.allow")
	f.StringVar(&o.memory, "memory", "", "memory of new sandboxes, such as 512m or 2g")
	f.StringVar(&o.idle, "idle", "", "time to live of new sandboxes after their last use, such as 10m; 0 for no limit")
	completeChoices(c, "network", "none", "packages", "allowlist")
	a.complete(c, "sandbox", a.sandboxIDs)
}

// env are the variables by which clients of Jupyter tell the farm (docs/jupyter.md).
func (o *kernelOptions) env() (map[string]string, error) {
	memory, err := megabytes("memory", o.memory)
	if err != nil {
		return nil, err
	}
	idle, err := seconds("idle", o.idle)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, value := range map[string]string{
		"KERNEL_SANDBOX": o.sandbox, "KERNEL_NETWORK": o.network, "KERNEL_PACKAGES": strings.Join(o.packages, " "), "KERNEL_MEMORY_MB": number(memory),
		"KERNEL_IDLE_SECONDS": number(idle),
	} {
		if value != "" {
			out[name] = value
		}
	}
	return out, nil
}

// number is a number as text; "": there is none.
func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}
