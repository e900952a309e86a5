//go:build integration

package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// needed runs the automatic install of commands with everything denied, and returns what it would have installed, each with
// the reason.
func needed(t *testing.T, a *agenttest.Agent, cwd string, commands ...string) []string {
	t.Helper()
	ran := agenttest.Run(t, a.Client, agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{
		Manager: farm.ManagerPip, Auto: true, Commands: commands, Cwd: cwd, Only: []string{"nothing-at-all"},
	}})
	names := []string{}
	for _, p := range ran.Outcome.Install {
		testbed.Check(t, p.Status == farm.PackageFailed && strings.Contains(p.Message, "operator does not allow"), "%+v", p)
		names = append(names, p.Name+" "+p.Why)
	}
	slices.Sort(names)
	return names
}

func TestAutoFindsWhatCommandsNeed(t *testing.T) {
	t.Parallel()
	a := installing(t)
	for name, text := range map[string]string{
		"main.py":                   "import csv\nfrom helper import greet\nimport pkg.part\n'''\nimport not_one\n'''\ntry:\n    import optional\nexcept ImportError:\n    pass\n",
		"helper.py":                 "import inflection\nimport main\n",
		"pkg/__init__.py":           "from . import part\n",
		"pkg/part.py":               "def late():\n    from yaml import safe_load\n",
		"mine.py":                   "import emoji\n",
		"emoji.py":                  "",
		"proj/requirements.txt":     "cowsay==6.1\n",
		"proj/app.py":               "import os\n",
		"proj/tool/__main__.py":     "import tabulate\n",
		"src/lib.py":                "",
		"uses lib.py":               "import lib\n",
		"data/notes.txt":            "import x",
		"other/requirements.txt":    "pyfiglet\nnumpy\n",
		"broken.py":                 "import humanize\ndef (",
		"yaml data/yaml/values.txt": "",
		"yaml data/main.py":         "import humanize\n",
	} {
		path := filepath.Join(a.Workspace, name)
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	testbed.Must(t, os.Symlink("/etc/hostname", filepath.Join(a.Workspace, "data", "requirements.txt")))
	main := []string{"inflection imported as inflection", "pyyaml imported as yaml"}
	cowsay, tabulate := "cowsay in proj/requirements.txt", "tabulate imported as tabulate"
	for name, c := range map[string]struct {
		cwd      string
		commands []string
		want     []string
	}{
		"Script":        {"", []string{"python main.py"}, main},
		"Python3":       {"", []string{"echo hello && /usr/bin/env python3.13 -u -X dev ./main.py arg > out.txt 2>&1"}, main},
		"Assignment":    {"", []string{"A=1 timeout 10 python3 main.py; echo 'python other.py'"}, main},
		"Lines":         {"", []string{"# python mine.py\ncd pkg # there\npython ../main.py"}, main},
		"OwnModule":     {"", []string{"python mine.py"}, nil},
		"Elsewhere":     {"proj", []string{"python app.py"}, []string{cowsay}},
		"Changed":       {"", []string{"cd proj && python app.py"}, []string{cowsay}},
		"ByPath":        {"", []string{"python proj/app.py"}, []string{cowsay}},
		"Package":       {"proj", []string{"python -m tool"}, []string{cowsay, tabulate}},
		"Folder":        {"", []string{"python proj/tool"}, []string{tabulate}},
		"Code":          {"", []string{`python3 -c 'import humanize, mine'`}, []string{"humanize imported as humanize"}},
		"PythonPath":    {"", []string{`PYTHONPATH=src python "uses lib.py"`}, nil},
		"NoPythonPath":  {"", []string{`python "uses lib.py"`}, []string{"lib imported as lib"}},
		"WhatIsThere":   {"other", []string{"python -c 1"}, []string{"numpy in other/requirements.txt", "pyfiglet in other/requirements.txt"}},
		"Several":       {"", []string{"cd proj", "python main.py", "python proj/tool"}, slices.Concat(main, []string{tabulate})},
		"Executable":    {"", []string{"./main.py"}, main},
		"LinkOutside":   {"data", []string{"python -c 'import os'"}, nil},
		"NoProgram":     {"proj", []string{"python --version", "cat app.py", "ls | grep py", "python < app.py", "python - <<E\nimport humanize\nE"}, nil},
		"Missing":       {"", []string{"python nowhere.py", "python"}, nil},
		"OpenQuote":     {"", []string{"python main.py 'oops"}, nil},
		"NoPythonCode":  {"", []string{"python broken.py"}, nil},
		"NoSuchFolder":  {"nowhere", []string{"python main.py"}, nil},
		"AFolderOfData": {"yaml data", []string{"python main.py"}, []string{"humanize imported as humanize"}},
	} {
		for _, file := range []string{"proj/requirements.txt", "other/requirements.txt"} { // an installed file is not read again
			f, err := os.OpenFile(filepath.Join(a.Workspace, file), os.O_APPEND|os.O_WRONLY, 0)
			testbed.Must(t, err)
			_, err = f.WriteString("# " + name + "\n")
			testbed.Must(t, errors.Join(err, f.Close()))
		}
		want := append([]string{}, c.want...)
		slices.Sort(want)
		testbed.Diff(t, name, want, needed(t, a, c.cwd, c.commands...))
	}
}

func TestAutoInstallsWhatCommandsNeed(t *testing.T) {
	t.Parallel()
	a := installing(t)
	testbed.Must(t, os.Mkdir(filepath.Join(a.Workspace, "proj"), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "proj", "requirements.txt"), []byte("cowsay==6.1\nno-such-package-xyzzy-77\n"), 0o600))
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "proj", "main.py"), []byte("import cowsay, humanize\nprint(humanize.intcomma(1000))\n"), 0o600))
	spec := agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Auto: true, Commands: []string{"cd proj && python3 main.py"}}}
	status := map[string]string{}
	for _, p := range agenttest.Run(t, a.Client, spec).Outcome.Install {
		status[p.Name] = string(p.Status)
	}
	testbed.Diff(t, "packages", map[string]string{"cowsay": "installed", "humanize": "installed", "no-such-package-xyzzy-77": "failed"}, status)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("cd proj && python3 main.py"))
	testbed.Check(t, ran.Stdout == "1,000\n", "ran = %+v", ran)
	again := agenttest.Run(t, a.Client, spec)
	testbed.Check(t, len(again.Outcome.Install) == 0, "again: %+v", again.Outcome)
}

