//go:build integration

package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// versions changes the versions of packages that a running kernel has imported.
func (f *packageFarm) versions(t *testing.T) {
	for _, version := range []string{"1.0", "1.5", "2.0"} {
		f.up.wheel("changing", version)
	}
	f.up.wheel("packaging", "99.0")
	box := f.sandbox(wire.CreateRequest{}).ID
	background, err := f.Command(t.Context(), box, wire.CommandRequest{Command: new("sleep 600"), Background: true})
	testbed.Must(t, err)
	f.wantOutcomes(f.install(box, "changing==1.0"), "")
	f.run(box, "import changing; kept = 7")
	job := f.install(box, "changing>1")
	f.wantOutcomes(job, "")
	for _, text := range []string{job.Result.Install.Packages[0].Message, strings.Join(job.Result.Install.Notes, " ")} {
		if !strings.Contains(text, "changing 2.0 is installed") || !strings.Contains(text, "still has 1.0") || !strings.Contains(text, "/restart") {
			t.Errorf("of an imported package that was changed: %q", text)
		}
	}
	if got := f.run(box, "import changing; print(kept, changing.__version__)").Stdout; got != "7 1.0\n" {
		t.Errorf("before the restart: %q", got)
	}
	_, err = f.Restart(t.Context(), box, client.WithWait(30*time.Second))
	testbed.Must(t, err)
	if got := f.run(box, "import changing; print(changing.__version__)").Stdout; got != "2.0\n" {
		t.Errorf("after the restart: %q", got)
	}
	f.wantOutcomes(f.install(box, "changing<2"), "") // the newest matching version
	f.wantPackages(box, "changing")
	if got := f.version(box, "changing"); got != "1.5" {
		t.Errorf("after the downgrade: %q", got)
	}
	if p, err := f.Package(t.Context(), box, "changing"); err != nil || p.Status != "installed" || p.Version != "1.5" {
		t.Errorf("after the downgrade: %v %+v", err, p)
	}
	f.wantOutcomes(f.install(box, "changing==7"), "changing") // the old version stays
	if got := f.version(box, "changing"); got != "1.5" {
		t.Errorf("after an upgrade that failed: %q", got)
	}
	f.run(box, "import packaging; old = packaging.__version__")
	f.wantOutcomes(f.install(box, "packaging>=99"), "") // the image has an older one
	if got := f.run(box, "import packaging, packaging.version; print(packaging.__version__ == old, 6 * 7)").Stdout; got != "True 42\n" {
		t.Errorf("the old kernel: %q", got)
	}
	if got := f.version(box, "packaging"); got != "99.0" {
		t.Errorf("the image's package: %q", got)
	}
	f.wantPackages(box, "changing", "packaging")
	if now, err := f.Job(t.Context(), background.ID); err != nil || now.State != "running" {
		t.Errorf("the command in the background: %v %s", err, now.State)
	}
}

