package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

func (a *app) artifact() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "artifact", Aliases: []string{"artifacts"},
		Short: "List, download and delete the files that jobs made",
		Long:  `Every file that a job created or changed is stored as an artifact for a week, even after its sandbox is closed.`,
		Example: `  sandfarm artifact ls --job job_…
  sandfarm artifact get art_…`,
	}, a.artifactLs(), a.artifactGet(), a.artifactRm())
}

func (a *app) artifactLs() *cobra.Command {
	var filter client.ArtifactFilter
	var limit int
	c := a.verb(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List artifacts, newest first",
		Example: `  sandfarm artifact ls
  sandfarm artifact ls --sandbox sbx_… --json | jq -r '.items[].url'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		if err := notNamed(ctx, c, filter.SandboxID); err != nil {
			return err
		}
		now := time.Now()
		head := []string{"ID", "PATH", "SIZE", "TYPE", "JOB", "CREATED"}
		return listed(a, c.Artifacts(ctx, filter), limit, head, func(one wire.Artifact) []string {
			return []string{one.ID, one.Path, size(one.Size), one.ContentType, one.JobID, since(one.CreatedAt, now)}
		})
	})
	c.Flags().StringVarP(&filter.SandboxID, "sandbox", "s", "", "only those of this sandbox")
	c.Flags().StringVar(&filter.JobID, "job", "", "only those of this job")
	c.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	a.complete(c, "sandbox", a.sandboxIDs)
	a.complete(c, "job", a.jobIDs)
	return c
}

func (a *app) artifactRm() *cobra.Command {
	return a.verb(&cobra.Command{
		Use: "rm ID…", Short: "Delete artifacts", Example: "  sandfarm artifact rm art_…",
		Long:              "Delete artifacts before their time is up. Links to them stop working.",
		ValidArgsFunction: a.every(a.artifactIDs),
	}, argCount(1, -1, "the artifact's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		var errs []error
		for _, id := range args {
			err := c.DeleteArtifact(ctx, id)
			if err == nil {
				fmt.Fprintln(a.Err, printable("deleted "+id))
			}
			errs = append(errs, about("delete artifact "+id, err))
		}
		return errors.Join(errs...)
	})
}

func (a *app) artifactGet() *cobra.Command {
	var link bool
	var output string
	c := a.verb(&cobra.Command{
		Use: "get ID [DEST|-]", SuggestFor: []string{"artifact download"}, Short: "Download an artifact",
		Long: `Download an artifact to DEST (a file or an existing directory), to stdout (-), or into the current directory. An existing
file with other content is not overwritten: the new one is called name-1.`,
		Example: `  sandfarm artifact get art_…
  sandfarm artifact get art_… -o report.pdf
  sandfarm artifact get art_… - | head
  sandfarm artifact get art_… --link`,
		ValidArgsFunction: a.first(a.artifactIDs),
	}, argCount(1, 2, "the artifact's ID"), func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) == 2 && output != "" {
			return usagef("DEST is given twice: %s and --output %s", args[1], output)
		}
		at, err := c.Link(ctx, args[0])
		if err != nil {
			return err
		}
		if link {
			_, err := fmt.Fprintln(a.Out, at)
			return err
		}
		dest := output
		if len(args) == 2 {
			dest = args[1]
		}
		content, err := c.Fetch(ctx, at, 0)
		if err != nil {
			return err
		}
		defer content.Close()
		name := path.Base(strings.ReplaceAll(content.Name, `\`, "/"))
		if name == "." || name == "/" {
			name = args[0]
		}
		return a.copyOut(c, dest, fileName{text: cmp.Or(name, args[0]), foreign: true}, func() (io.ReadCloser, error) { return content, nil })
	})
	c.Flags().StringVarP(&output, "output", "o", "", "the same as DEST")
	c.Flags().BoolVar(&link, "link", false, "print a link that works without a key until it expires")
	return c
}
