package node

import (
	"context"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
