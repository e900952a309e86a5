//go:build integration

package main_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// indexFaults installs packages with a different fault for each in one request, and then again without the faults.
func (f *packageFarm) indexFaults(t *testing.T) {
	var cuts atomic.Int32
	faults := []struct {
		name, path string
		how        http.HandlerFunc
		want       string // "": it is installed in spite of the fault
	}{
		{"page-500", "/simple/page-500/", answers(500, "text/plain", "oops"), "answers 500"},
		{"page-403", "/simple/page-403/", answers(403, "text/plain", "no"), "answers 403"},
		{"page-no-json", "/simple/page-no-json/", answers(200, "application/vnd.pypi.simple.v1+json", "{]"), "cannot be read"},
		{"page-binary", "/simple/page-binary/", answers(200, "application/octet-stream", "\x00\xff\x01"), "cannot be read"},
		{"page-away", "/simple/page-away/", leads("http://example.invalid/simple/"), "not one of the hosts"},
		{"page-circle", "/simple/page-circle/", leads("/simple/page-circle/"), "circle"},
		{"page-still", "/simple/page-still/", hangs, "did not answer within"},
		{"page-moved", "/simple/page-moved/", leads("/simple/target/"), ""},
		{"file-500", "/files/file-500/", answers(500, "text/plain", "oops"), "answers 500"},
		{"file-404", "/files/file-404/", answers(404, "text/plain", "no"), "no such thing"},
		{"file-away", "/files/file-away/", leads("http://example.invalid/"), "not one of the hosts"},
		{"file-circle", "/files/file-circle/", leads("/files/file-circle/x"), "circle"},
		{"file-cut", "/files/file-cut/", f.up.half(cut), "file-cut"},
		{"file-still", "/files/file-still/", f.up.half(func(w http.ResponseWriter, r *http.Request, _ []byte) { hangs(w, r) }), "file-still"},
		{"file-altered", "/files/file-altered/", f.up.alters, "file-altered"},
		{"file-slow", "/files/file-slow/", f.up.half(trickle(3 * time.Second)), ""},
		{"file-cut-once", "/files/file-cut-once/", func(w http.ResponseWriter, r *http.Request) {
			if cuts.Add(1) == 1 {
				f.up.half(cut)(w, r)
				return
			}
			f.up.serve(w, r)
		}, ""},
	}
	f.up.wheel("target", "1.0")
	f.up.wheel("no-fault", "1.0")
	names, want, there := []string{"no-fault"}, []string{""}, []string{"no-fault"}
	var heal []func()
	for _, fault := range faults {
		f.up.wheel(fault.name, "1.0")
		names, want = append(names, fault.name), append(want, fault.want)
		heal = append(heal, f.up.fail(fault.path, fault.how))
		if fault.want == "" {
			there = append(there, fault.name)
		}
	}
	f.up.mu.Lock()
	f.up.pages["target"] = f.up.pages["page-moved"]
	f.up.mu.Unlock()
	box := f.sandbox(wire.CreateRequest{}).ID
	began := time.Now()
	f.wantOutcomes(f.install(box, names...), want...)
	t.Logf("%d faults took %v", len(faults), time.Since(began))
	slices.Sort(there)
	f.wantPackages(box, there...)
	for _, end := range heal {
		end()
	}
	// A bad file is not fetched again for a minute; the index lists another one.
	f.up.wheel("file-altered", "1.0.1")
	f.wantOutcomes(f.install(box, names...), make([]string, len(names))...)
	slices.Sort(names)
	f.wantPackages(box, names...)
}

