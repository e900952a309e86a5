package verbs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// script writes a file to run into a directory of its own.
func script(t *testing.T, code string) (file, dir string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "work.py")
	put(t, file, code)
	return file, dir
}

func put(t *testing.T, name, content string) {
	t.Helper()
	testbed.Must(t, os.WriteFile(name, []byte(content), 0o600))
}

// tree returns the files below a directory with their content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name) //nolint:gosec // a file of the test
		rel, _ := filepath.Rel(dir, name)
		found[rel] = string(content)
		return err
	})
	testbed.Must(t, err)
	return found
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	raised := &wire.CodeError{Name: "ValueError", Value: "no", Traceback: []string{"Traceback (most recent call last)", "ValueError: no"}}
	interrupted := &wire.CodeError{Name: "KeyboardInterrupt", Traceback: []string{"Traceback", "KeyboardInterrupt"}}
	library := "File /usr/lib/python3/dist-packages/requests/api.py:59, in request()\n" + strings.Repeat("x", 2000)
	inLibrary := &wire.CodeError{Name: "E", Value: "no", Traceback: []string{"Cell In[1], line 1", library, "E: no"}}
	tests := map[string]struct {
		state  string
		result *wire.ExecuteResult
		want   int
		stderr string
	}{
		"Success":       {"completed", &wire.ExecuteResult{}, 0, ""},
		"Exit3":         {"completed", &wire.ExecuteResult{ExitCode: 3, Error: &wire.CodeError{Name: "SystemExit", Value: "3", Traceback: []string{"noise"}}}, 3, ""},
		"Exit0":         {"completed", &wire.ExecuteResult{Error: &wire.CodeError{Name: "SystemExit", Value: "0"}}, 0, ""},
		"Exit256IsNot0": {"completed", &wire.ExecuteResult{ExitCode: 256}, 1, ""},
		"Raised":        {"completed", &wire.ExecuteResult{ExitCode: 1, Error: raised}, 1, "Traceback (most recent call last)\nValueError: no\n"},
		"InLibrary": {
			"completed", &wire.ExecuteResult{ExitCode: 1, Error: inLibrary, Notes: []string{"No network."}}, 1,
			"Cell In[1], line 1\nE: no\nnote: The traceback lacks 1 frame of libraries: sandfarm job get job_1 has all.\nnote: No network.\n",
		},
		"Killed":      {"completed", &wire.ExecuteResult{ExitCode: 137, Error: &wire.CodeError{Name: "OutOfMemory", Value: "over 64 MiB"}}, 137, "OutOfMemory: over 64 MiB\n"},
		"OutOfMemory": {"completed", &wire.ExecuteResult{ExitCode: 137, Error: &wire.CodeError{Name: "OutOfMemory", Value: "Use less, or run it with more memory_mb."}}, 137, "OutOfMemory: Use less, or run it with more --memory.\n"},
		"TimedOut":    {"timed_out", &wire.ExecuteResult{ExitCode: 1, Error: interrupted}, 124, "sandfarm: The job is timed_out.\n"},
		"Interrupted": {"completed", &wire.ExecuteResult{ExitCode: 1, Error: interrupted}, 1, "Traceback\nKeyboardInterrupt\n"},
		"FarmFailed":  {"failed", nil, 1, "sandfarm: The job is failed.\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Script = func(func(string, any), <-chan struct{}) (string, *wire.Result) {
				if test.result == nil {
					return test.state, nil
				}
				return test.state, &wire.Result{Execute: test.result}
			}
			got := f.sandfarm(t.Context(), "1", "run", "-", "--no-save")
			testbed.Diff(t, "the run", outputs{test.want, "", test.stderr}, got, cmp.AllowUnexported(outputs{}))
		})
	}
}

