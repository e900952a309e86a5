package verbs

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// runFlags are the flags of run.
type runFlags struct {
	sandbox, context, lang, timeout string
	onOutputLimit                   string
	env, files, packages            []string
	out                             string
	noSave, showResult, autoInstall bool
	spec                            specFlags
}

func (a *app) run() *cobra.Command {
	var f runFlags
	c := a.verb(&cobra.Command{
		Use:        "run FILE|-",
		SuggestFor: []string{"sandbox run", "python"},
		Short:      "Run a file in a sandbox and save the files that it creates",
		Long: `Run a file (or stdin, for -) in a new sandbox that is closed afterwards, or in an existing one (--sandbox).
The code gets no input; a command gets it by sandfarm exec -i.

Output appears as the code writes it, and so does the text of its last expression. The exit code is that of the code: 1
for an exception, whose traceback goes to stderr; 124 after --timeout, as of timeout(1). On a terminal, values that the
code updates are redrawn in place, and what it clears disappears; a pipe gets every state. New and changed files of the
workspace are saved beside FILE (in the current directory for stdin, or in --out); images that the code only displayed
become FILE-1.png and so on. No existing file is overwritten. Files that other programs load by name (.git, .env,
Makefile, conftest.py, json.py, names of programs on your PATH) are not saved: the output names each of them, and for
the first 10 the command that gets it. A Python FILE is in the workspace, too, as __file__ says, beside what --file
sends. An existing sandbox that has a file of that name keeps it: the code that runs is FILE's, but child processes that
load __file__ (multiprocessing) get the old one. --package installs packages before the code runs, which it does not if
one of them cannot be installed; --auto-install installs those that it imports. Ctrl-C cancels the job; a second Ctrl-C
leaves at once.`,
		Example: `  sandfarm run plot.py
  echo 'print(6 * 7)' | sandfarm run -
  sandfarm run report.py --file sales.csv --out results --timeout 10m --memory 4g
  sandfarm run step2.py --sandbox sbx_… --env MODE=fast
  sandfarm run model.py --package scikit-learn --package 'pandas>=2'`,
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}, runArgs, func(ctx context.Context, c *client.Client, args []string) error {
		return a.runFile(ctx, c, args[0], &f)
	})
	flags := c.Flags()
	flags.StringVarP(&f.sandbox, "sandbox", "s", "", "ID of an existing sandbox to run in; it keeps its variables")
	flags.StringVar(&f.context, "context", "", "kernel of the sandbox; each keeps its own variables (with --sandbox)")
	flags.StringVar(&f.lang, "lang", "", "language of the code (default: by the extension of FILE or its #! line, else python)")
	flags.StringVar(&f.timeout, "timeout", "", "maximum run time, such as 90s or 10m (default: the farm's)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable NAME=VALUE, or NAME with the value it has here (repeatable)")
	flags.StringArrayVarP(&f.files, "file", "f", nil, "file to send along, PATH[:DEST] (repeatable)")
	flags.StringArrayVarP(&f.packages, "package", "p", nil, "package to install first, such as 'pandas>=2' (repeatable)")
	flags.BoolVar(&f.autoInstall, "auto-install", false, "install packages that the code imports and the sandbox lacks")
	outputLimitFlag(c, &f.onOutputLimit, "code")
	flags.StringVarP(&f.out, "out", "o", "", "directory for the files that the code creates")
	flags.BoolVar(&f.noSave, "no-save", false, "save nothing")
	flags.BoolVar(&f.showResult, "show-result", true, "print the text of displayed values and of the last expression")
	f.spec.add(flags)
	a.complete(c, "sandbox", a.sandboxIDs)
	a.complete(c, "image", a.imageNames)
	completeChoices(c, "network", "none", "packages", "allowlist")
	return c
}

// codeComesFrom answers who gives run the code itself.
const codeComesFrom = "code comes from a file or from stdin: echo 'print(1)' | sandfarm run -"

// runArgs are the arguments of run. Code has none.
func runArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("code gets no arguments, such as %q: pass values with -e NAME=VALUE, or copy %s into a sandbox (sandfarm cp) and run it there (sandfarm exec)", args[1], args[0])
	}
	return argCount(1, 1, "FILE (or - for stdin)")(cmd, args)
}

