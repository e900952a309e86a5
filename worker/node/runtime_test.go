package node

import (
	"slices"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/signature"
)

// A container is made of the image that was found, whatever its name is by then. Of images that the operator lists only those are offered.
func TestImagesByID(t *testing.T) {
	t.Parallel()
	const id, digest = "sha256:1", "sha256:2"
	image := farm.Image{Name: "python", Ref: "python:1", ID: id, Digests: []string{digest}}
	for _, c := range []struct {
		allowed []string
		want    bool
	}{{nil, true}, {[]string{id}, true}, {[]string{"sha256:3", digest}, true}, {[]string{"sha256:3"}, false}, {[]string{"python:1"}, false}} {
		n := newNode(t, nil)
		n.deps.AllowedImages = c.allowed
		if got := n.allows(t.Context(), image, nil); got != c.want {
			t.Errorf("allowed %v: %t", c.allowed, got)
		}
		if got := n.ContainerSpec(&farm.Sandbox{ID: "sbx_1"}, image).Image; got != id {
			t.Errorf("made of %q", got)
		}
	}
}

// With a key of the operator's, only images that it has signed are offered; images.allowed counts beside that.
func TestSignedImages(t *testing.T) {
	t.Parallel()
	const id, digest = "sha256:1", "sha256:2"
	image := farm.Image{Name: "python", ID: id, Digests: []string{digest}}
	for _, c := range []struct {
		allowed []string
		signed  map[string]bool
		want    bool
	}{
		{nil, map[string]bool{}, false},
		{nil, map[string]bool{"sha256:3": true}, false},
		{nil, map[string]bool{id: true}, true},
		{nil, map[string]bool{digest: true}, true},
		{[]string{id}, map[string]bool{digest: true}, true},
		{[]string{id}, map[string]bool{}, false},
		{[]string{"sha256:3"}, map[string]bool{id: true}, false},
	} {
		n := newNode(t, nil)
		n.deps.AllowedImages = c.allowed
		if got := n.allows(t.Context(), image, c.signed); got != c.want {
			t.Errorf("allowed %v, signed %v: %t", c.allowed, c.signed, got)
		}
	}
}

// Without readable signatures nothing is signed; without the setting nothing needs a signature.
func TestSignaturesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	if got := n.signed(t.Context()); got != nil {
		t.Errorf("without the setting: %v", got)
	}
	n.deps.Signatures = &signature.Folder{Path: t.TempDir() + "/none"}
	if got := n.signed(t.Context()); got == nil || len(got) > 0 {
		t.Errorf("without the folder: %v", got)
	}
}

// The runtime of a sandbox is the one that it asks for, or else that of its image, or else the node's. Only a runtime that the node has may be
// asked for.
func TestRuntimeOfASandbox(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.deps.ImageRuntimes = map[string]string{"node": "runsc"}
	n.UseRuntimes("runc", "runsc", "kata")
	if got := n.Runtimes(); !slices.Equal(got, []string{"runc", "runsc", "kata"}) {
		t.Errorf("runtimes %v", got)
	}
	for _, c := range []struct {
		spec            farm.SandboxSpec
		runtime, engine string // of the sandbox, and as it is asked of the engine
		offered         bool
	}{
		{farm.SandboxSpec{Image: "python"}, "runc", "", true},
		{farm.SandboxSpec{Image: "python", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "kata"}, "kata", "kata", true},
		{farm.SandboxSpec{Image: "node"}, "runsc", "runsc", true},
		{farm.SandboxSpec{Image: "node", Runtime: "runc"}, "runc", "runc", true},
		{farm.SandboxSpec{Image: "python", Runtime: "other"}, "other", "other", false},
	} {
		got := n.ContainerSpec(&farm.Sandbox{ID: "sbx_1", Spec: c.spec}, farm.Image{Ref: "image:1"})
		if n.Runtime(c.spec) != c.runtime || got.Runtime != c.engine || n.Offers(c.spec) != c.offered {
			t.Errorf("%+v: runtime %q, container %q, offered %v; want %+v", c.spec, n.Runtime(c.spec), got.Runtime, n.Offers(c.spec), c)
		}
	}
}
