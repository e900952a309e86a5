package node

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
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
	case !c.Running && c.Reason != "":
		return fmt.Errorf("%w: %s", ErrGone, c.Reason), true
	case !c.Running:
		return fmt.Errorf("%w: it ended with exit code %d", ErrGone, c.ExitCode), true
	default:
		return nil, false
	}
}

// Answers reports whether the engine does.
func (n *Node) Answers(ctx context.Context) bool { return n.engine.Ping(ctx) == nil }

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
func (n *Node) ContainerSpec(s *farm.Sandbox, image farm.Image) farm.ContainerSpec {
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
	return farm.ContainerSpec{
		SandboxID: s.ID, Generation: max(s.Generation, 1), Tenant: s.Tenant, Node: n.id,
		Image: cmp.Or(image.ID, image.Ref), // by now the name may be that of another image
		Agent: n.Agent(n.Runtime(s.Spec)), Command: command, Env: variables(s),
		Runtime: n.chosenRuntime(s.Spec), Resources: s.Spec.Resources, Deadline: s.ExpiresAt, Labels: Labels(s),
	}
}

// Labels of containers.
const (
	// LabelRecord holds a sandbox's record, for a Redis that loses its data, without what Labels leaves out.
	LabelRecord = "sandfarm.record"
	// labelAttempt is in place of the generation on containers that the release before made.
	labelAttempt = "sandfarm.attempt"
	// LabelPool marks the container of a member of the warm pool, with the name of its image. The member had no owner when it was
	// made: the owner is in the pool's records and, for a Redis that loses its data, in the engine's note of the sandbox.
	LabelPool = "sandfarm.pool"
)

// IsPoolMember reports whether a container was made for the warm pool.
func IsPoolMember(c farm.Container) bool { return c.Labels[LabelPool] != "" }

// Belongs reports whether a container with a sandbox's id is the sandbox's: it was made for its generation. A container of an earlier one was
// given up when the sandbox's create left its node.
func Belongs(c farm.Container, s *farm.Sandbox) bool {
	if c.Labels[labelAttempt] != "" {
		return s.Node == "" || s.Node == c.Node
	}
	return c.Generation == max(s.Generation, 1)
}

// Newer reports whether a container was made for a later generation than its record has: Redis has lost what is newer than the record.
func Newer(c farm.Container, s *farm.Sandbox) bool { return c.Generation > max(s.Generation, 1) }

// recordMax bounds the bytes that LabelRecord takes in the engine's answers: each list of containers, of which a node may have thousands, has it.
const recordMax = 8 << 10

// Labels are what restores the record of a sandbox when Redis loses its data. The values of its variables are left out. Of a record of more than
// recordMax bytes so is what makes it large: the variables, then the labels, then the hosts that it may reach, with their secrets.
func Labels(s *farm.Sandbox) map[string]string {
	kept := *s
	kept.Spec.Env = maps.Clone(s.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	for _, leaveOut := range []func(){
		func() {},
		func() { kept.Spec.Env = nil },
		func() { kept.Spec.Labels = nil },
		func() { kept.Spec.AllowHosts, kept.Spec.Secrets = nil, nil },
	} {
		leaveOut()
		text, err := farm.Encode(kept)
		if err != nil {
			break
		}
		if answered, err := json.Marshal(string(text)); err == nil && len(answered) <= recordMax { // as the engine writes it
			return map[string]string{LabelRecord: string(text)}
		}
	}
	return map[string]string{LabelRecord: ""} // the sandbox is only not restored
}

// RecordOf reads the record that a container carries; nil when it carries none, or that of another sandbox.
func RecordOf(c farm.Container) *farm.Sandbox {
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
