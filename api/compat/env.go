package compat

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// envName is the toolset's name.
const envName = "python-env"

const (
	envIdleSeconds = 3600             // an environment closes after an hour without use
	envCreateWait  = 45 * time.Second // work may be sent before it is ready
	envGrace       = 4 * time.Second  // how long an install or a check waits: it answers within 5 s
)

const envInstructions = `Run Python code in an isolated environment:
1. create_python_env gives a container_id for all other calls.
2. install_package_in_env starts to install a package and answers within 5 s. While the status is installing, call check_package_status until it is success or failed.
3. execute_python_code runs code and gives its output and links to the files it made. Variables stay for the next call.
Save pictures with plt.savefig() and data with df.to_csv() instead of showing them: every file comes back as a link.`

// envToolset stands for the system "Python MCP Sandbox" (python-mcp-sandbox): four tools to create an environment, install packages and
// poll for them, run code, and get links to the files it wrote.
func envToolset() *Toolset {
	id := mcp.Text("container_id", "Id of the environment, from create_python_env.").Needed()
	name := mcp.Text("package_name", "Name of the package, with a version if wanted: numpy, pandas>=2.").Needed()
	return &Toolset{
		Name: envName, Title: "Python environments", About: "Python in isolated environments, with packages and links to files.", Instructions: envInstructions,
		Refuse: refuseEnv,
		Tools: []Tool{
			{
				Name: "create_python_env", Title: "Create an environment", Hints: mcp.Hints{OpenWorld: true}, Run: envCreate,
				About: "Create an isolated Python environment and get its container_id for all other tools. It is closed after an hour without use.",
			}, {
				Name: "execute_python_code", Title: "Run Python code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: envExecute,
				About: "Run Python code in an environment. Gives stdout, stderr, exit_code, and a link to each file that the code made in its working directory.",
				Params: []mcp.Param{
					mcp.Text("code", "The Python code.").Needed(),
					mcp.Text("container_id", "Id of the environment, from create_python_env. Needed, unless sandbox_id is given."),
					mcp.Text("sandbox_id", "Another name for container_id."),
				},
			}, {
				Name: "install_package_in_env", Title: "Install a package", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: envInstall,
				About:  "Start to install a Python package in an environment. It answers within 5 s: with status success or failed, or with installing; then call check_package_status until it is done.",
				Params: []mcp.Param{id, name},
			}, {
				Name: "check_package_status", Title: "Check a package", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: envCheck,
				About:  "Get the status of a package: installing, success, failed or not_found. Call it again while it is installing.",
				Params: []mcp.Param{id, name},
			},
		},
	}
}

// envRefusal is the shape of an error.
type envRefusal struct {
	Error string `json:"error"`
}

// refuseEnv describes an error. In the original a missing environment is a normal answer; wrong arguments and a failed create are
// errors of the protocol.
func refuseEnv(tool string, args mcp.Arguments, err error) mcp.Reply {
	text := sentence(err)
	switch code := farm.CodeOf(err); {
	case args == nil || code == farm.CodeInvalid || tool == "create_python_env":
		return mcp.Reply{Value: envRefusal{Error: text}, IsError: true}
	case code == farm.CodeNotFound || code == farm.CodeConflict:
		text += " Call create_python_env for a new environment."
	}
	return mcp.Reply{Value: envRefusal{Error: text}}
}

// envCreate returns the bare id, as the original does.
func envCreate(ctx context.Context, c *Call) (any, error) {
	idle := envIdleSeconds
	var made wire.Created
	job, err := c.await(ctx, envCreateWait, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = c.Farm.CreateSandbox(ctx, wire.CreateRequest{IdleSeconds: &idle, Labels: map[string]string{"toolset": envName}}, wait)
		return made.Job, err
	})
	if err != nil {
		c.drop(ctx, made.Sandbox.ID)
		return nil, err
	}
	if job.Final() && job.State != "completed" {
		return nil, farm.Errorf(farm.CodeUnavailable, "The environment could not be created: %s", unfinished(&job))
	}
	return made.Sandbox.ID, nil
}

