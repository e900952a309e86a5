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
	// LabelAttempt names the attempt of its create job that made a container. When the create was moved to another node,
	// containers of earlier attempts are void (see Void).
	LabelAttempt = "sandfarm.attempt"
	// LabelPool marks the container of a member of the warm pool, with the name of its image. The member had no owner when it was
	// made: the owner is in the pool's records and, for a Redis that loses its data, in the engine's note of the sandbox.
	LabelPool = "sandfarm.pool"
)

// IsPoolMember reports whether a container was made for the warm pool.
func IsPoolMember(c engine.Container) bool { return c.Labels[LabelPool] != "" }

// Void reports whether a container was made by an attempt that was given up when its sandbox's create moved to another node.
func Void(c engine.Container, s *farm.Sandbox) bool {
	attempt, _ := strconv.Atoi(c.Labels[LabelAttempt]) // members of the pool have none
	return s.Void > 0 && attempt <= s.Void
}

// Labels are what a sandbox's container carries for a Redis that loses its data.
func Labels(s *farm.Sandbox) map[string]string {
	kept := *s
	kept.Spec.Env = maps.Clone(s.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return nil // a record always encodes; without the label the sandbox is only not restored
	}
	return map[string]string{LabelRecord: string(text)}
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
