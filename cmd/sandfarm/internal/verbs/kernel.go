package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// toolWait bounds a question to Jupyter or Python of this machine.
const toolWait = time.Minute

// specNames are the names that Jupyter takes for a kernelspec.
var specNames = regexp.MustCompile(`^[a-z0-9._-]{1,100}$`)

func (a *app) kernel() *cobra.Command {
	return asGroup(&cobra.Command{
		Use: "kernel", Short: "Give the Jupyter of this machine kernels that are sandboxes",
		Long: `Give programs of this machine that start kernels of Jupyter (JupyterLab, VS Code, Quarto, nbclient, jupyter console) a kernel that is a
sandbox of the farm.

"sandfarm jupyter" is for JupyterLab alone and changes nothing on this machine; "sandfarm kernel install" adds a kernel beside those that
are here.`,
		Example: `  sandfarm kernel install`,
	}, a.kernelInstall())
}

func (a *app) kernelInstall() *cobra.Command {
	var (
		name, display, image, prefix, python string
		o                                    kernelOptions
	)
	c := a.verb(&cobra.Command{
		Use: "install", Short: "Add a kernel to the Jupyter of this machine that runs in the farm",
		Long: `Write a kernelspec, with which programs of this machine start kernels in the farm: each kernel gets a sandbox of its own, and shutting
it down closes that. A restart keeps the sandbox and its files.

The kernel is a program of the Python SDK: a Python of this machine needs the SDK with its extra kernel (in a checkout of Sandfarm: make
sdk-python && pip install "$(ls dist/sandfarm-*.whl)[kernel]"). It is the first that has it of that of --prefix and those on the PATH, unless
--python names one. Clients that run in other environments may use it, too.

The kernel uses the farm that SANDFARM_URL names when it starts, and the key of SANDFARM_API_KEY or SANDFARM_API_KEY_FILE; --url and
--key-file are written into the kernelspec. "jupyter kernelspec remove NAME" removes it.

Getting started:
  1. sandfarm kernel install
  2. Pick the kernel "Python 3 (Sandfarm)" in JupyterLab or VS Code, or: jupyter console --kernel sandfarm
  3. In Quarto, put "jupyter: sandfarm" into the document's header. For programs that only know python3: --name python3`,
		Example: `  sandfarm kernel install
  sandfarm kernel install --name polars --packages polars,ipywidgets --memory 4g
  sandfarm kernel install --prefix .venv
  jupyter nbconvert --execute --to notebook --ExecutePreprocessor.kernel_name=sandfarm report.ipynb`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, argCount(0, 0, ""), func(ctx context.Context, farm *client.Client, _ []string) error {
		switch {
		case a.key != "":
			return usagef("a key is not written into a kernelspec, where it would be an argument that others see: use --key-file")
		case !specNames.MatchString(name):
			return usagef("--name %q: the name of a kernelspec has small letters, digits, '.', '_' and '-', at most 100", name)
		}
		env, err := o.env()
		if err != nil {
			return err
		}
		spec := wire.KernelSpec{Display: display, Interrupt: "message", Env: env, Metadata: map[string]any{"debugger": false}}
		if spec.Language, err = imageLanguage(ctx, farm, image); err != nil {
			return err
		}
		if spec.Argv, err = a.kernelArgv(image); err != nil {
			return err
		}
		if python, err = a.kernelPython(ctx, python, prefix); err != nil {
			return err
		}
		spec.Argv = append([]string{python}, spec.Argv...)
		if spec.Display == "" {
			spec.Display = "Python 3 (Sandfarm)"
			if image != "" {
				spec.Display = "Sandfarm: " + image
			}
		}
		dir := filepath.Join(prefix, "share", "jupyter")
		if prefix == "" {
			if dir, err = a.jupyterData(ctx); err != nil {
				return err
			}
		}
		dir = filepath.Join(dir, "kernels", name)
		text, err := json.MarshalIndent(spec, "", "  ")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs of other users may read it
			return fmt.Errorf("make the kernelspec's directory: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), append(text, '\n'), 0o644); err != nil { //nolint:gosec // as above, and there is no secret in it
			return fmt.Errorf("write the kernelspec: %w", err)
		}
		if a.json {
			return a.print(map[string]string{"name": name, "display_name": spec.Display, "directory": dir})
		}
		_, err = fmt.Fprintf(a.Out, "The kernel %q is installed as %s in %s\n", spec.Display, name, dir)
		return err
	})
	f := c.Flags()
	f.StringVar(&name, "name", "sandfarm", "`NAME` of the kernelspec")
	f.StringVar(&display, "display-name", "", "`TEXT` that menus show")
	f.StringVar(&image, "image", "", "image of the sandboxes (\"sandfarm image ls\" lists them)")
	f.StringVar(&prefix, "prefix", "", "`DIR` of a Python environment whose Jupyter is to have the kernel; without it all of this user do")
	f.StringVar(&python, "python", "", "`PATH` of the Python that runs the kernel")
	_ = c.MarkFlagDirname("prefix")
	a.complete(c, "image", a.imageNames)
	a.kernelFlags(c, &o)
	return c
}

// imageLanguage asks the farm for the language of kernels of an image; "" is the default image. So a wrong address, key or image is reported now.
func imageLanguage(ctx context.Context, farm *client.Client, image string) (string, error) {
	images, err := farm.Images(ctx)
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(images))
	for _, i := range images {
		for _, language := range i.Languages {
			if i.Name == cmp.Or(image, "python") && language == "python" {
				return language, nil
			}
		}
		if i.Name == image && len(i.Languages) > 0 {
			return i.Languages[0], nil
		}
		names = append(names, i.Name)
	}
	if image == "" {
		return "python", nil
	}
	return "", usagef("--image %q: the farm has the images %s", image, strings.Join(names, ", "))
}

