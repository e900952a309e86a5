package store

import (
	"context"
	"errors"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// restoreArgs are the arguments of sandbox_restore.lua.
type restoreArgs struct {
	ID         string `lua:"id"`
	State      string `lua:"state"`
	Doc        []byte `lua:"doc"`
	Stored     int    `lua:"stored"` // bytes of the document, if Doc is a reference; 0: it is none
	Memory     int    `lua:"memory"` // MiB
	Millicores int    `lua:"millicores"`
	GPUs       int    `lua:"gpus"`
	Used       string `lua:"used"` // microseconds, as Expires
	Expires    string `lua:"expires"`
	Idle       int    `lua:"idle"` // seconds
	Node       string `lua:"node"`
	Container  string `lua:"container"`
	Runtime    string `lua:"runtime"`
	Generation int    `lua:"generation"`
}

// RestoreSandbox writes the record of a sandbox whose container runs, or is hibernated, but whose record is gone, as ready or
// hibernated: Redis has lost its data. A record of an
// earlier generation than the container's gets container, node and generation: Redis has lost what is newer than the record, or another node
// has restored it from a container that was left behind. Another record stays unchanged, and restored is false.
func (s *Store) RestoreSandbox(ctx context.Context, box *farm.Sandbox) (restored bool, err error) {
	// Not rememberTenant and rememberOnNode: their caches may be older than the loss.
	if err := errors.Join(s.storeTenant(ctx, box.Tenant), s.storeOnNode(ctx, box.Node, box.Tenant)); err != nil {
		return false, err
	}
	doc, err := encodeSandbox(box)
	if err != nil {
		return false, err
	}
	size := len(doc)
	if doc, err = s.storeLarge(ctx, documentKey(box.Ref(), "sandbox"), doc, sandboxBytes); err != nil {
		return false, err
	}
	if !isReference(string(doc)) {
		size = 0
	}
	state := farm.SandboxReady
	if box.State == farm.SandboxHibernated {
		state = box.State
	}
	memoryMB, millicores, gpus := charge(box)
	r, err := s.Run(ctx, "restore sandbox", "sandbox_restore", box.Tenant, restoreArgs{
		ID: box.ID, State: string(state), Doc: doc, Stored: size, Memory: memoryMB, Millicores: millicores, GPUs: gpus, Used: micros(box.LastUsedAt), Expires: micros(box.ExpiresAt), Idle: box.Spec.IdleSeconds, Node: box.Node, Container: box.Container, Runtime: box.Runtime,
		Generation: max(box.Generation, 1),
	})
	if err != nil {
		return false, err
	}
	return r.text(0) == "ok", nil
}
