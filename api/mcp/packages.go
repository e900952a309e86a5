package mcp

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxLookups is how many packages one call looks up.
const maxLookups = 100

func installPackages() *tool {
	return &tool{
		name: "install_packages_in_sandbox", title: "Install packages",
		about: "Start an install, and get a job_id at once. Running kernels can import its packages. Each succeeds or fails by itself. Next: check_package_status for each, until it is installed or failed.",
		params: []param{
			sandboxParam(),
			{name: "package_names", kind: texts, required: true, doc: "Names, with versions if wanted, such as [\"pandas>=2,<3\", \"fastapi[all]\"]; at most 100, no options, paths or addresses."},
			timeoutParam(),
			waitParam(0, "the end"),
			{name: "manager", kind: text, standard: "pip", enum: []string{farm.ManagerPip, farm.ManagerNpm}, doc: "pip: Python; npm: Node, in the image node."},
		},
		output: installSchema, hints: hints{idempotent: true, openWorld: true}, run: (*call).installPackages,
	}
}

func (c *call) installPackages() (*answer, error) {
	r := wire.PackagesRequest{Packages: c.texts("package_names"), Manager: c.optional("manager"), TimeoutSeconds: c.whole("timeout_seconds")}
	job, err := c.await(c.wait(0), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Install(c.ctx, c.text("sandbox_id"), r, wait)
	})
	if err != nil {
		return nil, err
	}
	manager := c.text("manager")
	if manager == "" {
		manager = farm.ManagerPip
	}
	asked := make([]wire.InstalledOne, len(r.Packages))
	for i, p := range r.Packages {
		name, _ := farm.RequirementName(manager, p)
		asked[i] = wire.InstalledOne{Name: name, Requested: p, Status: string(farm.PackageInstalling)}
	}
	return c.installAnswer(&job, manager, asked)
}

// installAnswer describes an install job. asked holds its packages as long as the job has no result.
func (c *call) installAnswer(j *wire.Job, manager string, asked []wire.InstalledOne) (*answer, error) {
	structured := map[string]any{"job_id": j.ID, "sandbox_id": j.SandboxID, "state": j.State}
	var b strings.Builder
	switch {
	case j.State == string(farm.JobFailed) || j.State == string(farm.JobLost):
		return nil, ended(j)
	case !j.Final():
		structured["packages"] = outcomesOf(asked)
		fmt.Fprintf(&b, "Job %s installs in sandbox %s (%s).\n", j.ID, j.SandboxID, j.State)
		for _, p := range asked {
			fmt.Fprintf(&b, "%s: installing\n", p.Requested)
		}
		with := ""
		if manager == farm.ManagerNpm {
			with = fmt.Sprintf(" manager %q and", manager)
		}
		fmt.Fprintf(&b, "Next: check_package_status with%s each package_name until it is installed or failed; wait_seconds saves calls. Code that you send now runs after the install.", with)
		return &answer{text: b.String(), structured: structured}, nil
	}
	list := []wire.InstalledOne{}
	if j.Result != nil && j.Result.Install != nil {
		list = j.Result.Install.Packages
	}
	structured["packages"] = outcomesOf(list)
	fmt.Fprintf(&b, "%s\n", headline(j))
	if end := endOf(j); end != "" {
		structured["message"] = end
	}
	writePackages(&b, list)
	return &answer{text: b.String(), structured: structured}, nil
}

// writePackages writes a line for each package: how its install ended and why.
func writePackages(b *strings.Builder, list []wire.InstalledOne) {
	for _, p := range list {
		fmt.Fprintf(b, "%s: %s", p.Requested, p.Status)
		if p.Version != "" {
			fmt.Fprintf(b, " (%s %s)", p.Name, p.Version)
		}
		if p.Message != "" {
			fmt.Fprintf(b, ": %s", asTool(p.Message))
		}
		b.WriteByte('\n')
	}
}

func checkPackage() *tool {
	return &tool{
		name: "check_package_status", title: "Check a package",
		about: "Get the status of a package: installing, installed, failed or not_found, with version and reason. Poll it after install_packages_in_sandbox, best with wait_seconds, until it is not installing; or see whether the image has it. Next: execute_python_code.",
		params: []param{
			sandboxParam(),
			{name: "package_name", kind: text, required: true, doc: "The name without version, as it was installed, which may differ from the import."},
			managerParam(),
			waitParam(0, "the end"),
		},
		output: statusSchema, hints: reads(), run: (*call).checkPackage,
	}
}

// managerParam is the manager parameter of lookups. It has no default in the schema: absent means both managers.
func managerParam() param {
	return param{
		name: "manager", kind: text, enum: []string{farm.ManagerPip, farm.ManagerNpm},
		doc: "As for the install; without it both, pip first.",
	}
}

func (c *call) checkPackage() (*answer, error) {
	id := c.text("sandbox_id")
	p, err := c.lookUp(c.text("package_name"), time.Now().Add(c.wait(0)))
	if err != nil {
		return nil, err
	}
	structured := statusOf(p)
	structured["sandbox_id"] = id
	return &answer{text: statusSentence(p), structured: structured}, nil
}

// PackageName is the name in a requirement of a Python package, such as "pandas" in "pandas>=2". A text that is no requirement
// is returned as it is.
func PackageName(requirement string) string {
	return packageName(farm.ManagerPip, requirement)
}

