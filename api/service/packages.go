package service

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// lookupWait bounds a lookup in a sandbox, which does not wait in the sandbox's FIFO and takes a few milliseconds.
const lookupWait = 20 * time.Second

// jobsPerRequest is how many jobs that installed packages one request reads. Further ones count as more requests.
const jobsPerRequest = 20

// npmMark is the prefix of npm packages where names of both managers are stored together.
const npmMark = farm.ManagerNpm + ":"

// Install starts an install. The job's result reports failures for each package.
func (s *Service) Install(ctx context.Context, c Call, sandboxID string, r wire.PackagesRequest) (Outcome, error) {
	idem, err := c.idempotency()
	if err != nil {
		return Outcome{}, err
	}
	p := c.problems()
	if len(r.Packages) == 0 {
		p.addf("/packages", "packages is empty: name at least one, such as numpy or pandas>=2")
	}
	request := &farm.InstallRequest{Manager: orElse(r.Manager, farm.ManagerPip), Packages: r.Packages}
	names := s.checkPackages(p, request)
	timeout := s.timeout(p, r.TimeoutSeconds)
	s.checkCallback(ctx, p, r.CallbackURL)
	if err := p.err(); err != nil {
		return Outcome{}, err
	}
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, farm.KindInstall, sandboxID)
	job.TimeoutSeconds, job.CallbackURL = timeout, r.CallbackURL
	return s.submit(ctx, c, store.Accept{Job: job, Request: &farm.Request{Install: request}, Packages: names, Idempotency: idem})
}

// checkPackages checks requirements and returns the names under which their jobs are recorded.
func (s *Service) checkPackages(p *problems, r *farm.InstallRequest) []string {
	switch {
	case r.Manager != farm.ManagerPip && r.Manager != farm.ManagerNpm:
		p.addf("/manager", "manager %q is not known: it is pip or npm", farm.Shorten(r.Manager))
		return nil
	case len(r.Packages) > s.limits.MaxPackages:
		p.addf("/packages", "there are %d packages; at most %d are allowed in one request", len(r.Packages), s.limits.MaxPackages)
		return nil
	}
	names := make([]string, 0, len(r.Packages))
	for i, requirement := range r.Packages {
		pointer := strict.Pointer("/packages", strconv.Itoa(i))
		if len(requirement) > s.limits.MaxPackageBytes {
			p.addf(pointer, "packages[%d] has %d bytes; at most %d are allowed", i, len(requirement), s.limits.MaxPackageBytes)
			continue
		}
		name, ok := farm.RequirementName(r.Manager, requirement)
		if !ok {
			p.addf(pointer, "packages[%d] is %q: give a name, with a version if wanted, such as numpy or pandas>=2; options, paths, addresses and markers (; python_version …) are not taken", i, farm.Shorten(requirement))
			continue
		}
		names = append(names, packageKey(r.Manager, name))
	}
	return names
}

// packageKey is the key of a package, unique across both managers.
func packageKey(manager, name string) string {
	if manager == farm.ManagerNpm {
		return npmMark + name
	}
	return name
}

// wanted are the packages of a create or a run; nil where there are none.
func (s *Service) wanted(p *problems, packages []string) (*farm.InstallRequest, []string) {
	if len(packages) == 0 {
		return nil, nil
	}
	r := &farm.InstallRequest{Manager: farm.ManagerPip, Packages: packages}
	return r, s.checkPackages(p, r)
}

// Package reads the status of one package of a sandbox. Running and failed installs come from the record; everything else
// is looked up in the sandbox, so packages of the image and packages that a command installed are found too. manager ""
// means pip, unless the name can only be an npm name.
func (s *Service) Package(ctx context.Context, tenant, sandboxID, manager, name string) (wire.Package, error) {
	return s.Packages(tenant, sandboxID).Package(ctx, manager, name)
}

// Packages is for calls that look many packages of a sandbox up.
func (s *Service) Packages(tenant, sandboxID string) *PackageLookup {
	return &PackageLookup{s: s, tenant: tenant, sandboxID: sandboxID, jobs: map[string]*farm.Job{}}
}

// PackageLookup looks packages of one sandbox up. It looks into the sandbox once at most, and reads each job once: each look is a job of its own, and each
// jobsPerRequest jobs count as one more request. What changes meanwhile is not seen. It is not safe for concurrent use.
type PackageLookup struct {
	s                 *Service
	tenant, sandboxID string

	box    *farm.Sandbox
	jobs   map[string]*farm.Job // with the outcomes for packages alone
	looked bool
	known  bool // the sandbox could be looked into
	found  []farm.Package
}