// envResult is the answer of execute_python_code.
type envResult struct {
	Stdout    string    `json:"stdout"`
	Stderr    string    `json:"stderr"`
	ExitCode  int       `json:"exit_code"`
	Files     []string  `json:"files"`
	FileLinks []envLink `json:"file_links"`
	Error     string    `json:"error,omitempty"`
}

type envLink struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

func envExecute(ctx context.Context, c *Call) (any, error) {
	id := c.Text("container_id")
	if !c.Has("container_id") {
		id = c.Text("sandbox_id")
	}
	if !c.Has("container_id") && !c.Has("sandbox_id") {
		return nil, mcp.Required("container_id", "the id that create_python_env gave.")
	}
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Execute(ctx, id, wire.ExecuteRequest{Code: codeOrPass(c.Text("code"))}, wait)
	})
	if err != nil {
		return nil, err
	}
	run := runOf(&job)
	out := envResult{Stdout: run.Stdout, Stderr: run.Stderr, ExitCode: run.ExitCode, Files: []string{}, FileLinks: []envLink{}, Error: run.Error}
	for _, f := range run.Files {
		out.Files = append(out.Files, f.Path)
		out.FileLinks = append(out.FileLinks, envLink{Name: f.Path, URL: f.URL})
	}
	return out, nil
}

// The status values of the system.
const (
	envInstalling = "installing"
	envSuccess    = "success"
	envFailed     = "failed"
	envNotFound   = "not_found"
)

// envStatus is the answer of the tools for packages. A final install has Stderr and EndTime, a running one StartTime and Elapsed.
type envStatus struct {
	Status    string   `json:"status"`
	Message   string   `json:"message"`
	Stderr    *string  `json:"stderr,omitempty"`
	Complete  bool     `json:"complete"`
	Success   *bool    `json:"success"`
	StartTime string   `json:"start_time,omitempty"`
	EndTime   string   `json:"end_time,omitempty"`
	Elapsed   *float64 `json:"elapsed_seconds,omitempty"`
}

func envDone(ok bool, message string) envStatus {
	out := envStatus{Status: envSuccess, Message: message, Complete: true, Success: &ok}
	if !ok {
		out.Status = envFailed
	}
	return out
}

// envBroken describes a failed install.
func envBroken(message, stderr string, at time.Time) envStatus {
	out := envDone(false, message)
	out.Stderr, out.EndTime = &stderr, envStamp(at)
	return out
}

func envStamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// envInstall starts an install, or joins one that runs, and waits up to grace for its end.
func envInstall(ctx context.Context, c *Call) (any, error) {
	id, wanted := c.Text("container_id"), strings.TrimSpace(c.Text("package_name"))
	name, until := mcp.PackageName(wanted), time.Now().Add(envGrace)
	if p, err := c.Farm.Packages(id)(ctx, farm.ManagerPip, name); err == nil && p.Status == string(farm.PackageInstalling) && p.JobID != "" {
		job, err := c.await(ctx, envGrace, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, p.JobID, wait) })
		if err != nil {
			return nil, err
		}
		if !job.Final() {
			return envStatus{Status: envInstalling, Message: fmt.Sprintf("The installation of %s is already in progress. Call check_package_status again.", wanted)}, nil
		}
		if !strings.ContainsAny(wanted, "<>=!~[") { // the same requirement
			return envOutcome(&job, name), nil
		}
	}
	job, err := c.await(ctx, max(0, time.Until(until)), func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Install(ctx, id, wire.PackagesRequest{Packages: []string{wanted}}, wait)
	})
	switch {
	case farm.CodeOf(err) == farm.CodeInvalid: // a text that is not a package name cannot be installed
		if err := c.open(ctx, id); err != nil {
			return nil, err
		}
		return envBroken(strings.ReplaceAll(sentence(err), "packages[0]", "package_name"), "", time.Now()), nil
	case err != nil:
		return nil, err
	case !job.Final():
		return envStatus{Status: envInstalling, Message: fmt.Sprintf("%s is being installed. Call check_package_status until it is done.", wanted)}, nil
	}
	return envOutcome(&job, name), nil
}

