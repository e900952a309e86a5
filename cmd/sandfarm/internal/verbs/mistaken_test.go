package verbs_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	someSandbox = "sbx_w1ardznkkf97y37snn6jgwddv0"
	someJob     = "job_4evn6km1wqjww62mtkteqvkxar"
	someProcess = "prc_4evn6km1wqjww62mtkteqvkxar"
)

func TestIDsOfAnotherKindNameTheCommandThatTakesThem(t *testing.T) {
	t.Parallel()
	const job, sandbox = `sandfarm: "sandfarm job events ` + someJob + `" follows this job, and `, `sandfarm: "sandfarm sandbox get ` + someSandbox + `" shows this sandbox, and `
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"Sandbox":        {[]string{"sandbox", "get", someJob}, verbs.ExitError, job},
		"Flag":           {[]string{"run", "-", "--sandbox", someJob}, verbs.ExitError, job},
		"Process":        {[]string{"attach", someSandbox, someJob}, verbs.ExitError, job},
		"AttachToAJob":   {[]string{"attach", someJob}, verbs.ExitUsage, job},
		"Job":            {[]string{"job", "get", someSandbox}, verbs.ExitError, sandbox},
		"SandboxIsRight": {[]string{"sandbox", "get", someSandbox}, verbs.ExitError, ""},
		"ProcessIsNoJob": {[]string{"job", "cancel", someProcess}, verbs.ExitError, `sandfarm: "sandfarm attach SANDBOX ` + someProcess + `" shows this process, and "sandfarm kill SANDBOX ` + someProcess},
		"KillOfAJob":     {[]string{"kill", someJob}, verbs.ExitUsage, `sandfarm: "sandfarm job cancel ` + someJob + `" ends this job.`},
		"NoSandbox":      {[]string{"kill", someProcess}, verbs.ExitUsage, ""},
		"ProcessIsRight": {[]string{"kill", someSandbox, someProcess}, verbs.ExitError, ""},
		"JobIsRight":     {[]string{"job", "get", someJob}, verbs.ExitError, ""},
		"OfNoID":         {[]string{"files", "get", someSandbox, "job_notes.txt"}, verbs.ExitError, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Script = prints("", wire.ExecuteResult{})
			missing := f.gives(http.StatusNotFound, wire.Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "There is no such thing."})
			f.Routes["GET /v1/sandboxes/"] = missing
			f.Routes["POST /v1/sandboxes/"+someJob+"/execute"] = missing
			f.Routes["GET /v1/jobs/"+someJob], f.Routes["GET /v1/jobs/"+someSandbox] = missing, missing
			f.Routes["DELETE /v1/jobs/"+someProcess], f.Routes["DELETE /v1/sandboxes/"] = missing, missing
			got := f.sandfarm(t.Context(), "1", test.args...)
			lines := strings.SplitAfter(got.stderr, "\n")
			if got.code != test.code || !strings.HasPrefix(lines[1], test.want) || (lines[1] == "") != (test.want == "") {
				t.Errorf("%+v, want exit code %d and a second line %q", got, test.code, test.want)
			}
		})
	}
}