// A module beside the code is not there in the sandbox, and a package of its name is somebody else's.
func TestRunKnowsTheModulesBesideTheCode(t *testing.T) {
	t.Parallel()
	file, dir := script(t, "import os, json\nimport sys\nimport helper\n  from mine.part import x\n")
	put(t, filepath.Join(dir, "helper.py"), "")
	put(t, filepath.Join(dir, "sys.py"), "") // which can never be imported
	testbed.Must(t, os.Mkdir(filepath.Join(dir, "mine"), 0o750))
	put(t, filepath.Join(dir, "mine", "__init__.py"), "")
	helper, mine := filepath.Join(dir, "helper.py"), filepath.Join(dir, "mine", "__init__.py")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, "which is not sent: --file " + helper + " --file " + mine + ":mine/ sends it\n"},
		{[]string{"--file", helper}, 0, "which is not sent: --file " + mine + ":mine/ sends it\n"},
		{[]string{"--file", helper, "--file", mine + ":mine/"}, 0, ""},
		{[]string{"--auto-install"}, 2, "--auto-install would look for a package of that name. Send it along: --file " + helper},
		{[]string{"--auto-install", "--file", helper, "--file", mine + ":mine/"}, 0, ""},
		{[]string{"--sandbox", "sbx_1"}, 0, ""},
	} {
		f := newFarm(t)
		f.Routes["HEAD /v1/sandboxes/sbx_1/files/work.py"] = f.created
		f.Script = func(func(string, any), <-chan struct{}) (string, *wire.Result) {
			return "completed", &wire.Result{Execute: &wire.ExecuteResult{}}
		}
		got := f.sandfarm(t.Context(), "", append([]string{"run", file, "--no-save"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.stderr, c.want) || c.want == "" && got.stderr != "" {
			t.Errorf("%q: %+v, want %d, %q", c.args, got, c.code, c.want)
		}
	}
	note := filepath.Join(dir, "n.ipynb")
	put(t, note, "{}")
	if got := newFarm(t).sandfarm(t.Context(), "", "run", note); got.code != 2 || !strings.Contains(got.stderr, "is a notebook") {
		t.Errorf("a notebook: %+v", got)
	}
}

// What the code lacks in the sandbox and this machine has is told once, and the farm's note on what it may be does not apply.
func TestRunSaysHowWhatTheCodeLacksIsSent(t *testing.T) {
	t.Parallel()
	file, dir := script(t, "import helper\n")
	helper, data, deep := filepath.Join(dir, "helper.py"), filepath.Join(dir, "data.csv"), filepath.Join(dir, "in")
	put(t, helper, "")
	put(t, data, "")
	testbed.Must(t, os.Mkdir(deep, 0o750))
	put(t, filepath.Join(deep, "data.csv"), "")
	put(t, filepath.Join(dir, ".env"), "")
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, ".aws", "in"), 0o750))
	put(t, filepath.Join(dir, ".aws", "in", "key.csv"), "")
	const module, noFile = "The module helper is not installed: install it.", "The workspace has no file data.csv. Send it."
	for _, c := range []struct {
		error, value, note string
		args               []string
		want               string
	}{
		{"ModuleNotFoundError", "No module named 'helper'", module, nil, "sandfarm: " + file + " imports " + helper + ", beside it here, which is not sent: --file " + helper + " sends it\nT\nnote: other\n"},
		{"ModuleNotFoundError", "No module named 'helper'", module, []string{"--sandbox", "sbx_1"}, "T\nnote: other\nnote: " + helper + " is on this machine and not in the sandbox: --file " + helper + " sends it\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: 'data.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: other\nnote: " + data + " is on this machine and not in the sandbox: --file " + data + " sends it\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '/workspace/in/data.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: other\nnote: " + filepath.Join(deep, "data.csv") + " is on this machine and not in the sandbox: --file " + filepath.Join(deep, "data.csv") + ":in/ sends it\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: 'in'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: other\nnote: the folder " + deep + " is on this machine and not in the sandbox: copy it into one (sandfarm cp -r " + deep + " ID:) and run the code there (--sandbox ID)\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: 'other.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '.env'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: './.env'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: 'in/../.env'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '.aws/in/key.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '.aws'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '/workspace/.env'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: './data.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: other\nnote: " + data + " is on this machine and not in the sandbox: --file " + data + " sends it\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '../data.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
		{"FileNotFoundError", "[Errno 2] No such file or directory: '/etc/data.csv'", noFile, []string{"--sandbox", "sbx_1"}, "T\nnote: " + noFile + "\nnote: other\n"},
	} {
		f := newFarm(t)
		f.Routes["HEAD /v1/sandboxes/sbx_1/files/work.py"] = f.created
		f.Script = func(func(string, any), <-chan struct{}) (string, *wire.Result) {
			return "completed", &wire.Result{Execute: &wire.ExecuteResult{ExitCode: 1, Error: &wire.CodeError{Name: c.error, Value: c.value, Traceback: []string{"T"}}, Notes: []string{c.note, "other"}}}
		}
		if got := f.sandfarm(t.Context(), "", append([]string{"run", file, "--no-save"}, c.args...)...); got.code != 1 || got.stderr != c.want {
			t.Errorf("%s %q: %+v, want %q", c.value, c.args, got, c.want)
		}
	}
}