// auto executes code with auto_install and returns what was installed, as "name why".
func (f *packageFarm) auto(box, code string) (*wire.ExecuteResult, string) {
	f.t.Helper()
	job, err := f.Execute(f.t.Context(), box, wire.ExecuteRequest{Code: code, AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result == nil || job.Result.Execute == nil {
		f.t.Fatalf("execute: %v %+v", err, job)
	}
	var list []string
	for _, p := range job.Result.Execute.Installed {
		list = append(list, fmt.Sprintf("%s %s (%s)", p.Name, p.Status, p.Why))
	}
	return job.Result.Execute, strings.Join(list, ", ")
}

func (f *packageFarm) requirements(t *testing.T) {
	for _, name := range []string{"listed-one", "listed-two", "listed-three"} {
		f.up.wheel(name, "1.0")
	}
	box := f.sandbox(wire.CreateRequest{}).ID
	write := func(text string) {
		t.Helper()
		f.run(box, fmt.Sprintf("open('requirements.txt', 'w').write(%q) and None", text))
	}
	write("# what we need\nlisted-one==1.0\n\n-r /etc/passwd\n--index-url=http://example.invalid/\ngit+https://example.invalid/x\n../x\nlisted_two>=1; python_version>='3'  # with a comment\nlisted-four; python_version<'3'\nno-such-requirement\n")
	result, got := f.auto(box, "import listed_one, listed_two\nprint('ran')")
	if want := "listed-one installed (in requirements.txt), listed-two installed (in requirements.txt), no-such-requirement failed (in requirements.txt)"; got != want || result.Stdout != "ran\n" {
		t.Errorf("installed %s; want %s; %+v", got, want, result.Error)
	}
	if notes := strings.Join(result.Notes, "\n"); strings.Count(notes, "was left out") != 4 || !strings.Contains(notes, "-r /etc/passwd") {
		t.Errorf("notes: %s", notes)
	}
	if result, got := f.auto(box, "print(2)"); got != "" || result.Stdout != "2\n" || len(result.Notes) != 0 {
		t.Errorf("the second time: %s %v", got, result.Notes)
	}
	write("listed-one==1.0\nlisted-three\n")
	if _, got := f.auto(box, "import listed_three"); got != "listed-three installed (in requirements.txt)" {
		t.Errorf("after a change: %s", got)
	}
	for _, text := range []string{"", "\x00\x01\x02", strings.Repeat("x", 1<<20), "listed-one\\", strings.Repeat("a==1\\\n", 10_000)} {
		write(text)
		if result, _ := f.auto(box, "print(3)"); result.Stdout != "3\n" {
			t.Errorf("%.20q: %+v", text, result.Error)
		}
	}
	f.run(box, "import os; os.remove('requirements.txt'); os.mkdir('requirements.txt')")
	if result, got := f.auto(box, "print(4)"); result.Stdout != "4\n" || got != "" {
		t.Errorf("a directory: %s %+v", got, result)
	}
	f.run(box, "os.rmdir('requirements.txt'); os.mkfifo('requirements.txt')")
	if result, got := f.auto(box, "print(5)"); result.Stdout != "5\n" || got != "" {
		t.Errorf("a pipe: %s %+v", got, result)
	}
	f.wantPackages(box, "listed-one", "listed-three", "listed-two")
}

func (f *packageFarm) imports(t *testing.T) {
	for _, name := range []string{"imported", "imported-in-if", "imported-perhaps", "denied", "de-nied-two", "pyyaml-not"} {
		f.up.wheel(name, "1.0")
	}
	box := f.sandbox(wire.CreateRequest{}).ID
	for _, c := range []struct{ code, stdout, installed, fails string }{
		{"import imported, os.path, json\nprint(imported.__version__)", "1.0\n", "imported installed (imported as imported)", ""},
		{"import imported\nprint('again')", "again\n", "", ""},
		{"if True:\n    from imported_in_if import __version__ as v\nprint(v)", "1.0\n", "imported-in-if installed (imported as imported_in_if)", ""},
		{"def broken(:\n  import imported_in_if", "", "", "SyntaxError"},
		{"%time x = 1\n!echo magic\nimport json", "", "", ""},
		{"import denied", "", "denied failed (imported as denied)", "ModuleNotFoundError"},
		{"import de_nied_two", "", "de-nied-two failed (imported as de_nied_two)", "ModuleNotFoundError"},
		{"import not_on_the_index_77", "", "not-on-the-index-77 failed (imported as not_on_the_index_77)", "ModuleNotFoundError"},
		{"try:\n    import imported_perhaps\nexcept ImportError:\n    print('without')", "without\n", "", ""}, // the code works without it
		{"from . import x", "", "", "ImportError"},
		{"import \x00", "", "", "*"},
		{"text = 'import nothing_at_all'", "", "", ""},
	} {
		result, got := f.auto(box, c.code)
		failed := ""
		if result.Error != nil {
			failed = result.Error.Name
		}
		if got != c.installed || c.stdout != "" && result.Stdout != c.stdout || c.fails != "*" && failed != c.fails {
			t.Errorf("%q: installed %q, printed %q, failed %q: %+v", c.code, got, result.Stdout, failed, result.Installed)
		}
		for _, p := range result.Installed {
			if p.Name == "denied" && !strings.Contains(p.Message, "The operator does not allow denied") {
				t.Errorf("denied: %q", p.Message)
			}
		}
	}
	f.wantOutcomes(f.install(box, "denied"), "") // the deny list is for automatic installs only
	began := time.Now()
	if result, got := f.auto(box, "import imported\ntext = '"+strings.Repeat("x", 5<<20)+"'\nprint('long')"); result.Stdout != "long\n" || got != "" {
		t.Errorf("5 MiB of code: %s %+v", got, result.Error)
	}
	t.Logf("5 MiB of code took %v", time.Since(began))
	var code strings.Builder
	code.WriteString("n = -1\n")
	for n := range 1000 {
		fmt.Fprintf(&code, "if n > %d:\n    import many_imports_%d\n", n, n)
	}
	began = time.Now()
	result, _ := f.auto(box, code.String()+"print('many')")
	t.Logf("1000 imports took %v", time.Since(began))
	if result.Stdout != "many\n" || time.Since(began) > 3*time.Minute {
		t.Errorf("1000 imports: after %v %q %+v", time.Since(began), result.Stdout, result.Error)
	}
	f.wantPackages(box, "denied", "imported", "imported-in-if")
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import imported\nprint(imported.__version__)", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || run.State != "completed" || run.Result.Execute.Stdout != "1.0\n" || len(run.Result.Execute.Installed) != 1 {
		t.Errorf("run: %v %+v", err, run)
	}
}

func (f *packageFarm) plainPip(t *testing.T) {
	for _, name := range []string{"by-pip", "by-module", "by-magic"} {
		f.up.wheel(name, "1.0")
	}
	box := f.sandbox(wire.CreateRequest{}).ID
	job, err := f.Command(t.Context(), box, wire.CommandRequest{
		Commands: []string{"pip install by-pip 2>&1", "python -m pip install by_module 2>&1", "pip install no-such-thing 2>&1", "python -c 'import by_pip, by_module; print(by_pip.__version__)'"}, ContinueOnError: true,
	}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" {
		t.Fatalf("commands: %v %+v", err, job)
	}
	for i, code := range []int{0, 0, 1, 0} {
		if got := job.Result.Command.Results[i]; got.ExitCode != code {
			t.Errorf("%+v", got)
		}
	}
	if result := f.run(box, "!pip install by-magic\nimport by_magic, by_pip\nprint('in')"); !strings.HasSuffix(result.Stdout, "in\n") {
		t.Errorf("magic: %+v", result)
	}
	for _, name := range []string{"by-pip", "by-module", "by-magic"} {
		if p, err := f.Package(t.Context(), box, name); err != nil || p.Status != "installed" || p.Version != "1.0" {
			t.Errorf("%s: %v %+v", name, err, p)
		}
	}
	f.wantOutcomes(f.install(box, "by-pip", "by_magic==1.0"), "", "")
	f.wantPackages(box, "by-magic", "by-module", "by-pip")
}

// status follows one package from the moment its job is accepted.
func (f *packageFarm) status(t *testing.T) {
	f.up.largeWheel("followed", 1<<20)
	f.up.wheel("by-create", "1.0")
	reached, release := make(chan struct{}, 1), make(chan struct{})
	heal := f.up.fail("/files/followed/", f.up.half(holds(reached, release)))
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"by-create"}})
	testbed.Must(t, err)
	box := made.Sandbox.ID
	want := func(name, status string) {
		t.Helper()
		if p, err := f.Package(t.Context(), box, name); err != nil || p.Status != status || p.Name != name {
			t.Errorf("%s: %v %+v, want %s", name, err, p, status)
		}
	}
	want("by-create", "installing")
	want("followed", "not_found")
	f.waitState(made.Job, "completed")
	want("by-create", "installed")
	want("followed", "not_found")
	want("ipykernel", "installed")
	job := f.startInstall(box, "followed")
	want("followed", "installing")
	awaits(t, reached)
	want("followed", "installing")
	close(release)
	heal()
	f.waitState(job, "completed")
	want("followed", "installed")
	list, err := f.Packages(t.Context(), box)
	testbed.Must(t, err)
	found := map[string]string{}
	for _, p := range list {
		found[p.Name] = p.Status
	}
	if found["followed"] != "installed" || found["by-create"] != "installed" || found["ipykernel"] != "installed" {
		t.Errorf("list: %v", found)
	}
	_, err = f.Close(t.Context(), box, client.WithWait(30*time.Second))
	testbed.Must(t, err)
	want("followed", "installed")
	want("never-asked-for", "not_found")
}
