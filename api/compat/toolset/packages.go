package toolset

import (
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Has reports whether a package is there as it is wanted: not where it is wanted in one version and has another.
func Has(p wire.Package, wanted string) bool {
	return mcp.IsInstalled(p) && fits(p.Version, wanted)
}

// fits is false for a requirement of one version, such as numpy==2.0, that is not the one that is there.
func fits(version, wanted string) bool {
	_, pinned, ok := strings.Cut(wanted, "==")
	if !ok || version == "" || strings.ContainsAny(pinned, "=*,<>!~") {
		return true
	}
	if !strings.Contains(pinned, "+") {
		version, _, _ = strings.Cut(version, "+") // a build of that version
	}
	return release(pinned) == release(version)
}

// release is a version without what makes no difference.
func release(version string) string {
	version = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(version)), "v")
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return version
}
