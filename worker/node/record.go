package node

import (
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Labels of containers, beside those of package engine.
const (
	// LabelRecord holds a sandbox's record, for a Redis that loses its data. Values of variables are left out.
	LabelRecord = "sandfarm.record"
	// labelAttempt is in place of engine.LabelGeneration on containers that the release before made.
	labelAttempt = "sandfarm.attempt"
	// LabelPool marks the container of a member of the warm pool, with the name of its image. The member had no owner when it was
	// made: the owner is in the pool's records and, for a Redis that loses its data, in the engine's note of the sandbox.
	LabelPool = "sandfarm.pool"
)

// IsPoolMember reports whether a container was made for the warm pool.
func IsPoolMember(c engine.Container) bool { return c.Labels[LabelPool] != "" }

// Belongs reports whether a container with a sandbox's id is the sandbox's: it was made for its generation. A container of an earlier one was
// given up when the sandbox's create left its node.
func Belongs(c engine.Container, s *farm.Sandbox) bool {
	if c.Labels[labelAttempt] != "" {
		return s.Node == "" || s.Node == c.Node
	}
	return c.Generation() == max(s.Generation, 1)
}

// Newer reports whether a container was made for a later generation than its record has: Redis has lost what is newer than the record.
func Newer(c engine.Container, s *farm.Sandbox) bool { return c.Generation() > max(s.Generation, 1) }

// Labels are what a sandbox's container carries: its generation, and what restores its record when Redis loses its data.
func Labels(s *farm.Sandbox) map[string]string {
	kept := *s
	kept.Spec.Env = maps.Clone(s.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	text, err := json.Marshal(kept)
	if err != nil {
		text = nil // a record always encodes; without it the sandbox is only not restored
	}
	return map[string]string{LabelRecord: string(text), engine.LabelGeneration: strconv.Itoa(max(s.Generation, 1))}
}

// RecordOf reads the record that a container carries; nil when it carries none, or that of another sandbox.
func RecordOf(c engine.Container) *farm.Sandbox {
	var s farm.Sandbox
	if json.Unmarshal([]byte(c.Labels[LabelRecord]), &s) != nil || s.ID != c.SandboxID || s.Tenant != c.Tenant || s.OneShot {
		return nil
	}
	s.Node, s.Container = c.Node, c.ID
	if s.ExpiresAt.IsZero() {
		s.ExpiresAt = s.CreatedAt.Add(time.Duration(s.Spec.TTLSeconds) * time.Second)
	}
	return &s
}