func TestNamesOfOtherProgramsGetASuggestion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want string
		args []string
	}{
		{`"sandbox close"`, []string{"close", someSandbox}},
		{`"sandbox close ` + someSandbox + `"`, []string{someSandbox, "close"}},
		{`"close ` + someSandbox + `"`, []string{"sandbox", someSandbox, "close"}},
		{`"cancel ` + someJob + `"`, []string{"job", someJob, "stop"}},
		{`"attach" or "job events"`, []string{"logs", someSandbox}},
		{`"packages install"`, []string{"install", someSandbox, "numpy"}},
		{`"install"`, []string{"packages", "instal", someSandbox, "numpy"}},
		{`"sandfarm exec ID 'pip uninstall -y NAME'"`, []string{"packages", "uninstall", someSandbox, "numpy"}},
		{`"sandbox ls"`, []string{"ls"}},
		{`"kill"`, []string{"signal", someSandbox}},
		{`"ssh"`, []string{"shell", someSandbox}},
		{`"sandbox close"`, []string{"rm", someSandbox}},
		{`"files rm" or "sandbox close"`, []string{"rm", "a.txt"}},
		{`"job cancel"`, []string{"stop", someJob}},
		{`"--version"`, []string{"version"}},
		{`"cp"`, []string{"upload", "a"}},
		{`"top"`, []string{"status"}},
		{`"cat"`, []string{"files", "read", someSandbox, "a"}},
		{`"--timeout"`, []string{"run", "a.py", "--timeoot", "1m"}},
		{`"run"`, []string{"runn"}},
		{`"exec"`, []string{"exce"}},
		{`"job"`, []string{"jbo"}},
		{`"worker ls" or "workers"`, []string{"nodes"}},
		{`"kill"`, []string{"kil", someSandbox}},
		{`"keep"`, []string{"sandbox", "extend", someSandbox}},
		{`"create"`, []string{"sandbox", "craete"}},
		{`"key create" or "sandbox create"`, []string{"create"}},
		{`"get"`, []string{"artifact", "download", "art_1"}},
		{`"put"`, []string{"files", "upload", someSandbox, "a"}},
		{`"get"`, []string{"files", "download", someSandbox, "a"}},
		{`"put"`, []string{"files", "write", someSandbox, "a"}},
		{`"status"`, []string{"packages", "get", someSandbox, "numpy"}},
		{`"hibernate"`, []string{"sandbox", "pause", someSandbox}},
		{`"cancel"`, []string{"job", "kill", someJob}},
		{`"get"`, []string{"job", "status", someJob}},
		{`"revoke"`, []string{"key", "delete", "key_1"}},
		{`"ls"`, []string{"key", "show", "key_1"}},
		{`"set"`, []string{"tenant", "create", "a"}},
		{`"show"`, []string{"tenant", "get", "a"}},
		{`"sandfarm key revoke"`, []string{"tenant", "rm", "a"}}, // a tenant is what its keys name
		{`"create"`, []string{"sandbox", "new"}},
		{`"get"`, []string{"sandbox", "show", someSandbox}},
		{`"sandfarm run"`, []string{"sandbox", "run", "a.py"}},
		{`"sandfarm attach" or "sandfarm job events"`, []string{"sandbox", "logs", someSandbox}},
		{`"sandfarm ssh"`, []string{"sandbox", "ssh", someSandbox}},
		{`"--key"`, []string{"login"}},
		{`"top"`, []string{"info"}},
		{`"run"`, []string{"python", "a.py"}},
		{`"tenant set" or "usage"`, []string{"quota"}},
	} {
		want, args := test.want, test.args
		got := newFarm(t).sandfarm(t.Context(), "", args...)
		if got.code != verbs.ExitUsage || !strings.Contains(got.stderr, `did you mean `+want+`? See "`) {
			t.Errorf("%q: %+v, want %s offered", args, got, want)
		}
	}
}

