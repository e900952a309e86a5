package pythonenv

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// The status values of the system.
const (
	installing = "installing"
	success    = "success"
	failed     = "failed"
	notFound   = "not_found"
)

// status is the answer of the tools for packages. A final install has Stderr and EndTime, a running one StartTime and Elapsed.
type status struct {
	Status    string   `json:"status"`
	Message   string   `json:"message"`
	Stderr    *string  `json:"stderr,omitempty"`
	Complete  bool     `json:"complete"`
	Success   *bool    `json:"success"`
	StartTime string   `json:"start_time,omitempty"`
	EndTime   string   `json:"end_time,omitempty"`
	Elapsed   *float64 `json:"elapsed_seconds,omitempty"`
}

func done(ok bool, message string) status {
	out := status{Status: success, Message: message, Complete: true, Success: &ok}
	if !ok {
		out.Status = failed
	}
	return out
}

// broken describes a failed install.
func broken(message, stderr string, at time.Time) status {
	out := done(false, message)
	out.Stderr, out.EndTime = &stderr, stamp(at)
	return out
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// install starts an install, or joins one that runs, and waits up to grace for its end.
func install(ctx context.Context, c *toolset.Call) (any, error) {
	id, wanted := c.Text("container_id"), strings.TrimSpace(c.Text("package_name"))
	name, until := mcp.PackageName(wanted), time.Now().Add(grace)
	if p, err := c.Farm.Package(ctx, id, farm.ManagerPip, name); err == nil && p.Status == string(farm.PackageInstalling) && p.JobID != "" {
		job, err := c.Await(ctx, grace, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, p.JobID, wait) })
		if err != nil {
			return nil, err
		}
		if !job.Final() {
			return status{Status: installing, Message: fmt.Sprintf("The installation of %s is already in progress. Call check_package_status again.", wanted)}, nil
		}
		if !strings.ContainsAny(wanted, "<>=!~[") { // the same requirement
			return outcome(&job, name), nil
		}
	}
	job, err := c.Await(ctx, max(0, time.Until(until)), func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Install(ctx, id, wire.PackagesRequest{Packages: []string{wanted}}, wait)
	})
	switch {
	case farm.CodeOf(err) == farm.CodeInvalid: // a text that is not a package name cannot be installed
		if err := c.Open(ctx, id); err != nil {
			return nil, err
		}
		return broken(strings.ReplaceAll(toolset.Text(err), "packages[0]", "package_name"), "", time.Now()), nil
	case err != nil:
		return nil, err
	case !job.Final():
		return status{Status: installing, Message: fmt.Sprintf("%s is being installed. Call check_package_status until it is done.", wanted)}, nil
	}
	return outcome(&job, name), nil
}

// outcome describes a final install.
func outcome(job *wire.Job, name string) status {
	at := job.CreatedAt
	if job.FinishedAt != nil {
		at = *job.FinishedAt
	}
	stderr := ""
	if job.Result != nil && job.Result.Install != nil {
		stderr = job.Result.Install.Stderr
		for _, p := range job.Result.Install.Packages {
			if p.Name != name && mcp.PackageName(p.Requested) != name {
				continue
			}
			if p.Status == string(farm.PackageInstalled) {
				out := done(true, strings.TrimSpace(fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, p.Message)))
				out.EndTime = stamp(at)
				return out
			}
			return broken(fmt.Sprintf("The installation of %s failed: %s", p.Requested, p.Message), stderr, at)
		}
	}
	return broken(fmt.Sprintf("The installation of %s failed: %s", name, toolset.Unfinished(job)), stderr, at)
}

// check reads the status of a package. While it is being installed, it waits up to grace.
func check(ctx context.Context, c *toolset.Call) (any, error) {
	id, wanted := c.Text("container_id"), strings.TrimSpace(c.Text("package_name"))
	name := mcp.PackageName(wanted)
	if err := c.Open(ctx, id); err != nil {
		return nil, err
	}
	p, err := c.Farm.Package(ctx, id, farm.ManagerPip, name)
	if farm.CodeOf(err) == farm.CodeInvalid {
		return missing(wanted, p), nil
	}
	if err != nil {
		return nil, err
	}
	var job *wire.Job
	if p.JobID != "" && p.Status != string(farm.PackageInstalled) {
		found, err := c.Await(ctx, grace, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, p.JobID, wait) })
		switch {
		case err == nil:
			job = &found
		case farm.CodeOf(err) != farm.CodeNotFound: // jobs are deleted some days after their end
			return nil, err
		}
	}
	if p.Status == string(farm.PackageInstalling) && job != nil && job.Final() {
		if p, err = c.Farm.Package(ctx, id, farm.ManagerPip, name); err != nil {
			return nil, err
		}
	}
	return statusOf(p, job, wanted, name), nil
}

// statusOf converts the status of a package to the system's words.
func statusOf(p wire.Package, job *wire.Job, wanted, name string) status {
	switch farm.PackageStatus(p.Status) {
	case farm.PackageInstalled:
		if !toolset.Has(p, wanted) {
			return missing(wanted, p)
		}
		return done(true, strings.TrimSpace(fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, p.Message)))
	case farm.PackageInstalling:
		out := status{Status: installing, Message: fmt.Sprintf("%s is being installed. Call check_package_status again.", wanted)}
		since := time.Now()
		if job != nil {
			since = job.CreatedAt
		}
		elapsed := math.Round(time.Since(since).Seconds()*10) / 10
		out.StartTime, out.Elapsed = stamp(since), &elapsed
		return out
	case farm.PackageFailed:
		out := broken(fmt.Sprintf("The installation of %s failed: %s", wanted, p.Message), "", time.Now())
		if job != nil && job.Final() {
			if ended := outcome(job, name); ended.Status == failed {
				out = ended
			}
		}
		if toolset.Has(p, wanted) && !same(requested(job, name), wanted) { // the failed install was of another version
			return done(true, fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, out.Message))
		}
		return out
	default:
		return missing(wanted, p)
	}
}

// requested is the requirement of a package in a job, empty if unknown.
func requested(job *wire.Job, name string) string {
	if job != nil && job.Result != nil && job.Result.Install != nil {
		for _, p := range job.Result.Install.Packages {
			if p.Name == name {
				return p.Requested
			}
		}
	}
	return ""
}

// same reports whether two requirements differ only in spelling.
func same(a, b string) bool {
	return farm.NormalPackage(farm.ManagerPip, a) == farm.NormalPackage(farm.ManagerPip, b)
}

// missing describes a package that is not installed as requested; p is what is installed.
func missing(wanted string, p wire.Package) status {
	text := wanted + " is not installed."
	if p.Version != "" {
		text = fmt.Sprintf("%s %s is installed, not %s.", p.Name, p.Version, wanted)
	}
	out := done(false, text+" Call install_package_in_env.")
	out.Status = notFound
	return out
}