// otherwise adds to an error how the code runs, if the error is that the image does not run its language. sandbox is that of the caller, if it named
// one. found reports that nobody named the language.
func otherwise(name, sandbox, lang string, found bool, err error) error {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case !ok || !slices.ContainsFunc(e.Fields, func(f wire.FieldError) bool { return f.Pointer == "/language" }):
		return err
	case lang != "javascript" && found:
		return errors.Join(err, &hint{text: fmt.Sprintf("That is the language by the name of %s or its first line; --lang names another one.", name)})
	case lang != "javascript":
		return err
	}
	file, where := name, ""
	if name == "-" {
		file, where = "a.js", "save it as a.js, then "
	}
	command := quoteOne("node " + quoteOne(filepath.Base(file)))
	if sandbox != "" {
		return errors.Join(err, &hint{text: fmt.Sprintf("JavaScript runs as a command, if the image has Node: %ssandfarm cp %s %s: && sandfarm exec %s %s", where, quoteOne(file), sandbox, sandbox, command)})
	}
	return errors.Join(err, &hint{text: fmt.Sprintf("JavaScript runs as a command in an image with Node: %secho %s | sandfarm run --lang bash --image node --file %s -", where, command, quoteOne(file))})
}

func (a *app) runFile(ctx context.Context, c *client.Client, name string, f *runFlags) error {
	if f.sandbox != "" && f.spec.used() {
		return usagef("--sandbox names an existing sandbox, so there can be no %s", f.spec.names())
	}
	if f.sandbox == "" && f.context != "" {
		return usagef("--context needs --sandbox")
	}
	if strings.EqualFold(filepath.Ext(name), ".ipynb") && f.lang == "" {
		return usagef("%s is a notebook: run it with papermill or Jupyter on the farm's kernel (sandfarm kernel install), or make a script of it (jupyter nbconvert --to script)", name)
	}
	inputs, err := inputsOf(f.files)
	if err != nil {
		return err
	}
	code, err := a.read(name)
	if err != nil {
		return err
	}
	found := f.lang == ""
	if found {
		f.lang = languageOf(name, code)
	}
	if err := a.checkBeside(name, string(code), inputs, f); err != nil {
		return err
	}
	filename, inputs := asFile(ctx, c, name, inputs, f)
	follower := a.follower(c, f.showResult)
	follower.progress = f.autoInstall
	given := f.sandbox
	if f.sandbox == "" && len(f.packages) > 0 { // a one-shot run would go on without a package that cannot be installed
		end, err := a.ownSandbox(ctx, c, f)
		defer end()
		if err != nil {
			return err
		}
	}
	submit, err := a.submission(ctx, c, f, filename, string(code), inputs)
	if err != nil {
		return err
	}
	job, err := follower.do(ctx, submit)
	if err != nil {
		return otherwise(name, given, f.lang, found, err)
	}
	if err := a.finish(ctx, c, follower, job, name, f); err != nil {
		return err
	}
	if name != "-" && (!f.isPython() || readsInput.Match(code)) {
		a.noteInput("code gets none; --file sends a file along")
	}
	return outcome(job)
}

// readsInput matches Python code that may read its input.
var readsInput = regexp.MustCompile(`stdin|input|\bopen\(0\b`)

// noteInput says that the input of this program was not read, if there is some, and what to do.
func (a *app) noteInput(instead string) {
	if in, ok := a.In.(*os.File); ok && hasInput(in) {
		fmt.Fprintln(a.Err, "note: the input was not read: "+instead)
	}
}

const (
	// ownSpare is how long the sandbox of a run lives beyond the timeout of its code, if the program cannot close it: packages are installed first.
	ownSpare = 30 * time.Minute
	// closeTimeout bounds the close of the sandbox after the run: nobody waits for what the farm does for longer.
	closeTimeout = 15 * time.Second
)

