//go:build integration

package install_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// auto returns an execution that installs what code needs.
func auto(code string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Auto: true, Code: code}}
}

// denied runs code's automatic install with everything denied, and returns what it would have installed.
func denied(t testing.TB, a *agenttest.Agent, code string) []string {
	t.Helper()
	spec := auto(code)
	spec.Install.Only = []string{"nothing-at-all"}
	ran := agenttest.Run(t, a.Client, spec)
	names := []string{}
	for _, p := range ran.Outcome.Install {
		testbed.Check(t, p.Status == farm.PackageFailed && strings.Contains(p.Message, "operator does not allow") && strings.Contains(p.Message, "install it by name (packages)"), "%+v", p)
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func TestAutoFindsImports(t *testing.T) {
	t.Parallel()
	warm, cold := installing(t), installing(t)
	testbed.Must(t, warm.StartKernel(t.Context(), "default", "python"))
	for _, a := range []*agenttest.Agent{warm, cold} {
		testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "mine.py"), nil, 0o600))
	}
	for name, c := range map[string]struct {
		code string
		want []string
	}{
		"none":         {"print(1)", nil},
		"all there":    {"import os, sys, json, numpy as np\nfrom pandas import DataFrame\nimport mine", nil},
		"missing":      {"import humanize\nfrom cv2 import x\nimport sklearn.linear_model", []string{"humanize", "opencv-python-headless", "scikit-learn"}},
		"in function":  {"def f():\n    import bs4", []string{"beautifulsoup4"}},
		"optional":     {"try:\n    import humanize\nexcept ImportError:\n    humanize = None", nil},
		"not optional": {"try:\n    import humanize\nexcept ValueError:\n    pass", []string{"humanize"}},
		"else":         {"try:\n    import humanize\nexcept ImportError:\n    pass\nelse:\n    import yaml", []string{"pyyaml"}},
		"dynamic":      {"import importlib\nimportlib.import_module('humanize')\n__import__('yaml')\nimportlib.import_module(name)", []string{"humanize", "pyyaml"}},
		"relative":     {"from . import x\nfrom .y import z", nil},
		"magics":       {"%matplotlib inline\n!ls -l 'import x'\nfiles = !ls\nif True:\n    !pwd\nimport humanize\nhumanize?", []string{"humanize"}},
		"timed cell":   {"%%time\nimport humanize", []string{"humanize"}},
		"other cell":   {"%%bash\nimport humanize", nil},
		"no Python":    {"import humanize\ndef (", nil},
		"text":         {"'''\nimport humanize\n'''", nil},
		"typing only":  {"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import humanize", nil},
		"shared":       {"from google.cloud import storage\nfrom google.protobuf import message\nimport google.oauth2.credentials", []string{"google-auth", "google-cloud-storage", "protobuf"}},
		"gone":         {"import imp, distutils.core, cgi", nil},
		"twice":        {"import yaml\nimport yaml.nodes", []string{"pyyaml"}},
		"deep":         {"import humanize\nx = " + strings.Repeat("(", 5000) + strings.Repeat(")", 5000), nil},
		"null byte":    {"import humanize\x00", nil},
	} {
		if c.want == nil {
			c.want = []string{}
		}
		for which, a := range map[string]*agenttest.Agent{"warm": warm, "cold": cold} {
			testbed.Diff(t, fmt.Sprintf("%s (%s)", name, which), c.want, denied(t, a, c.code))
		}
	}
	ran := agenttest.Run(t, warm.Client, agenttest.Code("print(len(In), [x for x in dir() if 'probe' in x])"))
	testbed.Check(t, ran.Stdout == "2 []\n" && ran.Outcome.ExecutionCount == 1, "the kernel has seen the questions: %+v", ran)
}

// BenchmarkAutoCheck compares checking code without missing imports in a running kernel with starting an interpreter for it.
func BenchmarkAutoCheck(b *testing.B) {
	warm, cold := installing(b), installing(b)
	testbed.Must(b, warm.StartKernel(b.Context(), "default", "python"))
	for name, a := range map[string]*agenttest.Agent{"warm": warm, "cold": cold} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				denied(b, a, "import os, numpy, pandas, matplotlib.pyplot as plt")
			}
		})
	}
}

func TestAutoInstallsImportsAndRequirements(t *testing.T) {
	t.Parallel()
	a := installing(t)
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "requirements.txt"), []byte("# ours\ncowsay==6.1  # moo\n\nnumpy\n-r other.txt\n./local\ntabulate @ https://x/y.whl\n"), 0o600))
	spec := auto("import yaml, no_such_module_xyzzy_77, humanize")
	spec.Install.Deny = []string{"humanize"}
	ran := agenttest.Run(t, a.Client, spec)
	type row struct{ Name, Requested, Status, Why string }
	rows := []row{}
	for _, p := range ran.Outcome.Install {
		rows = append(rows, row{p.Name, p.Requested, string(p.Status), p.Why})
	}
	want := []row{
		{"cowsay", "cowsay==6.1", "installed", "in requirements.txt"},
		{"pyyaml", "yaml", "installed", "imported as yaml"},
		{"no-such-module-xyzzy-77", "no_such_module_xyzzy_77", "failed", "imported as no_such_module_xyzzy_77"},
		{"humanize", "humanize", "failed", "imported as humanize"},
	}
	diff := cmp.Diff(want, rows)
	testbed.Require(t, diff == "" && len(ran.Outcome.Notes) == 3, "%s\nnotes %q\n%+v", diff, ran.Outcome.Notes, ran)
	again := agenttest.Run(t, a.Client, auto("import yaml, cowsay"))
	testbed.Require(t, len(again.Outcome.Install) == 0 && len(again.Outcome.Notes) == 0, "again: %+v", again.Outcome)
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "requirements.txt"), []byte("cowsay==6.0\n"), 0o600))
	changed := agenttest.Run(t, a.Client, auto("print(1)"))
	testbed.Require(t, len(changed.Outcome.Install) == 1 && changed.Outcome.Install[0].Version == "6.0", "changed: %+v", changed.Outcome)
}

