package verbs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

func (a *app) image() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "image", Short: "List and build the images of sandboxes",
		Example: "  sandfarm image ls",
	}, a.imageLs("ls"))
}

// images is the old name of "image ls".
func (a *app) images() *cobra.Command {
	c := a.imageLs("images")
	c.Aliases, c.Hidden = nil, true
	return c
}

func (a *app) imageLs(use string) *cobra.Command {
	return a.verb(&cobra.Command{
		Use: use, Aliases: []string{"list"}, Short: "List the images of sandboxes", Example: "  sandfarm image ls",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := c.Images(ctx)
		if err != nil || a.json {
			return a.list(found, err)
		}
		rows := make([][]string, len(found))
		for i, image := range found {
			rows[i] = []string{image.Name, strings.Join(image.Languages, ", "), size(image.Size), image.Description}
		}
		return table(a.Out, []string{"NAME", "LANGUAGES", "SIZE", "DESCRIPTION"}, rows)
	})
}

func (a *app) workers() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "workers", SuggestFor: []string{"nodes"}, Short: "List the live workers", Example: "  sandfarm workers",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := c.Workers(ctx)
		if err != nil || a.json {
			return a.list(found, err)
		}
		now := time.Now()
		rows := make([][]string, len(found))
		for i, w := range found {
			rows[i] = []string{
				w.ID, w.Host, workerJobs(w), fmt.Sprint(w.Sandboxes), strings.Join(w.Images, ", "),
				devices(w.GPUsLeased, w.GPUs), since(w.SeenAt, now), workerState(w),
			}
		}
		return table(a.Out, []string{"ID", "HOST", "JOBS", "SANDBOXES", "IMAGES", "GPUS", "SEEN", "STATE"}, rows)
	})
}

func (a *app) queues() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "queues", Short: "List the queues and their backlogs", Example: "  sandfarm queues",
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := c.Queues(ctx)
		if err != nil || a.json {
			return a.list(found, err)
		}
		rows := make([][]string, len(found))
		for i, q := range found {
			gpus := ""
			if q.GPUs > 0 {
				gpus = fmt.Sprintf("%d/%d", q.GPUsLeased, q.GPUs)
			}
			rows[i] = []string{q.Name, fmt.Sprint(q.Depth), fmt.Sprint(q.Running), rate(q.EndedPerMinute), gpus}
		}
		return table(a.Out, []string{"NAME", "WAITING", "RUNNING", "PER MINUTE", "GPUS"}, rows)
	})
}
