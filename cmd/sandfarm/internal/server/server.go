package server

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/engine"
)

// Add adds the verbs that run or maintain a farm to the root command. connect makes the client of the farm that the other verbs use; version is
// the version that they report.
func Add(root *cobra.Command, streams verbs.Streams, connect func() (*client.Client, error), version string) {
	root.AddGroup(&cobra.Group{ID: "server", Title: "Run a farm:"})
	var file string
	settings := func() (*farmd.Settings, error) {
		s, err := farmd.Load(file)
		if err == nil {
			farmd.WarnOfUnread(farmd.Logger(s), nil)
		}
		return s, err
	}
	add := func(parent, c *cobra.Command) {
		c.Flags().SortFlags = false
		c.PersistentFlags().StringVar(&file, "config", streams.Getenv("SANDFARM_CONFIG"), "TOML `FILE` with settings (\"sandfarm config example\" prints one)")
		_ = c.MarkPersistentFlagFilename("config", "toml")
		verbs.StrictArgs(c)
		parent.AddCommand(c)
	}
	for _, c := range []*cobra.Command{
		upCommand(settings, streams, version), downCommand(settings, streams), serviceCommand("api", settings, version),
		serviceCommand("worker", settings, version), serviceCommand("scheduler", settings, version), doctorCommand(settings, connect, streams),
		configCommand(settings, streams), healthCommand(settings), caretakerCommand(settings, streams), engineProxyCommand(settings), importCommand(streams),
	} {
		c.GroupID = "server"
		add(root, c)
	}
	if image, _, err := root.Find([]string{"image"}); err == nil {
		add(image, imageBuildCommand(settings, streams))
	}
}

type loader func() (*farmd.Settings, error)

// run makes the RunE of a command that needs the settings.
func (load loader) run(work func(cmd *cobra.Command, args []string, s *farmd.Settings) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := load()
		if err != nil {
			return err
		}
		return work(cmd, args, s)
	}
}

// withEngine is run for a command that also needs the engine.
func (load loader) withEngine(work func(cmd *cobra.Command, args []string, s *farmd.Settings, e *engine.Engine) error) func(*cobra.Command, []string) error {
	return load.run(func(cmd *cobra.Command, args []string, s *farmd.Settings) error {
		e, err := farmd.OpenEngine(s, farmd.Logger(s))
		if err != nil {
			return err
		}
		defer func() { _ = e.Close() }()
		return work(cmd, args, s, e)
	})
}

func upCommand(load loader, streams verbs.Streams, version string) *cobra.Command {
	var down bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole farm in one process",
		Long: `Runs a whole farm in one process: the API, a worker for the local Docker engine, the scheduler, an S3 service that stores
files in the data directory, and its own redis-server.

The first start builds the sandbox image, which takes a few minutes. Ctrl-C stops the farm; sandboxes, jobs and files
are kept for the next start. "sandfarm down" removes the sandboxes from the engine. docs/install.md explains keys and how
other machines reach the farm.`,
		Example: "  sandfarm up\n  SANDFARM_DATA=/var/lib/sandfarm sandfarm up --config sandfarm.toml",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			if err := farmd.Up(cmd.Context(), s, version, streams.Err); err != nil || !down {
				return err
			}
			return farmd.Down(context.WithoutCancel(cmd.Context()), s, streams.Err)
		}),
	}
	c.Flags().BoolVar(&down, "down", false, "when stopped, also remove the sandboxes and volumes of this farm from the engine")
	return c
}

func downCommand(load loader, streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the sandboxes and volumes of a stopped farm from the engine",
		Long:  "Removes every sandbox and volume of the farm of the data directory from the Docker engine. The farm must be stopped. Images, records and artifacts stay.",
		Args:  cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			return farmd.Down(cmd.Context(), s, streams.Err)
		}),
	}
}

func serviceCommand(name string, load loader, version string) *cobra.Command {
	short := map[string]string{
		"api":       "Run the API alone",
		"worker":    "Run a worker alone, for the local Docker engine",
		"scheduler": "Run the scheduler alone",
	}[name]
	return &cobra.Command{
		Use:   name,
		Short: short,
		Long:  short + ".\n\nIt needs the same Redis (SANDFARM_REDIS_URL) and S3 service (SANDFARM_S3_ENDPOINT, _ACCESS_KEY, _SECRET_KEY) as the\nother services. Any number may run.",
		Args:  cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			switch name {
			case "api":
				return farmd.RunAPI(cmd.Context(), s, version)
			case "worker":
				return farmd.RunWorker(cmd.Context(), s, version)
			default:
				return farmd.RunScheduler(cmd.Context(), s, version)
			}
		}),
	}
}

func imageBuildCommand(load loader, streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:     "build [NAME]",
		Short:   "Build a sandbox image in the local Docker engine (python by default)",
		Long:    "Builds a sandbox image in the Docker engine, and the base image below it: from a registry if one answers, else with\ndebootstrap. An image that exists is kept.",
		Example: "  sandfarm image build python",
		Args:    cobra.MaximumNArgs(1),
		RunE: load.withEngine(func(cmd *cobra.Command, args []string, s *farmd.Settings, e *engine.Engine) error {
			name := "python"
			if len(args) == 1 {
				name = args[0]
			}
			ref, err := farmd.BuildImage(cmd.Context(), s, e, name, farmd.Logger(s), streams.Err)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(streams.Out, ref)
			return nil
		}),
	}
}

func configCommand(load loader, streams verbs.Streams) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show and check settings", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "example", Short: "Print every setting, with its default and meaning, as a TOML file", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(streams.Out, farmd.Example())
			return err
		},
	}, &cobra.Command{
		Use: "markdown", Short: "Print every setting as a page (docs/configuration.md)", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(streams.Out, farmd.Markdown())
			return err
		},
	}, keyCommand(streams), &cobra.Command{
		Use: "callback-secret [TENANT]", Short: "Print the key that signs the callbacks of a tenant (default: tenant \"default\")", Args: cobra.MaximumNArgs(1),
		RunE: load.run(func(_ *cobra.Command, args []string, s *farmd.Settings) error {
			tenant := "default"
			if len(args) == 1 {
				tenant = args[0]
			}
			secret, err := farmd.CallbackSecret(s, tenant)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(streams.Out, secret)
			return err
		}),
	}, &cobra.Command{
		Use: "check", Short: "Check the settings and report every problem", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := load(); err != nil {
				return err
			}
			_, err := fmt.Fprintln(streams.Out, "the settings are valid")
			return err
		},
	})
	return c
}