// TestInputThatIsNotReadIsSaid: what was piped into a run or a command was dropped without a word. Nothing waits for input, and nothing reads it.
func TestInputThatIsNotReadIsSaid(t *testing.T) {
	t.Parallel()
	const run, exec = "note: the input was not read: code gets none; --file sends a file along\n", "note: the input was not read: sandfarm exec -i passes it on to the command\n"
	reads, _ := script(t, "import sys\nprint(sys.stdin.read())")
	plain, _ := script(t, "print(1)")
	pipe := func(text string, open bool) *os.File {
		r, w, err := os.Pipe()
		testbed.Must(t, err)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		_, err = w.WriteString(text)
		testbed.Must(t, err)
		if !open {
			testbed.Must(t, w.Close())
		}
		return r
	}
	file := func(text string, read int64) *os.File {
		name := filepath.Join(t.TempDir(), "in")
		put(t, name, text)
		f, err := os.Open(name) //nolint:gosec // a file of the test
		testbed.Must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.Seek(read, io.SeekStart)
		testbed.Must(t, err)
		return f
	}
	null, err := os.Open(os.DevNull)
	testbed.Must(t, err)
	defer null.Close()
	for name, test := range map[string]struct {
		in   *os.File
		args []string
		want string
	}{
		"Pipe":         {pipe("a\n", false), []string{"run", reads, "--no-save"}, run},
		"PipeOpen":     {pipe("a\n", true), []string{"run", reads, "--no-save"}, run},
		"PipeEmpty":    {pipe("", false), []string{"run", reads, "--no-save"}, ""},
		"PipeWaits":    {pipe("", true), []string{"run", reads, "--no-save"}, ""},
		"File":         {file("a\n", 0), []string{"run", reads, "--no-save"}, run},
		"FileEmpty":    {file("", 0), []string{"run", reads, "--no-save"}, ""},
		"FileOfALoop":  {file("a\nb\n", 2), []string{"exec", "sbx_1", "ls"}, ""},
		"Null":         {null, []string{"exec", "sbx_1", "ls"}, ""},
		"CodeAsksNone": {pipe("a\n", false), []string{"run", plain, "--no-save"}, ""},
		"CodeIsInput":  {pipe("print(1) # stdin", false), []string{"run", "-", "--no-save"}, ""},
		"Exec":         {pipe("a\n", true), []string{"exec", "sbx_1", "wc"}, exec},
		"ExecWaits":    {pipe("", true), []string{"exec", "sbx_1", "wc"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm(t)
			f.Script = prints("", wire.ExecuteResult{})
			var out, stderr testbed.Log
			code := program(t.Context(), test.in, &out, &stderr, map[string]string{"SANDFARM_URL": f.URL}, test.args...)
			testbed.Diff(t, "stderr", outputs{0, "", test.want}, outputs{code, out.String(), stderr.String()}, cmp.AllowUnexported(outputs{}))
		})
	}
}

func TestRunSaysHowElseCodeRuns(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	refused := f.gives(http.StatusUnprocessableEntity, wire.Problem{Code: "invalid", Detail: "no such language", Errors: []wire.FieldError{{Pointer: "/language"}}})
	f.Routes["POST 127.0.0.1/v1/run"], f.Routes["POST /v1/sandboxes/sbx_1/execute"] = refused, refused // with the host the first one is before that of newFarm
	file := filepath.Join(t.TempDir(), "x.js")
	put(t, file, "1")
	dir := filepath.Dir(file)
	for want, args := range map[string][]string{
		"with Node: echo 'node x.js' | sandfarm run --lang bash --image node --file " + file + " -\n":               {"run", file},
		"with Node: save it as a.js, then echo 'node a.js' | sandfarm run --lang bash --image node --file a.js -\n": {"run", "-", "--lang", "javascript"},
		"has Node: sandfarm cp " + file + " sbx_1: && sandfarm exec sbx_1 'node x.js'\n":                            {"run", file, "-s", "sbx_1"},
		"has Node: save it as a.js, then sandfarm cp a.js sbx_1: && sandfarm exec sbx_1 'node a.js'\n":              {"run", "-", "-s", "sbx_1", "--lang", "javascript"},
		"no such language.\n": {"run", "-", "-s", "sbx_1", "--lang", "perl"},
		"--file " + dir + " is a directory: copy it into a sandbox (sandfarm cp -r " + dir + " ID:) and run the code there (--sandbox ID). See \"sandfarm run --help\"\n":                     {"run", "-", "-f", dir + ":in"},
		"code gets no arguments, such as \"a\": pass values with -e NAME=VALUE, or copy plot.py into a sandbox (sandfarm cp) and run it there (sandfarm exec). See \"sandfarm run --help\"\n": {"run", "plot.py", "a", "b"},
	} {
		if got := f.sandfarm(t.Context(), "1", args...); !strings.HasSuffix(got.stderr, want) {
			t.Errorf("%q: %+v, want %q", args, got, want)
		}
	}
}

