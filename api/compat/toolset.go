// Package compat has the toolsets of four older systems: sets of tools with those systems' own names, parameters and answers, over the
// farm's verbs. Each system has files of its own (docker, sandbox, env, notebook); toolset.go is their shared frame. api/mcp serves a
// toolset over streamable HTTP, SSE and stdio; routes with another form, which api/tools holds, call single tools. The package has no
// rules and no state of its own: each tool is an adapter over a Farm, which api/tools implements in the server and the REST client in
// "sandfarm mcp", so a sandbox made by a tool is visible under /v1 and the other way round.
package compat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Toolset is the set of tools of one older system. It has no state of any caller.
type Toolset struct {
	Name         string // in addresses, and for --toolset
	Title, About string // one line, for people
	Instructions string // to the model: how to use the tools together
	Structured   bool   // answers are also sent as structured content
	Tools        []Tool
	// Refuse converts an error to the system's own shape. Internal errors are already logged and have a sentence for callers.
	// Arguments are those of the call, nil if they were wrong.
	Refuse func(tool string, args mcp.Arguments, err error) mcp.Reply
}

// Toolsets makes all toolsets, in the order in which help and documentation list them.
func Toolsets() []*Toolset {
	return []*Toolset{sandboxToolset(), dockerToolset(), envToolset(), notebookToolset()}
}

// Bare is the name of the toolset that is also served over SSE at /sse, without a name in the path: the system it stands for
// had no other address.
const Bare = envName

// Tool is one tool: its description for models and its function. Run returns the answer in the system's own shape; a string is sent as
// it is. The toolset's Refuse converts its errors.
type Tool struct {
	Name, Title, About string
	Params             []mcp.Param
	Hints              mcp.Hints
	Run                func(ctx context.Context, c *Call) (any, error)
}

// Call is one call of a tool.
type Call struct {
	mcp.Arguments
	Farm     Farm
	Local    mcp.LocalFiles // the caller's own files; nil if the farm runs elsewhere
	tenant   string
	progress *mcp.Progress
	more     func(ctx context.Context) error // see Env
}

// Env is the environment of a call: the caller's farm and files.
type Env struct {
	Farm   func(ctx context.Context) Farm   // as the caller sees it
	Tenant func(ctx context.Context) string // of the caller; nil: all callers are one
	Local  mcp.LocalFiles                   // nil: over HTTP
	Logger *slog.Logger                     // default: nothing is logged
	More   func(ctx context.Context) error  // counts a further request of the caller, or refuses it; nil: the farm counts its own
}

// waitStep is the length of one wait for a job.
const waitStep = 45 * time.Second

// await starts a job and waits for its end, at most so long. It returns the job as it is then.
func (c *Call) await(ctx context.Context, wait time.Duration, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	return mcp.Await(ctx, c.Farm, c.progress, wait, begin)
}

// finish starts a job and waits for its end, however long that takes: the job's own timeout limits it. If the caller
// disconnects, the wait ends and the job continues.
func (c *Call) finish(ctx context.Context, begin func(wait time.Duration) (wire.Job, error)) (wire.Job, error) {
	job, err := begin(0)
	for err == nil && !job.Final() {
		id := job.ID
		job, err = c.await(ctx, waitStep, func(wait time.Duration) (wire.Job, error) { return c.Farm.Job(ctx, id, wait) })
	}
	return job, err
}

// drop closes a sandbox whose id the caller does not get; "": there is none.
func (c *Call) drop(ctx context.Context, id string) {
	if id != "" {
		_, _ = c.Farm.CloseSandbox(context.WithoutCancel(ctx), id, 0) // if this fails, it ends at its deadline
	}
}

// open returns an error unless the sandbox exists and accepts work. The record of a closed sandbox can still be read, but the caller
// wants to work in it.
func (c *Call) open(ctx context.Context, id string) error {
	box, err := c.Farm.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	if state := farm.SandboxState(box.State); !state.Accepts() {
		return farm.Conflictf("The sandbox %s is %s. Create a new one.", farm.Shorten(id), state)
	}
	return nil
}

// Tool finds a tool by name.
func (t *Toolset) Tool(name string) (*Tool, bool) {
	for i := range t.Tools {
		if t.Tools[i].Name == name {
			return &t.Tools[i], true
		}
	}
	return nil, false
}

// Call calls a tool with arguments as decoded from JSON. It returns the answer and the error that the answer describes, if it does.
func (t *Toolset) Call(ctx context.Context, env Env, name string, given any) (mcp.Reply, error) {
	tool, ok := t.Tool(name)
	if !ok {
		err := farm.NotFoundf("There is no tool %q.", name)
		return t.Refuse(name, nil, err), err
	}
	return t.call(ctx, env, tool, given, nil)
}