// ownSandbox creates the sandbox of a run. end closes it, also after an error.
func (a *app) ownSandbox(ctx context.Context, c *client.Client, f *runFlags) (end func(), err error) {
	end = func() {}
	request := wire.CreateRequest{Image: optional(f.spec.image), Network: optional(f.spec.network), Runtime: optional(f.spec.runtime), GPU: f.spec.gpus(), AllowHosts: f.spec.hosts, IdleSeconds: new(int)}
	var errs [4]error
	request.Resources, errs[0] = f.spec.resources()
	request.Secrets, errs[1] = f.spec.secrets(a.Getenv)
	if request.TTLSeconds, errs[2] = seconds("timeout", f.timeout); request.TTLSeconds != nil {
		*request.TTLSeconds += int(ownSpare.Seconds())
	}
	_, errs[3] = pairs("--env", f.env, a.Getenv) // before anything is created
	if err := errors.Join(errs[:]...); err != nil {
		return end, err
	}
	submitting, release := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	made, err := c.CreateSandbox(submitting, request)
	release()
	if err != nil {
		return end, err
	}
	f.sandbox = made.Sandbox.ID
	end = func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer done()
		if _, err := c.Close(ctx, f.sandbox); err != nil && client.CodeOf(err) != "not_found" {
			fmt.Fprintf(a.Err, "sandfarm: the sandbox %s is not closed: %s\n", f.sandbox, sentence(err))
		}
	}
	job, err := a.wait(ctx, c, made.Job.ID)
	if err == nil {
		err = client.Failure(job)
	}
	return end, about("create sandbox "+f.sandbox, err)
}

// submission prepares a run: in a new sandbox, or in the one that --sandbox names.
func (a *app) submission(ctx context.Context, c *client.Client, f *runFlags, filename, code string, inputs []input) (func(context.Context) (wire.Job, error), error) {
	timeout, err := seconds("timeout", f.timeout)
	if err != nil {
		return nil, err
	}
	env, err := pairs("--env", f.env, a.Getenv)
	if err != nil {
		return nil, err
	}
	if f.sandbox != "" {
		if err := putAll(ctx, c.Files(f.sandbox), inputs); err != nil {
			return nil, err
		}
		if err := a.installFirst(ctx, c, f.sandbox, f.packages); err != nil {
			return nil, err
		}
		request := wire.ExecuteRequest{Code: code, Language: optional(f.lang), Filename: filename, Context: optional(f.context), TimeoutSeconds: timeout, Env: env, AutoInstall: f.autoInstall, OnOutputLimit: optional(f.onOutputLimit)}
		return func(ctx context.Context) (wire.Job, error) { return c.Execute(ctx, f.sandbox, request) }, nil
	}
	resources, err := f.spec.resources()
	if err != nil {
		return nil, err
	}
	files, err := inline(inputs)
	if err != nil {
		return nil, err
	}
	secrets, err := f.spec.secrets(a.Getenv)
	if err != nil {
		return nil, err
	}
	request := wire.RunRequest{
		Code: code, Language: optional(f.lang), Filename: filename, Files: files, Env: env, TimeoutSeconds: timeout,
		Image: optional(f.spec.image), Network: optional(f.spec.network), Runtime: optional(f.spec.runtime), AllowHosts: f.spec.hosts, Secrets: secrets, GPU: f.spec.gpus(), Resources: resources,
		AutoInstall: f.autoInstall, OnOutputLimit: optional(f.onOutputLimit),
	}
	return func(ctx context.Context) (wire.Job, error) { return c.Run(ctx, request) }, nil
}

