package toolsettest

import (
	"context"
	"iter"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// errNoProcess is the answer about processes and ports, which no toolset uses.
func errNoProcess(id string) error { return farm.NotFoundf("The sandbox has no process %q.", id) }

// StartProcess starts nothing.
func (f *Farm) StartProcess(context.Context, string, wire.ProcessRequest) (wire.Process, error) {
	return wire.Process{}, errNoProcess("")
}

// ProcessEvents yields an error.
func (f *Farm) ProcessEvents(_ context.Context, _, id, _ string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) { yield(wire.Event{}, errNoProcess(id)) }
}

// EndProcess ends nothing.
func (f *Farm) EndProcess(_ context.Context, _, id string) (wire.Process, error) {
	return wire.Process{}, errNoProcess(id)
}

// LinkPort makes no link.
func (f *Farm) LinkPort(context.Context, string, wire.PortLinkRequest) (wire.PortLink, error) {
	return wire.PortLink{}, errNoProcess("")
}
