package node

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// ErrGone says that a sandbox's container no longer runs.
var ErrGone = errors.New("the sandbox's container is gone")

// Container is what the engine knows a sandbox's container by: its id, or the name that it always has.
func (n *Node) Container(s *farm.Sandbox) string {
	if s.Container != "" {
		return s.Container
	}
	return n.engine.Name(s.ID)
}

// Gone reports whether a sandbox's container has ended, with the reason, which wraps ErrGone. An engine that does not answer
// is no evidence: then Gone reports false.
func (n *Node) Gone(ctx context.Context, s *farm.Sandbox) (error, bool) { //nolint:revive // the error is the finding
	c, err := n.engine.Inspect(ctx, n.Container(s))
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return ErrGone, true
	case err != nil:
		return nil, false
	case c.OOMKilled && !c.Running:
		return fmt.Errorf("%w: its memory limit of %d MiB was reached", ErrGone, s.Spec.Resources.MemoryMB), true
	case !c.Running:
		return fmt.Errorf("%w: it ended with exit code %d", ErrGone, c.ExitCode), true
	default:
		return nil, false
	}
}

// variables are the environment of a sandbox's container. Those of secrets have a placeholder.
func variables(s *farm.Sandbox) map[string]string {
	env := maps.Clone(s.Spec.Env)
	for _, one := range s.Spec.Secrets {
		if env == nil {
			env = map[string]string{}
		}
		env[one.Name] = farm.SecretPlaceholder
	}
	return env
}

// ContainerSpec describes the container of a sandbox for the engine. It shares nothing with s.
func (n *Node) ContainerSpec(s *farm.Sandbox, image farm.Image) engine.Spec {
	command := []string{agent.BinaryPath, "init"}
	switch n.wayOf(s) {
	case indexOnly:
		command = append(command, "--egress")
	case indexAndAll:
		command = append(command, "--egress", "--proxy")
		if len(s.Spec.Authority) > 0 {
			command = append(command, "--authority", base64.StdEncoding.EncodeToString(s.Spec.Authority))
		}
	}
	if !s.ExpiresAt.IsZero() {
		command = append(command, "--ends-in", max(s.ExpiresAt.Sub(n.deps.Now()), time.Millisecond).String())
	}
	return engine.Spec{
		SandboxID: s.ID, Tenant: s.Tenant, Node: n.id,
		Image:       cmp.Or(image.ID, image.Ref), // by now the name may be that of another image
		AgentVolume: n.AgentVolume(n.Runtime(s.Spec)), AgentMount: agent.MountDir, Command: command,
		UID: engine.PreferredUID(s.ID), UniqueUID: true, Env: variables(s),
		Runtime: n.chosenRuntime(s.Spec), Resources: s.Spec.Resources, Deadline: s.ExpiresAt, Labels: Labels(s),
	}
}
