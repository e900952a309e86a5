package client

import (
	"context"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxPackages bounds the list of packages that an agent may return.
const maxPackages = 20_000

// Packages lists the packages installed in the sandbox, sorted by manager and name.
func (c *Client) Packages(ctx context.Context) ([]farm.Package, error) {
	var list []farm.Package
	if err := c.call(ctx, callTimeout, http.MethodGet, "/v1/packages", nil, nil, &list); err != nil {
		return nil, err
	}
	if len(list) > maxPackages {
		return nil, farm.Errorf(farm.CodeTooLarge, "The sandbox has more than %d packages.", maxPackages)
	}
	return list, nil
}
