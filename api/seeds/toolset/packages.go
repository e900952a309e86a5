package toolset

import (
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// PackageName is the name of a package as a caller asks for it, with versions or without; the text itself where it is none.
func PackageName(wanted string) string {
	if name, ok := farm.RequirementName(farm.ManagerPip, wanted); ok {
		return name
	}
	return wanted
}

// Has reports whether a package is there as it is wanted: also where the last install of it failed and left it as it was,
// and not where it is wanted in one version and has another.
func Has(p wire.Package, wanted string) bool {
	there := p.Status == string(farm.PackageInstalled) || p.Status == string(farm.PackageFailed) && p.Version != ""
	return there && fits(p.Version, wanted)
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
