package server

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

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
		RunE: load.run(func(cmd *cobra.Command, args []string, s *farmd.Settings) error {
			return farmd.Health(cmd.Context(), s, args[0])
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
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			return farmd.Caretake(cmd.Context(), s, keepWhile, streams.Err)
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
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			return farmd.RunEngineProxy(cmd.Context(), s)
		}),
	}
}
