package farmd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Add adds the verbs that run or maintain a farm to the root command. connect makes the client of the farm that the other verbs use; version is
// the version that they report.
func Add(root *cobra.Command, streams verbs.Streams, connect verbs.Connect, version string) {
	root.AddGroup(&cobra.Group{ID: "server", Title: "Run a farm:"})
	var file string
	settings := func() (*Settings, error) {
		s, err := Load(file)
		if err == nil {
			WarnOfUnread(Logger(s), nil)
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
		configCommand(settings, streams), healthCommand(settings), caretakerCommand(settings, streams), engineProxyCommand(settings), importCommand(streams), installAgentCommand(),
	} {
		c.GroupID = "server"
		add(root, c)
	}
	if image, _, err := root.Find([]string{"image"}); err == nil {
		add(image, imageBuildCommand(settings, streams))
	}
}

type loader func() (*Settings, error)

// run makes the RunE of a command that needs the settings.
func (load loader) run(work func(cmd *cobra.Command, args []string, s *Settings) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := load()
		if err != nil {
			return err
		}
		return work(cmd, args, s)
	}
}

// withEngine is run for a command that also needs the engine.
func (load loader) withEngine(work func(cmd *cobra.Command, args []string, s *Settings, e *engine.Engine) error) func(*cobra.Command, []string) error {
	return load.run(func(cmd *cobra.Command, args []string, s *Settings) error {
		e, err := OpenEngine(s, Logger(s))
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
		Use:        "up",
		SuggestFor: []string{"start", "serve"},
		Short:      "Run a whole farm in one process",
		Long: `Runs a whole farm in one process: the API, a worker for the local Docker engine, the scheduler, an S3 service that stores
files in the data directory, and its own redis-server.

The first start builds the sandbox image, which takes a few minutes. Ctrl-C stops the farm; sandboxes, jobs and files
are kept for the next start. "sandfarm down" removes the sandboxes from the engine. docs/install.md explains keys and how
other machines reach the farm.`,
		Example: "  sandfarm up\n  SANDFARM_DATA=/var/lib/sandfarm sandfarm up --config sandfarm.toml",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			if err := Up(cmd.Context(), s, version, streams.Err); err != nil || !down {
				return err
			}
			return Down(context.WithoutCancel(cmd.Context()), s, streams.Err)
		}),
	}
	c.Flags().BoolVar(&down, "down", false, "when stopped, also remove the sandboxes and volumes of this farm from the engine")
	return c
}

func downCommand(load loader, streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the sandboxes and volumes of a stopped farm from the engine",
		Long: `Removes every sandbox and volume of a farm from the Docker engine. The farm must be stopped. Images, records and artifacts stay.

The farm is that of the data directory. For one of separate processes run this on each host of a worker, with engine.namespace
(SANDFARM_ENGINE_NAMESPACE) as the worker has it; if it sets none, that is sandfarm.`,
		Args: cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			return Down(cmd.Context(), s, streams.Err)
		}),
	}
}

