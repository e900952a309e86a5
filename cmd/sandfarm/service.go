package main

import (
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// healthCommand is what a container's health check runs.
func healthCommand(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "health api|worker|scheduler",
		Short: "Say by the exit code whether a service on this host does its work",
		Long: `Exits with 0 when the service that runs on this host with these settings does its work: the API answers, the worker
renews its heartbeat in Redis, some scheduler leads. It is meant for health checks.`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"api", "worker", "scheduler"},
		RunE: load.run(func(cmd *cobra.Command, args []string, s *farmd.Settings) error {
			return farmd.Health(cmd.Context(), s, args[0])
		}),
	}
}

// caretakerCommand cleans up behind workers that run in containers.
func caretakerCommand(load loader, streams verbs.Streams) *cobra.Command {
	var keepWhile []string
	c := &cobra.Command{
		Use:   "caretaker",
		Short: "Wait to be stopped, and then remove the sandboxes that no worker will want back",
		Long: `Waits until it is stopped, and then removes the sandboxes of the namespace (SANDFARM_ENGINE_NAMESPACE) from the Docker
engine, unless containers with all the labels of --keep-while are still there, running or not. It is stopped after the
workers: with "docker compose down" their containers are gone by then, with "docker compose stop" they are not.`,
		Example: "  sandfarm caretaker --keep-while com.docker.compose.project=sandfarm --keep-while com.docker.compose.service=worker",
		Args:    cobra.NoArgs,
		RunE: load.run(func(cmd *cobra.Command, _ []string, s *farmd.Settings) error {
			return farmd.Caretake(cmd.Context(), s, keepWhile, streams.Err)
		}),
	}
	c.Flags().StringArrayVar(&keepWhile, "keep-while", nil, "label, as name=value, of the containers whose presence keeps the sandboxes (may be repeated; all must be there)")
	_ = c.MarkFlagRequired("keep-while")
	return c
}
