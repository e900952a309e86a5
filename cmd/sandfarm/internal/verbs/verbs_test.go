package verbs_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"flag"
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
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var update = flag.Bool("update", false, "write the golden files anew")

func (f *fakeFarm) created(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// gives returns a handler that serves the same JSON for every request.
func (f *fakeFarm) gives(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { f.answer(w, status, body) }
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"UnknownCommand":    {"frob"},
		"UnknownSubcommand": {"sandbox", "frob"},
		"UnknownFlag":       {"run", "--frob", "-"},
		"NoFile":            {"run"},
		"TwoFiles":          {"run", "a", "b"},
		"BadTimeout":        {"run", "-", "--timeout", "soon"},
		"BadMemory":         {"run", "-", "--memory", "lots"},
		"UnsetEnv":          {"exec", "sbx_1", "-e", "NOT_SET", "ls"},
		"BadEnv":            {"run", "-", "-e", "=x"},
		"SpecWithSandbox":   {"run", "-", "-s", "sbx_1", "--memory", "1g"},
		"ContextAlone":      {"run", "-", "--context", "x"},
		"NoCommand":         {"sandbox", "exec", "sbx_1"},
		"EmptyCommand":      {"sandbox", "exec", "sbx_1", " "},
		"UnquotedCommand":   {"sandbox", "exec", "sbx_1", "ls", "a"},
		"TerminalOnAPipe":   {"exec", "-it", "sbx_1", "cat"},
		"BadLabel":          {"sandbox", "create", "--label", "team"},
		"StdinWithoutPath":  {"files", "put", "sbx_1", "-"},
		"NoPackage":         {"packages", "install", "sbx_1"},
		"NoPackageName":     {"packages", "status", "sbx_1"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			got := f.sandfarm(t.Context(), "1", args...)
			if got.code != verbs.ExitUsage || !strings.Contains(got.stderr, `--help"`) || strings.Count(got.stderr, "\n") != 1 || got.out != "" {
				t.Errorf("%+v, want one line that names the help, and exit code 2", got)
			}
			if asked := f.asked(); len(asked) != 0 {
				t.Errorf("the farm was asked %q", asked)
			}
		})
	}
}

func TestStrictArgs(t *testing.T) {
	t.Parallel()
	c, sub := &cobra.Command{Use: "config"}, &cobra.Command{Use: "check", Args: cobra.NoArgs}
	c.AddCommand(sub)
	verbs.StrictArgs(c)
	if err := sub.Args(sub, nil); err != nil {
		t.Errorf("no argument: %v", err)
	}
	err := sub.Args(sub, []string{"a.toml"})
	if e, ok := errors.AsType[*verbs.UsageError](err); !ok || e.Command != "config check" || e.Err.Error() != `too many arguments: "a.toml"` {
		t.Errorf("an argument too many: %#v, want a usage error of the command", err)
	}
}

func TestAddressThatIsNotAFarm(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte("<Error><Code>InvalidArgument</Code></Error>"))
	}))
	t.Cleanup(store.Close)
	var out, stderr testbed.Log
	code := program(t.Context(), strings.NewReader(""), &out, &stderr, map[string]string{"SANDFARM_URL": store.URL}, "images")
	want := "sandfarm: " + store.URL + " answers HTTP 400 (Bad Request), unlike a Sandfarm. Check the address: --url or SANDFARM_URL.\n"
	if code != verbs.ExitError || stderr.String() != want {
		t.Errorf("%d %q, want %q", code, stderr.String(), want)
	}
}