// envOutcome describes a final install.
func envOutcome(job *wire.Job, name string) envStatus {
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
				out := envDone(true, strings.TrimSpace(fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, p.Message)))
				out.EndTime = envStamp(at)
				return out
			}
			return envBroken(fmt.Sprintf("The installation of %s failed: %s", p.Requested, p.Message), stderr, at)
		}
	}
	return envBroken(fmt.Sprintf("The installation of %s failed: %s", name, unfinished(job)), stderr, at)
}

// envCheck reads the status of a package. While it is being installed, it waits up to grace.
func envCheck(ctx context.Context, c *Call) (any, error) {
	id, wanted := c.Text("container_id"), strings.TrimSpace(c.Text("package_name"))
	name := mcp.PackageName(wanted)
	if err := c.open(ctx, id); err != nil {
		return nil, err
	}
	p, err := c.Farm.Packages(id)(ctx, farm.ManagerPip, name)
	if farm.CodeOf(err) == farm.CodeInvalid {
		return envMissing(wanted, p), nil
	}
	if err != nil {
		return nil, err
	}
	var job *wire.Job
	if p.JobID != "" && p.Status != string(farm.PackageInstalled) {
		found, err := c.await(ctx, envGrace, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, p.JobID, wait) })
		switch {
		case err == nil:
			job = &found
		case farm.CodeOf(err) != farm.CodeNotFound: // jobs are deleted some days after their end
			return nil, err
		}
	}
	if p.Status == string(farm.PackageInstalling) && job != nil && job.Final() {
		if p, err = c.Farm.Packages(id)(ctx, farm.ManagerPip, name); err != nil {
			return nil, err
		}
	}
	return envStatusOf(p, job, wanted, name), nil
}

// envStatusOf converts the status of a package to the system's words.
func envStatusOf(p wire.Package, job *wire.Job, wanted, name string) envStatus {
	switch farm.PackageStatus(p.Status) {
	case farm.PackageInstalled:
		if !hasPackage(p, wanted) {
			return envMissing(wanted, p)
		}
		return envDone(true, strings.TrimSpace(fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, p.Message)))
	case farm.PackageInstalling:
		out := envStatus{Status: envInstalling, Message: fmt.Sprintf("%s is being installed. Call check_package_status again.", wanted)}
		since := time.Now()
		if job != nil {
			since = job.CreatedAt
		}
		elapsed := math.Round(time.Since(since).Seconds()*10) / 10
		out.StartTime, out.Elapsed = envStamp(since), &elapsed
		return out
	case farm.PackageFailed:
		out := envBroken(fmt.Sprintf("The installation of %s failed: %s", wanted, p.Message), "", time.Now())
		if job != nil && job.Final() {
			if ended := envOutcome(job, name); ended.Status == envFailed {
				out = ended
			}
		}
		if hasPackage(p, wanted) && !samePackage(envRequested(job, name), wanted) { // the failed install was of another version
			return envDone(true, fmt.Sprintf("%s %s is installed. %s", p.Name, p.Version, out.Message))
		}
		return out
	default:
		return envMissing(wanted, p)
	}
}

// envRequested is the requirement of a package in a job, empty if unknown.
func envRequested(job *wire.Job, name string) string {
	if job != nil && job.Result != nil && job.Result.Install != nil {
		for _, p := range job.Result.Install.Packages {
			if p.Name == name {
				return p.Requested
			}
		}
	}
	return ""
}

// samePackage reports whether two requirements differ only in spelling.
func samePackage(a, b string) bool {
	return farm.NormalPackage(farm.ManagerPip, a) == farm.NormalPackage(farm.ManagerPip, b)
}

// envMissing describes a package that is not installed as requested; p is what is installed.
func envMissing(wanted string, p wire.Package) envStatus {
	text := wanted + " is not installed."
	if p.Version != "" {
		text = fmt.Sprintf("%s %s is installed, not %s.", p.Name, p.Version, wanted)
	}
	out := envDone(false, text+" Call install_package_in_env.")
	out.Status = envNotFound
	return out
}
