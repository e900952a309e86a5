package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Install starts the installation of packages in a sandbox and returns its job. A package that fails is a result, not an error:
// the job completes with an outcome for each package. Poll [Client.Package] or the job.
func (c *Client) Install(ctx context.Context, id string, request wire.PackagesRequest, opts ...CallOption) (wire.Job, error) {
	return c.start(ctx, call{method: http.MethodPost, path: sandboxPath(id, "packages"), body: request}, opts)
}

// Packages lists the packages of a sandbox: those of its image, those installed later, and those being installed.
func (c *Client) Packages(ctx context.Context, id string) ([]wire.Package, error) {
	return listWhole[wire.Package](ctx, c, sandboxPath(id, "packages")...)
}

// Package reads the status of a package of a sandbox. Names of Python packages are compared by PEP 503; names of npm packages
// may contain a slash. A missing package has the status not_found, which is not an error. WithManager names the installer;
// without it the farm decides by the form of the name.
func (c *Client) Package(ctx context.Context, id, name string, opts ...CallOption) (wire.Package, error) {
	var got wire.Package
	err := c.json(ctx, call{method: http.MethodGet, path: sandboxPath(id, "packages", name)}.with(opts), &got)
	return got, err
}
