package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Install asks for packages in a sandbox and gives the job that installs them. A package that cannot be installed is a
// result, not an error: the job completes and says for each how it went. Poll [Client.Package] or the job.
func (c *Client) Install(ctx context.Context, id string, request wire.PackagesRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "packages"), body: request}, opts)
}

// Packages lists the packages of a sandbox: what its image brought, what was installed, and what is on its way.
func (c *Client) Packages(ctx context.Context, id string) ([]wire.Package, error) {
	return all[wire.Package](ctx, c, sandboxPath(id, "packages")...)
}

// Package says how it stands with one package of a sandbox. Names of Python packages are compared by PEP 503, and those
// of npm may hold a slash. A package that is not there has the status not_found, which is no error. Whose package a name
// is says WithManager; without it the farm tells by the name's form.
func (c *Client) Package(ctx context.Context, id, name string, opts ...CallOption) (wire.Package, error) {
	var got wire.Package
	err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(id, "packages", name)}.with(opts), &got)
	return got, err
}
