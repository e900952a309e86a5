package notebook

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Name is the toolset's name.
const Name = "notebook"

const instructions = `Run Python code in a kernel that keeps its variables, as in a notebook:
1. create_sandbox gives a sandbox_id for all other tools.
2. execute_code runs code and gives stdout, stderr, the error if there was one, and displayed values such as plots.
3. install_package installs what is missing; the running kernel can import it at once.
4. upload_file, list_files and download_file move files into and out of the kernel's working directory.
5. close_sandbox ends it. A sandbox that is not closed ends after a day.`

// New makes the toolset: a tool for each of the original's routes.
func New() *toolset.Toolset {
	id := mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox.").Needed()
	reads := mcp.Hints{ReadOnly: true, Idempotent: true}
	return &toolset.Toolset{
		Name: Name, Title: "Notebook kernels", About: "Python kernels that keep their variables, with packages and files.", Instructions: instructions,
		Structured: true, Refuse: refuse,
		Tools: []toolset.Tool{
			{
				Name: "create_sandbox", Title: "Create a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: tool((*Service).create),
				About: "Start a Python kernel in a sandbox of its own and get its sandbox_id.",
			}, {
				Name: "install_package", Title: "Install a package", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: tool((*Service).install),
				About:  "Install a Python package into a sandbox. The running kernel can import it. A failed install is an answer with success false.",
				Params: []mcp.Param{id, mcp.Text("package_name", "Name of the package, with a version if wanted: numpy, pandas>=2.").Needed()},
			}, {
				Name: "execute_code", Title: "Run code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: tool((*Service).executeTool),
				About:  "Run Python code in a sandbox's kernel. Variables stay for the next call. Gives stdout and stderr as lists, error with name, value and traceback or null, and displayed values by their type.",
				Params: []mcp.Param{id, mcp.Text("code", "The Python code.").Needed()},
			}, {
				Name: "upload_file", Title: "Upload a file", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: uploadTool,
				About: "Put a file into a sandbox: its text as content, or its bytes as content_base64.",
				Params: []mcp.Param{
					id, mcp.Text("file_path", "Path in the sandbox, such as data/in.csv. By default the name of the local file."),
					mcp.Text("content", "Text of the file."), mcp.Text("content_base64", "Bytes of the file in base64."),
					mcp.Text("local_file_path", "A file on the machine of the caller. Only the stdio server can read it."),
				},
			}, {
				Name: "list_files", Title: "List files", Hints: reads, Run: tool((*Service).list), Params: []mcp.Param{id},
				About: "List every file of a sandbox with its path and size.",
			}, {
				Name: "download_file", Title: "Download a file", Hints: reads, Run: downloadTool,
				About: "Get a file of a sandbox: its text as content, or its bytes as content_base64, where it is small, and a link to it.",
				Params: []mcp.Param{
					id, mcp.Text("file_path", "Path in the sandbox, as list_files tells it.").Needed(),
					mcp.Text("local_dest_path", "Where to put it on the machine of the caller. Only the stdio server can write there."),
				},
			}, {
				Name: "close_sandbox", Title: "Close a sandbox", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: tool((*Service).close),
				About: "End a sandbox: its variables and files are gone.", Params: []mcp.Param{id},
			}, {
				Name: "list_sandboxes", Title: "List sandboxes", Hints: reads, Run: tool((*Service).listAll),
				About: "List the sandboxes that are there, by their ids, with the time of their creation.",
			}, {
				Name: "health_check_health_get", Title: "Check the server", Hints: reads, About: "Report that the server is up.",
				Run: func(context.Context, *toolset.Call) (any, error) { return map[string]string{"status": "healthy"}, nil },
			},
		},
	}
}

// tool makes a tool from a method of Service.
func tool(run func(*Service, context.Context, mcp.Arguments) (any, error)) func(context.Context, *toolset.Call) (any, error) {
	return func(ctx context.Context, c *toolset.Call) (any, error) { return run(NewService(c), ctx, c.Arguments) }
}

func (n *Service) create(ctx context.Context, _ mcp.Arguments) (any, error) { return n.Create(ctx) }

func (n *Service) install(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Install(ctx, a.Text("sandbox_id"), a.Text("package_name"))
}

func (n *Service) executeTool(ctx context.Context, a mcp.Arguments) (any, error) {
	n.largest = richToolBytes
	return n.Execute(ctx, a.Text("sandbox_id"), a.Text("code"))
}

func (n *Service) list(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Files(ctx, a.Text("sandbox_id"))
}

func (n *Service) close(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Close(ctx, a.Text("sandbox_id"))
}

func (n *Service) listAll(ctx context.Context, _ mcp.Arguments) (any, error) { return n.List(ctx) }

// refuse describes an error as the original does: with the route's status and answer.
func refuse(name string, args mcp.Arguments, err error) mcp.Reply {
	code, detail := wire.StatusOf(string(farm.CodeOf(err))), any(toolset.Text(err))
	if refusal, ok := errors.AsType[*Error](err); ok {
		code, detail = refusal.Status, refusal.Detail
	}
	if args == nil {
		code = http.StatusUnprocessableEntity
	}
	body, _ := mcp.EncodeReply(map[string]any{"detail": detail}) // texts always encode
	return mcp.Reply{Value: fmt.Sprintf("Error calling %s. Status code: %d. Response: %s", name, code, body), IsError: true}
}
