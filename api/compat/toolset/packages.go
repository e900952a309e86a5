package toolset

import (
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Has reports whether a package is installed as requested. It is false if one version is requested and another is installed.
func Has(p wire.Package, wanted string) bool {
	return mcp.IsInstalled(p) && fits(p.Version, wanted)
}

// fits is false for a requirement of one version, such as numpy==2.0, if another version is installed.
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

// release is a version in a form that can be compared.
func release(version string) string {
	version = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(version)), "v")
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return version
}
