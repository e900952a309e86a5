package farm

import (
	"regexp"
	"strings"
)

// MaxRuntimes bounds the OCI runtimes that one setting or one tenant names.
const MaxRuntimes = 16

// runtimeName is the form of an OCI runtime's name. The engine allows more; these fit into settings, flags and keys as they are.
var runtimeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// CheckRuntime refuses what cannot be the name of an OCI runtime.
func CheckRuntime(name string) error {
	if !runtimeName.MatchString(name) {
		return Invalidf("%q is not the name of a runtime, such as runc or runsc: use letters, digits, dots, dashes and underscores, at most 63", Shorten(name))
	}
	return nil
}

// CheckRuntimes refuses a list of OCI runtimes that is too long, or has a name twice or one that cannot be.
func CheckRuntimes(names []string) error {
	if len(names) > MaxRuntimes {
		return Invalidf("there are %d runtimes; at most %d are allowed", len(names), MaxRuntimes)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if err := CheckRuntime(name); err != nil {
			return err
		}
		if seen[name] {
			return Invalidf("the runtime %s is named twice", name)
		}
		seen[name] = true
	}
	return nil
}

// GVisor reports whether an OCI runtime is gVisor, by its name. Workers refuse to start with one whose name hides that (Engine.CheckRuntimes).
func GVisor(runtime string) bool {
	return strings.Contains(runtime, "runsc") || strings.Contains(runtime, "gvisor")
}

// OwnKernel reports whether an OCI runtime gives its containers a kernel of their own, by its name: gVisor and Kata do. Their sockets, file locks
// and processes are not the host's, and they do not reach its GPUs.
func OwnKernel(runtime string) bool { return GVisor(runtime) || strings.Contains(runtime, "kata") }