func (t *Toolset) call(ctx context.Context, env Env, tool *Tool, given any, p *mcp.Progress) (mcp.Reply, error) {
	args, err := mcp.Check(tool.Params, given)
	var value any
	if err == nil {
		c := &Call{Arguments: args, Farm: env.Farm(ctx), Local: env.Local, progress: p, more: env.More}
		if env.Tenant != nil {
			c.tenant = env.Tenant(ctx)
		}
		value, err = runTool(ctx, tool, c)
	}
	if err == nil {
		return mcp.Reply{Value: value}, nil
	}
	err = env.tell(ctx, tool.Name, err)
	return t.Refuse(tool.Name, args, err), err
}

// runTool runs a tool. A panic is an internal error.
func runTool(ctx context.Context, tool *Tool, c *Call) (value any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("tool panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return tool.Run(ctx, c)
}

// tell makes an error fit for the caller: an internal error is logged under an id and replaced.
func (e Env) tell(ctx context.Context, tool string, err error) error {
	code := farm.CodeOf(err)
	if code != farm.CodeInternal && farm.MessageOf(err) != "" {
		return err
	}
	if ctx.Err() != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "The call ended before its job, which continues.")
	}
	id := farm.NewID(farm.RequestPrefix)
	if e.Logger != nil {
		e.Logger.ErrorContext(ctx, "tool failed", slog.String("request_id", id), slog.String("tool", tool), slog.Any("error", err))
	}
	return farm.Wrap(err, farm.CodeInternal, "Internal error of the server. Its log has the details under %s. Try again once.", id)
}

// Serve makes the server of the toolset. It refuses an incomplete toolset.
func (t *Toolset) Serve(env Env, version string, http mcp.HTTP) (*mcp.SetServer, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	set := mcp.Set{
		Name: t.Name, Title: t.Title, About: t.About, Instructions: t.Instructions, Version: version, Structured: t.Structured,
		Logger: env.Logger, HTTP: http, Tools: make([]mcp.SetTool, len(t.Tools)),
	}
	for i := range t.Tools {
		tool := &t.Tools[i]
		set.Tools[i] = mcp.SetTool{
			Name: tool.Name, Title: tool.Title, About: tool.About, Params: tool.Params, Hints: tool.Hints,
			Run: func(ctx context.Context, given any, p *mcp.Progress) mcp.Reply {
				reply, _ := t.call(ctx, env, tool, given, p) // the reply describes the error
				return reply
			},
		}
	}
	server, err := mcp.NewSet(set)
	if err != nil {
		return nil, fmt.Errorf("make toolset %s: %w", t.Name, err)
	}
	return server, nil
}

// sentence is the sentence of an error for the caller.
func sentence(err error) string {
	if e, ok := errors.AsType[*farm.Error](err); ok {
		return e.Message
	}
	return farm.MessageOf(err)
}

// Farm has the farm's verbs for one caller. Errors carry the farm's codes and sentences.
type Farm interface {
	mcp.Farm
	// Sandbox reads a sandbox, also a closed one. Reading does not count as use.
	Sandbox(ctx context.Context, id string) (wire.Sandbox, error)
	// Labeled lists the open sandboxes that have all these labels, newest first.
	Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error)
	// WriteTar unpacks an uncompressed tar into the workspace, below dir ("" is the workspace), completely or not at all.
	WriteTar(ctx context.Context, id, dir string, tar io.Reader, size int64) error
	// OpenFile streams a file of the workspace and returns its size. The caller closes it.
	OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error)
	// RemoveFile removes a file of the workspace, or a directory with everything in it.
	RemoveFile(ctx context.Context, id, path string) error
	// MoveFile renames a file or directory within the workspace and creates the parent directories of its new path.
	MoveFile(ctx context.Context, id, from, to string) error
}

// Validate returns an error for each missing part of a toolset: its names, Refuse, and a Run for each tool.
func (t *Toolset) Validate() error {
	var errs []error
	if t.Name == "" || t.Title == "" || t.About == "" || t.Instructions == "" {
		errs = append(errs, errors.New("a toolset needs Name, Title, About and Instructions"))
	}
	if t.Refuse == nil {
		errs = append(errs, errors.New("a toolset needs Refuse"))
	}
	if len(t.Tools) == 0 {
		errs = append(errs, errors.New("there are no tools"))
	}
	seen := map[string]bool{}
	for _, tool := range t.Tools {
		if tool.Name == "" || tool.Title == "" || tool.About == "" {
			errs = append(errs, fmt.Errorf("tool %q: Name, Title and About must be set", tool.Name))
		}
		if tool.Run == nil {
			errs = append(errs, fmt.Errorf("tool %q: Run must be set", tool.Name))
		}
		if seen[tool.Name] {
			errs = append(errs, fmt.Errorf("tool %q is listed twice", tool.Name))
		}
		seen[tool.Name] = true
	}
	if len(errs) > 0 {
		return fmt.Errorf("toolset %q: %w", t.Name, errors.Join(errs...))
	}
	return nil
}

// program is the command that serves a toolset over stdio, where it can use files of the caller's machine.
func program(name string) string { return "sandfarm mcp --toolset " + name }

