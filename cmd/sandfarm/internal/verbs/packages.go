package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (a *app) packages() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "packages", Aliases: []string{"package", "pkg"},
		Short: "Install packages in a sandbox and list them",
		Long: `Sandboxes have no network but the farm's package index (pip install works); --network of sandbox create sets it. The
operator chooses the index. Running kernels can import packages at once. They last as long as the sandbox.`,
		Example: `  sandfarm packages install sbx_… numpy 'pandas>=2'
  sandfarm packages status sbx_… numpy
  sandfarm packages ls sbx_…`,
	}, a.packagesInstall(), a.packagesLs(), a.packagesStatus())
}

func (a *app) packagesInstall() *cobra.Command {
	var manager string
	var noWait, verbose bool
	c := a.verb(&cobra.Command{
		Use: "install SANDBOX NAME…", Aliases: []string{"add"}, SuggestFor: []string{"install", "pip"}, Short: "Install packages in a sandbox",
		Long: `Install packages in a sandbox, by name and optionally with a version. Quote characters of the shell, such as in
'pandas>=2'. Progress goes to stderr, and with --verbose what the installer prints; then stdout gets one line for each package.
If a package fails, the others are still installed, and the exit code is 1.

--no-wait prints the id of the job at once; "packages status" and "job events" show its progress.`,
		Example: `  sandfarm packages install sbx_… numpy 'pandas>=2' requests==2.32.3
  sandfarm packages install sbx_… --manager npm left-pad @types/node
  sandfarm packages install sbx_… torch --no-wait`,
		ValidArgsFunction: a.first(a.sandboxIDs),
	}, argCount(2, -1, "the sandbox's ID or the name of a package"), func(ctx context.Context, c *client.Client, args []string) error {
		request := wire.PackagesRequest{Packages: args[1:], Manager: optional(manager)}
		if noWait {
			return a.printAccepted(c.Install(ctx, args[0], request))
		}
		job, err := a.install(ctx, c, args[0], request, verbose)
		if err != nil {
			return err
		}
		err = errors.Join(a.showInstall(job, cmp.Or(manager, farm.ManagerPip)), outcome(job))
		if text := installerOutput(job); err != nil && text != "" && !verbose && !a.json {
			fmt.Fprintln(a.Err, "sandfarm: "+text)
		}
		return err
	})
	c.Flags().StringVar(&manager, "manager", "", "which installer: pip or npm (default pip)")
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are installed")
	c.Flags().BoolVar(&verbose, "verbose", false, "print what the installer prints, as it is written")
	a.complete(c, "manager", managers)
	return c
}

func managers(context.Context, *client.Client) []cobra.Completion {
	return []cobra.Completion{"pip", "npm"}
}

// install installs packages and prints the progress on stderr, and if it is verbose the output of the installer. The job is final.
func (a *app) install(ctx context.Context, c *client.Client, sandbox string, request wire.PackagesRequest, verbose bool) (wire.Job, error) {
	follower := a.follower(c, false)
	follower.toStderr, follower.progress, follower.mute = true, true, !verbose
	return follower.do(ctx, func(ctx context.Context) (wire.Job, error) { return c.Install(ctx, sandbox, request) })
}

// installerOutput says where the output of an installer is; empty if it printed nothing, as one that was not started.
func installerOutput(job wire.Job) string {
	if job.Result == nil || job.Result.Install == nil || job.Result.Install.Stdout+job.Result.Install.Stderr == "" {
		return ""
	}
	return fmt.Sprintf("%q shows what the installer printed.", "sandfarm job events "+job.ID)
}

// showInstall prints a line for each package of an install by a manager.
func (a *app) showInstall(job wire.Job, manager string) error {
	if a.json {
		return a.print(job)
	}
	if job.Result == nil || job.Result.Install == nil {
		return nil
	}
	packages := job.Result.Install.Packages
	rows := make([][]string, len(packages))
	for i, one := range packages {
		rows[i] = []string{nameOf(one), one.Status, one.Version, manager, asFlags(one.Message)}
	}
	return table(a.Out, []string{"NAME", "STATUS", "VERSION", "MANAGER", "MESSAGE"}, rows)
}

// nameOf is the name of a package, or the requirement as it was given if no name could be read from it.
func nameOf(one wire.InstalledOne) string {
	if one.Name == "" {
		return one.Requested
	}
	return one.Name
}

// failures counts the packages that could not be installed.
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
		Long: `List the packages of a sandbox: those of its image, those installed later, and those being installed.`,
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
		message := asFlags(p.Message)
		if p.Status == "failed" && p.Version != "" {
			message = fmt.Sprintf("%s %s is still installed; the last install failed: %s", p.Name, p.Version, message)
		}
		rows[i] = []string{p.Name, p.Status, p.Version, p.Manager, message}
	}
	return table(a.Out, []string{"NAME", "STATUS", "VERSION", "MANAGER", "MESSAGE"}, rows)
}

func (a *app) packagesStatus() *cobra.Command {
	var wait bool
	var manager string
	c := a.verb(&cobra.Command{
		Use: "status SANDBOX NAME", SuggestFor: []string{"packages get", "packages show"}, Short: "Show whether a package is installed",
		Long: `Show the status of a package: installed, installing, failed (its last install; a version that was there stays, and is
shown) or not_found. The exit code is 1 for the last two.`,
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
				return fmt.Errorf("%s is being installed by an unknown job; try again later", found.Name)
			}
			if _, err = a.wait(ctx, c, found.JobID); err == nil {
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
	c.Flags().StringVar(&manager, "manager", "", "which installer: pip or npm (default: npm for @…, else pip)")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the installation ends")
	a.complete(c, "manager", managers)
	return c
}

// printNotes prints the packages that were installed automatically, and the notes of the farm.
func (a *app) printNotes(installed []wire.InstalledOne, notes []string) {
	for _, one := range installed {
		fmt.Fprintln(a.Err, "note: "+printable(installedText(one)))
	}
	for _, note := range notes {
		fmt.Fprintln(a.Err, "note: "+printable(asFlags(note)))
	}
}

// installedText describes the outcome for one package in a line.
func installedText(one wire.InstalledOne) string {
	text := nameOf(one)
	if one.Version != "" {
		text += " " + one.Version
	}
	text += " " + one.Status
	if one.Why != "" && one.Why != "imported as "+one.Name {
		text += " (" + one.Why + ")"
	}
	if rest, ok := strings.CutPrefix(one.Message, one.Name+" "); ok && one.Version == "" { // it begins with the name
		return text + ": it " + asFlags(rest)
	}
	if one.Message != "" {
		text += ": " + asFlags(one.Message)
	}
	return text
}

// installFirst installs packages before code runs in a sandbox. A package that fails ends the run, since the code needs it.
func (a *app) installFirst(ctx context.Context, c *client.Client, sandbox string, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	job, err := a.install(ctx, c, sandbox, wire.PackagesRequest{Packages: packages}, false)
	if err == nil {
		err = client.Failure(job)
	}
	if err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	return uninstalled(job)
}

// uninstalled is the error of a job of which packages could not be installed; nil: all were.
func uninstalled(job wire.Job) error {
	if job.Result == nil || job.Result.Install == nil {
		return nil
	}
	var errs []error
	for _, one := range job.Result.Install.Packages {
		if one.Status == "failed" {
			errs = append(errs, fmt.Errorf("install packages: %s", installedText(one)))
		}
	}
	if text := installerOutput(job); len(errs) > 0 && text != "" {
		errs = append(errs, &hint{text: text})
	}
	return errors.Join(errs...)
}
