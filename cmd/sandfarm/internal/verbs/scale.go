package verbs

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// scale says how many nodes the farm needs.
func (a *app) scale() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "scale", Short: "Say how many nodes the farm needs for what waits (operators only)",
		Long: `Say how many nodes of each kind the farm needs: nodes without GPUs, and nodes with GPUs by model. WANTED nodes would take every
create that has waited for 5 seconds, without those that are idle, which could be removed. UNFIT creates are larger than every node of the kind.
RESERVED is what the sandboxes may use together, of what the nodes give to sandboxes.`,
		Example: `  sandfarm scale
  sandfarm scale --json | jq -r '.items[] | select(.kind == "cpu") | .wanted'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := c.Scale(ctx)
		if err != nil || a.json {
			return a.list(found, err)
		}
		rows := make([][]string, len(found))
		for i, n := range found {
			rows[i] = []string{
				n.Kind, n.Model, fmt.Sprint(n.Nodes), fmt.Sprint(n.Wanted), fmt.Sprint(n.IdleNodes), fmt.Sprint(n.Draining), fmt.Sprint(n.Failing),
				fmt.Sprint(n.Waiting), age(n.OldestSeconds), fmt.Sprint(n.Unfit), memory(n.Promised.MemoryMB, n.Capacity.MemoryMB), cores(n.Promised.CPUs, n.Capacity.CPUs),
			}
		}
		return table(a.Out, []string{"KIND", "MODEL", "NODES", "WANTED", "IDLE", "DRAINING", "FAILING", "WAITING", "OLDEST", "UNFIT", "RESERVED MEMORY", "RESERVED CORES"}, rows)
	})
}
