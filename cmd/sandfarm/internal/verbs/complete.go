package verbs

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

const (
	completionTimeout = 2 * time.Second // the user waits for the shell
	completions       = 50
)

// ids lists the candidates for an argument, newest first.
type ids func(ctx context.Context, c *client.Client) []cobra.Completion

func (a *app) sandboxIDs(ctx context.Context, c *client.Client) []cobra.Completion {
	var found []cobra.Completion
	for s, err := range upTo(c.Sandboxes(ctx, client.SandboxFilter{Open: true}), completions) {
		if err != nil {
			break
		}
		found = append(found, cobra.CompletionWithDesc(s.ID, cell(s.Name)+" "+s.State))
	}
	return found
}

func (a *app) imageNames(ctx context.Context, c *client.Client) []cobra.Completion {
	images, err := c.Images(ctx)
	if err != nil {
		return nil
	}
	var found []cobra.Completion
	for _, i := range images[:min(len(images), completions)] {
		found = append(found, cobra.CompletionWithDesc(i.Name, cell(i.Description)))
	}
	return found
}

func (a *app) jobIDs(ctx context.Context, c *client.Client) []cobra.Completion {
	return jobCompletions(ctx, c, client.JobFilter{})
}

func jobCompletions(ctx context.Context, c *client.Client, filter client.JobFilter) []cobra.Completion {
	var found []cobra.Completion
	for j, err := range upTo(c.Jobs(ctx, filter), completions) {
		if err != nil {
			break
		}
		found = append(found, cobra.CompletionWithDesc(j.ID, j.Kind+" "+j.State))
	}
	return found
}

// openJobIDs lists the jobs that have not ended.
func (a *app) openJobIDs(ctx context.Context, c *client.Client) []cobra.Completion {
	return jobCompletions(ctx, c, client.JobFilter{State: "queued,running"})
}

func (a *app) artifactIDs(ctx context.Context, c *client.Client) []cobra.Completion {
	var found []cobra.Completion
	for one, err := range upTo(c.Artifacts(ctx, client.ArtifactFilter{}), completions) {
		if err != nil {
			break
		}
		found = append(found, cobra.CompletionWithDesc(one.ID, cell(one.Path)))
	}
	return found
}

// processIDs lists the processes of a sandbox.
func (a *app) processIDs(sandbox string) ids {
	return func(ctx context.Context, c *client.Client) []cobra.Completion {
		list, err := c.Processes(ctx, sandbox)
		if err != nil {
			return nil
		}
		var found []cobra.Completion
		for _, p := range list[max(0, len(list)-completions):] {
			found = append(found, cobra.CompletionWithDesc(p.ID, cell(cmp.Or(p.Name, processLine(p)))+" "+processState(p)))
		}
		return found
	}
}

// second completes the first argument, and then the second, whose candidates depend on the first.
func (a *app) second(one ids, two func(first string) ids) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return a.every(two(args[0]))(cmd, nil, typed)
		}
		return a.first(one)(cmd, args, typed)
	}
}

// first completes the first argument only.
func (a *app) first(from ids) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.ask(cmd, from), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// places completes paths here, and what begins as the id of a sandbox as ID:.
func (a *app) places(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if typed == "" || !strings.HasPrefix(typed, "sbx_") && !strings.HasPrefix("sbx_", typed) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	found := a.ask(cmd, a.sandboxIDs)
	for i, one := range found {
		found[i] = strings.Replace(one, "\t", ":\t", 1)
	}
	return found, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveKeepOrder
}

// every completes every argument.
func (a *app) every(from ids) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.ask(cmd, from), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// complete completes the value of a flag.
func (a *app) complete(c *cobra.Command, flag string, from ids) { completeBy(c, flag, a.every(from)) }

// completeChoices completes the value of a flag that has few.
func completeChoices(c *cobra.Command, flag string, values ...cobra.Completion) {
	completeBy(c, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completeBy(c *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, by); err != nil { // the flag does not exist: a bug
		panic(err)
	}
}

func (a *app) ask(cmd *cobra.Command, from ids) []cobra.Completion {
	c, err := a.client("")
	if err != nil {
		return nil
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	return from(ctx, c)
}
