package execution

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestResultSaysHowAMissingModuleIsInstalled(t *testing.T) {
	t.Parallel()
	raised := func(name, value string) *farm.Result {
		return &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1, Error: &farm.CodeError{Name: name, Value: value}}}
	}
	missing := func(module string) *farm.Result { return raised("ModuleNotFoundError", "No module named '"+module+"'") }
	ran := func(code int, stderr string) *farm.Result {
		return &farm.Result{Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{Command: "true"}, {ExitCode: code, Stderr: stderr}}}}
	}
	code, command := &farm.Request{Execute: &farm.ExecuteRequest{}}, &farm.Request{Command: &farm.CommandRequest{}}
	for name, test := range map[string]struct {
		result  *farm.Result
		request *farm.Request
		network farm.Network
		want    string // in the note; empty: there is none
	}{
		"OtherName":          {missing("cv2"), code, farm.NetworkPackages, "The module cv2 is in the package opencv-python-headless: install it (packages), or run with auto_install."},
		"SameName":           {missing("humanize"), code, farm.NetworkAllowlist, "The module humanize is not installed: install the package"},
		"NoIndex":            {missing("cv2"), code, farm.NetworkNone, `network "none" reaches no package index`},
		"PartOfAPackage":     {missing("numpy.nothing"), code, farm.NetworkPackages, ""},
		"NoPackage":          {raised("ModuleNotFoundError", "No module named 'os.nothing'; 'os' is not a package"), code, farm.NetworkPackages, ""},
		"Private":            {missing("_tkinter"), code, farm.NetworkPackages, ""},
		"OtherError":         {raised("ValueError", "No module named 'cv2'"), code, farm.NetworkPackages, ""},
		"NoError":            {&farm.Result{Execute: &farm.ExecuteResult{}}, code, farm.NetworkPackages, ""},
		"AutoInstall":        {missing("cv2"), &farm.Request{Execute: &farm.ExecuteRequest{AutoInstall: true}}, farm.NetworkPackages, ""},
		"Notebook":           {missing("cv2"), &farm.Request{Execute: &farm.ExecuteRequest{Cell: &farm.Cell{}}}, farm.NetworkPackages, ""},
		"Program":            {ran(1, "Traceback (most recent call last):\n  File \"a.py\"\nModuleNotFoundError: No module named 'yaml'\n"), command, farm.NetworkPackages, "The module yaml is in the package pyyaml"},
		"PythonM":            {ran(1, "/opt/venv/bin/python3.13: No module named pytest\n"), command, farm.NetworkPackages, "The module pytest is not installed"},
		"CaughtInProgram":    {ran(0, "ModuleNotFoundError: No module named 'yaml'\n"), command, farm.NetworkPackages, ""},
		"OtherEndOfProgram":  {ran(1, "ModuleNotFoundError: No module named 'yaml'\nValueError: 1\n"), command, farm.NetworkPackages, ""},
		"ProgramAutoInstall": {ran(1, "ModuleNotFoundError: No module named 'yaml'\n"), &farm.Request{Command: &farm.CommandRequest{AutoInstall: true}}, farm.NetworkPackages, ""},
		"File":               {&farm.Result{File: &farm.FileResult{}}, &farm.Request{}, farm.NetworkPackages, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			note := moduleNote(test.result, test.request, &farm.SandboxSpec{Network: test.network})
			if (note != "") != (test.want != "") || !strings.Contains(note, test.want) {
				t.Errorf("note %q, want one with %q", note, test.want)
			}
		})
	}
}

func TestResultSaysWhereAMissingProgramComesFrom(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code   int
		stderr string
		want   string // in the note; empty: there is none
	}{
		"Npm":           {127, "/bin/bash: line 1: npm: command not found\n", "This image has no npm: create a sandbox with the image node."},
		"Node":          {127, "sh: 1: node: not found\n", "This image has no node: create a sandbox with the image node."},
		"OtherProgram":  {127, "bash: line 3: jq: command not found\n", "This image has no program jq. Packages of pip and npm can be installed."},
		"CaughtProgram": {0, "bash: line 1: jq: command not found\n", ""},
		"OtherExit127":  {127, "jq: error\n", ""},
		"Package":       {1, "Error: Cannot find module 'left-pad'\nRequire stack:\n- /workspace/a.js\n", "The package left-pad is not installed: install it (packages, manager npm)."},
		"ScopedPackage": {1, "Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@types/node' imported from /workspace/a.mjs\n", "The package @types/node is not installed"},
		"OwnFile":       {1, "Error: Cannot find module './left-pad'\n", ""},
		"CaughtPackage": {0, "Error: Cannot find module 'left-pad'\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			note := programNote(&farm.Result{Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{ExitCode: test.code, Stderr: test.stderr}}}})
			if (note != "") != (test.want != "") || !strings.Contains(note, test.want) {
				t.Errorf("note %q, want one with %q", note, test.want)
			}
		})
	}
	if note := programNote(&farm.Result{Execute: &farm.ExecuteResult{}}); note != "" {
		t.Errorf("code has the note %q", note)
	}
}

