package mcpsandbox

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Name is the toolset's name.
const Name = "sandbox"

const commandTool = "execute_terminal_command"

const instructions = `Run Python code and shell commands in isolated sandboxes:
1. create_sandbox gives a sandbox_id for all other calls.
2. install_packages_in_sandbox brings Python packages; when it answers installing, ask check_packages_installation_status until they are there.
3. execute_python_code and execute_terminal_command run in /app/results. Each new or changed file there comes back as a path and a link; variables stay for the next call.
4. upload_file_to_sandbox puts a file into /app/results.`

// New makes the toolset.
func New() *toolset.Toolset {
	id := mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox or list_sandboxes.").Needed()
	return &toolset.Toolset{
		Name: Name, Title: "Python Sandbox Executor", About: "Python and shell commands in named sandboxes, with packages and links to files.",
		Instructions: instructions, Structured: true, Refuse: refuse,
		Tools: []toolset.Tool{
			{
				Name: "create_sandbox", Title: "Create a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: new(creator).create,
				About:  "Create an isolated sandbox and get its sandbox_id for all other tools. A name makes it easy to find again; two cannot have the same one.",
				Params: []mcp.Param{mcp.Text("name", "Name of the sandbox; it gets the prefix python-sandbox-. Without one it gets a name of its own.").OrNull()},
			}, {
				Name: "list_sandboxes", Title: "List sandboxes", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: list,
				About: "List your sandboxes with their ids, names and status.",
			}, {
				Name: "execute_python_code", Title: "Run Python code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: execute,
				About: "Run Python code in a sandbox. Gives stdout, stderr, exit_code, and the path and a link of each file that the code made or changed in /app/results, its working directory.",
				Params: []mcp.Param{
					mcp.Text("code", "The Python code.").Needed(),
					mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox or list_sandboxes. Needed, unless container_id is given."),
					mcp.Text("container_id", "Another name for sandbox_id."),
				},
			}, {
				Name: commandTool, Title: "Run a shell command", Hints: mcp.Hints{Destructive: true}, Run: command,
				About:  "Run a command in a sandbox's shell: pipes, redirections and && work. Gives stdout, stderr and exit_code. For Python packages use install_packages_in_sandbox.",
				Params: []mcp.Param{id, mcp.Text("command", "The command, or a script.").Needed()},
			}, {
				Name: "install_packages_in_sandbox", Title: "Install packages", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: install,
				About:  "Install Python packages in a sandbox. An install that takes longer than 45 s continues, and the answer has the status installing: then call check_packages_installation_status.",
				Params: []mcp.Param{id, mcp.Texts("package_names", `Names, with versions if wanted: ["numpy", "pandas>=2"].`).Needed()},
			}, {
				Name: "check_packages_installation_status", Title: "Check packages", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: check,
				About:  "Tell which Python packages a sandbox has, with their versions.",
				Params: []mcp.Param{id, mcp.Texts("package_names", "Names of the packages, as they were given to be installed.").Needed()},
			}, {
				Name: "upload_file_to_sandbox", Title: "Upload a file", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: upload,
				About: "Write a file into a sandbox: text as content, any bytes as content_base64, or, where the tools run on your own machine, the file local_file_path.",
				Params: []mcp.Param{
					id,
					mcp.Text("local_file_path", "Path of the file on the caller's machine. Only the stdio server can read it: over HTTP it names the file, whose content or content_base64 you give."),
					mcp.Text("dest_path", "Directory in the sandbox that gets the file.").Or(toolset.Results),
					mcp.Text("content", "Text of the file."),
					mcp.Text("content_base64", "Bytes of the file, in base64."),
				},
			},
		},
	}
}

// Refusal is the shape of an error.
type Refusal struct {
	Error   bool   `json:"error"`
	Message string `json:"message"`
}

// refuse describes an error. In the original a missing sandbox is a normal answer; wrong arguments and a failed create or list are
// errors of the protocol. Commands keep their own shape.
func refuse(tool string, args mcp.Arguments, err error) mcp.Reply {
	text := toolset.Text(err)
	switch {
	case tool == commandTool && args != nil:
		return mcp.Reply{Value: output{Stderr: text, ExitCode: -1}}
	case args == nil || tool == "create_sandbox" || tool == "list_sandboxes":
		return mcp.Reply{Value: Refusal{Error: true, Message: text}, IsError: true}
	default:
		return mcp.Reply{Value: Refusal{Error: true, Message: text}}
	}
}

// result is the answer of execute_python_code.
type result struct {
	Error            string   `json:"error,omitempty"`
	Stdout           string   `json:"stdout"`
	Stderr           string   `json:"stderr"`
	ExitCode         int      `json:"exit_code"`
	Files            []string `json:"files"`
	FileLinks        []string `json:"file_links"`
	MachineFileLinks []string `json:"machine_file_links"`
}

func execute(ctx context.Context, c *toolset.Call) (any, error) {
	id := c.Text("sandbox_id")
	if !c.Has("sandbox_id") {
		if !c.Has("container_id") {
			return nil, mcp.Required("sandbox_id", "the id that create_sandbox gave.")
		}
		id = c.Text("container_id")
	}
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Execute(ctx, id, wire.ExecuteRequest{Code: toolset.Code(c.Text("code"))}, wait)
	})
	if err != nil {
		return nil, err
	}
	run := toolset.RunOf(&job)
	out := result{
		Error: run.Error, Stdout: run.Stdout, Stderr: run.Stderr, ExitCode: run.ExitCode,
		Files: []string{}, FileLinks: []string{}, MachineFileLinks: []string{},
	}
	for _, f := range run.Files {
		out.Files = append(out.Files, toolset.Results+"/"+f.Path)
		out.FileLinks = append(out.FileLinks, f.URL)
		out.MachineFileLinks = append(out.MachineFileLinks, f.URL)
	}
	return out, nil
}

// output is the answer of execute_terminal_command.
type output struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

func command(ctx context.Context, c *toolset.Call) (any, error) {
	line := c.Text("command")
	job, err := c.Finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, c.Text("sandbox_id"), wire.CommandRequest{Command: &line}, wait)
	})
	if err != nil {
		return nil, err
	}
	var out output
	if job.Result != nil && job.Result.Command != nil && len(job.Result.Command.Results) > 0 {
		last := job.Result.Command.Results[0] // one command was sent
		out = output{Stdout: last.Stdout, Stderr: last.Stderr, ExitCode: last.ExitCode}
	}
	if why := toolset.Unfinished(&job); why != "" {
		out.Stderr += why
		out.ExitCode = -1
	}
	return out, nil
}

// upload writes a file into a directory, under the name of the caller's local file.
func upload(ctx context.Context, c *toolset.Call) (any, error) {
	name := mcp.LocalName(c.Text("local_file_path"))
	if name == "" {
		return nil, farm.Invalidf("local_file_path is missing: it gives the file its name, beside content or content_base64.")
	}
	dest := toolset.Results
	if c.Text("dest_path") != "" {
		dest = c.Text("dest_path")
	}
	dir, err := toolset.InResults(dest)
	if err != nil {
		return nil, err
	}
	content, size, err := mcp.OpenUpload(c.Arguments, c.Local, "local_file_path", toolset.Program(Name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	entry, err := c.Farm.WriteFile(ctx, c.Text("sandbox_id"), dir+"/"+name, content, size)
	if err != nil {
		return nil, err
	}
	return struct {
		Success bool   `json:"success"`
		Message string `json:"message"`
	}{true, "The file was uploaded as " + toolset.Results + "/" + entry.Path + "."}, nil
}
