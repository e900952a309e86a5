package inprocess

import (
	"context"
	"iter"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Linker makes a link to a port of a tenant's sandbox, with an address by which the caller of ctx reaches it.
type Linker func(ctx context.Context, tenant, sandboxID string, r wire.PortLinkRequest) (wire.PortLink, error)

func (f caller) StartProcess(ctx context.Context, sandboxID string, r wire.ProcessRequest) (wire.Process, error) {
	return f.s.StartProcess(ctx, f.call(0), sandboxID, r)
}

// ProcessEvents yields the output of a process until its exit, or until ctx ends.
func (f caller) ProcessEvents(ctx context.Context, sandboxID, processID, after string) iter.Seq2[wire.Event, error] {
	return follow(ctx, func(ctx context.Context) (*service.ProcessOutput, error) {
		return f.s.ProcessOutput(ctx, f.tenant, sandboxID, processID, after)
	})
}

func (f caller) EndProcess(ctx context.Context, sandboxID, processID string) (wire.Process, error) {
	return f.s.EndProcess(ctx, f.tenant, sandboxID, processID)
}

func (f caller) LinkPort(ctx context.Context, sandboxID string, r wire.PortLinkRequest) (wire.PortLink, error) {
	return f.link(ctx, f.tenant, sandboxID, r)
}