// TestResultSaysWhatTheSandboxLacks gives what programs print to all hints: each says one thing, or nothing.
func TestResultSaysWhatTheSandboxLacks(t *testing.T) {
	t.Parallel()
	raised := func(name, value string, traceback ...string) *farm.Result {
		return &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1, Error: &farm.CodeError{Name: name, Value: value, Traceback: traceback}}}
	}
	ran := func(code int, stderr string) *farm.Result {
		return &farm.Result{Command: &farm.CommandResult{Commands: []farm.CommandOutcome{{ExitCode: code, Stderr: stderr}}}}
	}
	printed := func(stdout string) *farm.Result { return &farm.Result{Execute: &farm.ExecuteResult{Stdout: stdout}} }
	const disk, pids, root, input = "512 MiB each (disk_mb)", "64 (pids)", "docs/images.md", "Code cannot ask for input here"
	for name, test := range map[string]struct {
		result *farm.Result
		want   string // in the only note; empty: there is none
	}{
		"DiskInCode":       {raised("OSError", "[Errno 28] No space left on device"), disk},
		"DiskOfAFile":      {raised("OSError", "[Errno 28] No space left on device: '/workspace/a'"), disk},
		"DiskInACommand":   {ran(1, "dd: writing to 'b': No space left on device\n"), disk},
		"DiskThatWasFreed": {ran(0, "dd: writing to 'b': No space left on device\n"), ""},
		"Threads":          {raised("RuntimeError", "can't start new thread"), pids},
		"Fork":             {raised("BlockingIOError", "[Errno 11] Resource temporarily unavailable", `File "/usr/lib/python3.13/subprocess.py", line 1, in _execute_child`), pids},
		"NoFork":           {raised("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "sock.recv(1)"), ""},
		"Shell":            {ran(254, "bash: fork: retry: Resource temporarily unavailable\nbash: fork: Interrupted system call\n"), pids},
		"ShellThatWent":    {ran(0, "bash: fork: retry: Resource temporarily unavailable\n"), ""},
		"Apt":              {ran(100, "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\n"), root},
		"AptUpdate":        {ran(100, "Error: List directory /var/lib/apt/lists/partial is missing. - Acquire (30: Read-only file system)\n"), root},
		"Sudo":             {ran(127, "bash: line 1: sudo: command not found\n"), root},
		"SudoInSh":         {ran(127, "sh: 1: sudo: not found\n"), root},
		"SudoInCode":       {raised("FileNotFoundError", "[Errno 2] No such file or directory: 'sudo'"), root},
		"AptInACell":       {printed("E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\r\n"), root},
		"Dpkg":             {ran(2, "dpkg: error: requested operation requires superuser privilege\n"), root},
		"OtherCommand":     {ran(127, "bash: line 1: pseudo: command not found\n"), "no program pseudo"},
		"Input":            {raised("StdinNotImplementedError", "raw_input was called"), input},
		"InputInACommand":  {ran(1, "Traceback (most recent call last):\n  File \"a.py\"\nEOFError: EOF when reading a line\n"), input},
		"OtherError":       {raised("ValueError", "no"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := &farm.Request{Execute: &farm.ExecuteRequest{}}
			if test.result.Command != nil {
				request = &farm.Request{Command: &farm.CommandRequest{}}
			}
			notes := hints(test.result, request, &farm.SandboxSpec{Network: farm.NetworkPackages, Resources: farm.Resources{DiskMB: 512, PIDs: 64}}, false)
			if len(notes) > 1 || (len(notes) == 1) != (test.want != "") || len(notes) == 1 && !strings.Contains(notes[0], test.want) {
				t.Errorf("notes %q, want one with %q", notes, test.want)
			}
		})
	}
}

func TestRunAddsTheNoteOfAMissingModule(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 0, 0)
	got, err := k.work(k.command(`echo "ModuleNotFoundError: No module named 'yaml'" >&2; exit 1`), &fault{at: -1})
	workertest.Must(t, err)
	if notes := got.Result.Notes; len(notes) != 1 || !strings.Contains(notes[0], "The module yaml is not installed") {
		t.Errorf("notes %q", notes)
	}
}

func TestResultSaysThatCodeCannotAskForInput(t *testing.T) {
	t.Parallel()
	raised := func(name string) *farm.Result {
		return &farm.Result{Execute: &farm.ExecuteResult{ExitCode: 1, Error: &farm.CodeError{Name: name, Value: "raw_input was called"}}}
	}
	code := &farm.Request{Execute: &farm.ExecuteRequest{}}
	for name, test := range map[string]struct {
		result  *farm.Result
		request *farm.Request
		note    bool
	}{
		"Input":      {raised("StdinNotImplementedError"), code, true},
		"OtherError": {raised("EOFError"), code, false},
		"NoError":    {&farm.Result{Execute: &farm.ExecuteResult{}}, code, false},
		"Notebook":   {raised("StdinNotImplementedError"), &farm.Request{Execute: &farm.ExecuteRequest{Cell: &farm.Cell{}}}, false},
		"Command":    {&farm.Result{Command: &farm.CommandResult{}}, &farm.Request{Command: &farm.CommandRequest{}}, false},
	} {
		if note := inputNote(test.result, test.request); strings.Contains(note, "Code cannot ask for input") != test.note || !test.note && note != "" {
			t.Errorf("%s: note %q, want one: %v", name, note, test.note)
		}
	}
}
