package e2b

import (
	"encoding/base64"
	"maps"
	"net/http"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A sandbox of the farm has one user, who is never root. To the SDKs its home is /home/user: that is the workspace, where code runs, too; in the
// farm's images a link leads from one to the other.
const (
	// userHome is the workspace, as the SDKs name it.
	userHome = farm.UserHome

	userName = "user"
)

// checkUser refuses every other user; "" is the default one.
func checkUser(name string) error {
	switch name {
	case "", userName:
		return nil
	case "root":
		return farm.Errorf(farm.CodeUnauthorized, "Sandboxes of this farm have no root: everything runs as the user %s.", userName)
	default:
		return farm.Errorf(farm.CodeUnauthorized, "invalid username: '%s'", farm.Shorten(name))
	}
}

// callUser checks the user that a call names.
func callUser(h http.Header) error {
	scheme, text, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return farm.Errorf(farm.CodeUnauthorized, "The header Authorization is not well formed.")
	}
	name, _, _ := strings.Cut(string(raw), ":")
	return checkUser(name)
}

// place is a path as a caller wrote it, and where it is in the sandbox.
type place struct {
	real string
	home bool // the caller means it below userHome, and shall see it there
}

// placeOf finds a path: absolute, or relative to userHome, which "~" is, too.
func placeOf(given string) place {
	if given == "~" || strings.HasPrefix(given, "~/") {
		given = "." + given[1:]
	}
	if !strings.HasPrefix(given, "/") {
		given = path.Join(userHome, given)
	}
	clean := path.Clean(given)
	if rest, ok := below(clean, userHome); ok {
		return place{real: path.Join(farm.Workspace, rest), home: true}
	}
	return place{real: clean}
}

// shown is a real path as the caller of this place sees it.
func (p place) shown(real string) string {
	if rest, ok := below(real, farm.Workspace); ok && p.home {
		return path.Join(userHome, rest)
	}
	return real
}

// below is the part of a path below a directory; ok is false if it is elsewhere.
func below(p, dir string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	rest, ok = strings.CutPrefix(p, dir+"/")
	return rest, ok
}

// RealPath converts a caller's path to one in the sandbox.
func RealPath(given string) string { return placeOf(given).real }

// ShownPath converts a path in the sandbox to the one that callers see by default.
func ShownPath(real string) string { return place{home: true}.shown(real) }

// Environment adds to the variables of code the home, and the working directory as callers see it: shells then report /home/user instead of the
// target of that link. A caller's own values stay.
func Environment(env map[string]string, real string) map[string]string {
	out := map[string]string{"HOME": userHome, "PWD": ShownPath(real)}
	maps.Copy(out, env)
	return out
}
