package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// createWait is how long one request waits for the end of a job of a sandbox; after that it is polled.
const createWait = 60 * time.Second

func (a *app) sandbox() *cobra.Command {
	c := asGroup(&cobra.Command{
		Use: "sandbox", Aliases: []string{"sandboxes", "sb"},
		Short: "Create, use and close sandboxes",
		Long: `A sandbox is a container with a workspace for files and kernels that keep their variables between runs. It lives until
it is closed or its time to live ends.`,
		Example: `  ID=$(sandfarm sandbox create --ttl 30m)
  sandfarm run analysis.py --sandbox "$ID"
  sandfarm sandbox exec "$ID" 'ls -la | head'
  sandfarm sandbox close "$ID"`,
	}, a.sandboxCreate(), a.sandboxLs(), a.sandboxGet(), a.sandboxExec(), a.sandboxFiles(), a.sandboxKeep(), a.sandboxAllow(), a.sandboxSecret(), a.sandboxEgress(), a.sandboxPorts(), a.sandboxPortLink(), a.sandboxControl("interrupt"), a.sandboxControl("restart"), a.sandboxControl("hibernate"), a.sandboxControl("resume"), a.sandboxClose())
	return c
}

func (a *app) sandboxCreate() *cobra.Command {
	var spec specFlags
	var name, ttl, idle, onIdle string
	var env, labels, packages []string
	var noWait bool
	c := a.verb(&cobra.Command{
		Use: "create", SuggestFor: []string{"sandbox new"}, Short: "Create a sandbox and print its id",
		Long: `Create a sandbox, wait until it is ready, and print its id on stdout. If a --package cannot be installed, the exit code is 1;
the sandbox is there all the same. Ctrl-C cancels the creation.`,
		Example: `  sandfarm sandbox create
  sandfarm sandbox create --name demo --memory 4g --cpus 2 --ttl 2h --label team=blue
  sandfarm sandbox create --package scikit-learn --package 'pandas>=2'
  sandfarm sandbox create --network allowlist --allow-host api.github.com --allow-host '*.githubusercontent.com'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		secrets, err := spec.secrets(a.Getenv)
		if err != nil {
			return err
		}
		request := wire.CreateRequest{Name: name, Image: optional(spec.image), Network: optional(spec.network), Runtime: optional(spec.runtime), OnIdle: optional(onIdle), GPU: spec.gpus(), AllowHosts: spec.hosts, Secrets: secrets, Packages: packages}
		var errs [5]error
		request.Resources, errs[0] = spec.resources()
		request.TTLSeconds, errs[1] = a.life("ttl", ttl, "minute", 59)
		request.IdleSeconds, errs[2] = seconds("idle", idle)
		request.Env, errs[3] = pairs("--env", env, a.Getenv)
		request.Labels, errs[4] = pairs("--label", labels, nil)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		return a.create(ctx, c, request, noWait)
	})
	flags := c.Flags()
	flags.StringVar(&name, "name", "", "name of the sandbox, for people")
	flags.StringVar(&ttl, "ttl", "", "time to live from now, such as 30m or 2h (default: the farm's)")
	flags.StringVar(&idle, "idle", "", "time to live after its last use, such as 10m; 0 for no limit")
	flags.StringVar(&onIdle, "on-idle", "", "what happens after --idle: close, or hibernate on a node that can (gVisor)")
	flags.StringArrayVarP(&env, "env", "e", nil, "environment variable NAME=VALUE, or NAME with the value it has here (repeatable)")
	flags.StringArrayVarP(&labels, "label", "l", nil, "label KEY=VALUE (repeatable)")
	flags.StringArrayVarP(&packages, "package", "p", nil, "package to install, such as 'pandas>=2' (repeatable)")
	flags.BoolVar(&noWait, "no-wait", false, "do not wait until the sandbox is ready")
	spec.add(flags)
	a.complete(c, "image", a.imageNames)
	completeChoices(c, "on-idle", "close", "hibernate")
	completeChoices(c, "network", "none", "packages", "allowlist")
	return c
}

func (a *app) create(ctx context.Context, c *client.Client, request wire.CreateRequest, noWait bool) error {
	submitting, release := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	defer release()
	if noWait {
		submitting = ctx
	}
	made, err := c.CreateSandbox(submitting, request)
	if err != nil {
		return err
	}
	if !noWait && !made.Job.Final() {
		f := a.follower(c, false)
		f.toStderr, f.progress, f.mute = true, true, true
		made.Job, err = f.do(ctx, func(context.Context) (wire.Job, error) { return made.Job, nil })
		if err != nil {
			if made.Job.State == "completed" { // before it was canceled
				fmt.Fprintf(a.Err, "sandfarm: the sandbox is there all the same: sandfarm close %s\n", made.Sandbox.ID)
			}
			return fmt.Errorf("wait for sandbox %s: %w", made.Sandbox.ID, err)
		}
	}
	if made.Job.Final() {
		if err := client.Failure(made.Job); err != nil {
			return fmt.Errorf("create sandbox %s: %w", made.Sandbox.ID, err)
		}
	}
	if r := made.Job.Result; r != nil && r.Install != nil {
		for _, one := range r.Install.Packages {
			if one.Status != "failed" {
				fmt.Fprintln(a.Err, "note: "+printable(installedText(one)))
			}
		}
	}
	if a.json {
		if !noWait {
			if made.Sandbox, err = c.Sandbox(ctx, made.Sandbox.ID); err != nil {
				return err
			}
		}
		err = a.print(made)
	} else {
		_, err = fmt.Fprintln(a.Out, made.Sandbox.ID)
	}
	return errors.Join(err, uninstalled(made.Job))
}

func (a *app) sandboxLs() *cobra.Command {
	var filter client.SandboxFilter
	var all bool
	var labels []string
	c := a.verb(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List open sandboxes, newest first", SuggestFor: []string{"ls", "list"},
		Example: `  sandfarm sandbox ls
  sandfarm sandbox ls --state ready --label team=blue --json
  sandfarm sandbox ls --all`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		var err error
		if filter.Labels, err = pairs("--label", labels, nil); err != nil {
			return err
		}
		filter.Open = !all
		found, err := collect(c.Sandboxes(ctx, filter))
		if err != nil || a.json {
			return a.list(found, err)
		}
		now := time.Now()
		rows := make([][]string, len(found))
		for i, s := range found {
			rows[i] = []string{s.ID, s.Name, s.State, s.Image, since(s.CreatedAt, now), ends(s, now)}
		}
		return table(a.Out, []string{"ID", "NAME", "STATE", "IMAGE", "CREATED", "ENDS"}, rows)
	})
	c.Flags().BoolVarP(&all, "all", "a", false, "include sandboxes that have ended")
	c.Flags().StringVar(&filter.State, "state", "", "only sandboxes in this state, such as ready or closed")
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with this label KEY=VALUE (repeatable)")
	return c
}

func ends(s wire.Sandbox, now time.Time) string {
	if s.ClosedAt != nil {
		return since(*s.ClosedAt, now)
	}
	if s.OneShot {
		return "with its run"
	}
	return until(s.ExpiresAt, now)
}

func (a *app) sandboxGet() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "get ID", SuggestFor: []string{"sandbox show"}, Short: "Show a sandbox", Example: "  sandfarm sandbox get sbx_…",
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		s, err := c.Sandbox(ctx, args[0])
		if err != nil {
			return err
		}
		return a.showSandbox(s)
	})
}

func (a *app) showSandbox(s wire.Sandbox) error {
	if a.json {
		return a.print(s)
	}
	now := time.Now()
	idle := "no limit"
	if s.IdleSeconds > 0 {
		idle = span(time.Duration(s.IdleSeconds) * time.Second)
	}
	gpus := "none"
	if s.GPU != nil {
		if gpus = fmt.Sprint(s.GPU.Count); s.GPU.Model != "" {
			gpus += " × " + s.GPU.Model
		}
	}
	return facts(a.Out, [][2]string{
		{"id", s.ID},
		{"name", s.Name},
		{"state", s.State},
		{"reason", s.Reason},
		{"image", s.Image},
		{"network", s.Network},
		{"hosts", strings.Join(s.AllowHosts, "; ")},
		{"runtime", s.Runtime},
		{"memory", fmt.Sprintf("%d MiB", s.Resources.MemoryMB)},
		{"cpus", fmt.Sprint(s.Resources.CPUs)},
		{"disk", fmt.Sprintf("%d MiB", s.Resources.DiskMB)},
		{"gpus", gpus},
		{"labels", labelText(s.Labels)},
		{"created", since(s.CreatedAt, now)},
		{"last used", since(s.LastUsedAt, now)},
		{"ends", ends(s, now)},
		{"idle limit", idle},
	})
}

func (a *app) sandboxKeep() *cobra.Command {
	var ttl, idle, name string
	var labels []string
	c := a.verb(&cobra.Command{
		Use: "keep ID", SuggestFor: []string{"extend", "renew", "rename"}, Short: "Extend the life of a sandbox, or change its name and labels",
		Long: `Restart the time to live of a sandbox: the one it has, or --ttl. New labels replace the old ones.`,
		Example: `  sandfarm sandbox keep sbx_…
  sandfarm sandbox keep sbx_… --ttl 12h --name demo`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		request := wire.UpdateRequest{Name: optional(name)}
		var errs [3]error
		var wanted map[string]string
		request.TTLSeconds, errs[0] = a.life("ttl", ttl, "minute", 59)
		request.IdleSeconds, errs[1] = seconds("idle", idle)
		wanted, errs[2] = pairs("--label", labels, nil)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		if wanted != nil {
			request.Labels = &wanted
		}
		if ttl == "" {
			s, err := c.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			request.TTLSeconds = &s.TTLSeconds
		}
		s, err := c.Update(ctx, args[0], request)
		if err != nil {
			return err
		}
		return a.showSandbox(s)
	})
	c.Flags().StringVar(&ttl, "ttl", "", "time to live from now, such as 30m or 12h")
	c.Flags().StringVar(&idle, "idle", "", "time to live after its last use, such as 10m; 0 for no limit")
	c.Flags().StringVar(&name, "name", "", "new name")
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "new labels KEY=VALUE (repeatable)")
	return c
}

// sandboxControl is a verb that has nothing but the sandbox's id.
func (a *app) sandboxControl(what string) *cobra.Command {
	one := map[string]struct {
		short, done string
		do          func(*client.Client, context.Context, string, ...client.CallOption) (wire.Job, error)
		idle        func(context.Context, *client.Client, string) (string, error) // says that there is nothing to do, asked before; nil: there always is
	}{
		"interrupt": {"Interrupt running code in a sandbox, as Ctrl-C would", "interrupted ", (*client.Client).Interrupt, runsNoCode},
		"restart":   {"Restart the kernels of a sandbox: variables are lost, files stay", "restarted ", (*client.Client).Restart, nil},
		"hibernate": {"Store a sandbox on the disk of its node: it uses no memory until it resumes (needs gVisor)", "hibernated ", (*client.Client).Hibernate, alreadyIs(true)},
		"resume":    {"Resume a hibernated sandbox: its programs continue where they were", "resumed ", (*client.Client).Resume, alreadyIs(false)},
	}[what]
	meant := map[string][]string{"hibernate": {"sandbox pause"}}
	return a.verb(&cobra.Command{
		Use: what + " ID", SuggestFor: meant[what], Short: one.short, Example: "  sandfarm sandbox " + what + " sbx_…",
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		done := ""
		if one.idle != nil {
			var err error
			if done, err = one.idle(ctx, c, args[0]); err != nil {
				return err
			}
		}
		job, err := one.do(c, ctx, args[0], client.WithWait(createWait))
		if err != nil {
			return err
		}
		return a.waitFor(ctx, c, job, cmp.Or(done, one.done+args[0]))
	})
}

// runsNoCode says that no code runs in the kernels of a sandbox, and how a command ends that does; empty: code runs.
func runsNoCode(ctx context.Context, c *client.Client, id string) (string, error) {
	text := "nothing to interrupt: no code runs in " + id
	for job, err := range c.Jobs(ctx, client.JobFilter{SandboxID: id, State: "running"}) {
		switch {
		case err != nil:
			return "", err
		case job.Kind == "execute" || job.Kind == "run":
			return "", nil
		case job.Kind == "command":
			text += fmt.Sprintf("; %q ends its command", "sandfarm job cancel "+job.ID)
		}
	}
	return text, nil
}

// alreadyIs returns a function that says that a sandbox is hibernated already, or that it is not; empty: that is the other way round.
func alreadyIs(hibernated bool) func(context.Context, *client.Client, string) (string, error) {
	return func(ctx context.Context, c *client.Client, id string) (string, error) {
		s, err := c.Sandbox(ctx, id)
		switch {
		case err != nil || hibernated != (s.State == "hibernated"):
			return "", err
		case hibernated:
			return "nothing to do: " + id + " was hibernated already", nil
		}
		return "nothing to do: " + id + " was not hibernated", nil
	}
}

func (a *app) sandboxClose() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "close ID…", Aliases: []string{"rm"}, SuggestFor: []string{"rm", "delete", "kill", "stop"}, Short: "Close sandboxes: their jobs are canceled and their files removed",
		Example: `  sandfarm sandbox close sbx_…
  sandfarm sandbox ls --label team=blue --json | jq -r '.items[].id' | xargs sandfarm sandbox close`,
		ValidArgsFunction: a.every(a.sandboxIDs),
	}, argCount(1, -1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		var errs []error
		for _, id := range args {
			errs = append(errs, about("close "+id, a.close(ctx, c, id)))
		}
		return errors.Join(errs...)
	})
}

func (a *app) close(ctx context.Context, c *client.Client, id string) error {
	s, err := c.Sandbox(ctx, id)
	switch {
	case err != nil:
		return err
	case s.ClosedAt != nil:
		return a.say("nothing to close: %s has already ended (%s)", id, s.State)
	}
	job, err := c.Close(ctx, id, client.WithWait(createWait))
	if client.CodeOf(err) == "conflict" { // the end of a run closes its sandbox without a job
		switch s, again := c.Sandbox(ctx, id); {
		case again != nil:
		case s.ClosedAt != nil:
			return a.say("nothing to close: %s has already ended (%s)", id, s.State)
		case s.State == "closing":
			return a.say("nothing to close: %s is closing already", id)
		}
	}
	if err != nil {
		return err
	}
	return a.waitFor(ctx, c, job, "closed "+id)
}

// say prints a line on stderr that is no error.
func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintln(a.Err, printable(fmt.Sprintf(format, args...)))
	return err
}

// waitFor waits for a job and then prints on stderr what it did.
func (a *app) waitFor(ctx context.Context, c *client.Client, job wire.Job, done string) error {
	var err error
	if !job.Final() {
		if job, err = a.wait(ctx, c, job.ID); err != nil {
			return err
		}
	}
	if a.json {
		if err := a.print(job); err != nil {
			return err
		}
	}
	if err := client.Failure(job); err != nil {
		return fmt.Errorf("job %s: %w", cmp.Or(job.ID, "?"), err)
	}
	fmt.Fprintln(a.Err, printable(done))
	return nil
}