// closedPath is Python that keeps it from importing what is in the current directory, before it has imported anything: notebooks have a random.py beside them.
// Python 3.11 has a variable for it, 3.10 does not.
const closedPath = "import sys; sys.path[:] = filter(None, sys.path); "

// kernelPython is the Python that runs the kernel: the one asked for, or the first that can of those that programs of this machine use.
func (a *app) kernelPython(ctx context.Context, asked, prefix string) (string, error) {
	candidates := []string{asked}
	if asked == "" {
		candidates = nil
		if prefix != "" {
			candidates = append(candidates, filepath.Join(prefix, "bin", "python"), filepath.Join(prefix, "Scripts", "python.exe"))
		}
		for _, name := range []string{"python3", "python"} {
			if path, err := a.program(name); err == nil {
				candidates = append(candidates, path)
			}
		}
	}
	first := ""
	for _, candidate := range candidates {
		path, err := exec.LookPath(candidate)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			continue
		}
		if first == "" {
			first = path
		}
		if hasKernel(ctx, path) {
			return path, nil
		}
	}
	switch {
	case first != "":
		return "", fmt.Errorf("the kernel is not installed in %[1]s: run make sdk-python && %[1]s -m pip install \"$(ls dist/sandfarm-*.whl)[kernel]\" in a checkout of Sandfarm and try again, or name another Python with --python", first)
	case asked != "":
		return "", fmt.Errorf("--python: there is no program %s", asked)
	default:
		return "", errors.New("the kernel needs Python 3.10 or newer, which is not on the PATH: name one with --python")
	}
}

// hasKernel reports whether a Python can run the kernel.
func hasKernel(ctx context.Context, python string) bool {
	ctx, done := context.WithTimeout(ctx, toolWait)
	defer done()
	return exec.CommandContext(ctx, python, "-c", closedPath+"import sandfarm.kernel").Run() == nil
}

// kernelArgv are the arguments of the Python that runs a kernel.
func (a *app) kernelArgv(image string) ([]string, error) {
	out := []string{"-c", closedPath + "from sandfarm.kernel import main; main()", "-f", "{connection_file}"}
	if image != "" {
		out = append(out, "--image", image)
	}
	if a.url != "" {
		out = append(out, "--url", a.url)
	}
	if a.keyFile != "" {
		file, err := filepath.Abs(a.keyFile)
		if err != nil {
			return nil, fmt.Errorf("find the key file: %w", err)
		}
		out = append(out, "--key-file", file)
	}
	return out, nil
}

// jupyterData is the directory in which Jupyter looks for this user's kernelspecs: Jupyter itself says it, if it is installed.
func (a *app) jupyterData(ctx context.Context) (string, error) {
	if dir := a.Getenv("JUPYTER_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if program, err := a.program("jupyter"); err == nil {
		ctx, done := context.WithTimeout(ctx, toolWait)
		defer done()
		out, err := exec.CommandContext(ctx, program, "--data-dir").Output()
		if dir := strings.TrimSpace(string(out)); err == nil && filepath.IsAbs(dir) {
			return dir, nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the directory of Jupyter's kernelspecs: %w; name a Python environment with --prefix", err)
	}
	switch runtime.GOOS {
	case "darwin":
		return filepath.Join(home, "Library", "Jupyter"), nil
	case "windows":
		return filepath.Join(cmp.Or(a.Getenv("APPDATA"), filepath.Join(home, "AppData", "Roaming")), "jupyter"), nil
	default:
		return filepath.Join(cmp.Or(a.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "jupyter"), nil
	}
}
