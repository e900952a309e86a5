package interpreter

import (
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// home is the home of E2B's user, where its code starts: the workspace here.
const home = "/home/user"

// realPath is where a directory of the SDKs is in the sandbox.
func realPath(given string) string {
	if !path.IsAbs(given) {
		given = path.Join(home, given)
	}
	return moved(path.Clean(given), home, farm.Workspace)
}

// shownPath is a directory as the SDKs have it.
func shownPath(real string) string { return moved(real, farm.Workspace, home) }

// moved is a path that is below another directory than before, if it is below that one.
func moved(p, from, to string) string {
	if rest, ok := strings.CutPrefix(p, from); ok && (rest == "" || rest[0] == '/') {
		return to + rest
	}
	return p
}