func TestAReplacedPackageThatIsLoadedIsNoted(t *testing.T) {
	t.Parallel()
	a := installing(t)
	agenttest.Run(t, a.Client, packages("humanize==4.11.0", "cowsay==6.0"))
	if ran := agenttest.Run(t, a.Client, agenttest.Code("import humanize; print(humanize.__version__)")); ran.Stdout != "4.11.0\n" {
		t.Fatalf("ran = %+v", ran)
	}
	ran := agenttest.Run(t, a.Client, packages("humanize==4.12.0", "cowsay==6.1"))
	const note = `humanize 4.12.0 is installed, but the kernel "default" still has 4.11.0 loaded: restart the kernel to use it (POST /v1/sandboxes/{id}/restart).`
	if diff := cmp.Diff([]string{note}, ran.Outcome.Notes); diff != "" || ran.Outcome.Install[0].Message != note || ran.Outcome.Install[1].Message != "" {
		t.Fatalf("%s\n%+v\n%s", diff, ran.Outcome, ran.Stderr)
	}
	if ran := agenttest.Run(t, a.Client, packages("humanize>=99")); ran.Outcome.Install[0].Status != farm.PackageFailed { // what is there stays
		t.Errorf("an update that cannot be: %+v", ran.Outcome)
	}
	testbed.Must(t, a.RestartKernel(t.Context(), ""))
	ran = agenttest.Run(t, a.Client, agenttest.Code("import humanize; print(humanize.__version__)"))
	testbed.Require(t, ran.Stdout == "4.12.0\n", "ran = %+v", ran)
	infos, _ := filepath.Glob(filepath.Join(a.Home, ".packages", "humanize-*"))
	testbed.Check(t, len(infos) == 1, "dist-infos: %v", infos)
}

// A package named like a standard library module must not break every Python process.
func TestInstalledPackagesDoNotShadowTheStandardLibrary(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	dir := filepath.Join(a.Home, ".packages")
	for _, name := range []string{"uuid", "asyncio", "numpy", "newmodule"} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name+".py"), []byte("mine = True\n"), 0o600))
	}
	const code = "import asyncio, uuid, numpy, newmodule\nprint([hasattr(m, 'mine') for m in (asyncio, uuid, numpy, newmodule)])"
	ran := agenttest.Run(t, a.Client, agenttest.Code(code))
	testbed.Check(t, ran.Stdout == "[False, False, True, True]\n", "kernel: %+v %+v", ran, ran.Outcome.Error)
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "x.py"), []byte(code), 0o600))
	ran = agenttest.Run(t, a.Client, agenttest.Commands("python3 x.py"))
	testbed.Check(t, ran.Stdout == "[False, False, True, True]\n", "command: %+v", ran)
}

// A denied package is not installed as a dependency either; packages that do not need it are installed.
func TestAutoInstallsNothingDeniedAsADependency(t *testing.T) {
	t.Parallel()
	a := installing(t)
	spec := auto("import omegaconf, humanize")
	spec.Install.Deny = []string{"pyyaml"}
	ran := agenttest.Run(t, a.Client, spec)
	testbed.Require(t, len(ran.Outcome.Install) == 2, "%+v", ran.Outcome)
	if p := ran.Outcome.Install[0]; p.Name != "omegaconf" || p.Status != farm.PackageFailed || !strings.Contains(p.Message, "needs pyyaml, which the operator does not allow to be installed automatically: install that by name (packages).") {
		t.Errorf("%+v", p)
	}
	p := ran.Outcome.Install[1]
	testbed.Check(t, p.Name == "humanize" && p.Status == farm.PackageInstalled, "%+v", p)
	ran = agenttest.Run(t, a.Client, agenttest.Code("import humanize, importlib.util as u; print(u.find_spec('yaml'), u.find_spec('omegaconf'))"))
	testbed.Check(t, ran.Stdout == "None None\n", "installed: %+v", ran)
}

// needed runs the automatic install of commands with everything denied, and returns what it would have installed, each with
// the reason.
func needed(t *testing.T, a *agenttest.Agent, cwd string, commands ...string) []string {
	t.Helper()
	ran := agenttest.Run(t, a.Client, agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{
		Manager: farm.ManagerPip, Auto: true, Commands: commands, Cwd: cwd, Only: []string{"nothing-at-all"},
	}})
	names := []string{}
	for _, p := range ran.Outcome.Install {
		testbed.Check(t, p.Status == farm.PackageFailed && strings.Contains(p.Message, "operator does not allow") && strings.Contains(p.Message, "install it by name (packages)"), "%+v", p)
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
