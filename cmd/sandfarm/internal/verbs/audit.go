package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// How audit --follow reads.
const (
	auditEvery = time.Second      // between two reads
	auditAgain = 10 * time.Second // what is read again each time: clocks differ, and entries are written in the background
)

func (a *app) audit() *cobra.Command {
	var filter client.AuditFilter
	var live bool
	var most int
	c := a.verb(&cobra.Command{
		Use: "audit", Short: "Show who asked the farm for what",
		Long: `Shows who (key and tenant) asked for what (route, sandbox, job), from where, and what came of it: changes, jobs and refusals, the
newest last. Code, environment and links are never part of it.`,
		Example: `  sandfarm audit
  sandfarm audit --tenant team-blue --limit 500
  sandfarm audit --follow --json`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, err := collect(atMost(c.Audit(ctx, filter), most))
		if err != nil {
			return err
		}
		slices.Reverse(found)
		if err := a.auditLines(found); err != nil || !live {
			return err
		}
		return a.followAudit(ctx, c, filter, found)
	})
	c.Flags().StringVar(&filter.Tenant, "tenant", "", "only of this tenant")
	c.Flags().BoolVarP(&live, "follow", "f", false, "go on with new entries until interrupted")
	c.Flags().IntVar(&most, "limit", 50, "at most this many old entries; 0 for all")
	return a.admin(c)
}

// followAudit prints new entries until ctx ends.
func (a *app) followAudit(ctx context.Context, c *client.Client, filter client.AuditFilter, old []wire.AuditEntry) error {
	began := time.Now()
	seen := map[string]time.Time{}
	for {
		if len(old) > 0 {
			began = old[len(old)-1].At
		}
		for _, e := range old {
			seen[e.ID] = e.At
		}
		filter.After = began.Add(-auditAgain)
		for id, at := range seen {
			if at.Before(filter.After.Add(-auditAgain)) {
				delete(seen, id)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(auditEvery):
		}
		recent, err := collect(c.Audit(ctx, filter))
		if err != nil {
			return err
		}
		slices.Reverse(recent)
		old = slices.DeleteFunc(recent, func(e wire.AuditEntry) bool { _, known := seen[e.ID]; return known })
		if err := a.auditLines(old); err != nil {
			return err
		}
	}
}

// auditLines prints entries, each on a line.
func (a *app) auditLines(entries []wire.AuditEntry) error {
	for _, e := range entries {
		if a.json {
			if err := json.NewEncoder(a.Out).Encode(e); err != nil {
				return err
			}
			continue
		}
		words := []string{
			e.At.UTC().Format("2006-01-02T15:04:05Z"), fmt.Sprint(e.Status), cell(e.Tenant), cell(e.KeyID), cell(e.From), cell(e.Route),
		}
		for _, word := range []string{e.Subject, e.SandboxID, e.JobID} {
			if word != "" && !slices.Contains(words, word) {
				words = append(words, cell(word))
			}
		}
		if e.Missed > 0 {
			words = append(words, fmt.Sprintf("(%d entries before it are missing)", e.Missed))
		}
		if _, err := fmt.Fprintln(a.Out, strings.Join(words, " ")); err != nil {
			return err
		}
	}
	return nil
}