// An unknown command is an error whatever follows it: --help, flags that no command here has, or with the word help before it.
func TestUnknownCommandsAreErrorsWithEveryFlag(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"backup --help":            `unknown command "backup" for "sandfarm". See "sandfarm --help"`,
		"--help backup":            `unknown command "backup" for "sandfarm". See "sandfarm --help"`,
		"help backup":              `unknown command "backup" for "sandfarm". See "sandfarm --help"`,
		"runn -h":                  `unknown command "runn" for "sandfarm"; did you mean "run"? See "sandfarm --help"`,
		"help runn":                `unknown command "runn" for "sandfarm"; did you mean "run"? See "sandfarm --help"`,
		"sandbox craete --help":    `unknown command "craete" for "sandfarm sandbox"; did you mean "create"? See "sandfarm sandbox --help"`,
		"help sandbox craete":      `unknown command "craete" for "sandfarm sandbox"; did you mean "create"? See "sandfarm sandbox --help"`,
		"sandbox craete --ttl 30m": `unknown command "craete" for "sandfarm sandbox"; did you mean "create"? See "sandfarm sandbox --help"`,
		"files " + someSandbox:     `unknown command "` + someSandbox + `" for "sandfarm files"; did you mean "ls ` + someSandbox + `"? See "sandfarm files --help"`,
		"job " + someJob:           `unknown command "` + someJob + `" for "sandfarm job"; did you mean "get ` + someJob + `"? See "sandfarm job --help"`,
		"completion ba --help":     `unknown command "ba" for "sandfarm completion"; did you mean "bash"? See "sandfarm completion --help"`,
	} {
		if got := newFarm(t).sandfarm(t.Context(), "", strings.Fields(text)...); got != (outputs{verbs.ExitUsage, "", "sandfarm: " + want + "\n"}) {
			t.Errorf("%s: %+v, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{"help": "\n  sandfarm [command]\n", "--help": "\n  sandfarm [command]\n", "help sandbox create": "\n  sandfarm sandbox create [flags]\n", "exec sbx_1 --help": "\n  sandfarm exec ID"} {
		if got := newFarm(t).sandfarm(t.Context(), "", strings.Fields(text)...); got.code != 0 || !strings.Contains(got.out, want) || got.stderr != "" {
			t.Errorf("%s: %+v, want the help", text, got)
		}
	}
	want := fmt.Sprintf("create\tCreate a sandbox and print its id\n:%d\n", cobra.ShellCompDirectiveNoFileComp)
	if got := newFarm(t).sandfarm(t.Context(), "", cobra.ShellCompRequestCmd, "help", "sandbox", "cr"); got.out != want {
		t.Errorf("completes %q, want %q", got.out, want)
	}
}

func TestNamesThatAreFarGetNoSuggestion(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"foo", "lst", "sbx", "push", "pull", "perl", "logout"} {
		if got := newFarm(t).sandfarm(t.Context(), "", name); got.code != verbs.ExitUsage || strings.Contains(got.stderr, "did you mean") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestFlagsThatAreMistakesSayWhatToDo(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"'l' in -la; put -- before the command: sandfarm exec sbx_1 -- ls …. See ":      {"exec", "sbx_1", "ls", "-la"},
		`'d' in -d; did you mean "--background"? See `:                                  {"exec", "-d", "sbx_1", "ls"},
		"flag: --colour; put -- before the command: sandfarm exec sbx_1 -- git …. See ": {"exec", "sbx_1", "git", "--colour"},
		"flag: --foo. See ": {"exec", "--foo", "sbx_1", "ls"},
		"'c' in -c; code comes from a file or from stdin: echo 'print(1)' | sandfarm run -":            {"run", "-c", "print(1)"},
		"flag: --code; code comes from a file or from stdin":                                           {"run", "--code", "print(1)"},
		"there is no file print(1) here; code comes from a file or from stdin":                         {"run", "print(1)"},
		"flag: --watch; sync watches both sides until Ctrl-C without it, and --once copies once. See ": {"sync", "--watch", ".", "sbx_1:p"},
		"the local directory comes first: sandfarm sync 'my p' sbx_1:p. See ":                          {"sync", "sbx_1:p", "my p"},
		"'r' in -rf; directories are removed without it. See ":                                         {"files", "rm", "sbx_1", "-rf", "sub"},
		"flag: --recursive; directories are removed without it. See ":                                  {"files", "rm", "--recursive", "sbx_1", "sub"},
		"ID is missing before the command: sandfarm exec ID -- ls -la 'a b'. See ":                     {"exec", "--", "ls", "-la", "a b"},
		"the sandbox's ID is missing: sandfarm kill ID prc_1. See ":                                    {"kill", "prc_1"},
		"the sandbox's ID is missing: sandfarm attach ID prc_1. See ":                                  {"attach", "prc_1"},
		`the process's ID is missing: "sandfarm ps sbx_1" lists those of the sandbox. See `:            {"attach", "sbx_1"},
		`sandfarm: --cpus "two" is not a number. See `:                                                 {"sandbox", "create", "--cpus", "two"},
		`sandfarm: --limit "x" is not a number. See `:                                                  {"job", "ls", "--limit", "x"},
	} {
		if got := newFarm(t).sandfarm(t.Context(), "", args...); got.code != verbs.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: %+v, want %q", args, got, want)
		}
	}
}

