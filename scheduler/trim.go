package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// unusedAge is for how long nobody serves a node's queue until it is forgotten: its engine does not come back.
const unusedAge = time.Hour

// Kinds of what is trimmed, as the metrics have them.
const (
	trimmedEntries = "entry"
	trimmedJobs    = "job"
	trimmedTasks   = "task"
	trimmedQueues  = "queue"
)

// trim forgets what is over its bounds: index entries whose records have expired, finished jobs over limits.max_finished,
// and of the queues what was given up longer ago than finished jobs are kept, and those of nodes that are gone.
func (s *Scheduler) trim(ctx context.Context) error {
	err := s.each(ctx, func(ctx context.Context, tenant string) error {
		n, err := s.deps.Ledger.Trim(ctx, tenant)
		s.seen.trimmed.WithLabelValues(trimmedEntries).Add(float64(n.Entries))
		s.seen.trimmed.WithLabelValues(trimmedJobs).Add(float64(n.Jobs))
		if err != nil {
			return fmt.Errorf("trim records of tenant %s: %w", tenant, err)
		}
		return nil
	})
	return errors.Join(err, s.trimQueues(ctx))
}

func (s *Scheduler) trimQueues(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	served := map[string]bool{}
	for _, w := range workers {
		served[farm.NodeQueue(w.Node)] = true
		delete(s.unused, farm.NodeQueue(w.Node))
	}
	now := time.Now()
	n, err := s.deps.Tasks.Trim(ctx, now.Add(-time.Duration(s.cfg.Limits.RetentionSeconds)*time.Second), func(queue string) bool {
		if served[queue] || !strings.HasPrefix(queue, farm.NodeQueue("")) {
			return false
		}
		since, known := s.unused[queue]
		if !known {
			s.unused[queue] = now
			return false
		}
		return now.Sub(since) >= unusedAge
	})
	maps.DeleteFunc(s.unused, func(_ string, since time.Time) bool { return now.Sub(since) > 2*unusedAge }) // it was removed
	s.seen.trimmed.WithLabelValues(trimmedTasks).Add(float64(n.Tasks))
	s.seen.trimmed.WithLabelValues(trimmedQueues).Add(float64(n.Queues))
	if err != nil {
		return fmt.Errorf("trim queues: %w", err)
	}
	return nil
}