// Package is Service.Package.
func (l *PackageLookup) Package(ctx context.Context, manager, name string) (wire.Package, error) {
	manager, name, err := l.s.packageName(manager, name)
	if err != nil {
		return wire.Package{}, err
	}
	if l.box == nil {
		if l.box, err = l.s.sandbox(ctx, l.tenant, l.sandboxID); err != nil {
			return wire.Package{}, err
		}
	}
	box, key := l.box, packageKey(manager, name)
	jobs, err := l.s.Store.PackageJobs(ctx, farm.Ref{Tenant: l.tenant, ID: box.ID}, key)
	if err != nil {
		return wire.Package{}, err
	}
	out := wire.Package{Name: name, Status: string(farm.PackageNotFound), Manager: manager}
	if id := jobs[key]; id != "" {
		job, err := l.job(ctx, id)
		if err != nil {
			return out, err
		}
		out = recorded(job, out)
		if out.Status == string(farm.PackageInstalling) {
			return out, nil
		}
	}
	if !l.looked {
		if l.found, l.known, err = l.s.look(ctx, l.tenant, box); err != nil {
			return out, err
		}
		l.looked = true
	}
	if !l.known {
		out.Message = strings.TrimSpace(out.Message + " " + unknown(box))
		return out, nil
	}
	found := l.found
	i := slices.IndexFunc(found, func(p farm.Package) bool { return p.Manager == manager && p.Name == name })
	if out.Status == string(farm.PackageFailed) {
		if i >= 0 { // of an earlier install, which the failed one did not change
			out.Version = found[i].Version
		}
		return out, nil
	}
	if i < 0 {
		return wire.Package{
			Name: name, Status: string(farm.PackageNotFound), Manager: manager,
			Message: "It is not in the sandbox. Install it with " + farm.InstallRouteOf(box.ID) + ".",
		}, nil
	}
	out.Status, out.Version = string(farm.PackageInstalled), found[i].Version
	return out, nil
}

// job reads the last job of packages; nil: its record is deleted.
func (l *PackageLookup) job(ctx context.Context, id string) (*farm.Job, error) {
	if job, there := l.jobs[id]; there {
		return job, nil
	}
	if read := len(l.jobs); read > 0 && read%jobsPerRequest == 0 {
		if _, err := l.s.More(ctx, l.tenant, 1); err != nil {
			return nil, err
		}
	}
	held := budget.Held(ctx)
	job, err := l.s.Store.Job(ctx, farm.Ref{Tenant: l.tenant, ID: id})
	if err != nil && farm.CodeOf(err) != farm.CodeNotFound {
		return nil, err
	}
	if job != nil {
		job = &farm.Job{ID: job.ID, State: job.State, Error: job.Error, Result: &farm.Result{Install: &farm.InstallResult{Packages: outcomesFor(job)}}}
	}
	l.jobs[id] = job
	budget.Keep(ctx, held) // nothing of the job but the outcomes
	return job, nil
}

// unknown says why nobody can look into a sandbox.
func unknown(box *farm.Sandbox) string {
	if box.State.Accepts() {
		return "The sandbox " + box.ID + " is " + string(box.State) + ", so its packages cannot be looked up now."
	}
	return "The sandbox " + box.ID + " is " + string(box.State) + ", and its packages are gone. Create a new sandbox."
}

// packageName checks the name of a lookup.
func (s *Service) packageName(manager, name string) (string, string, error) {
	if manager == "" {
		manager = farm.ManagerPip
		if len(name) > 0 && name[0] == '@' {
			manager = farm.ManagerNpm
		}
	}
	if manager != farm.ManagerPip && manager != farm.ManagerNpm {
		return "", "", farm.Invalidf("manager %q is not known: it is pip or npm", farm.Shorten(manager))
	}
	if len(name) > s.limits.MaxPackageBytes {
		return "", "", farm.Invalidf("the name of the package has %d bytes; at most %d are allowed", len(name), s.limits.MaxPackageBytes)
	}
	normal, ok := farm.RequirementName(manager, name)
	if !ok || normal != farm.NormalPackage(manager, name) {
		return "", "", farm.Invalidf("%q is not the name of a package: give only the name, such as numpy", farm.Shorten(name))
	}
	return manager, normal, nil
}

