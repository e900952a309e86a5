package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/client"
)

// jupyterStop is how long a Jupyter may take to end before it is killed.
const jupyterStop = 10 * time.Second

func (a *app) jupyter() *cobra.Command {
	var (
		app string
		o   kernelOptions
	)
	c := a.verb(&cobra.Command{
		Use: "jupyter [-- ARGUMENT…]", Short: "Start JupyterLab on this machine with the farm's sandboxes as its kernels",
		Long: `Start the JupyterLab of this machine, whose kernels are sandboxes of the farm: notebooks and their files stay here, their code runs
there. Each notebook gets a sandbox of its own, of the image that you pick as its kernel. Arguments behind -- are Jupyter's.

Getting started:
  1. Install JupyterLab: pip install jupyterlab. For widgets also ipywidgets, and give --packages ipywidgets.
  2. Start a farm (sandfarm up), or set SANDFARM_URL and SANDFARM_API_KEY to reach one elsewhere.
  3. Run this command. Your browser opens; new notebooks use the farm.

Shutting a kernel down closes its sandbox. With --sandbox all notebooks use that one, and it outlives them.
Other clients of Jupyter use the address URL/jupyter: see docs/jupyter.md.`,
		Example: `  sandfarm jupyter
  sandfarm jupyter --packages polars,ipywidgets --memory 4g -- --no-browser --port 8899
  sandfarm jupyter --app notebook
  sandfarm jupyter --sandbox sbx_…`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, -1, ""), func(ctx context.Context, farm *client.Client, args []string) error {
		env, err := o.env()
		if err != nil {
			return err
		}
		path, err := a.program("jupyter")
		if err != nil {
			return &hint{err: err, text: "jupyter is not installed, or not on the PATH. Install it with: pip install jupyterlab (or: pipx install --include-deps jupyterlab), and start again."}
		}
		if err := a.jupyterHas(path, app); err != nil {
			return err
		}
		if _, err := farm.Limits(ctx); err != nil { // a wrong address or key is reported here and not by each notebook
			return err
		}
		key, err := a.apiKey()
		if err != nil {
			return err
		}
		if !signal.Ignored(syscall.SIGHUP) { // of a terminal that is closed; only this process gets it
			var stop context.CancelFunc
			ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
			defer stop()
		}
		run := exec.CommandContext(ctx, path, append([]string{app, "--gateway-url=" + strings.TrimSuffix(farm.URL(), "/") + "/jupyter"}, args...)...)
		run.Stdin, run.Stdout, run.Stderr = a.In, a.Out, a.Err
		run.Env = append(os.Environ(), "JUPYTER_GATEWAY_AUTH_TOKEN="+key) // not an argument: other users of this machine can see those
		for name, value := range env {
			run.Env = append(run.Env, name+"="+value)
		}
		run.Cancel = func() error {
			if err := run.Process.Signal(syscall.SIGTERM); err != nil { // no such signal on Windows
				return run.Process.Kill()
			}
			return nil
		}
		if app != "console" { // which reads the terminal, and needs its Ctrl-C
			// A server that gets SIGINT and then SIGTERM, as after Ctrl-C, ends without closing its sandboxes: it gets SIGTERM only.
			run.Stdin = nil
			ownGroup(run)
		}
		run.WaitDelay = jupyterStop
		err = run.Run()
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			if ctx.Err() != nil || e.ExitCode() < 0 {
				return &CodeError{Code: ExitInterrupted}
			}
			return &CodeError{Code: e.ExitCode()}
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", path, err)
		}
		return nil
	})
	c.Flags().StringVar(&app, "app", "lab", "what to start: lab, notebook, console, or another subcommand of jupyter that takes --gateway-url")
	completeChoices(c, "app", "lab", "notebook")
	a.kernelFlags(c, &o)
	return c
}

// jupyterHas refuses an app that the Jupyter at path has not: Jupyter's own answer is its usage. Its subcommands are programs on the PATH or
// beside it.
func (a *app) jupyterHas(path, app string) error {
	name := "jupyter-" + app
	if _, err := a.program(name); err == nil {
		return nil
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if _, err := exec.LookPath(filepath.Join(filepath.Dir(target), name)); err == nil {
			return nil
		}
	}
	switch app {
	case "lab":
		return errors.New("JupyterLab is not installed here: pip install jupyterlab") //nolint:staticcheck // a name
	case "notebook":
		return errors.New("Jupyter Notebook is not installed here: pip install notebook") //nolint:staticcheck // a name
	default:
		return fmt.Errorf("%s is not installed here: pip install %s", name, name)
	}
}

// program finds a program on the PATH.
func (a *app) program(name string) (string, error) {
	for _, dir := range filepath.SplitList(a.Getenv("PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(dir) {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}