// JupyterLab and Streamlit look for their files, and for what they are, beside Python: they are told where they were installed. What the user sets stays.
func TestProgramsThatLookBesidePythonAreToldWhereTheyAre(t *testing.T) {
	t.Parallel()
	a := installing(t)
	show := `python3 -c "import os; print([os.environ.get(n) for n in ('JUPYTERLAB_DIR', 'JUPYTER_PATH', 'STREAMLIT_GLOBAL_DEVELOPMENT_MODE')])"`
	if ran := agenttest.Run(t, a.Client, agenttest.Commands(show)); ran.Stdout != "[None, None, None]\n" {
		t.Errorf("without them: %q %q", ran.Stdout, ran.Stderr)
	}
	share := filepath.Join(a.Home, ".packages", "share", "jupyter")
	for _, dir := range []string{filepath.Join(share, "lab"), filepath.Join(a.Home, ".packages", "streamlit")} {
		testbed.Must(t, os.MkdirAll(dir, 0o700))
	}
	ran := agenttest.Run(t, a.Client, agenttest.Commands(show+"; JUPYTERLAB_DIR=/own STREAMLIT_GLOBAL_DEVELOPMENT_MODE=true "+show))
	want := "['" + share + "/lab', '" + share + "', 'false']\n['/own', '" + share + "', 'true']\n"
	testbed.Check(t, ran.Stdout == want, "%q %q, want %q", ran.Stdout, ran.Stderr, want)
}