func (f *packageFarm) canceledInstalls(t *testing.T) {
	box := f.sandbox(wire.CreateRequest{}).ID
	f.up.largeWheel("to-cancel", 4<<20)
	reached, release := make(chan struct{}, 1), make(chan struct{})
	heal := f.up.fail("/files/to-cancel/", f.up.half(holds(reached, release)))
	job := f.startInstall(box, "to-cancel")
	awaits(t, reached)
	if p, err := f.Package(t.Context(), box, "To.Cancel"); err != nil || p.Status != "installing" || p.JobID != job.ID {
		t.Errorf("during the install: %v %+v", err, p)
	}
	began := time.Now()
	_, err := f.Cancel(t.Context(), job.ID)
	testbed.Must(t, err)
	f.waitState(job, "canceled")
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("the cancel took %v", took)
	}
	f.wantPackages(box)
	if p, err := f.Package(t.Context(), box, "to-cancel"); err != nil || p.Status != "failed" || !strings.Contains(p.Message, "was stopped before") {
		t.Errorf("after the cancel: %v %+v", err, p)
	}
	for range 5 { // at any time during the installation
		job := f.startInstall(box, "to-cancel")
		_, err := f.Cancel(t.Context(), job.ID)
		testbed.Must(t, err)
		f.waitState(job, "canceled")
	}
	f.wantPackages(box)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"to-cancel"}})
	testbed.Must(t, err)
	until(t.Context(), t, "the create installs", time.Minute, func() bool {
		box, err := f.Sandbox(t.Context(), made.Sandbox.ID)
		return err == nil && box.State == "starting"
	})
	if p, err := f.Package(t.Context(), made.Sandbox.ID, "to-cancel"); err != nil || p.Status != "installing" || p.JobID != made.Job.ID {
		t.Errorf("of a sandbox that is starting: %v %+v", err, p)
	}
	if list, err := f.Packages(t.Context(), made.Sandbox.ID); err != nil || len(list) != 1 || list[0].Status != "installing" {
		t.Errorf("list of a sandbox that is starting: %v %+v", err, list)
	}
	_, err = f.Cancel(t.Context(), made.Job.ID)
	testbed.Must(t, err)
	f.waitState(made.Job, "canceled")
	if box, err := f.Sandbox(t.Context(), made.Sandbox.ID); err != nil || box.State != "failed" {
		t.Errorf("a create that was cancelled: %v %+v", err, box)
	}
	close(release)
	heal()
	f.wantOutcomes(f.install(box, "to-cancel"), "")
	f.wantPackages(box, "to-cancel")
}

// awaits waits for a signal.
func awaits(t *testing.T, reached <-chan struct{}) {
	t.Helper()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("the file was not requested")
	}
}

// A package that does not fit fails alone. The others are installed and, with 128 MiB or more, the kernel survives.
func (f *packageFarm) fullInstalls(t *testing.T) {
	f.up.wheel("small", "1.0")
	f.up.largeWheel("large", 48<<20)
	f.up.largeWheel("larger", 192<<20)
	for name, c := range map[string]struct {
		disk, memory int
		asked, want  []string
		there        []string
	}{
		"disk":          {32, 2048, []string{"small", "larger"}, []string{"", "disk_mb"}, []string{"small"}},
		"four times":    {16, 2048, []string{"small", "large"}, []string{"", ""}, []string{"large", "small"}},
		"memory":        {512, 128, []string{"larger", "small"}, []string{"memory", ""}, []string{"small"}},
		"little memory": {512, 64, []string{"small"}, []string{""}, []string{"small"}},
		"least memory":  {512, 64, []string{"large", "small"}, []string{"memory", ""}, []string{"small"}},
	} {
		box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{DiskMB: new(c.disk), MemoryMB: new(c.memory)}}).ID
		f.run(box, "kept = 7")
		f.wantOutcomes(f.install(box, c.asked...), c.want...)
		if c.memory >= 128 { // with less, kernel and installer hardly fit
			if got := f.run(box, "print(kept)").Stdout; got != "7\n" {
				t.Errorf("%s: the kernel's variable afterwards: %q", name, got)
			}
		}
		f.wantPackages(box, c.there...)
	}
}