// The address as the farm prints it, and a key as a file contains it.
func TestAddressAndKeyMayHaveExtraCharacters(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Key = "right"
	f.Routes["GET /v1/images"] = f.gives(http.StatusOK, map[string]any{"items": []any{}})
	var out, stderr testbed.Log
	env := map[string]string{"SANDFARM_URL": f.URL + "/v1", "SANDFARM_API_KEY": "right\n"}
	if code := program(t.Context(), strings.NewReader(""), &out, &stderr, env, "images"); code != 0 {
		t.Errorf("%d %q", code, stderr.String())
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Key = "right"
	var out, stderr testbed.Log
	code := program(t.Context(), strings.NewReader(""), &out, &stderr, map[string]string{"SANDFARM_URL": f.URL}, "images")
	if code != 1 || stderr.String() != "sandfarm: A valid API key is needed. Give a key of this farm with --key or SANDFARM_API_KEY.\n" {
		t.Errorf("%d %q", code, stderr.String())
	}
	for at, want := range map[string]string{
		"https" + strings.TrimPrefix(f.URL, "http"): "answers without TLS: write http:// in --url or SANDFARM_URL.\n",
		strings.TrimPrefix(f.URL, "http://"):        "does not have the form http://host:port. Set --url or SANDFARM_URL.\n",
		"http://no such host":                       "invalid character",
	} {
		var out, stderr testbed.Log
		if code := program(t.Context(), strings.NewReader(""), &out, &stderr, map[string]string{"SANDFARM_URL": at}, "images"); code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: %d %q, want %q", at, code, stderr.String(), want)
		}
	}
	f.Close()
	got := f.sandfarm(t.Context(), "", "images")
	want := "sandfarm: no farm answers at " + f.URL + ": start one with `make run` (or `sandfarm up`), or set SANDFARM_URL.\n"
	if got.code != 1 || got.stderr != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestExecQuotesArguments(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want string
	}{
		"Line":  {[]string{"echo 'a  b' | wc"}, `echo 'a  b' | wc`},
		"Words": {[]string{"--", "printf", "%s|", "a  b", "it's", "", "$HOME;`x`"}, `printf '%s|' 'a  b' 'it'\''s' '' '$HOME;` + "`x`" + `'`},
		"Flags": {[]string{"--", "ls", "-la", "./a_b.txt"}, `ls -la ./a_b.txt`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			f.Script = func(send func(string, any), _ <-chan struct{}) (string, *wire.Result) {
				send("stdout", wire.TextData{Text: "out"})
				return "completed", &wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{ExitCode: 7}}}}
			}
			got := f.sandfarm(t.Context(), "", append([]string{"exec", "sbx_1"}, test.args...)...)
			if got.code != 7 || got.out != "out" {
				t.Errorf("%+v", got)
			}
			want := wire.CommandRequest{Command: &test.want}
			var sent wire.CommandRequest
			decode(t, strings.TrimPrefix(f.asked()[0], "POST /v1/sandboxes/sbx_1/commands "), &sent)
			testbed.Diff(t, "request", want, sent)
		})
	}
}

