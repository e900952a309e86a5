package farm

import (
	"regexp"
	"strings"
)

// The package managers.
const (
	ManagerPip = "pip" // Python packages, whatever program installs them
	ManagerNpm = "npm"
)

// InstallRequest installs packages. The API has validated them.
type InstallRequest struct {
	Manager  string   `json:"manager"`
	Packages []string `json:"packages"` // as requested, such as "numpy" or "pandas>=2"
}

// InstallResult is the outcome of an install: one entry for each requested package, in that order.
type InstallResult struct {
	Packages  []PackageOutcome `json:"packages"`
	Stdout    string           `json:"stdout"`
	Stderr    string           `json:"stderr"`
	Truncated Truncated        `json:"truncated"`
	Dropped   Dropped          `json:"dropped,omitzero"`
}

// PackageStatus is the status of a package in a sandbox.
type PackageStatus string

// The statuses of the contract.
const (
	PackageInstalling PackageStatus = "installing" // an unfinished job installs it
	PackageInstalled  PackageStatus = "installed"  // it is installed, by the image or by a job
	PackageFailed     PackageStatus = "failed"     // its last install did not succeed
	PackageNotFound   PackageStatus = "not_found"  // it is not installed, and no job tried to install it
)

// PackageOutcome is the outcome of one requested package.
type PackageOutcome struct {
	Name      string        `json:"name"`      // normalised, see NormalPackage
	Requested string        `json:"requested"` // as requested; of an automatic install, what the code imports
	Version   string        `json:"version,omitempty"`
	Status    PackageStatus `json:"status"`            // installed or failed
	Message   string        `json:"message,omitempty"` // why it failed, or what the caller should know, in a sentence
	Why       string        `json:"why,omitempty"`     // of an automatic install: what needed it, in a few words
}

// Package is a package that is installed in a sandbox.
type Package struct {
	Name    string `json:"name"` // normalised, see NormalPackage
	Version string `json:"version"`
	Manager string `json:"manager"`
}

// Forms of requirements.
var (
	// pipForm is the part of PEP 508 that names a distribution, its extras and its versions: no address, no option, no marker.
	pipForm = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)` +
		`(?: *\[ *[A-Za-z0-9._-]+(?: *, *[A-Za-z0-9._-]+)* *\])?` +
		`(?: *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+(?: *, *(?:===|==|~=|!=|<=|>=|<|>) *[A-Za-z0-9.*+!_-]+)*)?$`)
	npmForm = regexp.MustCompile(`^((?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*)(?:@[A-Za-z0-9^~<>=.*+_-]+)?$`)
)

// RequirementName returns the normalised name in a requirement, such as "pandas>=2" or "@types/node@20". ok is false for anything that an
// installer could read as more than a name and versions.
func RequirementName(manager, requirement string) (name string, ok bool) {
	form := pipForm
	if manager == ManagerNpm {
		form = npmForm
	}
	m := form.FindStringSubmatch(requirement)
	if m == nil {
		return "", false
	}
	return NormalPackage(manager, m[1]), true
}

// separators are the runs of characters that PEP 503 treats as one.
var separators = regexp.MustCompile(`[-_.]+`)

// NormalPackage normalises a package's name for comparison: PEP 503 for pip; npm names have one spelling.
func NormalPackage(manager, name string) string {
	if manager == ManagerNpm {
		return name
	}
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}
