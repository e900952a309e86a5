package node

import (
	"cmp"
	"context"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Runtimes are the OCI runtimes that sandboxes of the node may have, the default first; nil before Identify.
func (n *Node) Runtimes() []string { return slices.Clone(n.runtimes) }

// Hibernates are those of Runtimes whose sandboxes can hibernate; nil before Identify.
func (n *Node) Hibernates() []string { return slices.Clone(n.hibernates) }

// CheckHibernates refuses a sandbox that cannot hibernate on this node.
func (n *Node) CheckHibernates(s *farm.Sandbox) error {
	if slices.Contains(n.hibernates, s.Runtime) {
		return nil
	}
	return farm.CannotHibernate(s)
}

// Runtime is the OCI runtime of a sandbox on this node: the one that it asks for, or else that of its image, or else the default. It is empty
// if none is known, which is the engine's default.
func (n *Node) Runtime(s farm.SandboxSpec) string {
	var standard string
	if len(n.runtimes) > 0 {
		standard = n.runtimes[0]
	}
	return cmp.Or(n.chosenRuntime(s), standard)
}

// chosenRuntime is the OCI runtime of a sandbox if it is not the node's default. The engine is not asked for its default by name.
func (n *Node) chosenRuntime(s farm.SandboxSpec) string {
	return cmp.Or(s.Runtime, n.deps.ImageRuntimes[s.Image])
}

// Offers reports whether a sandbox may have the OCI runtime that it asks for on this node. A sandbox that asks for none may have the node's.
func (n *Node) Offers(s farm.SandboxSpec) bool {
	return s.Runtime == "" || slices.Contains(n.runtimes, s.Runtime)
}

// signed reads the digests that the operator's keys sign; nil if images need no signature. If the signatures cannot be read, nothing is
// signed. What is wrong with one of them is logged once.
func (n *Node) signed(ctx context.Context) map[string]bool {
	if n.deps.Signatures == nil {
		return nil
	}
	digests, problems, err := n.deps.Signatures.Signed()
	if err != nil {
		n.deps.Log.ErrorContext(ctx, "the signatures of images cannot be read, so no image is offered", "error", err)
		return map[string]bool{}
	}
	for _, p := range problems {
		if _, logged := n.images.logged.LoadOrStore(p.Error(), true); !logged {
			n.deps.Log.WarnContext(ctx, "a file has no valid signature of an image", "error", p)
		}
	}
	return digests
}

// allows reports whether sandboxes may have an image: the operator lists it, or lists none, and it is signed, or need not be. One that they
// may not have is logged once for each content.
func (n *Node) allows(ctx context.Context, image farm.Image, signed map[string]bool) bool {
	known := append([]string{image.ID}, image.Digests...)
	var refusal string
	switch {
	case len(n.deps.AllowedImages) > 0 && !slices.ContainsFunc(known, func(id string) bool { return slices.Contains(n.deps.AllowedImages, id) }):
		refusal = "an image is not offered, since images.allowed does not contain its id"
	case signed != nil && !slices.ContainsFunc(known, func(id string) bool { return signed[id] }):
		refusal = "an image is not offered, since no file of images.signatures has a valid signature of its id or digest"
	default:
		return true
	}
	if _, logged := n.images.logged.LoadOrStore(refusal+image.ID, true); !logged {
		n.deps.Log.WarnContext(ctx, refusal, "image", image.Name, "id", image.ID, "digests", image.Digests)
	}
	return false
}
