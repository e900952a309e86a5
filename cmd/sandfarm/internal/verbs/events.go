package verbs

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (a *app) events() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "events", Short: "List what happened to workers and nodes, newest first", Example: "  sandfarm events",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := c.FleetEvents(ctx)
		if err != nil || a.json {
			return a.list(found, err)
		}
		rows := make([][]string, len(found))
		for i, e := range found {
			rows[i] = []string{since(e.At, time.Now()), cmp.Or(e.Host, e.Node), happened(e), e.WorkerID}
		}
		return table(a.Out, []string{"WHEN", "HOST", "WHAT", "WORKER"}, rows)
	})
}

// happened says an event in words.
func happened(e wire.FleetEvent) string {
	text := strings.ReplaceAll(e.Kind, "_", " ")
	switch {
	case e.Jobs > 0:
		text += ", " + farm.Plural(e.Jobs, "job") + " taken over"
	case e.Sandboxes == 1:
		text += ", 1 sandbox lost"
	case e.Sandboxes > 1:
		text += fmt.Sprintf(", %d sandboxes lost", e.Sandboxes)
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}
