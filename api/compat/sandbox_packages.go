package compat

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// sandboxInstallWait is how long a call waits for an install: clients give up after 60 s.
const sandboxInstallWait = 45 * time.Second

// sandboxInstalled is the answer of install_packages_in_sandbox.
type sandboxInstalled struct {
	Status   string   `json:"status"`
	Message  string   `json:"message"`
	Stderr   *string  `json:"stderr,omitempty"`
	Complete bool     `json:"complete"`
	Success  *bool    `json:"success"`
	EndTime  string   `json:"end_time,omitempty"`
	Packages []string `json:"packages"`
}

func sandboxInstall(ctx context.Context, c *Call) (any, error) {
	names := c.Texts("package_names")
	wanted := make([]string, len(names))
	for i, name := range names {
		wanted[i] = strings.TrimSpace(name)
	}
	job, err := c.await(ctx, sandboxInstallWait, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Install(ctx, c.Text("sandbox_id"), wire.PackagesRequest{Packages: wanted}, wait)
	})
	switch {
	case farm.CodeOf(err) == farm.CodeInvalid: // a text that is not a package name cannot be installed
		if err := c.open(ctx, c.Text("sandbox_id")); err != nil {
			return nil, err
		}
		return sandboxEnded(names, []string{namedPackages(sentence(err), names)}, "", time.Now()), nil
	case err != nil:
		return nil, err
	case !job.Final():
		return sandboxInstalled{
			Status: "installing", Packages: names,
			Message: "The packages are being installed. Call check_packages_installation_status until all of them are there.",
		}, nil
	}
	var wrong []string
	stderr := ""
	if job.Result != nil && job.Result.Install != nil {
		stderr = job.Result.Install.Stderr
		for _, p := range job.Result.Install.Packages {
			if p.Status != string(farm.PackageInstalled) {
				wrong = append(wrong, fmt.Sprintf("%s: %s", p.Requested, p.Message))
			}
		}
	}
	if why := unfinished(&job); why != "" {
		wrong = append(wrong, why)
	}
	return sandboxEnded(names, wrong, stderr, *job.FinishedAt), nil
}

// sandboxEnded describes a final install; wrong lists the failed packages.
func sandboxEnded(names, wrong []string, stderr string, at time.Time) sandboxInstalled {
	ok := len(wrong) == 0
	out := sandboxInstalled{Status: "success", Complete: true, Success: &ok, EndTime: at.UTC().Format(stampForm), Packages: names}
	if ok {
		out.Message = "Installed " + strings.Join(names, ", ") + "."
		return out
	}
	out.Status, out.Stderr = "failed", &stderr
	out.Message = "Not everything could be installed. " + strings.Join(wrong, " ")
	return out
}

var packagePosition = regexp.MustCompile(`packages\[(\d+)\] is "[^"]*"`)

// namedPackages replaces packages[N] in a sentence of the farm by the package's name.
func namedPackages(message string, names []string) string {
	at := packagePosition.FindStringSubmatch(message)
	if at == nil {
		return message
	}
	if i, err := strconv.Atoi(at[1]); err == nil && i < len(names) {
		return strings.Replace(message, at[0], fmt.Sprintf("%q is not a package name", farm.Shorten(names[i])), 1)
	}
	return message
}

// sandboxFound is the status of one package.
type sandboxFound struct {
	Installed bool   `json:"installed"`
	Version   string `json:"version,omitempty"`
}

// sandboxChecked is the answer of check_packages_installation_status.
type sandboxChecked struct {
	Status   string                  `json:"status"`
	Message  string                  `json:"message"`
	Packages map[string]sandboxFound `json:"packages"`
}

func sandboxCheck(ctx context.Context, c *Call) (any, error) {
	names := c.Texts("package_names")
	if len(names) == 0 || len(names) > maxLookups {
		return nil, farm.Invalidf("package_names has %d names; it takes 1 to %d.", len(names), maxLookups)
	}
	if err := c.open(ctx, c.Text("sandbox_id")); err != nil {
		return nil, err
	}
	out := sandboxChecked{Status: "success", Packages: make(map[string]sandboxFound, len(names))}
	lookUp, there, more := c.Farm.Packages(c.Text("sandbox_id")), 0, ""
	for _, name := range names {
		if _, twice := out.Packages[name]; twice {
			continue
		}
		wanted := strings.TrimSpace(name)
		p, err := lookUp(ctx, farm.ManagerPip, mcp.PackageName(wanted))
		if err != nil && farm.CodeOf(err) != farm.CodeInvalid { // a text that is not a package name is not installed
			return nil, err
		}
		one := sandboxFound{Installed: hasPackage(p, wanted)}
		switch {
		case one.Installed:
			one.Version = p.Version
			there++
		case p.Status == string(farm.PackageInstalled):
			more += fmt.Sprintf(" %s %s is installed, not %s.", p.Name, p.Version, farm.Shorten(wanted))
		case p.Status == string(farm.PackageInstalling):
			more += fmt.Sprintf(" %s is being installed: ask again.", farm.Shorten(wanted))
		case p.Status == string(farm.PackageFailed):
			more += fmt.Sprintf(" %s could not be installed: %s", farm.Shorten(wanted), p.Message)
		}
		out.Packages[name] = one
	}
	out.Message = fmt.Sprintf("%d of %d packages are installed.%s", there, len(out.Packages), more)
	return out, nil
}

// maxLookups is how many packages one call looks up.
const maxLookups = 100