func TestWhatIsNoIDSaysWhereIDsAre(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	missing := f.gives(http.StatusNotFound, wire.Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "There is no such thing."})
	f.Routes["GET /v1/artifacts/{id}"], f.Routes["DELETE /v1/artifacts/{id}"] = missing, missing
	unknown := f.gives(http.StatusNotFound, wire.Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "There is no sandbox \"nope\"."})
	f.Routes["GET /v1/sandboxes/nope"], f.Routes["GET /v1/sandboxes/sbx_9"], f.Routes["GET /v1/jobs/nope"] = unknown, unknown, missing
	for _, id := range []string{"ls", "sbx_9", "me"} {
		f.Routes["POST /v1/sandboxes/"+id+"/commands"] = missing
	}
	f.Routes["GET /v1/sandboxes"] = f.gives(http.StatusOK, wire.List[wire.Sandbox]{Items: []wire.Sandbox{{ID: "sbx_1", Name: "me"}, {ID: "sbx_2", Name: "me"}, {ID: "sbx_3"}}})
	const list, first = "\"sandfarm artifact ls\" lists the IDs of artifacts with their names.\n", "\"sandfarm exec ID COMMAND\" has the sandbox's ID first; \"sandfarm sandbox ls\" lists the IDs.\n"
	for args, want := range map[string]string{
		"artifact get rain.csv": list, "artifact rm rain.csv": list, "artifact get art_1": "such thing.\n",
		"sandbox get nope": "\"nope\".\nsandfarm: \"sandfarm sandbox ls\" lists the IDs of open sandboxes with their names.\n", "sandbox get sbx_9": "\"nope\".\n",
		"job get nope": "such thing.\n", "exec ls -- -la": first, "exec sbx_9 ls": "such thing.\n", "exec me ls": "me is the name of sbx_1 and sbx_2: use an id.\n",
	} {
		if got := f.sandfarm(t.Context(), "", strings.Fields(args)...); got.code != verbs.ExitError || !strings.HasSuffix(got.stderr, want) {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
}

func TestNamesOfSandboxesNameTheID(t *testing.T) {
	t.Parallel()
	const said = "demo is the name of sbx_2: "
	for name, test := range map[string]struct {
		args []string
		want string // behind said; empty: nothing is said
	}{
		"Exec":      {[]string{"exec", "demo", "echo a"}, "sandfarm exec sbx_2 'echo a'"},
		"ExecDash":  {[]string{"exec", "demo", "--", "ls", "-la", "demo"}, "sandfarm exec sbx_2 -- ls -la demo"},
		"ExecFlag":  {[]string{"exec", "demo", "-e", "KEY=secret", "ls"}, "use its id."},
		"SSH":       {[]string{"ssh", "demo"}, "sandfarm ssh sbx_2"},
		"Forward":   {[]string{"port-forward", "demo", "0:80"}, "sandfarm port-forward sbx_2 0:80"},
		"Jobs":      {[]string{"job", "ls", "-s", "demo"}, "use its id."},
		"Artifacts": {[]string{"artifact", "ls", "-s", "demo"}, "use its id."},
		"Flag":      {[]string{"run", "-", "--sandbox", "demo"}, "use its id."},
		"CpIn":      {[]string{"cp", "a", "demo:b"}, "sandfarm cp a sbx_2:b"},
		"CpOut":     {[]string{"cp", "demo:b", "a"}, "sandfarm cp sbx_2:b a"},
		"Sync":      {[]string{"sync", ".", "demo:b"}, "sandfarm sync . sbx_2:b"},
		"OtherName": {[]string{"exec", "dem", "ls"}, ""},
		"ID":        {[]string{"exec", "sbx_1", "ls"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Routes["GET /v1/sandboxes"] = f.gives(http.StatusOK, wire.List[wire.Sandbox]{Items: []wire.Sandbox{{ID: "sbx_1"}, {ID: "sbx_2", Name: "demo"}}})
			f.Routes["POST /v1/sandboxes/"] = f.gives(http.StatusNotFound, wire.Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "There is no such sandbox."})
			f.Routes["GET /v1/sandboxes/demo"] = f.Routes["POST /v1/sandboxes/"]
			for _, id := range []string{"demo", "dem", "sbx_1"} {
				f.Routes["POST /v1/sandboxes/"+id+"/commands"] = f.Routes["POST /v1/sandboxes/"]
				f.Routes["POST /v1/sandboxes/"+id+"/execute"] = f.Routes["POST /v1/sandboxes/"]
			}
			got := f.sandfarm(t.Context(), "1", test.args...)
			if test.want == "" && strings.Contains(got.stderr, said) || test.want != "" && !strings.HasSuffix(got.stderr, said+test.want+"\n") || got.code == 0 {
				t.Errorf("%+v, want it to end with %q", got, test.want)
			}
		})
	}
}

// Its listeners would take connections that can never be carried on.
func TestPortForwardOfAnEndedSandbox(t *testing.T) {
	t.Parallel()
	for _, state := range farm.SandboxStates() {
		if state.Accepts() {
			continue
		}
		f := newFarm(t)
		f.Routes["GET /v1/sandboxes/sbx_1"] = f.gives(http.StatusOK, wire.Sandbox{ID: "sbx_1", State: string(state), Reason: "It was idle."})
		got := f.sandfarm(t.Context(), "", "port-forward", "sbx_1", "0:80")
		if got.code != verbs.ExitError || !strings.HasPrefix(got.stderr, "sandfarm: Sandbox sbx_1 is "+string(state)+" and accepts no more work.") {
			t.Errorf("%s: %+v", state, got)
		}
	}
}

