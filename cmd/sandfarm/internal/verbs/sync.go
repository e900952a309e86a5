package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// syncEvery is how often the directory here is looked at.
	syncEvery = time.Second
	// syncTimeout is the longest pause after a round that failed.
	syncTimeout = 30 * time.Second
)

func (a *app) sync() *cobra.Command {
	var o syncOptions
	var once bool
	c := a.verb(&cobra.Command{
		Use: "sync DIR ID:PATH", Short: "Keep a directory here and one in a sandbox the same",
		Long: `Keep a local directory and one in a sandbox the same, until Ctrl-C: a change on one side is copied to the other. With --once, compare and copy
once. The last common state is remembered in your cache directory, so a later sync knows which side has changed.

A file that changed on both sides to other content is a conflict: it is reported, and neither copy changes until you delete one of them. Deletions are copied with
--delete only; a change wins over a deletion. Names that match --ignore, .git, links and empty directories are left out. Files that other programs load
by name (hidden files, Makefile, conftest.py and the like) are copied into the sandbox; new ones there are reported, and copied here only with --trust.`,
		Example: `  sandfarm sync ./project sbx_…:project
  sandfarm sync . sbx_…:/workspace --once --delete --ignore node_modules`,
	}, argCount(2, 2, "DIR or ID:PATH"), func(ctx context.Context, c *client.Client, args []string) error {
		to := placeOf(args[1])
		switch {
		case to.sandbox == "" && placeOf(args[0]).sandbox != "":
			return usagef("the local directory comes first: sandfarm sync %s", quote([]string{args[1], args[0]}))
		case to.sandbox == "":
			return usagef("%q is not in a sandbox: write it as ID:PATH, such as sbx_…:project", args[1])
		}
		for _, pattern := range o.ignore {
			if _, err := filepath.Match(pattern, ""); err != nil || strings.Contains(pattern, "/") {
				return usagef("--ignore %q is not a pattern of a name", pattern)
			}
		}
		s, err := a.newSyncer(ctx, c, args[0], to, o)
		if err != nil {
			return err
		}
		defer s.close()
		if once {
			return s.once(ctx)
		}
		return s.watch(ctx)
	})
	c.Flags().BoolVar(&once, "once", false, "compare and copy once")
	c.Flags().BoolVar(&o.deletes, "delete", false, "copy deletions, too")
	c.Flags().BoolVar(&o.trust, "trust", false, "copy files here that other programs load by name, too")
	c.Flags().StringVar(&o.memory, "memory", "", "`DIR` that remembers what both sides had (default: your cache directory)")
	c.Flags().StringArrayVar(&o.ignore, "ignore", nil, "leave out names that match this `PATTERN`, such as '*.pyc' (repeatable)")
	return c
}

// once compares and copies once. Conflicts and files that could not be copied are an error.
func (s *syncer) once(ctx context.Context) error {
	if err := s.list(ctx); err != nil {
		return err
	}
	open, err := s.round(ctx)
	if err == nil && open > 0 {
		err = fmt.Errorf("not the same on both sides: %s", farm.Plural(open, "file"))
	}
	if err == nil && !s.said {
		s.say("nothing to copy: both sides are the same")
	}
	return err
}

// watch compares and copies until ctx is done.
func (s *syncer) watch(ctx context.Context) error {
	ctx, done := context.WithCancel(ctx)
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer done()
	watching.Go(func() {
		for event, err := range s.files.Watch(ctx, s.there, true, s.ignored()) {
			if err != nil {
				failed <- err
				return
			}
			if event.Name == "dropped" {
				s.say("the sandbox changes faster than it can be followed: comparing everything")
			}
			select {
			case changed <- struct{}{}:
			default: // it is looked at anyway
			}
		}
	})
	look, tick, wait, first := true, time.NewTicker(syncEvery), syncEvery, true
	defer tick.Stop()
	for {
		var err error
		if look {
			err = s.list(ctx)
		}
		if err == nil {
			look = false
			_, err = s.round(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C ends it
		case err != nil && !temporaryError(err):
			return err
		case err != nil:
			look, wait = true, min(2*wait, syncTimeout)
			s.say("%v; trying again", err)
		default:
			wait = syncEvery
			if first {
				s.say("compared both sides; changes are copied until Ctrl-C")
				first = false
			}
		}
		tick.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil // Ctrl-C ends it
			}
			return err
		case <-changed:
			look = true
		case <-tick.C:
		}
	}
}

// temporaryError reports whether a later try may succeed: the farm is busy, or cannot be reached.
func temporaryError(err error) bool {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests || e.Status == http.StatusBadGateway
	}
	_, network := errors.AsType[net.Error](err)
	return network
}