func (f *packageFarm) closedInstall(t *testing.T) {
	f.up.largeWheel("to-close", 4<<20)
	reached, release := make(chan struct{}, 1), make(chan struct{})
	heal := f.up.fail("/files/to-close/", f.up.half(holds(reached, release)))
	box := f.sandbox(wire.CreateRequest{}).ID
	f.up.wheel("was-there", "1.0")
	f.wantOutcomes(f.install(box, "was-there"), "")
	job := f.startInstall(box, "to-close")
	awaits(t, reached)
	behind := f.startInstall(box, "fine-later")
	_, err := f.Close(t.Context(), box, client.WithWait(30*time.Second))
	testbed.Must(t, err)
	for _, job := range []wire.Job{job, behind} {
		f.waitState(job, "canceled")
	}
	for name, want := range map[string]string{"to-close": "failed", "was-there": "installed", "never": "not_found"} {
		if p, err := f.Package(t.Context(), box, name); err != nil || p.Status != want {
			t.Errorf("%s of a closed sandbox: %v %+v", name, err, p)
		}
	}
	f.refused(t, http.StatusConflict, "conflict", "POST", "/v1/sandboxes/"+box+"/packages", `{"packages":["to-close"]}`)
	close(release)
	heal()
}

// coalesced installs one package in many sandboxes at once: it is downloaded once.
func (f *packageFarm) coalesced(t *testing.T) {
	const path = "/files/wanted-by-all/wanted_by_all-1.0-py3-none-any.whl"
	f.up.largeWheel("wanted-by-all", 8<<20)
	heal := f.up.fail(path, f.up.half(trickle(2*time.Second)))
	defer heal()
	var boxes []string
	var jobs []wire.Job
	for range 5 {
		boxes = append(boxes, f.sandbox(wire.CreateRequest{}).ID)
	}
	for _, box := range boxes {
		jobs = append(jobs, f.startInstall(box, "wanted-by-all"))
	}
	jobs = append(jobs, f.startInstall(boxes[0], "wanted-by-all"), f.startInstall(boxes[0], "Wanted_By.All==1.0"))
	for _, job := range jobs {
		f.wantOutcomes(f.waitState(job, "completed"), "")
	}
	if n := f.up.count(path); n != 1 {
		t.Errorf("%d downloads", n)
	}
	for _, box := range boxes {
		f.wantPackages(box, "wanted-by-all")
	}
}

func (f *packageFarm) noNetwork(t *testing.T) {
	const sentence = `This sandbox has network "none"`
	f.up.wheel("no-way", "1.0")
	box := f.sandbox(wire.CreateRequest{Network: new("none")}).ID
	f.wantOutcomes(f.install(box, "no-way", "ipykernel"), sentence, "")
	f.wantPackages(box)
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "print(1)\nimport no_way", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result.Execute.Error == nil || job.Result.Execute.Error.Name != "ModuleNotFoundError" || job.Result.Execute.Stdout != "1\n" {
		t.Fatalf("auto_install: %v %+v", err, job)
	}
	f.wantOutcomesOf(job.Result.Execute.Installed, sentence)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Network: new("none"), Packages: []string{"no-way"}}, client.WithWait(60*time.Second))
	testbed.Must(t, err)
	f.wantOutcomes(made.Job, sentence)
	f.wantPackages(made.Sandbox.ID)
}

