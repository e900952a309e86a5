package compat

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// notebookName is the toolset's name.
const notebookName = "notebook"

const notebookInstructions = `Run Python code in a kernel that keeps its variables, as in a notebook:
1. create_sandbox gives a sandbox_id for all other tools.
2. execute_code runs code and gives stdout, stderr, the error if there was one, and displayed values such as plots.
3. install_package installs what is missing; the running kernel can import it at once.
4. upload_file, list_files and download_file move files into and out of the kernel's working directory.
5. close_sandbox ends it. A sandbox that is not closed ends after a day.`

// notebookToolset has a tool for each route of Notebook.
func notebookToolset() *Toolset {
	id := mcp.Text("sandbox_id", "Id of the sandbox, from create_sandbox.").Needed()
	reads := mcp.Hints{ReadOnly: true, Idempotent: true}
	return &Toolset{
		Name: notebookName, Title: "Notebook kernels", About: "Python kernels that keep their variables, with packages and files.", Instructions: notebookInstructions,
		Structured: true, Refuse: refuseNotebook,
		Tools: []Tool{
			{
				Name: "create_sandbox", Title: "Create a sandbox", Hints: mcp.Hints{OpenWorld: true}, Run: notebookTool((*Notebook).create),
				About: "Start a Python kernel in a sandbox of its own and get its sandbox_id.",
			}, {
				Name: "install_package", Title: "Install a package", Hints: mcp.Hints{Idempotent: true, OpenWorld: true}, Run: notebookTool((*Notebook).install),
				About:  "Install a Python package into a sandbox. The running kernel can import it. A failed install is an answer with success false.",
				Params: []mcp.Param{id, mcp.Text("package_name", "Name of the package, with a version if wanted: numpy, pandas>=2.").Needed()},
			}, {
				Name: "execute_code", Title: "Run code", Hints: mcp.Hints{Destructive: true, OpenWorld: true}, Run: notebookTool((*Notebook).executeTool),
				About:  "Run Python code in a sandbox's kernel. Variables stay for the next call. Gives stdout and stderr as lists, error with name, value and traceback or null, and displayed values by their type.",
				Params: []mcp.Param{id, mcp.Text("code", "The Python code.").Needed()},
			}, {
				Name: "upload_file", Title: "Upload a file", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: notebookUploadTool,
				About: "Put a file into a sandbox: its text as content, or its bytes as content_base64.",
				Params: []mcp.Param{
					id, mcp.Text("file_path", "Path in the sandbox, such as data/in.csv. By default the name of the local file."),
					mcp.Text("content", "Text of the file."), mcp.Text("content_base64", "Bytes of the file in base64."),
					mcp.Text("local_file_path", "A file on the machine of the caller. Only the stdio server can read it."),
				},
			}, {
				Name: "list_files", Title: "List files", Hints: reads, Run: notebookTool((*Notebook).list), Params: []mcp.Param{id},
				About: "List every file of a sandbox with its path and size.",
			}, {
				Name: "download_file", Title: "Download a file", Hints: reads, Run: notebookDownloadTool,
				About: "Get a file of a sandbox: its text as content, or its bytes as content_base64, where it is small, and a link to it.",
				Params: []mcp.Param{
					id, mcp.Text("file_path", "Path in the sandbox, as list_files tells it.").Needed(),
					mcp.Text("local_dest_path", "Where to put it on the machine of the caller. Only the stdio server can write there."),
				},
			}, {
				Name: "close_sandbox", Title: "Close a sandbox", Hints: mcp.Hints{Destructive: true, Idempotent: true}, Run: notebookTool((*Notebook).close),
				About: "End a sandbox: its variables and files are gone.", Params: []mcp.Param{id},
			}, {
				Name: "list_sandboxes", Title: "List sandboxes", Hints: reads, Run: notebookTool((*Notebook).listAll),
				About: "List the sandboxes that are there, by their ids, with the time of their creation.",
			}, {
				Name: "health_check_health_get", Title: "Check the server", Hints: reads, About: "Report that the server is up.",
				Run: func(context.Context, *Call) (any, error) { return map[string]string{"status": "healthy"}, nil },
			},
		},
	}
}

