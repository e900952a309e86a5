package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) packages() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "packages", Aliases: []string{"package", "pkg"},
		Short: "Install packages in a sandbox and look them up",
		Long: `A sandbox has no network. Its packages come through the farm, from the indexes that the farm's operator chose, and
can be imported at once by code that runs already. They last as long as the sandbox.`,
		Example: `  sandfarm packages install sbx_… numpy 'pandas>=2'
  sandfarm packages status sbx_… numpy
  sandfarm packages ls sbx_…`,
	}, a.packagesInstall(), a.packagesLs(), a.packagesStatus())
}

func (a *app) packagesInstall() *cobra.Command {
	var manager string
	var noWait bool
	c := a.verb(&cobra.Command{
		Use: "install SANDBOX NAME…", Aliases: []string{"add"}, Short: "Install packages in a sandbox",
		Long: `Install packages in a sandbox: names, with a version where one is wanted. Quote what a shell would read, such as
'pandas>=2'. What the installer says appears on stderr as it comes, then a line for each package on stdout. A package
that fails does not keep the others from being installed; the exit code is 1 then.

With --no-wait the job's id is printed at once; "packages status" and "job events" tell how it goes.`,
		Example: `  sandfarm packages install sbx_… numpy 'pandas>=2' requests==2.32.3
  sandfarm packages install sbx_… --manager npm left-pad @types/node
  sandfarm packages install sbx_… torch --no-wait`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or the name of a package"), func(ctx context.Context, c *client.Client, args []string) error {
		request := wire.PackagesRequest{Packages: args[1:], Manager: optional(manager)}
		if noWait {
			return a.accepted(c.Install(ctx, args[0], request))
		}
		job, err := a.install(ctx, c, args[0], request)
		if err != nil {
			return err
		}
		return errors.Join(a.showInstall(job), outcome(job))
	})
	c.Flags().StringVar(&manager, "manager", "", "which installer: pip or npm (default pip)")
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are installed")
	a.complete(c, "manager", managers)
	return c
}

func managers(context.Context, *client.Client) []cobra.Completion {
	return []cobra.Completion{"pip", "npm"}
}

// install installs packages and tells on stderr what the installer says meanwhile. The job is final.
func (a *app) install(ctx context.Context, c *client.Client, sandbox string, request wire.PackagesRequest) (wire.Job, error) {
	follower := a.follower(c, false)
	follower.aside, follower.progress = true, true
	return follower.do(ctx, func(ctx context.Context) (wire.Job, error) { return c.Install(ctx, sandbox, request) })
}

// showInstall prints a line for each package of an install.
func (a *app) showInstall(job wire.Job) error {
	if a.json {
		return a.print(job)
	}
	if job.Result == nil || job.Result.Install == nil {
		return nil
	}
	return table(a.Out, []string{"NAME", "STATUS", "VERSION", "MESSAGE"}, installRows(job.Result.Install.Packages))
}

func installRows(packages []wire.InstalledOne) [][]string {
	rows := make([][]string, len(packages))
	for i, one := range packages {
		rows[i] = []string{nameOf(one), one.Status, one.Version, one.Message}
	}
	return rows
}

// nameOf is the name of a package, or what was asked for where no name could be read from it.
func nameOf(one wire.InstalledOne) string {
	if one.Name == "" {
		return one.Requested
	}
	return one.Name
}

// failures is how many packages could not be installed.
func failures(packages []wire.InstalledOne) int {
	n := 0
	for _, one := range packages {
		if one.Status == "failed" {
			n++
		}
	}
	return n
}

func (a *app) packagesLs() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "ls SANDBOX", Aliases: []string{"list"}, Short: "List the packages of a sandbox",
		Long: `List the packages of a sandbox: those of its image, those that were installed, and those that are on their way.`,
		Example: `  sandfarm packages ls sbx_…
  sandfarm packages ls sbx_… --json | jq -r '.items[] | .name + "==" + .version'`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(1, 1, "the sandbox's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		found, err := c.Packages(ctx, args[0])
		if err != nil {
			return err
		}
		if a.json {
			if found == nil {
				found = []wire.Package{}
			}
			return a.print(wire.Items[wire.Package]{Items: found})
		}
		return a.showPackages(found)
	})
}

func (a *app) showPackages(found []wire.Package) error {
	rows := make([][]string, len(found))
	for i, p := range found {
		rows[i] = []string{p.Name, p.Status, p.Version, p.Manager, p.Message}
	}
	return table(a.Out, []string{"NAME", "STATUS", "VERSION", "MANAGER", "MESSAGE"}, rows)
}

func (a *app) packagesStatus() *cobra.Command {
	var wait bool
	var manager string
	c := a.verb(&cobra.Command{
		Use: "status SANDBOX NAME", Short: "Tell whether a package is installed",
		Long: `Tell how it stands with a package: installed, installing, failed or not_found. The exit code is 1 for the last two.`,
		Example: `  sandfarm packages status sbx_… numpy
  sandfarm packages status sbx_… torch --wait && sandfarm run train.py --sandbox sbx_…`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, 2, "the sandbox's ID or the name of a package"), func(ctx context.Context, c *client.Client, args []string) error {
		var opts []client.CallOption
		if manager != "" {
			opts = append(opts, client.WithManager(manager))
		}
		found, err := c.Package(ctx, args[0], args[1], opts...)
		for err == nil && wait && found.Status == "installing" {
			if found.JobID == "" {
				return fmt.Errorf("%s is being installed, and the farm does not say by which job: try again in a while", found.Name)
			}
			if _, err = c.Wait(ctx, found.JobID); err == nil {
				found, err = c.Package(ctx, args[0], args[1], opts...)
			}
		}
		if err != nil {
			return err
		}
		if a.json {
			err = a.print(found)
		} else {
			err = a.showPackages([]wire.Package{found})
		}
		if err == nil && (found.Status == "failed" || found.Status == "not_found") {
			err = &CodeError{Code: ExitError}
		}
		return err
	})
	c.Flags().StringVar(&manager, "manager", "", "whose package it is: pip or npm (default: npm for @…, else pip)")
	c.Flags().BoolVar(&wait, "wait", false, "wait while it is being installed")
	a.complete(c, "manager", managers)
	return c
}

// remark prints what was installed that nobody had named, and the farm's notes.
func (a *app) remark(installed []wire.InstalledOne, notes []string) {
	for _, one := range installed {
		fmt.Fprintln(a.Err, "note: "+printable(installedText(one)))
	}
	for _, note := range notes {
		fmt.Fprintln(a.Err, "note: "+printable(note))
	}
}

// installedText says in a line what became of a package.
func installedText(one wire.InstalledOne) string {
	text := nameOf(one)
	if one.Version != "" {
		text += " " + one.Version
	}
	text += " " + one.Status
	if one.Why != "" {
		text += " (" + one.Why + ")"
	}
	if one.Message != "" {
		text += ": " + one.Message
	}
	return text
}

// need installs packages before code runs in a sandbox. Those that fail end the run: the code was said to need them.
func (a *app) need(ctx context.Context, c *client.Client, sandbox string, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	job, err := a.install(ctx, c, sandbox, wire.PackagesRequest{Packages: packages})
	if err == nil {
		err = client.Failure(job)
	}
	if err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	if job.Result == nil || job.Result.Install == nil {
		return nil
	}
	var errs []error
	for _, one := range job.Result.Install.Packages {
		if one.Status == "failed" {
			errs = append(errs, fmt.Errorf("install packages: %s", installedText(one)))
		}
	}
	return errors.Join(errs...)
}
