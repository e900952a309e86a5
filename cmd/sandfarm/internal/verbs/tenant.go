package verbs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) tenant() *cobra.Command {
	return a.admin(asGroup(&cobra.Command{
		Use: "tenant", Aliases: []string{"tenants"}, Short: "Set and show the quotas, runtimes and hosts of tenants (operators only)",
		Long: `A quota bounds what a tenant may have at once. New work beyond it is refused, or waits (max-running); what is in use is never
ended. The defaults are the settings quotas.*, engine.runtimes and egress.allow. The key needs the scope admin.`,
		Example: `  sandfarm tenant set acme --max-sandboxes 20 --max-memory-mb 65536
  sandfarm tenant show acme
  sandfarm tenant ls --local`,
	}, a.tenantSet(), a.tenantShow(), a.tenantLs()))
}

// quotaFlag is a flag that sets a quota: a number, or "default", which leaves it nil.
type quotaFlag[N int | float64] struct {
	to    **N
	parse func(string) (N, error)
}

// String implements pflag.Value.
func (f *quotaFlag[N]) String() string {
	if f.to == nil || *f.to == nil {
		return ""
	}
	return fmt.Sprint(**f.to)
}

// Type implements pflag.Value.
func (f *quotaFlag[N]) Type() string { return "number|default" }

// Set implements pflag.Value.
func (f *quotaFlag[N]) Set(text string) error {
	if text == "default" {
		*f.to = nil
		return nil
	}
	n, err := f.parse(text)
	if err != nil {
		return fmt.Errorf("%q is neither a number nor default", text)
	}
	*f.to = &n
	return nil
}

// listFlag is a flag that sets a list: names with commas between them, "default", which leaves it nil, or "none" where a list may be empty.
type listFlag struct {
	to    **[]string
	empty bool // "none" is allowed
}

// String implements pflag.Value.
func (f *listFlag) String() string {
	if f.to == nil || *f.to == nil {
		return ""
	}
	if len(**f.to) == 0 {
		return "none"
	}
	return strings.Join(**f.to, ",")
}

// Type implements pflag.Value.
func (f *listFlag) Type() string {
	if f.empty {
		return "names|none|default"
	}
	return "names|default"
}

// Set implements pflag.Value.
func (f *listFlag) Set(text string) error {
	if text == "default" {
		*f.to = nil
		return nil
	}
	list := strings.Split(text, ",")
	if f.empty && text == "none" {
		list = []string{}
	}
	*f.to = &list
	return nil
}

// quotaFlags adds a flag for each setting of a tenant. The returned function says what those that were given change.
func quotaFlags(flags *pflag.FlagSet) func() wire.TenantChange {
	var r wire.TenantRequest
	names := []string{}
	whole := func(name, help string, to **int) {
		flags.Var(&quotaFlag[int]{to: to, parse: strconv.Atoi}, name, help)
		names = append(names, name)
	}
	whole("max-sandboxes", "open sandboxes; -1: no bound", &r.MaxSandboxes)
	whole("max-memory-mb", "MiB of memory of open sandboxes", &r.MaxMemoryMB)
	flags.Var(&quotaFlag[float64]{to: &r.MaxCPUs, parse: func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }}, "max-cpus", "cores of open sandboxes")
	names = append(names, "max-cpus")
	whole("max-gpus", "GPUs of open sandboxes", &r.MaxGPUs)
	whole("max-running", "jobs that run at once; more stay queued", &r.MaxRunning)
	whole("max-queued", "unfinished jobs", &r.MaxQueued)
	whole("max-stored-mb", "MiB of artifacts; files beyond it stay in the sandbox", &r.MaxStoredMB)
	whole("requests-per-minute", "API requests in a minute", &r.RequestsPerMinute)
	whole("max-connections", "API requests that are answered at once", &r.MaxConnections)
	flags.Var(&listFlag{to: &r.Runtimes}, "runtimes", "OCI runtimes that its sandboxes may have, the default first, such as runsc or runsc,runc; default: those of the farm")
	flags.Var(&listFlag{to: &r.AllowHosts, empty: true}, "allow-hosts", "hosts that its sandboxes may reach at most, such as api.github.com,*.example.com or 'GET;HEAD data.example.com'; default: those of the farm")
	names = append(names, "runtimes", "allow-hosts")
	return func() wire.TenantChange {
		change := wire.TenantChange{Set: r}
		for _, name := range names {
			if flag := flags.Lookup(name); flag.Changed && flag.Value.String() == "" {
				change.Default = append(change.Default, strings.ReplaceAll(name, "-", "_"))
			}
		}
		return change
	}
}