// TestRunOfARubyFileIsNotPython: the farm refuses a language that the image does not run, and names those that it does.
func TestRunOfARubyFileIsNotPython(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["POST /v1/sandboxes/sbx_1/execute"] = func(w http.ResponseWriter, r *http.Request) {
		var sent wire.ExecuteRequest
		testbed.Must(t, json.NewDecoder(r.Body).Decode(&sent))
		f.answer(w, http.StatusUnprocessableEntity, wire.Problem{Code: "invalid", Detail: fmt.Sprintf("image python does not run the language %q; it runs python, bash", *sent.Language), Errors: []wire.FieldError{{Pointer: "/language"}}})
	}
	file := filepath.Join(t.TempDir(), "x.RB")
	put(t, file, "puts 1")
	want := "sandfarm: image python does not run the language \"ruby\"; it runs python, bash.\n" +
		"sandfarm: That is the language by the name of " + file + " or its first line; --lang names another one.\n"
	if got := f.sandfarm(t.Context(), "", "run", file, "-s", "sbx_1"); got.code != 1 || got.stderr != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestRunPrintsOutputAsItAppears(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	seen := make(chan struct{})
	f.Script = func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
		send("stdout", wire.TextData{Text: "early\n"})
		<-seen // the job continues only once its first output is on the user's screen
		send("stderr", wire.TextData{Text: "oops\n"})
		send("display", wire.DisplayData{Mime: "text/html", Data: "<b>42</b>"})
		send("display", wire.DisplayData{Mime: "text/plain", Data: "<Figure size 640x480 with 1 Axes>"})
		send("display", wire.DisplayData{Mime: "text/plain", Data: "42"})
		return "completed", &wire.Result{Execute: &wire.ExecuteResult{}}
	}
	r, w := io.Pipe()
	var stderr testbed.Log
	code := make(chan int, 1)
	go func() {
		code <- program(t.Context(), strings.NewReader("1"), w, &stderr, map[string]string{"SANDFARM_URL": f.URL}, "run", "-", "--no-save")
		_ = w.Close()
	}()
	first := make([]byte, len("early\n"))
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "early\n" {
		t.Fatalf("first output %q, %v", first, err)
	}
	close(seen)
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "42\n" || stderr.String() != "oops\n" || <-code != 0 {
		t.Errorf("rest %q, stderr %q, %v", rest, stderr.String(), err)
	}
}

func TestRunPrintsOutputTooLongForEvents(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	whole := f.artifact(".output/stdout.txt", "first part, and the rest of it\n")
	f.Script = prints("first part", wire.ExecuteResult{
		Stdout: "first …", Truncated: wire.Truncated{Stdout: true},
		Artifacts: []wire.Artifact{f.artifact("out/.output/stdout.txt", "another"), whole},
	})
	file, dir := script(t, "1")
	got := f.sandfarm(t.Context(), "", "run", file)
	if got.code != 0 || got.out != "first part, and the rest of it\n" {
		t.Errorf("%+v", got)
	}
	if _, saved := tree(t, dir)[".output/stdout.txt"]; saved {
		t.Error("the whole output was saved as a file of the code")
	}
}

func TestRunCancelsTheJobOnInterrupt(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f.Script = func(send func(string, any), canceled <-chan struct{}) (string, *wire.Result) {
		send("stdout", wire.TextData{Text: "begun\n"})
		interrupt()
		select {
		case <-canceled:
		case <-time.After(20 * time.Second):
			t.Error("the job was not canceled")
		}
		send("stdout", wire.TextData{Text: "last words\n"})
		return "canceled", &wire.Result{Execute: &wire.ExecuteResult{}}
	}
	got := f.sandfarm(ctx, "1", "run", "-", "--no-save")
	if got.code != 130 || got.out != "begun\nlast words\n" || !strings.Contains(got.stderr, "canceling") {
		t.Errorf("%+v", got)
	}
}