// notebookTool makes a tool from a method of Service.
func notebookTool(run func(*Notebook, context.Context, mcp.Arguments) (any, error)) func(context.Context, *Call) (any, error) {
	return func(ctx context.Context, c *Call) (any, error) { return run(NewNotebook(c), ctx, c.Arguments) }
}

func (n *Notebook) create(ctx context.Context, _ mcp.Arguments) (any, error) { return n.Create(ctx) }

func (n *Notebook) install(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Install(ctx, a.Text("sandbox_id"), a.Text("package_name"))
}

func (n *Notebook) executeTool(ctx context.Context, a mcp.Arguments) (any, error) {
	n.largest = richToolBytes
	return n.Execute(ctx, a.Text("sandbox_id"), a.Text("code"))
}

func (n *Notebook) list(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Files(ctx, a.Text("sandbox_id"))
}

func (n *Notebook) close(ctx context.Context, a mcp.Arguments) (any, error) {
	return n.Close(ctx, a.Text("sandbox_id"))
}

func (n *Notebook) listAll(ctx context.Context, _ mcp.Arguments) (any, error) { return n.List(ctx) }

// refuseNotebook describes an error as the original does: with the route's status and answer.
func refuseNotebook(name string, args mcp.Arguments, err error) mcp.Reply {
	code, detail := wire.StatusOf(string(farm.CodeOf(err))), any(sentence(err))
	if refusal, ok := errors.AsType[*NotebookError](err); ok {
		code, detail = refusal.Status, refusal.Detail
	}
	if args == nil {
		code = http.StatusUnprocessableEntity
	}
	body, _ := farm.Encode(map[string]any{"detail": detail}) // texts always encode
	return mcp.Reply{Value: fmt.Sprintf("Error calling %s. Status code: %d. Response: %s", name, code, body), IsError: true}
}

// inlineBytes is the largest file that the answer of a download contains.
const inlineBytes = 1 << 20

// notebookUploadTool is the tool upload_file. The original took a multipart form, which the protocol does not have.
func notebookUploadTool(ctx context.Context, c *Call) (any, error) {
	content, _, err := mcp.OpenUpload(c.Arguments, c.Local, "local_file_path", program(notebookName))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	target := c.Text("file_path")
	if target == "" || strings.HasSuffix(target, "/") {
		target += mcp.LocalName(c.Text("local_file_path"))
	}
	if target == "" || strings.HasSuffix(target, "/") {
		return nil, MissingField("file_path")
	}
	return NewNotebook(c).Write(ctx, c.Text("sandbox_id"), target, content)
}

// notebookDownloaded is the answer of download_file.
type notebookDownloaded struct {
	FilePath      string  `json:"file_path"`
	Size          int64   `json:"size"`
	URL           string  `json:"url"`
	Content       *string `json:"content,omitempty"`
	ContentBase64 string  `json:"content_base64,omitempty"`
	LocalPath     string  `json:"local_path,omitempty"`
}

// notebookDownloadTool is the tool download_file.
func notebookDownloadTool(ctx context.Context, c *Call) (any, error) {
	n, id, local := NewNotebook(c), c.Text("sandbox_id"), c.Text("local_dest_path")
	if err := n.Readable(ctx, id, c.Text("file_path")); err != nil {
		return nil, err
	}
	if local != "" && c.Local == nil {
		return nil, mcp.LocalUnwritable("local_dest_path", "leave it out and use the url or the content", program(notebookName))
	}
	file, err := c.Farm.ReadFile(ctx, id, c.Text("file_path"), inlineBytes)
	if err != nil {
		return nil, n.Unreadable(ctx, id, err)
	}
	out := notebookDownloaded{FilePath: file.Entry.Path, Size: file.Entry.Size}
	if out.URL, err = c.Farm.LinkFile(ctx, id, file.Entry.Path); err != nil {
		return nil, n.Unreadable(ctx, id, err)
	}
	if local != "" {
		if _, err := c.saveLocal(ctx, id, file.Entry.Path, "local_dest_path", local); err != nil {
			return nil, err
		}
		out.LocalPath = local
		return out, nil
	}
	switch {
	case file.Content == nil:
	case utf8.Valid(file.Content) && !bytes.ContainsRune(file.Content, 0):
		text := string(file.Content)
		out.Content = &text
	default:
		out.ContentBase64 = base64.StdEncoding.EncodeToString(file.Content)
	}
	return out, nil
}
