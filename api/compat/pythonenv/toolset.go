package pythonenv

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Name is the toolset's name.
const Name = "python-env"

const (
	idleSeconds = 3600             // an environment closes after an hour without use
	createWait  = 45 * time.Second // work may be sent before it is ready
	grace       = 4 * time.Second  // how long an install or a check waits: it answers within 5 s
)

const instructions = `Run Python code in an isolated environment:
1. create_python_env gives a container_id for all other calls.
2. install_package_in_env starts to install a package and answers within 5 s. While the status is installing, call check_package_status until it is success or failed.
3. execute_python_code runs code and gives its output and links to the files it made. Variables stay for the next call.
Save pictures with plt.savefig() and data with df.to_csv() instead of showing them: every file comes back as a link.`

// New makes the toolset.
func New() *toolset.Toolset {
	id := mcp.Text("container_id", "Id of the environment, from create_python_env.").Needed()
	name := mcp.Text("package_name", "Name of the package, with a version if wanted: numpy, pandas>=2.").Needed()
	return &toolset.Toolset{
		Name: Name, Title: "Python environments", About: "Python in isolated environments, with packages and links to files.", Instructions: instructions,
		Refuse: refuse,
		Tools: []toolset.Tool{
			{
				Name: "create_python_env", Title: "Create an environment", Hints: mcp.Hints{OpenWorld: true}, Run: create,
				About: "Create an isolated Python environment and get its container_id for all other tools. It is closed after an hour without use.",
			}, {
				Name: "execute_python_code", Title: "Run Python code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: execute,
				About: "Run Python code in an environment. Gives stdout, stderr, exit_code, and a link to each file that the code made in its working directory.",
				Params: []mcp.Param{
					mcp.Text("code", "The Python code.").Needed(),
					mcp.Text("container_id", "Id of the environment, from create_python_env. Needed, unless sandbox_id is given."),
					mcp.Text("sandbox_id", "Another name for container_id."),
				},
			}, {
				Name: "install_package_in_env", Title: "Install a package", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: install,
				About:  "Start to install a Python package in an environment. It answers within 5 s: with status success or failed, or with installing; then call check_package_status until it is done.",
				Params: []mcp.Param{id, name},
			}, {
				Name: "check_package_status", Title: "Check a package", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: check,
				About:  "Get the status of a package: installing, success, failed or not_found. Call it again while it is installing.",
				Params: []mcp.Param{id, name},
			},
		},
	}
}

// refusal is the shape of an error.
type refusal struct {
	Error string `json:"error"`
}

// refuse describes an error. In the original a missing environment is a normal answer; wrong arguments and a failed create are
// errors of the protocol.
func refuse(tool string, args mcp.Arguments, err error) mcp.Reply {
	text := toolset.Text(err)
	switch code := farm.CodeOf(err); {
	case args == nil || code == farm.CodeInvalid || tool == "create_python_env":
		return mcp.Reply{Value: refusal{Error: text}, IsError: true}
	case code == farm.CodeNotFound || code == farm.CodeConflict:
		text += " Call create_python_env for a new environment."
	}
	return mcp.Reply{Value: refusal{Error: text}}
}

// create returns the bare id, as the original does.
func create(ctx context.Context, c *toolset.Call) (any, error) {
	idle := idleSeconds
	var made wire.Created
	job, err := c.Await(ctx, createWait, func(wait time.Duration) (wire.Job, error) {
		var err error
		made, err = c.Farm.CreateSandbox(ctx, wire.CreateRequest{IdleSeconds: &idle, Labels: map[string]string{"toolset": Name}}, wait)
		return made.Job, err
	})
	if err != nil {
		return nil, err
	}
	if job.Final() && job.State != "completed" {
		return nil, farm.Errorf(farm.CodeUnavailable, "The environment could not be created: %s", toolset.Unfinished(&job))
	}
	return made.Sandbox.ID, nil
}

// result is the answer of execute_python_code.
type result struct {
	Stdout    string   `json:"stdout"`
	Stderr    string   `json:"stderr"`
	ExitCode  int      `json:"exit_code"`
	Files     []string `json:"files"`
	FileLinks []link   `json:"file_links"`
	Error     string   `json:"error,omitempty"`
}

type link struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

func execute(ctx context.Context, c *toolset.Call) (any, error) {
	id := c.Text("container_id")
	if !c.Has("container_id") {
		id = c.Text("sandbox_id")
	}
	if !c.Has("container_id") && !c.Has("sandbox_id") {
		return nil, mcp.Required("container_id", "the id that create_python_env gave.")
	}
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Execute(ctx, id, wire.ExecuteRequest{Code: toolset.Code(c.Text("code"))}, wait)
	})
	if err != nil {
		return nil, err
	}
	run := toolset.RunOf(&job)
	out := result{Stdout: run.Stdout, Stderr: run.Stderr, ExitCode: run.ExitCode, Files: []string{}, FileLinks: []link{}, Error: run.Error}
	for _, f := range run.Files {
		out.Files = append(out.Files, f.Path)
		out.FileLinks = append(out.FileLinks, link{Name: f.Path, URL: f.URL})
	}
	return out, nil
}
