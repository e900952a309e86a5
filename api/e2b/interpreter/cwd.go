package interpreter

import (
	"path"

	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// realPath is where a directory of the SDKs is in the sandbox.
func realPath(given string) string {
	if !path.IsAbs(given) {
		given = path.Join(e2b.UserHome, given)
	}
	return moved(path.Clean(given), e2b.UserHome, farm.Workspace)
}

// shownPath is a directory as the SDKs have it.
func shownPath(real string) string { return moved(real, farm.Workspace, e2b.UserHome) }

// moved is a path that is below another directory than before, if it is below that one.
func moved(p, from, to string) string {
	if rest, ok := e2b.Below(p, from); ok {
		return path.Join(to, rest)
	}
	return p
}
