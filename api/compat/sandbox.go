package compat

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// SandboxName is the toolset's name.
const SandboxName = "sandbox"

const commandTool = "execute_terminal_command"

const sandboxInstructions = `Run Python code and shell commands in isolated sandboxes:
1. create_sandbox gives a sandbox_id for all other calls.
2. install_packages_in_sandbox brings Python packages; when it answers installing, ask check_packages_installation_status until they are there.
3. execute_python_code and execute_terminal_command run in /app/results. Each new or changed file there comes back as a path and a link; variables stay for the next call.
4. upload_file_to_sandbox puts a file into /app/results.`

// sandboxToolset stands for the system "MCP Sandbox" (mcp-python-sandbox): sandboxes with names, whose files lie in /app/results and have
// links. POST /mcp/tools/<tool> serves the same tools; a refusal there has an HTTP status.
func sandboxToolset() *Toolset {
	id := mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox or list_sandboxes.").Needed()
	return &Toolset{
		Name: SandboxName, Title: "Python Sandbox Executor", About: "Python and shell commands in named sandboxes, with packages and links to files.",
		Instructions: sandboxInstructions, Structured: true, Refuse: refuseSandbox,
		Tools: []Tool{
			{
				Name: "create_sandbox", Title: "Create a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: new(sandboxCreator).create,
				About:  "Create an isolated sandbox and get its sandbox_id for all other tools. A name makes it easy to find again; two cannot have the same one.",
				Params: []mcp.Param{mcp.Text("name", "Name of the sandbox; it gets the prefix python-sandbox-. Without one it gets a name of its own.").OrNull()},
			}, {
				Name: "list_sandboxes", Title: "List sandboxes", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: sandboxList,
				About: "List your sandboxes with their ids, names and status.",
			}, {
				Name: "execute_python_code", Title: "Run Python code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: sandboxExecute,
				About: "Run Python code in a sandbox. Gives stdout, stderr, exit_code, and the path and a link of each file that the code made or changed in /app/results, its working directory.",
				Params: []mcp.Param{
					mcp.Text("code", "The Python code.").Needed(),
					mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox or list_sandboxes. Needed, unless container_id is given."),
					mcp.Text("container_id", "Another name for sandbox_id."),
				},
			}, {
				Name: commandTool, Title: "Run a shell command", Hints: mcp.Hints{Destructive: true}, Run: sandboxCommand,
				About:  "Run a command in a sandbox's shell: pipes, redirections and && work. Gives stdout, stderr and exit_code. For Python packages use install_packages_in_sandbox.",
				Params: []mcp.Param{id, mcp.Text("command", "The command, or a script.").Needed()},
			}, {
				Name: "install_packages_in_sandbox", Title: "Install packages", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: sandboxInstall,
				About:  "Install Python packages in a sandbox. An install that takes longer than 45 s continues, and the answer has the status installing: then call check_packages_installation_status.",
				Params: []mcp.Param{id, mcp.Texts("package_names", `Names, with versions if wanted: ["numpy", "pandas>=2"].`).Needed()},
			}, {
				Name: "check_packages_installation_status", Title: "Check packages", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: sandboxCheck,
				About:  "Tell which Python packages a sandbox has, with their versions.",
				Params: []mcp.Param{id, mcp.Texts("package_names", "Names of the packages, as they were given to be installed.").Needed()},
			}, {
				Name: "upload_file_to_sandbox", Title: "Upload a file", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: sandboxUpload,
				About: "Write a file into a sandbox: text as content, any bytes as content_base64, or, where the tools run on your own machine, the file local_file_path.",
				Params: []mcp.Param{
					id,
					mcp.Text("local_file_path", "Path of the file on the caller's machine. Only the stdio server can read it: over HTTP it names the file, whose content or content_base64 you give."),
					mcp.Text("dest_path", "Directory in the sandbox that gets the file.").Or(Results),
					mcp.Text("content", "Text of the file."),
					mcp.Text("content_base64", "Bytes of the file, in base64."),
				},
			},
		},
	}
}

// SandboxRefusal is the shape of an error.
type SandboxRefusal struct {
	Error   bool   `json:"error"`
	Message string `json:"message"`
}

// refuseSandbox describes an error. In the original a missing sandbox is a normal answer; wrong arguments and a failed create or list are
// errors of the protocol. Commands keep their own shape.
func refuseSandbox(tool string, args mcp.Arguments, err error) mcp.Reply {
	text := sentence(err)
	switch {
	case tool == commandTool && args != nil:
		return mcp.Reply{Value: sandboxOutput{Stderr: text, ExitCode: -1}}
	case args == nil || tool == "create_sandbox" || tool == "list_sandboxes":
		return mcp.Reply{Value: SandboxRefusal{Error: true, Message: text}, IsError: true}
	default:
		return mcp.Reply{Value: SandboxRefusal{Error: true, Message: text}}
	}
}