// finish prints the rest of the output of a final job and saves its files.
func (a *app) finish(ctx context.Context, c *client.Client, follower *follower, job wire.Job, name string, f *runFlags) error {
	var result wire.ExecuteResult
	if job.Result != nil && job.Result.Execute != nil {
		result = *job.Result.Execute
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if stream == "stdout" && result.Truncated.Stdout || stream == "stderr" && result.Truncated.Stderr {
			if err := follower.rest(ctx, result.Artifacts, stream); err != nil {
				return err
			}
		}
	}
	if a.json {
		if err := a.print(job); err != nil {
			return err
		}
	} else {
		note, ok := unsent(name, result.Error, f)
		if ok {
			result.Notes = slices.DeleteFunc(result.Notes, notedLack.MatchString)
		}
		for i, one := range result.Notes { // a run installs packages itself
			result.Notes[i] = strings.ReplaceAll(one, farm.InstallRouteOf(f.sandbox), "packages")
		}
		a.printError(result, job)
		if note != "" {
			fmt.Fprintln(a.Err, "note: "+note)
		}
	}
	if f.noSave {
		return nil
	}
	dir, stem := saveTarget(name, f.out)
	if len(result.Artifacts) == 0 && len(result.Results) == 0 {
		return nil
	}
	s, err := a.newSaver(c, dir)
	if err != nil {
		return err
	}
	defer s.close()
	return errors.Join(s.artifacts(ctx, result.Artifacts), s.images(ctx, stem, result.Results))
}

// printError prints what the streams do not contain: the traceback and the notes of the farm. Of a job that the farm stopped, the traceback
// of its interrupt is left out: the job's error says what happened. A long traceback has no frames of libraries.
func (a *app) printError(result wire.ExecuteResult, job wire.Job) {
	stopped := job.State == "timed_out" || job.State == "canceled"
	if e := result.Error; e != nil && e.Name != "SystemExit" && !(stopped && e.Name == "KeyboardInterrupt") {
		if len(e.Traceback) > 0 {
			traceback, left := farm.WithoutLibraries(e.Traceback)
			fmt.Fprintln(a.Err, strings.TrimRight(strings.Join(traceback, "\n"), "\n"))
			if left > 0 {
				fmt.Fprintf(a.Err, "note: The traceback lacks %s of libraries: sandfarm job get %s has all.\n", farm.Plural(left, "frame"), job.ID)
			}
		} else {
			fmt.Fprintf(a.Err, "%s: %s\n", e.Name, asFlags(e.Value))
		}
	}
	a.printNotes(result.Installed, result.Notes)
	storage := func(note string) bool { return strings.Contains(note, string(farm.QuotaStoredMB)) } // it says which files were not stored
	if result.ArtifactsSkipped > 0 && !slices.ContainsFunc(result.Notes, storage) {
		fmt.Fprintf(a.Err, "note: %s exceeded the limits of the farm and got no download link.\n", farm.Plural(result.ArtifactsSkipped, "file"))
	}
}

// outcome is the exit code of a final job as an error: that of its code or command, or the failure of the farm.
func outcome(job wire.Job) error {
	if err := client.Failure(job); err != nil {
		err = fmt.Errorf("job %s: %w", job.ID, err)
		if job.State == "timed_out" {
			err = &timeoutError{err}
		}
		return err
	}
	code := 0
	switch r := job.Result; {
	case r == nil:
	case r.Execute != nil:
		code = r.Execute.ExitCode
		if code == 0 && r.Execute.Error != nil && r.Execute.Error.Name != "SystemExit" {
			code = ExitError
		}
	case r.Command != nil:
		for _, command := range r.Command.Results {
			if command.ExitCode != 0 {
				code = command.ExitCode
			}
		}
	case r.Install != nil:
		if failures(r.Install.Packages) > 0 {
			code = ExitError
		}
	}
	if code == 0 {
		return nil
	}
	if code &= 0xff; code == 0 { // a shell would take it for success
		code = ExitError
	}
	return &CodeError{Code: code}
}

// saveTarget is the directory for the files of a run, and the first part of the names of its images.
func saveTarget(name, out string) (dir, stem string) {
	dir, stem = ".", "stdin"
	if name != "-" {
		dir = filepath.Dir(name)
		stem = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	}
	if out != "" {
		dir = out
	}
	return dir, stem
}

