package index

import (
	"context"
	"io"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Fetch opens a file that the Python index lists, through the cache. sha256 pins it, in hexadecimal; "" accepts the hash that the
// index lists. The caller closes the reader, which lives as long as ctx; if it ends with io.EOF, the file was complete and
// verified. CodeNotFound if the index does not list it, CodeConflict if it lists another hash, CodeUnavailable if
// upstream does not respond.
func (x *Index) Fetch(ctx context.Context, project, filename, sha256 string) (io.ReadCloser, int64, error) {
	if !goodProject.MatchString(project) || !goodName(filename) {
		return nil, 0, farm.Invalidf("%q and %q are not names of a project and its file.", project, filename)
	}
	want, err := x.pypiFile(ctx, farm.NormalPackage(farm.ManagerPip, project), filename)
	if err != nil {
		return nil, 0, err
	}
	if sha256 != "" && (want.algorithm != "sha256" || !strings.EqualFold(want.hash, sha256)) {
		return nil, 0, farm.Conflictf("The %s lists %s with %s %s, not with sha256 %s.", x.pypi.name, filename, want.algorithm, want.hash, sha256)
	}
	c, err := x.open(ctx, want)
	if err != nil {
		return nil, 0, err
	}
	return c, c.size, nil
}
