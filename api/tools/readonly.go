package tools

import (
	"context"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/api/compat"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// readOnly is a view of a farm for callers without the scope run: it refuses everything that starts work or changes something.
// Verbs that it does not know are those of the farm, so a new verb of compat.Farm that does more than read belongs here too.
type readOnly struct{ compat.Farm }

func errReadOnly() error {
	return farm.Errorf(farm.CodeUnauthorized, "This needs an API key with the scope run; yours may only read.")
}

func (readOnly) CreateSandbox(context.Context, wire.CreateRequest, time.Duration) (wire.Created, error) {
	return wire.Created{}, errReadOnly()
}

func (readOnly) CloseSandbox(context.Context, string, time.Duration) (wire.Job, error) {
	return wire.Job{}, errReadOnly()
}

func (readOnly) Execute(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) {
	return wire.Job{}, errReadOnly()
}

func (readOnly) Command(context.Context, string, wire.CommandRequest, time.Duration) (wire.Job, error) {
	return wire.Job{}, errReadOnly()
}

func (readOnly) Install(context.Context, string, wire.PackagesRequest, time.Duration) (wire.Job, error) {
	return wire.Job{}, errReadOnly()
}

func (readOnly) Restart(context.Context, string, string, time.Duration) (wire.Job, error) {
	return wire.Job{}, errReadOnly()
}

func (readOnly) Cancel(context.Context, string) (wire.Job, error) { return wire.Job{}, errReadOnly() }

func (readOnly) WriteFile(context.Context, string, string, io.Reader, int64) (wire.FileEntry, error) {
	return wire.FileEntry{}, errReadOnly()
}

func (readOnly) WriteTar(context.Context, string, string, io.Reader, int64) error {
	return errReadOnly()
}

func (readOnly) RemoveFile(context.Context, string, string) error { return errReadOnly() }

func (readOnly) MoveFile(context.Context, string, string, string) error { return errReadOnly() }

func (readOnly) StartProcess(context.Context, string, wire.ProcessRequest) (wire.Process, error) {
	return wire.Process{}, errReadOnly()
}

func (readOnly) EndProcess(context.Context, string, string) (wire.Process, error) {
	return wire.Process{}, errReadOnly()
}

func (readOnly) LinkPort(context.Context, string, wire.PortLinkRequest) (wire.PortLink, error) {
	return wire.PortLink{}, errReadOnly()
}