// recorded fills in the outcome of a package's last job. Without one, the package is looked up in the sandbox.
func recorded(job *farm.Job, p wire.Package) wire.Package {
	if job == nil {
		return p
	}
	p.JobID = job.ID
	if outcome, ok := outcomeOf(job, p.Name); ok {
		p.Status, p.Version, p.Message = string(outcome.Status), outcome.Version, outcome.Message
		return p
	}
	if !job.State.Final() {
		p.Status = string(farm.PackageInstalling)
		p.Message = "The job " + job.ID + " is " + string(job.State) + ". Ask again in a second, or wait for the job."
		return p
	}
	p.Status = string(farm.PackageFailed)
	p.Message = p.Name + " was not installed: the job " + job.ID + " ended as " + string(job.State) + "."
	if job.Error != nil {
		p.Message += " " + job.Error.Message
	}
	return p
}

// outcomesFor are the outcomes for packages in a job's result.
func outcomesFor(job *farm.Job) []farm.PackageOutcome {
	switch {
	case job.Result == nil:
		return nil
	case job.Result.Command != nil:
		return job.Result.Command.Installed
	case job.Result.Execute != nil:
		return job.Result.Execute.Installed
	case job.Result.Install != nil:
		return job.Result.Install.Packages
	}
	return nil
}

// outcomeOf finds a package in a job's result.
func outcomeOf(job *farm.Job, name string) (farm.PackageOutcome, bool) {
	for _, outcome := range outcomesFor(job) {
		if outcome.Name == name {
			return outcome, true
		}
	}
	return farm.PackageOutcome{}, false
}

// look lists the packages in the sandbox. known is false if the sandbox is not ready yet or has ended.
func (s *Service) look(ctx context.Context, tenant string, box *farm.Sandbox) (found []farm.Package, known bool, err error) {
	if box.State != farm.SandboxReady && box.State != farm.SandboxBusy {
		return nil, false, nil
	}
	call := Call{Tenant: tenant, Wait: lookupWait}
	job := s.record(call, farm.KindPackages, box.ID)
	job.Inline, job.Hidden = true, true
	out, err := s.ask(ctx, call, store.Accept{Job: job, Request: &farm.Request{}})
	switch {
	case farm.CodeOf(err) == farm.CodeConflict: // it closed meanwhile
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case out.record.Error != nil && out.record.Error.Code == farm.CodeConflict:
		return nil, false, nil
	case out.record.Error != nil:
		return nil, false, farm.Errorf(out.record.Error.Code, "%s", out.record.Error.Message)
	case out.record.Result == nil:
		return nil, false, nil
	}
	return out.record.Result.Packages, true, nil
}

// PackageList lists the packages of a sandbox: installed ones, running installs and failed installs.
func (s *Service) PackageList(ctx context.Context, tenant, sandboxID string) (wire.Items[wire.Package], error) {
	list := wire.Items[wire.Package]{Items: []wire.Package{}}
	box, err := s.sandbox(ctx, tenant, sandboxID)
	if err != nil {
		return list, err
	}
	jobs, err := s.Store.PackageJobs(ctx, farm.Ref{Tenant: tenant, ID: box.ID})
	if err != nil {
		return list, err
	}
	found, known, err := s.look(ctx, tenant, box)
	if err != nil {
		return list, err
	}
	byKey := make(map[string]wire.Package, len(found)+len(jobs))
	for _, p := range found {
		byKey[packageKey(p.Manager, p.Name)] = wire.Package{Name: p.Name, Status: string(farm.PackageInstalled), Version: p.Version, Manager: p.Manager}
	}
	keysOf := map[string][]string{} // by job: one has many packages, and a long result
	for key, id := range jobs {
		keysOf[id] = append(keysOf[id], key)
	}
	lookup := s.Packages(tenant, box.ID)
	for id, keys := range keysOf {
		job, err := lookup.job(ctx, id)
		if err != nil {
			return list, err
		}
		for _, key := range keys {
			p, there := byKey[key]
			if !there {
				p = wire.Package{Status: string(farm.PackageNotFound)}
				p.Manager, p.Name = splitKey(key)
			}
			current := recorded(job, p)
			if there && current.Status != string(farm.PackageInstalling) {
				current.Version = p.Version // the installed version, which a failed install leaves unchanged
			}
			if known && !there && current.Status == string(farm.PackageInstalled) || current.Status == string(farm.PackageNotFound) {
				continue // it was removed later
			}
			byKey[key] = current
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		list.Items = append(list.Items, byKey[key])
	}
	return list, nil
}

// splitKey is the inverse of packageKey.
func splitKey(key string) (manager, name string) {
	if name, ok := strings.CutPrefix(key, npmMark); ok {
		return farm.ManagerNpm, name
	}
	return farm.ManagerPip, key
}