func (a *app) tenantSet() *cobra.Command {
	var given func() wire.TenantChange
	c := a.verb(&cobra.Command{
		Use: "set NAME", SuggestFor: []string{"tenant create", "quota"}, Short: "Set quotas, runtimes and hosts of a tenant",
		Long: `Set quotas of a tenant, which need not exist before. Quotas without a flag stay as they are. -1 means no bound, 0 none at all,
default the farm's default. A quota may be below what is used: nothing is ended, but new work is refused or waits. --runtimes names
the OCI runtimes that the tenant's sandboxes may have; the first one is used where a request names none. --allow-hosts narrows what
egress.allow of the farm lets its sandboxes reach; sandboxes that run lose the other hosts within some seconds.`,
		Example: `  sandfarm tenant set acme --max-sandboxes 20 --requests-per-minute 600
  sandfarm tenant set acme --max-gpus 0 --max-cpus default
  sandfarm tenant set acme --runtimes runsc
  sandfarm tenant set acme --allow-hosts 'api.github.com,GET;HEAD data.example.com'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(1, 1, "the tenant's name"), func(ctx context.Context, c *client.Client, args []string) error {
		change := given()
		if change.Set == (wire.TenantRequest{}) && len(change.Default) == 0 {
			return usagef("nothing to set is given")
		}
		_, unknown := c.Tenant(ctx, args[0])
		set, err := c.ChangeTenant(ctx, args[0], change)
		if err != nil {
			return err
		}
		if client.CodeOf(unknown) == "not_found" {
			fmt.Fprintf(a.Err, "note: The tenant %s is new: it had no jobs and no quotas of its own.\n", printable(args[0]))
		}
		if change.Set.Runtimes != nil {
			a.noteRuntimes(ctx, c, *change.Set.Runtimes)
		}
		return a.showTenant(set)
	})
	given = quotaFlags(c.Flags())
	return c
}

// noteRuntimes says which runtimes no live worker has, if there are workers: sandboxes that would have it are refused.
func (a *app) noteRuntimes(ctx context.Context, c *client.Client, wanted []string) {
	workers, err := c.Workers(ctx)
	if err != nil || len(workers) == 0 {
		return
	}
	var known []string
	for _, w := range workers {
		known = append(known, w.Runtimes...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	for _, one := range wanted {
		if !slices.Contains(known, one) {
			fmt.Fprintf(a.Err, "note: No worker has the runtime %s. The farm has: %s.\n", printable(one), printable(strings.Join(known, ", ")))
		}
	}
}

func (a *app) tenantShow() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "show NAME", SuggestFor: []string{"tenant get"}, Short: "Show the quotas of a tenant and what is used of them", Example: "  sandfarm tenant show acme",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(1, 1, "the tenant's name"), func(ctx context.Context, c *client.Client, args []string) error {
		found, err := c.Tenant(ctx, args[0])
		if err != nil {
			return err
		}
		return a.showTenant(found)
	})
}

func (a *app) showTenant(t wire.Tenant) error {
	if a.json {
		return a.print(t)
	}
	rows := quotaRows(t.Quotas)
	for i, q := range t.Quotas {
		origin := "default"
		if _, own := t.Own[q.Name]; own {
			origin = "own"
		}
		rows[i] = append(rows[i], origin)
	}
	if err := table(a.Out, []string{"QUOTA", "USED", "LIMIT", "SET"}, rows); err != nil {
		return err
	}
	var lists string
	if len(t.Runtimes) > 0 {
		lists = "runtimes of its sandboxes, the default first: " + strings.Join(t.Runtimes, ", ") + "\n"
	}
	if hosts := t.AllowHosts; hosts != nil {
		lists += "hosts of its sandboxes at most: " + cmp.Or(strings.Join(*hosts, ", "), "none") + "\n"
	}
	_, err := io.WriteString(a.Out, lists)
	return err
}

func quotaRows(quotas []wire.Quota) [][]string {
	rows := make([][]string, len(quotas))
	for i, q := range quotas {
		used, limit := amount(q.Used), ""
		if q.Limit != nil {
			limit = amount(*q.Limit)
		} else if q.Name == "requests_per_minute" {
			used = "" // without a limit they are not counted
		}
		rows[i] = []string{q.Name, used, limit}
	}
	return rows
}

// amount writes a number with at most two digits after the point.
func amount(n float64) string {
	return strconv.FormatFloat(float64(int64(n*100+0.5))/100, 'f', -1, 64)
}

func (a *app) tenantLs() *cobra.Command {
	var limit int
	c := a.verb(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the tenants", Example: "  sandfarm tenant ls",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		head := []string{"TENANT", "SANDBOXES", "MEMORY MiB", "RUNNING", "UNFINISHED", "STORED MiB"}
		return listed(a, c.Tenants(ctx), limit, head, func(t wire.Tenant) []string {
			cells := []string{t.Name}
			for _, name := range []string{"max_sandboxes", "max_memory_mb", "max_running", "max_queued", "max_stored_mb"} {
				at := slices.IndexFunc(t.Quotas, func(q wire.Quota) bool { return q.Name == name })
				if at < 0 {
					cells = append(cells, "-")
					continue
				}
				row := quotaRows(t.Quotas[at : at+1])[0]
				cells = append(cells, row[1]+"/"+cell(row[2]))
			}
			return cells
		})
	})
	c.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	return c
}

func (a *app) usage() *cobra.Command {
	var tenant string
	var days int
	c := a.verb(&cobra.Command{
		Use: "usage", SuggestFor: []string{"quota"}, Short: "Show your quotas and what you have used",
		Long: `Show what is used of each quota now, and what was used on each of the last days (UTC): CPU time by the engine's counters, GiB of
memory times seconds, GPU time for each device, and GiB of artifacts times seconds.`,
		Example: `  sandfarm usage
  sandfarm usage --tenant acme --days 100 --json
  sandfarm usage --tenant acme --local`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if a.local && tenant == "" {
			return usagef("with --local there is no key that names the tenant: give --tenant")
		}
		var found wire.Usage
		var err error
		if tenant == "" {
			found, err = c.Usage(ctx, days)
		} else {
			found, err = c.TenantUsage(ctx, tenant, days)
		}
		switch {
		case err != nil:
			return err
		case a.json:
			return a.print(found)
		}
		if err := table(a.Out, []string{"QUOTA", "USED", "LIMIT"}, quotaRows(found.Quotas)); err != nil {
			return err
		}
		rows := make([][]string, len(found.Days))
		for i, d := range found.Days {
			rows[i] = []string{d.Day, amount(d.CPUSeconds), amount(d.MemoryGBSeconds), amount(d.GPUSeconds), amount(d.SandboxSeconds), amount(d.StoredGBSeconds)}
		}
		fmt.Fprintln(a.Out)
		return table(a.Out, []string{"DAY", "CPU S", "MEMORY GiB·S", "GPU S", "SANDBOX S", "STORED GiB·S"}, rows)
	})
	c.Flags().StringVar(&tenant, "tenant", "", "of this tenant; the key needs the scope admin")
	c.Flags().IntVar(&days, "days", 30, "of this many days, today included")
	return a.admin(c)
}
