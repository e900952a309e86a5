package verbs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// drainEvery is how often "worker drain --wait" asks how far the drain is.
const drainEvery = 2 * time.Second

// workerVerbs are the verbs below "worker", which itself runs a worker where that is possible.
func (a *app) workerVerbs() []*cobra.Command {
	ls := a.workers()
	ls.Use, ls.Aliases, ls.Example = "ls", []string{"list"}, "  sandfarm worker ls"
	all := []*cobra.Command{ls, a.workerDrain(), a.workerUndrain()}
	for _, c := range all {
		a.admin(c)
	}
	return all
}

// worker is the group of workerVerbs.
func (a *app) worker() *cobra.Command {
	return asGroup(&cobra.Command{Use: "worker", Short: "List and drain workers", Example: "  sandfarm worker ls"}, a.workerVerbs()...)
}

func (a *app) workerDrain() *cobra.Command {
	var idle string
	var wait bool
	c := a.verb(&cobra.Command{
		Use: "drain NODE", Short: "Let a node take no new sandboxes, before it is restarted or removed (operators only)",
		Long: `Let a node take no new sandboxes. NODE is the node's id, or the id or the host of a worker on it. Creations that wait go to other
nodes; the node's sandboxes continue until they are closed or expire, and --wait waits for the last of them. --idle ends it sooner for
those that were not used for half a minute: hibernate stores those that can on the node's own disk, close closes them. "sandfarm worker ls" says how far it is:

  draining    sandboxes or jobs are left
  hibernated  only hibernated sandboxes are left: the host may be restarted, but not removed
  drained     nothing is left: the host may be removed

The drain ends with "sandfarm worker undrain", or when the node has had no worker for scheduler.node_timeout.`,
		Example: `  sandfarm worker drain gpu-host-3 --wait
  sandfarm worker drain gpu-host-3 --idle hibernate`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(1, 1, "the node"), func(ctx context.Context, c *client.Client, args []string) error {
		node, err := nodeNamed(ctx, c, args[0])
		if err != nil {
			return err
		}
		d, err := c.DrainNode(ctx, node, wire.DrainRequest{Idle: &idle})
		if err == nil && wait {
			d, err = a.awaitDrain(ctx, c, d)
		}
		if err != nil {
			return err
		}
		if a.json {
			return a.print(d)
		}
		_, err = fmt.Fprintln(a.Out, d.Node+": "+drainText(d))
		return err
	})
	c.Flags().StringVar(&idle, "idle", "keep", "what becomes of idle sandboxes: keep, hibernate or close")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the host may be restarted or removed, which may be when the last sandbox expires")
	return c
}

func (a *app) workerUndrain() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "undrain NODE", Short: "Let a drained node take new sandboxes again (operators only)",
		Example:           "  sandfarm worker undrain gpu-host-3",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(1, 1, "the node"), func(ctx context.Context, c *client.Client, args []string) error {
		node, err := nodeNamed(ctx, c, args[0])
		if err != nil {
			return err
		}
		if err := c.EndNodeDrain(ctx, node); err != nil {
			return err
		}
		fmt.Fprintln(a.Err, printable(node+" takes new sandboxes again"))
		return nil
	})
}

// awaitDrain waits until nothing runs on a drained node.
func (a *app) awaitDrain(ctx context.Context, c *client.Client, d wire.Drain) (wire.Drain, error) {
	if d.State == "draining" {
		how := "; --idle close closes those that are not in use sooner"
		if d.Idle == "close" {
			how = ""
		}
		fmt.Fprintln(a.Err, "waiting until the node's last sandbox is closed or expires"+how)
	}
	last := ""
	for d.State == "draining" {
		if text := drainText(d); text != last {
			fmt.Fprintln(a.Err, text)
			last = text
		}
		timer := time.NewTimer(drainEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return d, context.Cause(ctx)
		case <-timer.C:
		}
		var err error
		if d, err = c.NodeDrain(ctx, d.Node); err != nil {
			return d, err
		}
	}
	return d, nil
}

// nodeNamed finds the node that an operator means: by its id, or by the id or the host of a worker. A name that fits nothing is returned as it is.
func nodeNamed(ctx context.Context, c *client.Client, name string) (string, error) {
	workers, err := c.Workers(ctx)
	if err != nil {
		return "", err
	}
	nodes := map[string]bool{}
	for _, w := range workers {
		switch name {
		case w.Node:
			return name, nil
		case w.ID, w.Host:
			nodes[w.Node] = true
		}
	}
	found := slices.Sorted(maps.Keys(nodes))
	switch len(found) {
	case 0:
		return name, nil
	case 1:
		return found[0], nil
	default:
		return "", usagef("%q has workers of %d nodes: name the node (%s)", name, len(found), strings.Join(found, ", "))
	}
}

// workerState says in one line what keeps a worker from new sandboxes; "ok": nothing.
func workerState(w wire.Worker) string {
	if w.Problem == "" && w.Drain != nil {
		return drainText(*w.Drain)
	}
	return cmp.Or(w.Problem, "ok")
}

// drainText says in one line how far a drain is.
func drainText(d wire.Drain) string {
	if d.State == "drained" {
		return "drained"
	}
	text := fmt.Sprintf("%s (sandboxes: %d, jobs: %d)", d.State, d.Sandboxes, d.Jobs)
	if d.EndsBy != nil {
		text += ", the last expires " + d.EndsBy.Local().Format(time.DateTime)
	}
	return text
}
