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
		Use:   "health api|worker|scheduler",
		Short: "Report by the exit code whether a service on this host works",
		Long: `Exits with 0 if the service on this host, with these settings, works: the API answers, the worker renews its heartbeat in
Redis, or some scheduler leads. It is meant for health checks.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one service: api, worker or scheduler")
			}
			return cobra.OnlyValidArgs(cmd, args)
		},
		ValidArgs: []string{"api", "worker", "scheduler"},
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
