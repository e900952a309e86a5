package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Kinds of trimmed records in the metrics.
const (
	trimmedEntries = "entry"
	trimmedJobs    = "job"
	trimmedTasks   = "task"
	trimmedQueues  = "queue"

	trimmedDocuments = "documents" // of one record
	trimmedCallbacks = "callback"  // given up beyond limits.max_callbacks
	trimmedForgotten = "forgotten" // finished jobs and ended sandboxes, since Redis was half full
)

// trim removes what is beyond its bounds: index entries and documents whose records have expired, finished jobs beyond
// Limits.MaxFinished, callbacks beyond limits.max_callbacks, archived tasks that are older than finished jobs are kept, and empty queues of nodes and GPU models that have no worker.
func (s *Scheduler) trim(ctx context.Context) error {
	err := s.each(ctx, func(ctx context.Context, tenant string) error {
		n, err := s.deps.Ledger.Trim(ctx, tenant)
		s.seen.trimmed.WithLabelValues(trimmedEntries).Add(float64(n.Entries))
		s.seen.trimmed.WithLabelValues(trimmedJobs).Add(float64(n.Jobs))
		s.seen.trimmed.WithLabelValues(trimmedDocuments).Add(float64(n.Documented))
		if err != nil {
			return fmt.Errorf("trim records of tenant %s: %w", tenant, err)
		}
		dropped, err := s.deps.Jobs.DropCallbacks(ctx, tenant)
		s.seen.trimmed.WithLabelValues(trimmedCallbacks).Add(float64(dropped))
		if err != nil {
			return fmt.Errorf("trim callbacks of tenant %s: %w", tenant, err)
		}
		return nil
	})
	_, expired := s.deps.Ledger.TrimKeys(ctx, time.Now().Add(-keepExpiredKeys))
	return errors.Join(err, expired, s.trimQueues(ctx))
}

// forget removes finished jobs and ended sandboxes of the tenants with most, if Redis is half full.
func (s *Scheduler) forget(ctx context.Context) error {
	forgotten, err := s.deps.Ledger.ForgetFinished(ctx)
	for _, of := range forgotten {
		s.seen.trimmed.WithLabelValues(trimmedForgotten).Add(float64(of.Records))
		s.log.InfoContext(ctx, "finished jobs and ended sandboxes removed before their time: Redis is more than half full", "tenant", of.Tenant, "records", of.Records, "bytes", of.Bytes)
	}
	if err != nil {
		return fmt.Errorf("remove finished jobs: %w", err)
	}
	return nil
}

// keepExpiredKeys is how long API keys stay in the list after they have expired, so that their owners see why they no longer work.
const keepExpiredKeys = 7 * 24 * time.Hour

func (s *Scheduler) trimQueues(ctx context.Context) error {
	workers, err := s.deps.Ledger.Workers(ctx)
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	served := map[string]bool{}
	for _, w := range workers {
		served[farm.NodeQueue(w.Node)] = true
		for _, queue := range w.Queues {
			served[queue] = true
		}
	}
	n, err := s.deps.Tasks.Trim(ctx, time.Now().Add(-time.Duration(s.cfg.Limits.RetentionSeconds)*time.Second), func(queue string) bool {
		return !served[queue] && comesAndGoes(queue)
	})
	s.seen.trimmed.WithLabelValues(trimmedTasks).Add(float64(n.Tasks))
	s.seen.trimmed.WithLabelValues(trimmedQueues).Add(float64(n.Queues))
	if err != nil {
		return fmt.Errorf("trim queues: %w", err)
	}
	return nil
}

// comesAndGoes reports whether a queue belongs to a node or a GPU model, and not to the farm.
func comesAndGoes(queue string) bool {
	model, gpu := farm.GPUQueue(queue)
	return gpu && model != "" || strings.HasPrefix(queue, farm.NodeQueue(""))
}
