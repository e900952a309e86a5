package notebook

import (
	"context"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Installed is the answer to an install, also to one that failed.
type Installed struct {
	Success bool   `json:"success"`
	Stdout  string `json:"stdout"`
	Stderr  string `json:"stderr"`
	Message string `json:"message"`
}

// Install installs a package into one sandbox, so that its running kernel can import it.
func (n *Service) Install(ctx context.Context, id, requirement string) (Installed, error) {
	if err := n.open(ctx, id); err != nil {
		return Installed{}, err
	}
	job, err := n.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return n.farm.Install(ctx, id, wire.PackagesRequest{Packages: []string{requirement}}, wait)
	})
	if farm.CodeOf(err) == farm.CodeInvalid {
		return Installed{Stderr: farm.MessageOf(err), Message: "Failed to install: " + farm.MessageOf(err)}, nil
	}
	if err != nil {
		return Installed{}, n.recheck(ctx, id, err)
	}
	if job.Result == nil || job.Result.Install == nil {
		if err := ended(&job); err != nil {
			return Installed{}, n.recheck(ctx, id, err)
		}
		return Installed{Message: "Failed to install " + requirement}, nil
	}
	r := job.Result.Install
	said := Installed{Success: job.State == string(farm.JobCompleted), Stdout: r.Stdout, Stderr: r.Stderr}
	var told []string
	for _, p := range r.Packages {
		if p.Status == string(farm.PackageInstalled) {
			told = append(told, "Successfully installed "+strings.TrimSpace(p.Name+" "+p.Version))
		} else {
			said.Success = false
			told = append(told, "Failed to install "+p.Name)
		}
		if p.Message != "" {
			told = append(told, p.Message)
		}
	}
	if job.Error != nil {
		told = append(told, job.Error.Message)
	}
	said.Message = strings.Join(told, ". ")
	return said, nil
}