// Each is one run of the program: what the farm answers, what is printed, and what the farm was asked.
func TestWhatIsPrintedAndAsked(t *testing.T) {
	t.Parallel()
	now := time.Now().Add(-90 * time.Minute)
	conflict := wire.Problem{Status: 409, Code: "conflict", Detail: "Not now.", RequestID: "req_1"}
	quota := wire.Problem{Status: 429, Code: "exhausted", Detail: farm.QuotaError(farm.QuotaUse{Name: "max_sandboxes", Limit: 1, Used: 1}, 1).Message, RequestID: "req_1", Quota: &wire.Quota{Name: "max_sandboxes"}}
	installed := wire.Job{ID: "job_1", Kind: "install", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
		Packages: []wire.InstalledOne{{Name: "six", Version: "1.17", Status: "installed"}}, Stderr: "warning: slow\n",
	}}}
	for name, test := range map[string]struct {
		args   string
		routes map[string]any // bodies of answers
		want   outputs
		parts  []string // these are printed, among others
		asked  []string // nil: anything
	}{
		"Create": {
			args:   "sandbox create --ttl 1h --label a=b=c",
			routes: map[string]any{"POST /v1/sandboxes": wire.Created{Sandbox: wire.Sandbox{ID: "sbx_9", State: "queued"}, Job: wire.Job{ID: "job_1", State: "completed"}}},
			want:   outputs{0, "sbx_9\n", ""}, asked: []string{`POST /v1/sandboxes {"ttl_seconds":3600,"labels":{"a":"b=c"}}`},
		},
		"CreateFails": {
			args:   "sandbox create",
			routes: map[string]any{"POST /v1/sandboxes": wire.Created{Job: wire.Job{State: "failed", Error: &wire.JobError{Code: "unavailable", Message: "Docker has no ttl_seconds"}}}},
			want:   outputs{1, "", "sandfarm: Docker has no --ttl. Try again later.\n"},
		},
		"QuotaOfSandboxes": { // what is used up by sandboxes is not free again in seconds
			args: "sandbox create", routes: map[string]any{"POST /v1/sandboxes": quota},
			want: outputs{1, "", "sandfarm: The quota max_sandboxes of your tenant allows 1: 1 is used, and this request needs 1 more. Close a sandbox, or ask the farm's operator to raise it. Your sandboxes: sandfarm sandbox ls.\n"},
		},
		"CloseIsRefused": { // not every refusal of a close says that the sandbox is closing
			args: "sandbox close sbx_1", routes: map[string]any{"GET /v1/sandboxes/{id}": wire.Sandbox{State: "starting"}, "DELETE /v1/sandboxes/sbx_1": conflict},
			want: outputs{code: 1}, parts: []string{"Not now."},
		},
		"SandboxesOfRunsEndWithThem": {
			args: "sandbox ls",
			routes: map[string]any{"GET /v1/sandboxes": wire.List[wire.Sandbox]{Items: []wire.Sandbox{
				{ID: "sbx_1", State: "ready", OneShot: true, CreatedAt: now, ExpiresAt: now}, {ID: "sbx_2", State: "closed", OneShot: true, CreatedAt: now, ClosedAt: &now},
			}}},
			want: outputs{0, "ID     NAME  STATE   IMAGE  CREATED  ENDS\nsbx_1  -     ready   -      1h ago   with its run\nsbx_2  -     closed  -      1h ago   1h ago\n", ""},
		},
		"PortLink": {
			args: "sandbox port-link sbx_1 80", routes: map[string]any{"POST /v1/sandboxes/sbx_1/port-links": wire.PortLink{URL: "http://farm/p/x/"}},
			want: outputs{0, "http://farm/p/x/\n", ""}, asked: []string{`POST /v1/sandboxes/sbx_1/port-links {"port":80,"expires_seconds":3600}`},
		},
		"PortLinkAsAPath": {
			args: "sandbox port-link sbx_1 80 --path-style --expires 1m", routes: map[string]any{"POST /v1/sandboxes/sbx_1/port-links": wire.PortLink{URL: "http://farm/p/x/"}},
			want: outputs{0, "http://farm/p/x/\n", ""}, asked: []string{`POST /v1/sandboxes/sbx_1/port-links {"port":80,"expires_seconds":60,"path_style":true}`},
		},
		"Kill": {
			args: "kill sbx_1 prc_1", routes: map[string]any{"DELETE /v1/sandboxes/sbx_1/processes/{id}": wire.Process{}},
			want: outputs{0, "", "ended prc_1\n"}, asked: []string{"DELETE /v1/sandboxes/sbx_1/processes/prc_1"},
		},
		"KillOfTwo": {
			args: "kill sbx_1 prc_1 42", routes: map[string]any{"DELETE /v1/sandboxes/sbx_1/processes/{id}": wire.Process{}},
			want: outputs{0, "", "ended prc_1\nended 42\n"},
		},
		"Signal": {
			args: "kill sbx_1 prc_1 --signal SIGHUP", routes: map[string]any{"POST /v1/sandboxes/sbx_1/processes/{id}/signal": wire.Process{}},
			want: outputs{0, "", "sent SIGHUP to prc_1\n"}, asked: []string{`POST /v1/sandboxes/sbx_1/processes/prc_1/signal {"signal":"SIGHUP"}`},
		},
		"SSHRunsNoCommand": {args: "ssh sbx_1 ls a", want: outputs{code: verbs.ExitUsage}, parts: []string{"sandfarm exec sbx_1 'ls a' runs one"}},
		"JobWaits": {
			args: "job show job_1", routes: map[string]any{"GET /v1/jobs/job_1": wire.Job{ID: "job_1", State: "queued", Position: 1, Waiting: &wire.Waiting{Code: "no_worker", Message: "No worker is alive."}}},
			parts: []string{"waits for  No worker is alive.\n"},
		},
		"JobHasInstalled": {args: "job get job_1", routes: map[string]any{"GET /v1/jobs/job_1": installed}, parts: []string{"six 1.17 installed", "warning: slow"}},
		"InstallWithoutWaiting": {
			args: "packages install sbx_1 torch --no-wait", routes: map[string]any{"POST /v1/sandboxes/{id}/packages": wire.Job{ID: "job_1", State: "queued"}},
			want: outputs{0, "job_1\n", ""}, asked: []string{`POST /v1/sandboxes/sbx_1/packages {"packages":["torch"]}`},
		},
		"InstallIsRefused": {
			args: "packages install sbx_1 git+https://x", routes: map[string]any{"POST /v1/sandboxes/{id}/packages": wire.Problem{Status: 422, Code: "invalid", Detail: "packages[0] is no name"}},
			want: outputs{1, "", "sandfarm: package 1 is no name.\n"},
		},
		"AnotherVersionIsInstalled": {
			args: "packages status sbx_1 numpy", routes: map[string]any{"GET /v1/sandboxes/sbx_1/packages/numpy": wire.Package{Name: "numpy", Status: "failed", Version: "2.5.5", Message: "No version fits."}},
			want: outputs{code: 1}, parts: []string{"numpy 2.5.5 is still installed; the last install failed: No version fits."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t)
			for pattern, body := range test.routes {
				status := http.StatusOK
				if problem, ok := body.(wire.Problem); ok {
					status = problem.Status
				}
				f.Routes[pattern] = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", "600")
					f.answer(w, status, body)
				}
			}
			got := f.sandfarm(t.Context(), "", strings.Fields(test.args)...)
			for _, part := range test.parts {
				if !strings.Contains(got.out+got.stderr, part) {
					t.Errorf("%+v, want %q", got, part)
				}
			}
			if test.parts != nil {
				got.out, got.stderr = "", ""
			}
			testbed.Diff(t, "what it prints", test.want, got, cmp.AllowUnexported(outputs{}))
			if test.asked != nil {
				testbed.Diff(t, "what it asks", test.asked, f.asked())
			}
		})
	}
}

