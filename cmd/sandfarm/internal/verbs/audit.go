package verbs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

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
	var limit int
	c := a.verb(&cobra.Command{
		Use: "audit", Short: "Show who asked the farm for what",
		Long: `Shows who (key and tenant) asked for what (route, sandbox, job), from where, and what came of it: changes, jobs and refusals, the
newest last. Code, environment and links are never part of it.`,
		Example: `  sandfarm audit
  sandfarm audit --tenant team-blue --limit 500
  sandfarm audit --follow --json`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, c *client.Client, _ []string) error {
		found, f, err := readAudit(ctx, c, filter, limit, live)
		if err != nil {
			return err
		}
		if err := a.auditRows(f, found); err != nil {
			return err
		}
		if live {
			return a.followAudit(ctx, c, f)
		}
		if f.more {
			a.sayMore(limit)
		}
		return nil
	})
	c.Flags().StringVar(&filter.Tenant, "tenant", "", "only of this tenant")
	c.Flags().BoolVarP(&live, "follow", "f", false, "continue with new entries until interrupted")
	c.Flags().IntVar(&limit, "limit", 50, "at most this many old entries; 0 for all")
	return a.admin(c)
}

// auditFollower knows which entries were read.
type auditFollower struct {
	filter client.AuditFilter
	newest time.Time            // of the entries so far
	seen   map[string]time.Time // their times, by id; older ones are not read again
	more   bool                 // there are older entries than the number that was asked for
	widest []string             // the widest cells so far, once there is a header
}

// readAudit reads the newest entries, oldest first: at most a number of them, if that is positive. With --follow it also notes earlier
// ones that would be read again.
func readAudit(ctx context.Context, c *client.Client, filter client.AuditFilter, limit int, live bool) ([]wire.AuditEntry, *auditFollower, error) {
	f := &auditFollower{filter: filter, newest: time.Now(), seen: map[string]time.Time{}}
	var found []wire.AuditEntry
	for e, err := range c.Audit(ctx, filter) {
		if err != nil {
			return nil, nil, err
		}
		if len(f.seen) == 0 {
			f.newest = e.At
		}
		if full := limit > 0 && len(found) == limit; !full {
			found = append(found, e)
		} else if f.more = true; !live || e.At.Before(f.newest.Add(-2*auditAgain)) {
			break
		}
		f.seen[e.ID] = e.At
	}
	slices.Reverse(found)
	return found, f, nil
}

// next reads the entries that are new, oldest first.
func (f *auditFollower) next(ctx context.Context, c *client.Client) ([]wire.AuditEntry, error) {
	f.filter.After = f.newest.Add(-auditAgain)
	recent, err := collect(c.Audit(ctx, f.filter))
	if err != nil {
		return nil, err
	}
	slices.Reverse(recent)
	fresh := slices.DeleteFunc(recent, func(e wire.AuditEntry) bool { _, known := f.seen[e.ID]; return known })
	for _, e := range fresh {
		f.seen[e.ID] = e.At
		if e.At.After(f.newest) {
			f.newest = e.At
		}
	}
	maps.DeleteFunc(f.seen, func(_ string, at time.Time) bool { return at.Before(f.newest.Add(-2 * auditAgain)) })
	return fresh, nil
}

// followAudit prints new entries until ctx ends.
func (a *app) followAudit(ctx context.Context, c *client.Client, f *auditFollower) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(auditEvery):
		}
		fresh, err := f.next(ctx, c)
		if err != nil {
			return err
		}
		if err := a.auditRows(f, fresh); err != nil {
			return err
		}
	}
}

// auditRows prints entries as rows of one table, whose columns the rows before them have set, or each as JSON.
func (a *app) auditRows(f *auditFollower, entries []wire.AuditEntry) error {
	if a.json {
		for _, e := range entries {
			if err := a.encoder().Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	head := []string{"TIME", "STATUS", "TENANT", "KEY", "FROM", "ROUTE", "SUBJECT", "SANDBOX", "JOB"}
	printed := 0 // lines of the table that are on the screen
	var rows [][]string
	if f.widest != nil {
		printed, rows = 2, append(rows, f.widest)
	}
	for _, e := range entries {
		subject := e.Subject
		if subject == e.SandboxID || subject == e.JobID || subject == e.KeyID {
			subject = "" // said once
		}
		row := []string{e.At.UTC().Format("2006-01-02T15:04:05Z"), fmt.Sprint(e.Status), e.Tenant, e.KeyID, e.From, e.Route, subject, e.SandboxID, e.JobID}
		if e.Missed > 0 {
			row = append(row, fmt.Sprintf("(%d entries before it are missing)", e.Missed))
		}
		rows = append(rows, row)
	}
	var out bytes.Buffer
	if err := table(&out, head, rows); err != nil {
		return err
	}
	f.widest = slices.Clone(head)
	for _, row := range rows {
		for i := range head {
			if utf8.RuneCountInString(row[i]) > utf8.RuneCountInString(f.widest[i]) {
				f.widest[i] = row[i]
			}
		}
	}
	for range printed {
		_, _ = out.ReadString('\n')
	}
	_, err := out.WriteTo(a.Out)
	return err
}
