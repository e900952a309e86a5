package verbs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// egressEvery is how often sandbox egress --follow reads.
const egressEvery = time.Second

func (a *app) sandboxAllow() *cobra.Command {
	var none bool
	c := a.verb(&cobra.Command{
		Use: "allow ID HOST… | allow ID --none", Short: "Replace the hosts that a sandbox with the network allowlist reaches",
		Long: `Replace the hosts that a sandbox with the network allowlist reaches, while it runs. Open connections that the new ones do not allow
end. With --none it reaches only the package indexes.`,
		Example: `  sandfarm sandbox allow sbx_… api.github.com '*.githubusercontent.com' 'GET,HEAD data.example.com'
  sandfarm sandbox allow sbx_… --none`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, -1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		hosts := append([]string{}, args[1:]...)
		if none == (len(hosts) > 0) {
			return usagef("name the hosts that %s may reach from now on, or give --none: then it reaches only the package indexes", args[0])
		}
		s, err := c.Update(ctx, args[0], wire.UpdateRequest{AllowHosts: &hosts})
		if err != nil {
			return err
		}
		return a.showSandbox(s)
	})
	c.Flags().BoolVar(&none, "none", false, "allow no hosts")
	return c
}

func (a *app) sandboxEgress() *cobra.Command {
	var live bool
	c := a.verb(&cobra.Command{
		Use: "egress ID", Short: "Show what a sandbox with the network allowlist connected to",
		Long: `Show the connections that a sandbox with the network allowlist asked for, the oldest first: when, what became of it, the host, how
many bytes went out and came back, how long it lasted, and why it was denied or failed. An open connection is shown when it ends.`,
		Example: `  sandfarm sandbox egress sbx_…
  sandfarm sandbox egress sbx_… --follow --json`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		after, told := "", false
		for {
			for e, err := range c.Egress(ctx, args[0], after) {
				if err == nil {
					err = a.egressLine(e)
				}
				if err != nil {
					return err
				}
				after = e.ID
			}
			if after == "" && !told {
				told = true
				a.noteNoLog(ctx, c, args[0])
			}
			if !live {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(egressEvery):
			}
		}
	})
	c.Flags().BoolVarP(&live, "follow", "f", false, "continue with new connections until interrupted")
	return c
}

// noteNoLog says that the network of a sandbox has no log, if it has none.
func (a *app) noteNoLog(ctx context.Context, c *client.Client, id string) {
	if s, err := c.Sandbox(ctx, id); err == nil && s.Network != "allowlist" {
		fmt.Fprintf(a.Err, "note: %s has the network %s; only the network allowlist has a log\n", id, s.Network)
	}
}

// egressLine prints an entry on a line.
func (a *app) egressLine(e wire.EgressEntry) error {
	if a.json {
		return a.encoder().Encode(e)
	}
	line := fmt.Sprintf("%s %-7s %s %s:%d sent %d received %d %s", e.At.UTC().Format("2006-01-02T15:04:05Z"), e.Verdict, cell(e.Method), cell(e.Host), e.Port,
		e.Sent, e.Received, time.Duration(e.DurationMS)*time.Millisecond)
	if e.Reason != "" {
		line += " (" + cell(e.Reason) + ")"
	}
	if len(e.Secrets) > 0 {
		line += " with " + cell(strings.Join(e.Secrets, ", "))
	}
	if e.Missed > 0 {
		line += fmt.Sprintf(" (%d connections before it are not in the log)", e.Missed)
	}
	_, err := fmt.Fprintln(a.Out, line)
	return err
}