// saveLocal copies a file of a sandbox to the path local on the caller's machine and gives its size. Local must not be nil. Errors
// name param, the argument that held the path.
func (c *Call) saveLocal(ctx context.Context, sandboxID, file, param, local string) (int64, error) {
	content, _, err := c.Farm.OpenFile(ctx, sandboxID, file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = content.Close() }() // read errors came with the bytes
	into, err := c.Local.Create(local)
	if err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	size, err := io.Copy(into, content)
	if err = errors.Join(err, into.Close()); err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	return size, nil
}

// codeRun is the outcome of code, in the form of a process.
type codeRun struct {
	Stdout, Stderr string
	ExitCode       int
	Files          []wire.Artifact // new or changed, of this run alone
	Error          string          // why the job did not complete; empty: it did
}

// codeOrPass is the code to run. An empty program is one that does nothing.
func codeOrPass(text string) string {
	if text == "" {
		return "pass"
	}
	return text
}

// runOf reads the job of an execution. Stderr ends with the traceback of an exception, as it does for a process.
func runOf(job *wire.Job) codeRun {
	var out codeRun
	if job.Result != nil && job.Result.Execute != nil {
		e := job.Result.Execute
		out = codeRun{Stdout: e.Stdout, Stderr: e.Stderr, ExitCode: e.ExitCode, Files: e.Artifacts}
		if e.Error != nil {
			out.Stderr = lined(out.Stderr) + traceOf(e.Error)
		}
	}
	if why := unfinished(job); why != "" {
		out.Error = why
		out.Stderr = lined(out.Stderr) + why + "\n"
		if out.ExitCode == 0 {
			out.ExitCode = 1
		}
	}
	return out
}

// unfinished is a sentence that says why a job did not complete, empty if it did.
func unfinished(job *wire.Job) string {
	switch {
	case job.State == "completed":
		return ""
	case job.Error != nil && job.Error.Message != "":
		return job.Error.Message
	case job.Final():
		return "The work ended early: it was " + strings.ReplaceAll(job.State, "_", " ") + "."
	default:
		return "The job continues."
	}
}

// wholeStream is the link to a whole stream whose answer has only head and tail; it is empty if the answer has everything. Position is the
// command's, from 1; code has position 0.
func wholeStream(artifacts []wire.Artifact, position int, stream string, truncated bool) string {
	name := farm.OutputDir + stream + ".txt"
	if position > 0 {
		name = fmt.Sprintf("%s%d-%s.txt", farm.OutputDir, position, stream)
	}
	if at := slices.IndexFunc(artifacts, func(a wire.Artifact) bool { return a.Path == name }); truncated && at >= 0 {
		return artifacts[at].URL
	}
	return ""
}

func traceOf(e *wire.CodeError) string {
	text := strings.Join(e.Traceback, "\n")
	if last := e.Name + ": " + e.Value; !strings.Contains(text, e.Name) {
		text = lined(text) + last
	}
	return lined(text)
}

// lined ends a text that is not empty with a line break.
func lined(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// Results is the name of the workspace in older systems. Every image has a link of this name.
const Results = "/app/results"

// InResults checks a path that is relative to the workspace, or absolute with either of its names, and returns it relative; "." is
// the workspace itself. Any other path is invalid.
func InResults(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, Results)
	if ok && (rest == "" || rest[0] == '/') {
		name = strings.TrimLeft(rest, "/")
	} else if strings.HasPrefix(name, "/") && name != farm.Workspace && !strings.HasPrefix(name, farm.Workspace+"/") {
		return "", farm.Invalidf("The path %q is not in %s, where all files are.", farm.Shorten(name), Results)
	}
	clean, err := farm.CleanPath(name)
	if err != nil {
		return "", err
	}
	return clean, nil
}

// lexical resolves ".." in a path that stays inside its starting directory. It returns a path that leads out unchanged, for the caller
// to refuse.
func lexical(p string) string {
	if !strings.Contains(p, "..") {
		return p
	}
	clean := path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return p
	}
	if strings.HasSuffix(p, "/") {
		return clean + "/"
	}
	return clean
}

// hasPackage reports whether a package is installed as requested. It is false if one version is requested and another is installed.
func hasPackage(p wire.Package, wanted string) bool {
	return mcp.IsInstalled(p) && fitsVersion(p.Version, wanted)
}

// fitsVersion is false for a requirement of one version, such as numpy==2.0, if another version is installed.
func fitsVersion(version, wanted string) bool {
	_, pinned, ok := strings.Cut(wanted, "==")
	if !ok || version == "" || strings.ContainsAny(pinned, "=*,<>!~") {
		return true
	}
	if !strings.Contains(pinned, "+") {
		version, _, _ = strings.Cut(version, "+") // a build of that version
	}
	return plainVersion(pinned) == plainVersion(version)
}

// plainVersion is a version in a form that can be compared.
func plainVersion(version string) string {
	version = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(version)), "v")
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return version
}