// read reads the code.
func (a *app) read(name string) ([]byte, error) {
	var code []byte
	var err error
	if name == "-" {
		if a.IsTTY {
			end := "Ctrl-D"
			if runtime.GOOS == "windows" {
				end = "Ctrl-Z and Enter"
			}
			fmt.Fprintf(a.Err, "sandfarm: reading code from the terminal; %s ends it\n", end)
		}
		code, err = io.ReadAll(a.In)
	} else {
		code, err = os.ReadFile(name) //nolint:gosec // the user names the file
	}
	if errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(name, "(=;\n") {
		return nil, usagef("there is no file %s here; %s", name, codeComesFrom)
	}
	if err != nil {
		return nil, unreadable(name, err)
	}
	if len(strings.TrimSpace(string(code))) == 0 {
		return nil, fmt.Errorf("read the code: %s is empty", name)
	}
	return code, nil
}

// extensions are the languages of files by the ends of their names, also of files that are data: the farm refuses what its image does not run.
// Python is the farm's default.
var extensions = map[string]string{
	".py": "", ".pyw": "", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript", ".r": "r", ".jl": "julia", ".sh": "bash", ".bash": "bash",
	".rb": "ruby", ".go": "go", ".rs": "rust", ".java": "java", ".c": "c", ".cc": "c++", ".cpp": "c++", ".php": "php", ".pl": "perl", ".lua": "lua",
	".sql": "sql", ".ps1": "powershell", ".bat": "batch", ".html": "html", ".css": "css", ".md": "markdown", ".json": "json", ".csv": "csv",
	".xml": "xml", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml",
}

// interpreter matches the program that the first line of code names (#!).
var interpreter = regexp.MustCompile(`^#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-S[ \t]*)?(?:\S*/)?)?([A-Za-z]+)`)

// languageOf is the language of code that is in the file of this name: that of the extension, or of the program that its first line names. The
// farm may not run it and then refuses; empty for the farm's default.
func languageOf(name string, code []byte) string {
	if lang, ok := extensions[strings.ToLower(filepath.Ext(name))]; ok {
		return lang
	}
	found := interpreter.FindSubmatch(code)
	if found == nil {
		return ""
	}
	program := string(found[1])
	if lang, ok := map[string]string{"sh": "bash", "dash": "bash", "node": "javascript", "Rscript": "r", "pypy": "python", "ipython": "python", "uv": "python"}[program]; ok {
		return lang
	}
	return program
}

// input is a file to send along.
type input struct{ from, to string }

// inputsOf parses PATH[:DEST] arguments.
func inputsOf(args []string) ([]input, error) {
	inputs := make([]input, 0, len(args))
	for _, arg := range args {
		in := input{from: arg}
		if _, err := os.Stat(arg); err != nil { // a name may contain a colon
			drive := len(filepath.VolumeName(arg)) // that of C:\data.csv is no separator
			if at := strings.LastIndex(arg[drive:], ":"); at > 0 {
				in.from, in.to = arg[:drive+at], arg[drive+at+1:]
			}
		}
		info, err := os.Stat(in.from)
		switch {
		case err != nil:
			return nil, about("--file", unreadable(in.from, err))
		case info.IsDir():
			return nil, usagef("--file %s is a directory: copy it into a sandbox (sandfarm cp -r %s ID:) and run the code there (--sandbox ID)", in.from, quoteOne(in.from))
		}
		if in.to == "" || strings.HasSuffix(in.to, "/") {
			in.to = path.Join(in.to, filepath.Base(in.from))
		}
		inputs = append(inputs, in)
	}
	return inputs, nil
}

func inline(inputs []input) ([]wire.InputFile, error) {
	files := make([]wire.InputFile, 0, len(inputs))
	for _, in := range inputs {
		content, err := os.ReadFile(in.from)
		if err != nil {
			return nil, about("--file", unreadable(in.from, err))
		}
		encoded := base64.StdEncoding.EncodeToString(content)
		files = append(files, wire.InputFile{Path: in.to, ContentBase64: &encoded})
	}
	return files, nil
}

func putAll(ctx context.Context, files *client.Files, inputs []input) error {
	for _, in := range inputs {
		if err := putFile(ctx, files, in.from, in.to); err != nil {
			return err
		}
	}
	return nil
}

func putFile(ctx context.Context, files *client.Files, from, to string) error {
	file, err := os.Open(from) //nolint:gosec // the user names the file
	if err != nil {
		return unreadable(from, err)
	}
	defer file.Close()
	return files.Write(ctx, to, file)
}