func TestPSShowsProcessesAndJobs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes/sbx_1/processes"] = f.gives(http.StatusOK, wire.Items[wire.Process]{Items: []wire.Process{{ID: "prc_1", PID: 31, Name: "web", State: "running", Command: "serve"}}})
	f.Routes["GET /v1/jobs"] = f.gives(http.StatusOK, wire.List[wire.Job]{Items: []wire.Job{
		{ID: "job_2", Kind: "install", State: "queued", Request: &wire.JobSpec{Packages: []string{"numpy", "pandas"}}},
		{ID: "job_1", Kind: "command", State: "running", Request: &wire.JobSpec{Commands: []string{"sleep 9"}}},
		{ID: "job_0", Kind: "restart", State: "queued"},
	}})
	got := f.sandfarm(t.Context(), "", "ps", "sbx_1")
	want := `ID     PID  NAME     STATE    STARTED  COMMAND
prc_1  31   web      running  -        serve
job_0  -    restart  queued   -        -
job_1  -    command  running  -        sleep 9
job_2  -    install  queued   -        numpy pandas
`
	if got != (outputs{0, want, ""}) || f.asked()[1] != "GET /v1/jobs?limit=200&sandbox_id=sbx_1&state=queued%2Crunning" {
		t.Errorf("%+v asked %q", got, f.asked())
	}
}

// TestPSPointsToWhatJobsLeftRunning: an empty list looked as if nothing ran, while the processes of a fork bomb did. The pid is in the same column of both.
func TestPSPointsToWhatJobsLeftRunning(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes/sbx_1/processes"] = func(w http.ResponseWriter, r *http.Request) {
		list := wire.Processes{Items: []wire.Process{}}
		if r.URL.Query().Get("all") != "" {
			list.Running = []wire.RunningProcess{{PID: 31, Parent: 1, Owner: "kernel", Command: "bash"}}
		}
		f.answer(w, http.StatusOK, list)
	}
	f.Routes["GET /v1/jobs"] = f.gives(http.StatusOK, wire.List[wire.Job]{})
	got := f.sandfarm(t.Context(), "", "ps", "sbx_1")
	want := outputs{0, "ID  PID  NAME  STATE  STARTED  COMMAND\n", "sandfarm: no process was started beside its jobs, and no job is open; --all shows what they left running\n"}
	testbed.Diff(t, "empty", want, got, cmp.AllowUnexported(outputs{}))
	got = f.sandfarm(t.Context(), "", "ps", "sbx_1", "--all")
	want = outputs{0, "OWNER   PID  PARENT  CPU    MEMORY  STARTED  COMMAND\nkernel  31   1       0.00s  0 B     -        bash\n", ""}
	testbed.Diff(t, "all", want, got, cmp.AllowUnexported(outputs{}))
}

func TestRmSaysWhatWasRemoved(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes/sbx_1/fs"] = func(w http.ResponseWriter, r *http.Request) {
		entry := wire.FSEntry{Path: client.Absolute(r.URL.Query().Get("path")), Type: "file"}
		if strings.HasSuffix(entry.Path, "d") {
			entry.Type = "dir"
		}
		f.answer(w, http.StatusOK, wire.FSListing{Items: []wire.FSEntry{entry}})
	}
	f.Routes["DELETE /v1/sandboxes/sbx_1/files/{name}"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	want := outputs{0, "", "removed a\nremoved the directory d with all that was in it\n"}
	if got := f.sandfarm(t.Context(), "", "files", "rm", "sbx_1", "a", "d"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestCatPrintsFiles(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for _, name := range []string{"a", "b"} {
		f.Routes["GET /v1/sandboxes/sbx_1/files/"+name] = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(name + "\n")) }
	}
	if got := f.sandfarm(t.Context(), "", "files", "cat", "sbx_1", "a", "b"); got != (outputs{0, "a\nb\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestMissingFilesHere(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"Cp": {"cp", "nope", "sbx_1:"}, "Put": {"files", "put", "sbx_1", "nope"}, "Sync": {"sync", "nope", "sbx_1:"}, "Run": {"run", "nope"}, "Send": {"run", "-", "--file", "nope"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := newFarm(t).sandfarm(t.Context(), "1", args...); got.code != verbs.ExitError || !strings.HasSuffix(got.stderr, "there is no file nope here\n") {
				t.Errorf("%+v", got)
			}
		})
	}
}