func packageName(manager, requirement string) string {
	if name, ok := farm.RequirementName(manager, requirement); ok {
		return name
	}
	return requirement
}

// IsInstalled reports whether a version of the package is in the sandbox. That includes a version that a later, failed install
// left in place.
func IsInstalled(p wire.Package) bool {
	return p.Status == string(farm.PackageInstalled) || p.Status == string(farm.PackageFailed) && p.Version != ""
}

// lookUp reads the status of a package. While the package is being installed, it waits for the install until the given time.
// The name may carry versions, as it did when the package was requested.
func (c *call) lookUp(name string, until time.Time) (wire.Package, error) {
	p, err := c.findPackage(name)
	if err != nil || p.Status != string(farm.PackageInstalling) || p.JobID == "" || time.Until(until) <= 0 {
		return p, err
	}
	if _, err := c.await(time.Until(until), func(wait time.Duration) (wire.Job, error) {
		return c.farm.Job(c.ctx, p.JobID, wait)
	}); err != nil {
		return p, err
	}
	c.packages = nil // the sandbox has changed
	return c.packageOf(p.Manager, name)
}

// findPackage looks a package up with the manager that the caller named. Without one it asks pip, then npm if pip does not know
// the package. A name that only one manager allows goes to that manager alone.
func (c *call) findPackage(name string) (wire.Package, error) {
	if manager := c.text("manager"); manager != "" {
		return c.packageOf(manager, name)
	}
	_, pip := farm.RequirementName(farm.ManagerPip, name)
	_, npm := farm.RequirementName(farm.ManagerNpm, name)
	if npm && !pip {
		return c.packageOf(farm.ManagerNpm, name)
	}
	python, err := c.packageOf(farm.ManagerPip, name)
	if err != nil || !npm || python.Status != string(farm.PackageNotFound) {
		return python, err
	}
	node, err := c.packageOf(farm.ManagerNpm, name)
	if err != nil || node.Status != string(farm.PackageNotFound) {
		return node, err
	}
	return python, nil
}

// packageOf reads the status of a package from the farm.
func (c *call) packageOf(manager, name string) (wire.Package, error) {
	if c.packages == nil {
		c.packages = c.farm.Packages(c.text("sandbox_id"))
	}
	p, err := c.packages(c.ctx, manager, packageName(manager, name))
	if p.Manager == "" {
		p.Manager = manager
	}
	if err == nil && p.Status == string(farm.PackageNotFound) && strings.Contains(p.Message, "/v1/") { // a REST route
		p.Message = fmt.Sprintf("It is not in the sandbox. Install it with install_packages_in_sandbox, manager %s.", p.Manager)
		if meant := farm.DistributionOf(name); manager == farm.ManagerPip && meant != name && !strings.Contains(name, ".") {
			p.Message += fmt.Sprintf(" If you mean the module %s: its package is %s.", name, meant)
		}
	}
	p.Message = asTool(p.Message)
	return p, err
}

func statusOf(p wire.Package) map[string]any {
	return map[string]any{"name": p.Name, "status": p.Status, "version": p.Version, "manager": p.Manager, "job_id": p.JobID, "message": p.Message}
}

func statusSentence(p wire.Package) string {
	switch farm.PackageStatus(p.Status) {
	case farm.PackageInstalled:
		return strings.TrimSpace(fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, p.Message))
	case farm.PackageInstalling:
		return fmt.Sprintf("%s is being installed by job %s. Next: call check_package_status again, with wait_seconds up to %g.", p.Name, p.JobID, waitMax.Seconds())
	case farm.PackageFailed:
		text := fmt.Sprintf("The install of %s failed: %s", p.Name, p.Message)
		if p.Version != "" {
			text += fmt.Sprintf(" %s %s is still installed.", p.Name, p.Version)
		}
		return text
	default:
		return strings.TrimSpace(fmt.Sprintf("%s was not found. %s", p.Name, p.Message))
	}
}

// checkPackages is the same lookup for several packages, under the name that an older system has for it.
func checkPackages() *tool {
	return &tool{
		name: "check_packages_installation_status", title: "Check several packages",
		about: "check_package_status for several packages at once. Poll it after install_packages_in_sandbox until none is installing.",
		params: []param{
			sandboxParam(),
			{name: "package_names", kind: texts, required: true, doc: "Names without versions; at most 100."},
			managerParam(),
			waitParam(0, "the end"),
		},
		output: statusesSchema, hints: reads(), run: (*call).checkPackages,
	}
}

func (c *call) checkPackages() (*answer, error) {
	names := c.texts("package_names")
	if len(names) == 0 || len(names) > maxLookups {
		return nil, farm.Invalidf("package_names has %d names; it takes 1 to %d.", len(names), maxLookups)
	}
	until := time.Now().Add(c.wait(0))
	found := make(map[string]any, len(names))
	lines := make([]string, len(names))
	for i, name := range names {
		p, err := c.lookUp(name, until)
		if err != nil {
			return nil, err
		}
		status := statusOf(p)
		status["installed"] = IsInstalled(p)
		found[name], lines[i] = status, statusSentence(p)
	}
	return &answer{
		text:       strings.Join(lines, "\n"),
		structured: map[string]any{"sandbox_id": c.text("sandbox_id"), "packages": found},
	}, nil
}
