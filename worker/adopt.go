package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// labelRecord holds a sandbox's record on its container, for a Redis that forgets. Values of variables are left out.
const labelRecord = "sandfarm.record"

// recordLabel writes the record of a sandbox for its container's label.
func recordLabel(s *farm.Sandbox) map[string]string {
	kept := *s
	kept.Spec.Env = maps.Clone(s.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return nil // a record always encodes; without the label the sandbox is only not adopted
	}
	return map[string]string{labelRecord: string(text)}
}

// adopt gives the running containers of this engine that have no record their record again. It is called once, at the
// start, and only where Redis keeps nothing: elsewhere a container without a record is left over.
func (w *Worker) adopt(ctx context.Context) error {
	if !w.cfg.Adopt {
		return nil
	}
	containers, err := w.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		if isMember(c) {
			if c, err = w.noted(ctx, c); farm.CodeOf(err) == farm.CodeNotFound {
				continue
			}
			if err != nil {
				return err
			}
		}
		if _, err := w.adoptOne(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// adoptOne gives a container's sandbox its record again, if it runs and its time is not up: else the reconciler removes it.
func (w *Worker) adoptOne(ctx context.Context, c engine.Container) (adopted bool, err error) {
	s := recordOf(c)
	if s == nil || !c.Running || !w.now().Before(s.ExpiresAt) {
		return false, nil
	}
	s.LastUsedAt = w.now()
	if adopted, err = w.store.RestoreSandbox(ctx, s); err != nil {
		return false, fmt.Errorf("adopt sandbox %s: %w", s.ID, err)
	}
	if adopted {
		w.log.InfoContext(ctx, "sandbox adopted from the engine", "sandbox_id", s.ID, "tenant", s.Tenant)
	}
	return adopted, nil
}

// recordOf reads the record that a container carries; nil when there is none that fits it.
func recordOf(c engine.Container) *farm.Sandbox {
	var s farm.Sandbox
	if json.Unmarshal([]byte(c.Labels[labelRecord]), &s) != nil || s.ID != c.SandboxID || s.Tenant != c.Tenant || s.OneShot {
		return nil
	}
	s.Node, s.Container = c.Node, c.ID
	if s.ExpiresAt.IsZero() {
		s.ExpiresAt = s.CreatedAt.Add(time.Duration(s.Spec.TTLSeconds) * time.Second)
	}
	return &s
}