func TestJobEventsJSONIsALineEach(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Script = prints("<a>\n", wire.ExecuteResult{})
	if got := f.sandfarm(t.Context(), "1", "run", "-", "--no-save"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	want := `{"id":"1-1","event":"stdout","data":{"text":"<a>\n"}}` + "\n" + `{"id":"2-1","event":"state","data":{"state":"completed"}}` + "\n"
	got := f.sandfarm(t.Context(), "", "job", "events", "job_1", "--json")
	if got.out = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(got.out); got.out != want || got.code != 0 {
		t.Errorf("%+v, want %s", got, want)
	}
}

func TestJobEventsEndWithTheOutcome(t *testing.T) {
	t.Parallel()
	raised := &wire.Result{Execute: &wire.ExecuteResult{Error: &wire.CodeError{Name: "ValueError", Value: "no\nmore"}}}
	for want, job := range map[string]wire.Job{
		"completed": {State: "completed", Outcome: new("ok")}, "timed_out": {State: "timed_out", Outcome: new("failed")}, "canceled": {State: "canceled"},
		"completed, outcome failed":         {State: "completed", Outcome: new("failed"), Result: &wire.Result{Install: &wire.InstallResult{}}},
		"completed, outcome ValueError: no": {State: "completed", Outcome: new("failed"), Result: raised},
	} {
		f := newFarm(t)
		f.send("state", wire.StateData{State: job.State})
		f.Routes["GET /v1/jobs/job_1"] = f.gives(http.StatusOK, job)
		if got := f.sandfarm(t.Context(), "", "job", "events", "job_1"); got != (outputs{0, "", "sandfarm: " + want + "\n"}) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

// A terminal obeys U+009B as it does ESC [, and U+202E turns the text behind it around. What is printed is the same JSON.
func TestJSONEscapesWhatTerminalsObey(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	entry := wire.FileEntry{Path: "a\u009b31m\u202egpj.\u2066é日\U000e0041\x7f"}
	f.Routes["GET /v1/sandboxes/sbx_1/files"] = f.gives(http.StatusOK, wire.Files{Items: []wire.FileEntry{entry}})
	got := f.sandfarm(t.Context(), "", "files", "ls", "sbx_1", "--json")
	if want := `"path": "a\u009b31m\u202egpj.\u2066é日\udb40\udc41\u007f"`; !strings.Contains(got.out, want) || got.code != 0 {
		t.Errorf("%+v, want %s", got, want)
	}
}

func TestPutSendsADirectoryAsTar(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	members := map[string]string{}
	f.Routes["POST /v1/sandboxes/sbx_1/files"] = func(w http.ResponseWriter, r *http.Request) {
		for archive := tar.NewReader(r.Body); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("tar: %v", err)
				break
			}
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Errorf("tar: %v", err)
			}
			members[header.Name] = string(content)
		}
		w.WriteHeader(http.StatusCreated)
	}
	dir := filepath.Join(t.TempDir(), "proj")
	testbed.Must(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o700))
	put(t, filepath.Join(dir, "main.py"), "print(1)")
	testbed.Must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	if got := f.sandfarm(t.Context(), "", "files", "put", "sbx_1", dir, "src/"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	testbed.Diff(t, "members of the tar", map[string]string{"src/proj/": "", "src/proj/empty/": "", "src/proj/main.py": "print(1)"}, members)
}