// sandboxResult is the answer of execute_python_code.
type sandboxResult struct {
	Error            string   `json:"error,omitempty"`
	Stdout           string   `json:"stdout"`
	Stderr           string   `json:"stderr"`
	ExitCode         int      `json:"exit_code"`
	Files            []string `json:"files"`
	FileLinks        []string `json:"file_links"`
	MachineFileLinks []string `json:"machine_file_links"`
}

func sandboxExecute(ctx context.Context, c *Call) (any, error) {
	id := c.Text("sandbox_id")
	if !c.Has("sandbox_id") {
		if !c.Has("container_id") {
			return nil, mcp.Required("sandbox_id", "the id that create_sandbox gave.")
		}
		id = c.Text("container_id")
	}
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Execute(ctx, id, wire.ExecuteRequest{Code: codeOrPass(c.Text("code"))}, wait)
	})
	if err != nil {
		return nil, err
	}
	run := runOf(&job)
	out := sandboxResult{
		Error: run.Error, Stdout: run.Stdout, Stderr: run.Stderr, ExitCode: run.ExitCode,
		Files: []string{}, FileLinks: []string{}, MachineFileLinks: []string{},
	}
	for _, f := range run.Files {
		out.Files = append(out.Files, Results+"/"+f.Path)
		out.FileLinks = append(out.FileLinks, f.URL)
		out.MachineFileLinks = append(out.MachineFileLinks, f.URL)
	}
	return out, nil
}

// sandboxOutput is the answer of execute_terminal_command.
type sandboxOutput struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

func sandboxCommand(ctx context.Context, c *Call) (any, error) {
	line := c.Text("command")
	job, err := c.finish(ctx, func(wait time.Duration) (wire.Job, error) {
		return c.Farm.Command(ctx, c.Text("sandbox_id"), wire.CommandRequest{Command: &line}, wait)
	})
	if err != nil {
		return nil, err
	}
	var out sandboxOutput
	if job.Result != nil && job.Result.Command != nil && len(job.Result.Command.Results) > 0 {
		last := job.Result.Command.Results[0] // one command was sent
		out = sandboxOutput{Stdout: last.Stdout, Stderr: last.Stderr, ExitCode: last.ExitCode}
	}
	if why := unfinished(&job); why != "" {
		out.Stderr += why
		out.ExitCode = -1
	}
	return out, nil
}

// sandboxUpload writes a file into a directory, under the name of the caller's local file.
func sandboxUpload(ctx context.Context, c *Call) (any, error) {
	name := mcp.LocalName(c.Text("local_file_path"))
	if name == "" {
		return nil, farm.Invalidf("local_file_path is missing: it gives the file its name, beside content or content_base64.")
	}
	dest := Results
	if c.Text("dest_path") != "" {
		dest = c.Text("dest_path")
	}
	dir, err := InResults(dest)
	if err != nil {
		return nil, err
	}
	content, size, err := mcp.OpenUpload(c.Arguments, c.Local, "local_file_path", program(SandboxName))
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
	}{true, "The file was uploaded as " + Results + "/" + entry.Path + "."}, nil
}

const (
	sandboxPrefix     = "python-sandbox-"
	nameLabel         = "python-sandbox" // label with the name of a sandbox
	sandboxCreateWait = 45 * time.Second // work may be sent before it is ready
	sandboxCloseWait  = time.Duration(0) // of a sandbox whose name was taken meanwhile
	shortID           = len("sbx_") + 8  // characters of sandbox_short_id
	stampForm         = time.RFC3339     // of created and last_used
)

// sandboxCreator creates sandboxes. In this system, names of a tenant's open sandboxes are unique; the farm's own names need not be.
type sandboxCreator struct {
	mu     sync.Mutex
	naming map[tenantName]chan struct{} // being created; each channel is closed at the end of its create
}

type tenantName struct{ tenant, name string }

// hold allows one create at a time for each name of a tenant. Others do not wait.
func (m *sandboxCreator) hold(ctx context.Context, name tenantName) (release func(), err error) {
	for {
		m.mu.Lock()
		busy, taken := m.naming[name]
		if !taken {
			over := make(chan struct{})
			if m.naming == nil {
				m.naming = map[tenantName]chan struct{}{}
			}
			m.naming[name] = over
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.naming, name)
				close(over)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, farm.Wrap(context.Cause(ctx), farm.CodeUnavailable, "The call ended before its work.")
		}
	}
}

// sandboxMade is the answer of create_sandbox.
type sandboxMade struct {
	SandboxID   string `json:"sandbox_id"`
	SandboxName string `json:"sandbox_name"`
	Name        string `json:"name"`
	Status      string `json:"status"`
}