// indexDown stops the package index.
func (f *packageFarm) indexDown(t *testing.T) {
	for _, name := range []string{"was-read", "never-read", "never-read-either", "and-not-that"} {
		f.up.wheel(name, "1.0")
	}
	f.wantOutcomes(f.install(f.sandbox(wire.CreateRequest{}).ID, "was-read"), "")
	f.up.down()
	box := f.sandbox(wire.CreateRequest{}).ID
	began := time.Now()
	f.wantOutcomes(f.install(box, "was-read", "never-read", "never-read-either", "and-not-that"), "", "does not answer", "does not answer", "does not answer")
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("that took %v", took)
	}
	f.wantPackages(box, "was-read")
	job, err := f.Execute(t.Context(), box, wire.ExecuteRequest{Code: "import never_read", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || job.State != "completed" || job.Result.Execute.Error == nil {
		t.Fatalf("auto_install: %v %+v", err, job)
	}
	f.wantOutcomesOf(job.Result.Execute.Installed, "does not answer")
	f.up.up()
	f.wantOutcomes(f.install(box, "never-read", "never-read-either", "and-not-that"), "", "", "")
	f.wantPackages(box, "and-not-that", "never-read", "never-read-either", "was-read")
	heal := f.up.fail("/", hangs)
	defer heal()
	f.up.wheel("not-before", "1.0")
	f.up.wheel("not-before-either", "1.0")
	began = time.Now()
	f.wantOutcomes(f.install(box, "not-before", "not-before-either", "was-read>=1"), "did not answer", "did not answer", "")
	if took := time.Since(began); took > 3*time.Minute {
		t.Errorf("with an index that does not answer it took %v", took)
	}
	heal()
	f.wantOutcomes(f.install(box, "not-before", "not-before-either"), "", "")
}

// TestPackagesSurviveAKill kills the farm during installs of every kind.
func TestPackagesSurviveAKill(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	f := &packageFarm{up: up, farmProcess: newFarm(t, append(up.env(), "SANDFARM_WORKER_AUTO_INSTALL_ALLOW=asked-by-code,asked.by_run")...)}
	names := []string{"asked", "asked-by-code", "asked-by-run", "asked-by-create"}
	reached, release := make(chan struct{}, 100), make(chan struct{})
	var heal []func()
	for _, name := range names {
		up.largeWheel(name, 2<<20)
		heal = append(heal, up.fail("/files/"+name+"/", up.half(holds(reached, release))))
	}
	up.wheel("not-allowed", "1.0")
	box, other := f.sandbox(wire.CreateRequest{}).ID, f.sandbox(wire.CreateRequest{}).ID
	f.run(box, "kept = 7")
	auto, err := f.Execute(t.Context(), other, wire.ExecuteRequest{Code: "import not_allowed", AutoInstall: true}, client.WithWait(60*time.Second))
	if err != nil || auto.State != "completed" {
		t.Fatalf("auto_install: %v %+v", err, auto)
	}
	f.wantOutcomesOf(auto.Result.Execute.Installed, "The operator does not allow not-allowed")

	install := f.startInstall(box, "asked")
	code, err := f.Execute(t.Context(), other, wire.ExecuteRequest{Code: "import asked_by_code; print(asked_by_code.__version__)", AutoInstall: true})
	testbed.Must(t, err)
	run, err := f.Run(t.Context(), wire.RunRequest{Code: "import asked_by_run; print(asked_by_run.__version__)", AutoInstall: true})
	testbed.Must(t, err)
	made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{Packages: []string{"asked-by-create"}})
	testbed.Must(t, err)
	until(t.Context(), t, "all four installs are running", time.Minute, func() bool {
		for _, name := range names {
			if up.count("/files/"+name+"/"+wheelName(name, "1.0", "py3-none-any")) == 0 {
				return false
			}
		}
		return true
	})
	f.stop(syscall.SIGKILL)
	for _, end := range heal {
		end()
	}
	close(release)
	time.Sleep(time.Second) // the installers notice that the worker is gone
	f.start()
	f.wantOutcomes(f.second(install), "")
	f.wantOutcomes(f.second(made.Job), "")
	for job, want := range map[string]wire.Job{"execute": code, "run": run} {
		done := f.second(want)
		if got := done.Result.Execute; got == nil || got.Stdout != "1.0\n" || got.Error != nil {
			t.Errorf("%s: %+v", job, got)
		} else {
			f.wantOutcomesOf(got.Installed, "")
		}
	}
	f.wantPackages(box, "asked")
	f.wantPackages(other, "asked-by-code")
	f.wantPackages(made.Sandbox.ID, "asked-by-create")
	if got := f.run(box, "import asked; print(kept, asked.__version__)").Stdout; !strings.HasPrefix(got, "7 1.0") {
		t.Errorf("the kernel afterwards: %q", got)
	}
}

// second expects a job that the second worker has completed.
func (f *packageFarm) second(job wire.Job) wire.Job {
	f.t.Helper()
	done := f.waitState(job, "completed")
	if done.Attempt != 2 {
		f.t.Errorf("%s job: attempt %d", job.Kind, done.Attempt)
	}
	return done
}
