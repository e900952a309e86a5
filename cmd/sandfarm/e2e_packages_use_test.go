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

// requirements: code runs whatever requirements.txt is.
func (f *packageFarm) requirements(t *testing.T) {
	f.up.wheel("listed", "1.0")
	box := f.sandbox(wire.CreateRequest{}).ID
	write := func(text string) {
		t.Helper()
		f.run(box, fmt.Sprintf("open('requirements.txt', 'w').write(%q) and None", text))
	}
	write("listed==1.0\n-r /etc/passwd\n")
	if result, got := f.auto(box, "import listed\nprint('ran')"); got != "listed installed (in requirements.txt)" || result.Stdout != "ran\n" || len(result.Notes) != 1 {
		t.Errorf("installed %s; %+v", got, result)
	}
	for _, text := range []string{"", "\x00\x01\x02", strings.Repeat("x", 1<<20), "listed\\", strings.Repeat("a==1\\\n", 10_000)} {
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
	f.wantPackages(box, "listed")
}

func (f *packageFarm) imports(t *testing.T) {
	for _, name := range []string{"imported", "imported-perhaps", "denied", "de-nied-two"} {
		f.up.wheel(name, "1.0")
	}
	box := f.sandbox(wire.CreateRequest{}).ID
	for _, c := range []struct{ code, stdout, installed, fails string }{
		{"import imported, os.path, json\nprint(imported.__version__)", "1.0\n", "imported installed (imported as imported)", ""},
		{"import imported\nprint('again')", "again\n", "", ""},
		{"import denied", "", "denied failed (imported as denied)", "ModuleNotFoundError"},
		{"import de_nied_two", "", "de-nied-two failed (imported as de_nied_two)", "ModuleNotFoundError"},
		{"import not_on_the_index_77", "", "not-on-the-index-77 failed (imported as not_on_the_index_77)", "ModuleNotFoundError"},
		{"try:\n    import imported_perhaps\nexcept ImportError:\n    print('without')", "without\n", "", ""}, // the code works without it
	} {
		result, got := f.auto(box, c.code)
		failed := ""
		if result.Error != nil {
			failed = result.Error.Name
		}
		if got != c.installed || c.stdout != "" && result.Stdout != c.stdout || failed != c.fails {
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
	f.wantPackages(box, "denied", "imported")
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import imported\nprint(imported.__version__)", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || run.State != "completed" || run.Result.Execute.Stdout != "1.0\n" || len(run.Result.Execute.Installed) != 1 {
		t.Errorf("run: %v %+v", err, run)
	}
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