// Ctrl-C left a sandbox that its maker did not know of.
func TestCreateIsCanceledOnInterrupt(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	ctx, interrupt := context.WithCancel(t.Context())
	f.Script = func(send func(string, any), canceled <-chan struct{}) (string, *wire.Result) {
		send("progress", wire.ProgressData{Message: "installing six"})
		interrupt()
		<-canceled
		return "canceled", nil
	}
	f.Routes["POST /v1/sandboxes"] = func(w http.ResponseWriter, r *http.Request) {
		f.start(httptest.NewRecorder(), r)
		f.answer(w, http.StatusAccepted, wire.Created{Sandbox: wire.Sandbox{ID: "sbx_1"}, Job: wire.Job{ID: "job_1", State: "running"}})
	}
	got := f.sandfarm(ctx, "", "sandbox", "create")
	if got.code != 130 || got.out != "" || !strings.Contains(got.stderr, "sandfarm: installing six\n") || !strings.Contains(got.stderr, "canceling the job") {
		t.Errorf("%+v", got)
	}
}

func TestRunCancelsAJobThatWasAcceptedAfterTheInterrupt(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	f.Script = func(_ func(string, any), canceled <-chan struct{}) (string, *wire.Result) {
		<-canceled
		return "canceled", nil
	}
	if got := f.sandfarm(ctx, "1", "run", "-", "--no-save"); got.code != 130 {
		t.Errorf("%+v", got)
	}
	asked := f.asked()
	if len(asked) > 0 && !strings.Contains(strings.Join(asked, "\n"), "DELETE /v1/jobs/job_1") {
		t.Errorf("asked %q: a job was left running", asked)
	}
}

func TestRunSendsItsFlags(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Script = prints("", wire.ExecuteResult{})
	file, dir := script(t, "print(1)")
	put(t, filepath.Join(dir, "in.bin"), "\x00\xff")
	got := f.sandfarm(t.Context(), "", "run", file, "--timeout", "1.5m", "-e", "A=b=c", "-e", "HOME_TOWN", "-f", filepath.Join(dir, "in.bin")+":data/",
		"--memory", "2g", "--cpus", "0.5", "--image", "python", "--network", "none")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	var sent wire.RunRequest
	body, _ := strings.CutPrefix(f.asked()[0], "POST /v1/run ")
	if err := json.Unmarshal([]byte(body), &sent); err != nil {
		t.Fatalf("%v: %s", err, f.asked()[0])
	}
	want := wire.RunRequest{
		Code: "print(1)", Filename: "work.py", TimeoutSeconds: new(90), Env: map[string]string{"A": "b=c", "HOME_TOWN": "Ulm"}, Image: new("python"), Network: new("none"),
		Files: []wire.InputFile{{Path: "data/in.bin", ContentBase64: new("AP8=")}, {Path: "work.py", ContentBase64: new("cHJpbnQoMSk=")}}, Resources: &wire.ResourcesRequest{MemoryMB: new(2048), CPUs: new(0.5)},
	}
	testbed.Diff(t, "request", want, sent)
}

func TestRunInASandboxSendsFilesFirst(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Script = prints("", wire.ExecuteResult{})
	f.Routes["HEAD /v1/sandboxes/sbx_1/files/work.py"], f.Routes["PUT /v1/sandboxes/sbx_1/files/in.txt"] = f.created, f.created
	file, dir := script(t, "1")
	put(t, filepath.Join(dir, "in.txt"), "hello")
	got := f.sandfarm(t.Context(), "", "run", file, "-s", "sbx_1", "--context", "other", "-f", filepath.Join(dir, "in.txt"))
	asked := f.asked()
	if got.code != 0 || asked[1] != "PUT /v1/sandboxes/sbx_1/files/in.txt hello" || asked[2] != `POST /v1/sandboxes/sbx_1/execute {"code":"1","filename":"work.py","context":"other"}` {
		t.Errorf("%+v asked %q", got, asked)
	}
}

