package service

import (
	"context"
	"regexp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxPackages and maxPackageBytes bound a list of packages.
const (
	maxPackages     = 256
	maxPackageBytes = 256
)

// Forms of package names. They are compiled once and never change.
var (
	// pipName is the part of PEP 508 that names a distribution and its versions: no address, no option, no marker.
	pipName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?` +
		`(?: *\[ *[A-Za-z0-9._-]+(?: *, *[A-Za-z0-9._-]+)* *\])?` +
		`(?: *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+(?: *, *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+)*)?$`)
	npmName  = regexp.MustCompile(`^(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*(?:@[A-Za-z0-9^~<>=.*+_-]+)?$`)
	bareName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

// errNoPackages is what every request for packages gets until the farm can install them.
func errNoPackages() error {
	return farm.Invalidf("package installs are not enabled on this farm")
}

// checkPackages checks a list of requirements; an empty list is fine.
func checkPackages(packages []string, manager string) error {
	form := pipName
	switch manager {
	case "pip":
	case "npm":
		form = npmName
	default:
		return farm.Invalidf("manager %q is not known: it is pip or npm", short(manager))
	}
	if len(packages) > maxPackages {
		return farm.Invalidf("there are %d packages; at most %d are allowed", len(packages), maxPackages)
	}
	for i, p := range packages {
		if len(p) > maxPackageBytes || !form.MatchString(p) {
			return farm.Invalidf("packages[%d] is %q: give a name, with a version if wanted, such as numpy or pandas>=2", i, short(p))
		}
	}
	return nil
}

// refusePackages checks the packages of a create or a run and refuses them where there are any.
func refusePackages(packages []string) error {
	if err := checkPackages(packages, "pip"); err != nil || len(packages) == 0 {
		return err
	}
	return errNoPackages()
}

// Install checks a request for packages and refuses it: installs are not enabled yet.
func (s *Service) Install(ctx context.Context, c Call, sandboxID string, r wire.PackagesRequest) (Outcome, error) {
	if len(r.Packages) == 0 {
		return Outcome{}, farm.Invalidf("packages is empty")
	}
	if err := checkPackages(r.Packages, orElse(r.Manager, "pip")); err != nil {
		return Outcome{}, err
	}
	if _, err := s.sandbox(ctx, c.Tenant, sandboxID); err != nil {
		return Outcome{}, err
	}
	return Outcome{}, errNoPackages()
}

// Packages would tell which packages a sandbox has; name "" means all of them. It is not enabled yet.
func (s *Service) Packages(ctx context.Context, tenant, sandboxID, name string) error {
	if name != "" && (len(name) > maxPackageBytes || !bareName.MatchString(name)) {
		return farm.Invalidf("%q is no name of a package", short(name))
	}
	if _, err := s.sandbox(ctx, tenant, sandboxID); err != nil {
		return err
	}
	return errNoPackages()
}
