package dockersandbox

import (
	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
)

// Name is the toolset's name.
const Name = "docker-sandbox"

const instructions = `Run commands and Python programs in an isolated sandbox:
1. sandbox_initialize gives a container_id and a workspace_id for all other tools.
2. write_file_sandbox, copy_file and copy_project put files into the workspace. Sandboxes have no network but the farm's package index (pip install works). What a Python program imports, and what requirements.txt lists, is installed before "python FILE" runs.
3. sandbox_exec runs commands one after the other in the workspace, until one fails.
4. copy_file_from_sandbox gives a file back.
5. clean_workspace ends a workspace, sandbox_stop a sandbox that was made with use_persistent false.`

// Parts of several descriptions.
const (
	workspaceDoc = "Id of the workspace, from sandbox_initialize."
	contentDoc   = "Text of the file, where the server cannot read the caller's files."
	base64Doc    = "Bytes of the file in base64, instead of content."
)

// New makes the toolset.
func New() *toolset.Toolset {
	id := mcp.Text("container_id", "Id of the sandbox, from sandbox_initialize.").Needed()
	workspace := mcp.Text("workspace_id", workspaceDoc).OrNull()
	changes := mcp.Hints{Destructive: true, Idempotent: true}
	return &toolset.Toolset{
		Name: Name, Title: "Docker sandboxes", About: "Sandboxes for commands, Python programs and whole projects.", Instructions: instructions,
		Structured: true, Refuse: refuse,
		Tools: []toolset.Tool{
			{
				Name: "sandbox_initialize", Title: "Start a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: initialize,
				About: "Start a sandbox with an empty workspace. It has a GPU when one is free. By default it is persistent: sandbox_stop keeps it, and clean_workspace ends it.",
				Params: []mcp.Param{
					mcp.Text("image", "Image of a sandbox that is not persistent. The default means the farm's own Python image.").Or(defaultImage),
					mcp.Flag("use_persistent", "Give a persistent workspace.").Or(true),
				},
			}, {
				Name: "sandbox_exec", Title: "Run commands", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: execute,
				About:  "Run shell commands in the workspace, one after the other, until one fails. Each has its exit_code, stdout and stderr. Before a Python program starts, what it imports and what requirements.txt lists is installed; the answer says what and why.",
				Params: []mcp.Param{id, mcp.Texts("commands", "The commands, each as for a shell.").Needed(), workspace},
			}, {
				Name: "write_file_sandbox", Title: "Write a file", Hints: changes, Run: writeFile, About: "Write a text file into the workspace.",
				Params: []mcp.Param{
					id, mcp.Text("file_name", "Name of the file.").Needed(), mcp.Text("file_contents", "Its text.").Needed(),
					workspace, mcp.Text("dest_dir", "Directory in the workspace.").OrNull(),
				},
			}, {
				Name: "copy_file", Title: "Copy a file into the sandbox", Hints: changes, Run: copyFile,
				About: "Copy a file of the caller into the workspace. Where the server cannot read it, give its content.",
				Params: []mcp.Param{
					id, mcp.Text("local_src_file", "Path of the file on the caller's machine. Only the stdio server can read it: over HTTP it names the file, whose content you give.").Needed(), workspace,
					mcp.Text("dest_path", "Path in the workspace, or a directory where it ends in /; by default the file's own name.").OrNull(),
					mcp.Text("content", contentDoc), mcp.Text("content_base64", base64Doc),
				},
			}, {
				Name: "copy_project", Title: "Copy a directory into the sandbox", Hints: changes, Run: copyProject,
				About: "Copy a directory of the caller into the workspace, under its own name. Left out are " + leftOut + "; skipped names what else is. Where the server cannot read it, give its content.",
				Params: []mcp.Param{
					id, mcp.Text("local_src_dir", "Path of the directory on the caller's machine. Only the stdio server can read it: over HTTP it names the directory, whose content you give.").Needed(), workspace,
					mcp.Text("dest_dir", "Directory in the workspace.").OrNull(),
					mcp.Object("content", "The files, from relative path to text; a path that ends in / is an empty directory."),
					mcp.Text("content_base64", "The directory as a tar in base64, compressed by gzip or not, instead of content. It keeps executable bits."),
				},
			}, {
				Name: "copy_file_from_sandbox", Title: "Copy a file out of the sandbox", Hints: mcp.Hints{Idempotent: true}, Run: copyOut,
				About: "Copy a file of the workspace to the caller. Where the server cannot write the caller's files, leave local_dest_path out and use the url.",
				Params: []mcp.Param{
					id, mcp.Text("container_src_path", "Path of the file: relative to the workspace, or absolute.").Needed(), workspace,
					mcp.Text("local_dest_path", "Path on the caller's machine; by default the file's own name. Only the stdio server can write there: over HTTP leave it out.").OrNull(),
				},
			}, {
				Name: "sandbox_stop", Title: "Stop a sandbox", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: stop,
				About:  "Stop and remove a sandbox. A persistent one is kept.",
				Params: []mcp.Param{id, mcp.Flag("is_persistent", "The sandbox is persistent: keep it.").Or(false)},
			}, {
				Name: "clean_workspace", Title: "Clean a workspace", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: clean,
				About:  "Remove a workspace with all its files, and the sandbox that it is.",
				Params: []mcp.Param{id, mcp.Text("workspace_id", workspaceDoc).Needed()},
			}, {
				Name: "get_container_logs", Title: "Show a sandbox's log", Hints: mcp.Hints{ReadOnly: true, Idempotent: true}, Run: logs,
				About: "Tell what happened to a sandbox.", Params: []mcp.Param{id},
			},
		},
	}
}

// refusal is the shape of an error.
type refusal struct {
	Success bool   `json:"success"`
	Error   string `json:"error"`
}

// refuse describes an error. In the original that is a normal answer, except for wrong arguments.
func refuse(_ string, args mcp.Arguments, err error) mcp.Reply {
	return mcp.Reply{Value: refusal{Error: toolset.Text(err)}, IsError: args == nil}
}

// said is the answer of tools that only report success.
type said struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
}