// The code has the name of its file, which goes along unless a file of that name is there. Code that is no Python file has no name.
func TestRunSendsItsFile(t *testing.T) {
	t.Parallel()
	file, dir := script(t, "1")
	shell, other := filepath.Join(dir, "x.sh"), filepath.Join(dir, "other")
	put(t, shell, "2")
	put(t, other, "3")
	put(t, filepath.Join(dir, "x.sql"), "4")
	const work = `"files":[{"path":"work.py","content_base64":"`
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"New":         {[]string{file}, []string{`POST /v1/run {"code":"1","filename":"work.py",` + work + `MQ=="}]}`}},
		"Bash":        {[]string{shell}, []string{`POST /v1/run {"code":"2","language":"bash"}`}},
		"Data":        {[]string{filepath.Join(dir, "x.sql")}, []string{`POST /v1/run {"code":"4","language":"sql"}`}},
		"OtherLang":   {[]string{file, "--lang", "r"}, []string{`POST /v1/run {"code":"1","language":"r"}`}},
		"Stdin":       {[]string{"-"}, []string{`POST /v1/run {"code":"9"}`}},
		"NoExtension": {[]string{other, "--lang", "python"}, []string{`POST /v1/run {"code":"3","language":"python","filename":"other","files":[{"path":"other","content_base64":"Mw=="}]}`}},
		"SentAnyway":  {[]string{file, "-f", other + ":./work.py"}, []string{`POST /v1/run {"code":"1","filename":"work.py",` + strings.Replace(work, "work", "./work", 1) + `Mw=="}]}`}},
		"Has":         {[]string{file, "-s", "sbx_has"}, []string{"HEAD /v1/sandboxes/sbx_has/files/work.py", `POST /v1/sandboxes/sbx_has/execute {"code":"1","filename":"work.py"}`}},
		"Lacks":       {[]string{file, "-s", "sbx_not"}, []string{"HEAD /v1/sandboxes/sbx_not/files/work.py", "PUT /v1/sandboxes/sbx_not/files/work.py 1", `POST /v1/sandboxes/sbx_not/execute {"code":"1","filename":"work.py"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Script = prints("", wire.ExecuteResult{})
			f.Routes["HEAD /v1/sandboxes/sbx_has/files/work.py"], f.Routes["HEAD /v1/sandboxes/sbx_not/files/work.py"] = f.created, http.NotFound
			f.Routes["PUT /v1/sandboxes/sbx_not/files/work.py"] = f.created
			got := f.sandfarm(t.Context(), "9", append([]string{"run", "--no-save"}, c.args...)...)
			asked := f.asked()
			if got.code != 0 || len(asked) < len(c.want) {
				t.Fatalf("%+v asked %q", got, asked)
			}
			for i, want := range c.want {
				if strings.TrimSpace(asked[i]) != want {
					t.Errorf("asked %q, want %q", asked[i], want)
				}
			}
		})
	}
}

// The first line of code says its language where the name of its file does not.
func TestRunReadsTheInterpreterOfCode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, code, want string }{
		{"x", "#!/bin/sh\n", "bash"},
		{"x", "#! /usr/bin/env bash\n", "bash"},
		{"x.txt", "#!/bin/bash -eu\n", "bash"},
		{"-", "#!/bin/dash", "bash"},
		{"x", "#!/usr/bin/python3.12\n", "python"},
		{"x", "#!/usr/bin/env -S uv run --script\n", "python"},
		{"x", "#!/usr/bin/env node\n", "javascript"},
		{"x", "#!/usr/bin/awk -f\n", "awk"},
		{"x", "print(1) #!/bin/sh\n", ""},
		{"x", "\n#!/bin/sh\n", ""},
		{"x", "#!\n1", ""},
		{"x", "# code\n", ""},
		{"x.py", "#!/bin/sh\n", ""},
		{"x.SH", "#!/usr/bin/python\n", "bash"},
	} {
		f := newFarm(t)
		f.Script = prints("", wire.ExecuteResult{})
		name := test.name
		if name != "-" {
			name = filepath.Join(t.TempDir(), name)
			put(t, name, test.code)
		}
		got := f.sandfarm(t.Context(), test.code, "run", name, "--no-save")
		var sent wire.RunRequest
		_, body, _ := strings.Cut(f.asked()[0], " {")
		testbed.Must(t, json.Unmarshal([]byte("{"+body), &sent))
		lang := ""
		if sent.Language != nil {
			lang = *sent.Language
		}
		if got.code != 0 || lang != test.want {
			t.Errorf("%s with %q is sent as %q, want %q: %+v", test.name, test.code, lang, test.want, got)
		}
	}
}

func TestRunJSONPrintsTheJobAlone(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Script = prints("loud\n", wire.ExecuteResult{Stdout: "loud\n", ExitCode: 4})
	got := f.sandfarm(t.Context(), "1", "run", "-", "--json")
	var job wire.Job
	if err := json.Unmarshal([]byte(got.out), &job); err != nil || got.code != 4 || job.Result.Execute.Stdout != "loud\n" {
		t.Errorf("%v: %+v", err, got)
	}
}
