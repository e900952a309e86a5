package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxPackages bounds the list of packages that an agent may return.
const maxPackages = 20_000

// packageValues bounds the JSON values of a package.
const packageValues = 8

// Packages lists the packages installed in the sandbox, sorted by manager and name.
func (c *Client) Packages(ctx context.Context) ([]farm.Package, error) {
	var found []farm.Package
	if err := c.callFor(ctx, callTimeout, http.MethodGet, "/v1/packages", nil, nil, list(&found, maxPackages, packageValues)); err != nil {
		return nil, err
	}
	if len(found) > maxPackages {
		return nil, farm.Errorf(farm.CodeTooLarge, "The sandbox has more than %d packages.", maxPackages)
	}
	return found, nil
}