func TestFilesGet(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	content := "content"
	f.Routes["GET /v1/sandboxes/sbx_1/files/deep/a.txt"] = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }
	dir := t.TempDir()
	if got := f.sandfarm(t.Context(), "", "files", "get", "sbx_1", "deep/a.txt", "-"); got.out != "content" {
		t.Errorf("%+v", got)
	}
	for _, content = range []string{"content", "content", "other", "other"} { // what is the same is kept
		if got := f.sandfarm(t.Context(), "", "files", "get", "sbx_1", "deep/a.txt", dir); got.code != 0 {
			t.Errorf("%+v", got)
		}
	}
	testbed.Diff(t, "files", map[string]string{"a.txt": "content", "a-1.txt": "other"}, tree(t, dir))
	got := f.sandfarm(t.Context(), "", "files", "get", "sbx_1", "missing.txt", dir)
	if got.code != 1 || len(tree(t, dir)) != 2 {
		t.Errorf("%+v left %v", got, tree(t, dir))
	}
}

func TestCompletionOffersIDs(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes"] = func(w http.ResponseWriter, r *http.Request) {
		list := wire.List[wire.Sandbox]{Items: []wire.Sandbox{{ID: "sbx_2", Name: "demo", State: "ready"}}}
		if states := r.URL.Query().Get("state"); states == "" || strings.Contains(states, "closed") {
			list.Items = append(list.Items, wire.Sandbox{ID: "sbx_1", State: "closed"})
		}
		f.answer(w, http.StatusOK, list)
	}
	for _, args := range [][]string{{"sandbox", "get", ""}, {"run", "--sandbox", ""}, {"files", "ls", ""}, {"packages", "install", ""}, {"packages", "ls", ""}, {"packages", "status", ""}} {
		got := f.sandfarm(t.Context(), "", append([]string{cobra.ShellCompRequestCmd}, args...)...)
		if !strings.HasPrefix(got.out, "sbx_2\tdemo ready\n:") {
			t.Errorf("%q offers %q", args, got.out)
		}
	}
}

func TestCompletionOffersWhatTheVerbTakes(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	f.Routes["GET /v1/sandboxes"] = f.gives(http.StatusOK, wire.List[wire.Sandbox]{Items: []wire.Sandbox{{ID: "sbx_2", Name: "demo", State: "ready"}}})
	f.Routes["GET /v1/jobs"] = func(w http.ResponseWriter, r *http.Request) {
		if state := r.URL.Query().Get("state"); state != "queued,running" {
			t.Errorf("jobs in the states %q", state)
		}
		f.answer(w, http.StatusOK, wire.List[wire.Job]{Items: []wire.Job{{ID: "job_2", Kind: "execute", State: "running"}}})
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"cp", "sb"}, fmt.Sprintf("sbx_2:\tdemo ready\n:%d\n", cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveKeepOrder)},
		{[]string{"cp", "a.csv", "sbx_"}, fmt.Sprintf("sbx_2:\tdemo ready\n:%d\n", cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveKeepOrder)},
		{[]string{"cp", ""}, fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveDefault)},
		{[]string{"cp", "data"}, fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveDefault)},
		{[]string{"job", "cancel", ""}, fmt.Sprintf("job_2\texecute running\n:%d\n", cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)},
	} {
		if got := f.sandfarm(t.Context(), "", append([]string{cobra.ShellCompRequestCmd}, test.args...)...); got.out != test.want {
			t.Errorf("%q offers %q, want %q", test.args, got.out, test.want)
		}
	}
}

// TestHelp compares the help of every verb with its golden file, and checks that each verb has an example.
func TestHelp(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "sandfarm", Short: "Run untrusted code in sandboxes"}
	var text strings.Builder
	verbs.Add(root, verbs.Streams{In: strings.NewReader(""), Out: &text, Err: io.Discard, Getenv: func(string) string { return "" }})
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		text.WriteString("\n### " + c.CommandPath() + "\n\n")
		if err := c.Help(); err != nil {
			t.Error(err)
		}
		if c != root && c.Example == "" {
			t.Errorf("%q has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	golden := filepath.Join("testdata", "help.golden")
	if *update {
		testbed.Must(t, os.MkdirAll("testdata", 0o750))
		put(t, golden, text.String())
	}
	want, err := os.ReadFile(golden)
	testbed.Must(t, err)
	testbed.Diff(t, "the help has changed (go test -update writes it anew)", string(want), text.String())
}