func serviceCommand(name string, load loader, version string) *cobra.Command {
	short := map[string]string{
		"api":       "Run the API alone",
		"worker":    "Run a worker alone, for a Docker engine or a cluster",
		"scheduler": "Run the scheduler alone",
	}[name]
	return &cobra.Command{
		Use:   name,
		Short: short,
		Long:  short + ".\n\nIt needs the same Redis (SANDFARM_REDIS_URL) and S3 service (SANDFARM_S3_ENDPOINT, _ACCESS_KEY, _SECRET_KEY) as the\nother services. Any number may run.",
		Args:  cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			switch name {
			case "api":
				return RunAPI(cmd.Context(), s, version)
			case "worker":
				return RunWorker(cmd.Context(), s, version)
			default:
				return RunScheduler(cmd.Context(), s, version)
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
		RunE: load.withEngine(func(cmd *cobra.Command, args []string, s *Settings, e *engine.Engine) error {
			name := "python"
			if len(args) == 1 {
				name = args[0]
			}
			ref, err := BuildImage(cmd.Context(), s, e, name, Logger(s), streams.Err)
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
			_, err := fmt.Fprint(streams.Out, Example())
			return err
		},
	}, &cobra.Command{
		Use: "markdown", Short: "Print every setting as a page (docs/configuration.md)", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(streams.Out, Markdown())
			return err
		},
	}, keyCommand(streams), &cobra.Command{
		Use: "seccomp", Short: "Print the seccomp profile of sandboxes for the machines of a Kubernetes cluster (kubernetes.seccomp)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			profile, err := engine.KubeletSeccomp()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(streams.Out, "%s\n", profile)
			return err
		},
	}, &cobra.Command{
		Use: "callback-secret [TENANT]", SuggestFor: []string{"webhook"}, Short: "Print the key that signs the callbacks of a tenant (default: tenant \"default\")", Args: cobra.MaximumNArgs(1),
		RunE: load.run(func(_ *cobra.Command, args []string, s *Settings) error {
			tenant := "default"
			if len(args) == 1 {
				tenant = args[0]
			}
			secret, err := CallbackSecret(s, tenant)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(streams.Out, secret)
			return err
		}),
	}, &cobra.Command{
		Use: "check", SuggestFor: []string{"config show"}, Short: "Check the settings and report every problem", Args: cobra.NoArgs,
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

// Local connects verbs to the farm of this machine without its API.
func Local(version string) verbs.OpenLocal {
	return func(ctx context.Context, config string) (*http.Client, func() error, error) {
		s, err := Load(config)
		if err != nil {
			return nil, nil, err
		}
		redis.SetLogger(&logging.VoidLogger{}) // the error of the verb says that there is no farm
		return Operator(ctx, s, version)
	}
}

// healthCommand is the health check of containers.
func healthCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "health api|worker|scheduler|engine-proxy",
		Short: "Report by the exit code whether a service on this host works",
		Long: `Exits with 0 if the service on this host, with these settings, works: the API answers, the worker renews its heartbeat in
Redis, some scheduler leads, or the engine answers through the engine proxy. It is meant for health checks.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one service: api, worker, scheduler or engine-proxy")
			}
			return cobra.OnlyValidArgs(cmd, args)
		},
		ValidArgs: []string{"api", "worker", "scheduler", "engine-proxy"},
		RunE: load.run(func(cmd *cobra.Command, args []string, s *Settings) error {
			return Health(cmd.Context(), s, args[0])
		}),
	}
}

// caretakerCommand cleans up after workers that run in containers.
func caretakerCommand(load loader, streams verbs.Streams) *cobra.Command {
	var keepWhile []string
	c := &cobra.Command{
		Use:   "caretaker",
		Short: "Wait to be stopped, then remove the sandboxes if no worker runs any more",
		Long: `Waits until it is stopped, then removes the sandboxes of the namespace (SANDFARM_ENGINE_NAMESPACE) from the Docker engine,
unless a container with all labels of --keep-while still runs. Docker compose stops it after the workers, so no sandbox is
left behind. When it is restarted alone, as in an update, the workers still run and nothing is removed.`,
		Example: "  sandfarm caretaker --keep-while com.docker.compose.project=sandfarm --keep-while com.docker.compose.service=worker",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			return Teardown(cmd.Context(), s, keepWhile, streams.Err)
		}),
	}
	c.Flags().StringArrayVar(&keepWhile, "keep-while", nil, "label, as name=value, of the containers that keep the sandboxes while they run (may be repeated: one container must have all)")
	_ = c.MarkFlagRequired("keep-while")
	return c
}

// engineProxyCommand runs the proxy before the Docker socket.
func engineProxyCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "engine-proxy",
		Short: "Run a proxy before the Docker socket that lets workers do only what a farm does",
		Long: `Listens on a Unix socket (engine_proxy.socket) and passes on to the Docker engine only the calls that a farm makes, for
containers, volumes and images of its namespace (engine.namespace), with the settings of containers that a farm uses. Everything
else is answered with 403 and logged.

Access to the Docker socket is root on the host. With the proxy, workers need none: set their engine.host to the socket of the proxy.
Proxy and workers must be of the same release, and have the same engine.namespace and engine.runtime.`,
		Example: "  SANDFARM_ENGINE_NAMESPACE=farm sandfarm engine-proxy",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *Settings) error {
			return RunEngineProxy(cmd.Context(), s)
		}),
	}
}

func importCommand(streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "import-config FILE",
		Short: "Turn the config.toml of mcp-sandbox or python-mcp-sandbox into settings of a farm",
		Long: `Reads the config.toml of mcp-sandbox or python-mcp-sandbox and prints the equivalent settings of a farm as a TOML file.
Settings without an equivalent are listed on stderr. docs/coming-from has a page for each system.`,
		Example: "  sandfarm import-config config.toml > sandfarm.toml\n  sandfarm up --config sandfarm.toml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read settings: %w", err)
			}
			imported, err := ImportConfig(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			for _, note := range imported.Notes {
				_, _ = fmt.Fprintln(streams.Err, "  "+note)
			}
			_, err = fmt.Fprint(streams.Out, imported.TOML)
			return err
		},
	}
}

// keyCommand makes API keys. A farm knows only their hashes, so no farm is needed.
func keyCommand(streams verbs.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "key [TENANT]",
		Short: "Make an API key, and print the setting that lets a farm accept it",
		Long: `Makes a random API key for a tenant ("default" without a name) and prints two variables: the key, for clients, and its hash,
for the farm. Several entries of SANDFARM_API_KEYS are separated by commas. The key is not stored anywhere.`,
		Example: "  sandfarm config key\n  sandfarm config key team-blue",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			tenant := "default"
			if len(args) == 1 {
				tenant = args[0]
			}
			if !farm.ValidTenant(tenant) {
				return fmt.Errorf("the tenant %q must be "+farm.TenantNames, tenant)
			}
			key := service.NewSecret()
			_, err := fmt.Fprintf(streams.Out, "SANDFARM_API_KEY=%s\nSANDFARM_API_KEYS=%s:%x\n", key, tenant, sha256.Sum256([]byte(key)))
			return err
		},
	}
}