func (m *sandboxCreator) create(ctx context.Context, c *Call) (any, error) {
	name := strings.TrimSpace(c.Text("name"))
	if name == "" {
		var own [4]byte
		_, _ = rand.Read(own[:]) // it never fails
		name = hex.EncodeToString(own[:])
	}
	name = sandboxPrefix + name
	box, job, err := m.begin(ctx, c, name)
	if err != nil {
		return nil, err
	}
	job, err = c.await(ctx, sandboxCreateWait, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, job.ID, wait) })
	if err != nil {
		return nil, err
	}
	if job.Final() && job.State != "completed" {
		return nil, farm.Errorf(farm.CodeUnavailable, "The sandbox could not be created: %s", unfinished(&job))
	}
	return sandboxMade{SandboxID: box.ID, SandboxName: name, Name: name, Status: "active"}, nil
}

// begin creates a sandbox with a name that no open sandbox has. If two servers create the same name at once, the later sandbox is
// closed.
func (m *sandboxCreator) begin(ctx context.Context, c *Call, name string) (wire.Sandbox, wire.Job, error) {
	f := c.Farm
	release, err := m.hold(ctx, tenantName{c.tenant, name})
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	defer release()
	labels := map[string]string{nameLabel: name}
	there, err := f.Labeled(ctx, labels)
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	if len(there) > 0 {
		return wire.Sandbox{}, wire.Job{}, nameTaken(name)
	}
	out, err := f.CreateSandbox(ctx, wire.CreateRequest{Name: name, Labels: labels}, 0)
	if err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	if there, err = f.Labeled(ctx, labels); err != nil {
		return wire.Sandbox{}, wire.Job{}, err
	}
	for _, other := range there {
		if other.ID != out.Sandbox.ID && createdBefore(&other, &out.Sandbox) {
			_, _ = f.CloseSandbox(ctx, out.Sandbox.ID, sandboxCloseWait) // if this fails, it expires
			return wire.Sandbox{}, wire.Job{}, nameTaken(name)
		}
	}
	return out.Sandbox, out.Job, nil
}

func createdBefore(a, b *wire.Sandbox) bool {
	if !a.CreatedAt.Equal(b.CreatedAt) {
		return a.CreatedAt.Before(b.CreatedAt)
	}
	return a.ID < b.ID
}

func nameTaken(name string) error {
	return farm.Conflictf("There is already a sandbox with the name %q: list_sandboxes has its id. Use it, or give another name.", farm.Shorten(name))
}

// FindSandbox finds the open sandbox with a name.
func FindSandbox(ctx context.Context, f Farm, name string) (wire.Sandbox, error) {
	there, err := f.Labeled(ctx, map[string]string{nameLabel: name})
	if err == nil && len(there) == 0 { // one created through another interface
		there, err = f.Sandboxes(ctx)
	}
	if err != nil {
		return wire.Sandbox{}, err
	}
	for i := range there {
		if name != "" && (there[i].Name == name || there[i].Labels[nameLabel] == name) {
			return there[i], nil
		}
	}
	return wire.Sandbox{}, farm.NotFoundf("There is no open sandbox with the name %q.", farm.Shorten(name))
}

// sandboxListed is one entry of list_sandboxes.
type sandboxListed struct {
	SandboxID      string  `json:"sandbox_id"`
	SandboxShortID string  `json:"sandbox_short_id"`
	Name           string  `json:"name"`
	Status         string  `json:"status"`
	Image          string  `json:"image"`
	Created        string  `json:"created"`
	LastUsed       *string `json:"last_used"`
	CPU            float64 `json:"cpu"`
}

func sandboxList(ctx context.Context, c *Call) (any, error) {
	boxes, err := c.Farm.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]sandboxListed, len(boxes))
	for i := range boxes {
		b := &boxes[i]
		out[i] = sandboxListed{
			SandboxID: b.ID, SandboxShortID: b.ID[:min(shortID, len(b.ID))], Name: b.Name, Status: sandboxStatus(b.State), Image: b.Image,
			Created: b.CreatedAt.UTC().Format(stampForm), CPU: b.Resources.CPUs,
		}
		if !b.LastUsedAt.IsZero() {
			used := b.LastUsedAt.UTC().Format(stampForm)
			out[i].LastUsed = &used
		}
	}
	return out, nil
}

// sandboxStatus is the state of a sandbox in Docker's words.
func sandboxStatus(state string) string {
	switch farm.SandboxState(state) {
	case farm.SandboxQueued, farm.SandboxStarting:
		return "created"
	case farm.SandboxReady, farm.SandboxBusy:
		return "running"
	case farm.SandboxHibernated:
		return "paused"
	case farm.SandboxClosing:
		return "removing"
	default:
		return "exited"
	}
}
