//go:build integration

package main_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	// attackWait bounds each call: what takes longer is an attack that works.
	attackWait = 2 * time.Minute
	// neighbourWait bounds one run of the neighbour. It is generous: times are printed, and never compared.
	neighbourWait = 30 * time.Second
	// readArtifacts and readBytes bound what is downloaded after an attack.
	readArtifacts, readBytes = 10, 1 << 20
)

// Every attack of the corpus runs in a sandbox, and then its harmless twin: it has the stated outcome, the sandbox still works and
// is in a clear state, and so are the farm and another sandbox, which runs beside it. `make test` runs a sample,
// SANDFARM_TEST_ATTACKS=all runs all of them.
func TestAttacks(t *testing.T) {
	t.Parallel()
	new(attackRun).corpus(t, os.Getenv("SANDFARM_TEST_ATTACKS") == "all")
}

// corpus runs all attacks, or the sample, against a farm with these settings.
func (r *attackRun) corpus(t *testing.T, all bool, env ...string) {
	t.Helper()
	runtime := cmp.Or(enginetest.Runtime(), "runc")
	r.internet = newInternet(t)
	r.farmProcess = r.internet.farm(env...)
	r.neighbour = newNeighbour(t, r.farmProcess)
	r.head(t, runtime+map[bool]string{true: ", in sandboxes that hibernate before and after"}[r.hibernates])
	t.Cleanup(func() { r.report(t) })
	for _, a := range readAttacks(t) {
		if !all && !a.sample || len(a.runtimes) > 0 && !slices.Contains(a.runtimes, runtime) {
			continue
		}
		t.Run(a.group+"/"+a.name, func(t *testing.T) {
			r.attack(t, a)
		})
	}
}

// attackRun runs attacks one after the other.
type attackRun struct {
	*farmProcess
	internet   *internet
	neighbour  *neighbour
	hibernates bool // each sandbox is hibernated before the attack, and before the run after it; work resumes it

	shared, sharedFor string   // a sandbox for attacks that leave it usable, and their group and network
	values            []string // of all secrets so far
	rows              []attackRow
}

// attackRow is a line of the table.
type attackRow struct {
	attack
	problems      []string
	quiet, beside []time.Duration
	took          time.Duration
}

// attack runs one attack and its twin. Its problems fail the test unless the attack is known not to be contained yet.
func (r *attackRun) attack(t *testing.T, a attack) {
	t.Helper()
	row := attackRow{attack: a, quiet: r.neighbour.quiet(t)}
	problem := func(format string, args ...any) { row.problems = append(row.problems, fmt.Sprintf(format, args...)) }
	sandbox := r.sandboxFor(t, a)
	r.internet.begin()
	started := time.Now()
	stop := r.neighbour.runs(t, a.check, &row.beside, problem)
	r.attackAndLook(t, sandbox, a, problem)
	stop()
	row.took = time.Since(started)
	r.internet.check(a, r.values, problem)
	if a.ruins {
		r.close(t, sandbox)
		sandbox = r.fresh(t, a)
	}
	if state, exception, text, err := r.try(t, sandbox, wire.ExecuteRequest{Code: a.twin}, 30); err != nil || state != "completed" || exception != "" {
		problem("the harmless twin ended as %s with %s: %v %.500s", state, exception, err, text)
	}
	if got, err := r.Sandbox(t.Context(), sandbox); err != nil || got.State != "ready" {
		problem("afterwards the sandbox is %s, %v; want ready", got.State, err)
	}
	r.neighbour.check(problem)
	if answer, err := http.Get(r.url + "/readyz"); err != nil {
		problem("the farm does not answer: %v", err)
	} else {
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			problem("the farm is not ready: %d", answer.StatusCode)
		}
	}
	if a.alone || a.ruins || a.sample || len(row.problems) > 0 {
		r.close(t, sandbox)
		if sandbox == r.shared {
			r.shared = ""
		}
	}
	r.done(t, row)
	switch {
	case a.known != "" && len(row.problems) == 0:
		t.Logf("it is contained here: remove the comment `# known: %s` if it is everywhere", a.known)
	case a.known != "":
		t.Logf("known: %s\n%s", a.known, strings.Join(row.problems, "\n"))
	case len(row.problems) > 0:
		t.Error(strings.Join(row.problems, "\n"))
	}
}

// attackAndLook runs the attack, the run after it, and what callers do with a sandbox: list its files, read some, see its artifacts.
func (r *attackRun) attackAndLook(t *testing.T, sandbox string, a attack, problem func(string, ...any)) {
	t.Helper()
	var artifacts []wire.Artifact
	state, exception, text, err := r.tryFor(t, sandbox, wire.ExecuteRequest{Code: a.code, Env: r.internet.env(a)}, a.timeout, &artifacts)
	if state == "lost" && a.ruins && slices.Contains(a.states, state) {
		return // it says so, and accepts no more work
	}
	if err != nil || !slices.Contains(a.states, state) || !a.allows(state, exception) {
		problem("it ended as %s with %q, %v; want %v with %v\n%.2000s", state, exception, err, a.states, a.errors, text)
	}
	r.leaks("the result", text, problem)
	r.look(t, sandbox, a, artifacts, problem)
	if err := r.hibernate(t, sandbox); err != nil {
		problem("afterwards it does not hibernate: %v", err)
	}
	if a.ruins {
		if state, _, _, err := r.try(t, sandbox, wire.ExecuteRequest{Code: "pass"}, 30); state == "" {
			problem("the next run has no end: %v", err)
		}
		return
	}
	state, exception, text, err = r.try(t, sandbox, wire.ExecuteRequest{Code: "pass", AutoInstall: a.autoInstall}, 60)
	if err != nil || exception != "" && !slices.Contains(a.next, exception) {
		problem("the next run ended as %s with %s, %v; want one of %v\n%.1000s", state, exception, err, a.next, text)
	}
}

// allows reports whether the attack may end with an exception, or with none. The result of a job that was ended may have none.
func (a *attack) allows(state, exception string) bool {
	if exception == "" {
		return len(a.errors) == 0 || state != "completed" || slices.Contains(a.errors, "none")
	}
	return slices.Contains(a.errors, exception)
}

// look reads what a caller reads. No answer may be an error of the farm, or a file of the sandbox's system or of the host.
func (r *attackRun) look(t *testing.T, sandbox string, a attack, artifacts []wire.Artifact, problem func(string, ...any)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attackWait)
	defer cancel()
	read := func(name string, from io.ReadCloser, err error) {
		if err != nil {
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Status >= http.StatusInternalServerError {
				problem("reading %s failed: %v", name, err)
			}
			return
		}
		text, _ := io.ReadAll(io.LimitReader(from, readBytes)) // a file that changes may end early
		_ = from.Close()
		r.leaks(name, string(text), problem)
		for _, outside := range []string{"root:x:0:0", "localhost ip6-localhost", "SANDFARM_"} {
			if bytes.Contains(text, []byte(outside)) {
				problem("reading %s gave a file from outside the workspace: %.200s", name, text)
			}
		}
	}
	if _, err := r.Files(sandbox).First(ctx, "", true, 1000); err != nil {
		problem("the files cannot be listed: %v", err)
	}
	for _, path := range a.reads {
		content, err := r.Files(sandbox).Read(ctx, path, 0)
		read(path, content, err)
	}
	for _, artifact := range artifacts[:min(len(artifacts), readArtifacts)] {
		content, err := r.Download(ctx, artifact)
		if err != nil {
			problem("the artifact %q cannot be downloaded: %v", artifact.Path, err)
			continue
		}
		read(artifact.Path, content, nil)
	}
	if a.packages {
		if _, err := r.Packages(ctx, sandbox); err != nil {
			if e, ok := errors.AsType[*client.Error](err); !ok || e.Status >= http.StatusInternalServerError {
				problem("the packages cannot be listed: %v", err)
			}
		}
	}
}

// sandboxFor returns the sandbox of an attack: one of its own, or one that attacks of the same group and network share.
func (r *attackRun) sandboxFor(t *testing.T, a attack) string {
	t.Helper()
	if a.alone || a.ruins || a.sample {
		return r.fresh(t, a)
	}
	if is := fmt.Sprint(a.group, a.network, a.allow, a.secrets); r.shared == "" || r.sharedFor != is {
		if r.shared != "" {
			r.close(t, r.shared)
		}
		r.shared, r.sharedFor = r.fresh(t, a), is
	}
	return r.shared
}

func (r *attackRun) fresh(t *testing.T, a attack) string {
	t.Helper()
	memory, disk := 512, 64
	secrets := map[string]wire.Secret{}
	for name, one := range a.secrets {
		one.Value = newValue()
		secrets[name], r.values = one, append(r.values, one.Value)
	}
	made, err := r.CreateSandbox(t.Context(), wire.CreateRequest{Network: &a.network, AllowHosts: a.allow, Secrets: secrets, Resources: &wire.ResourcesRequest{MemoryMB: &memory, DiskMB: &disk}}, client.WithWait(60*time.Second))
	if err != nil || made.Job.State != "completed" {
		t.Fatalf("create: %v %+v", err, made.Job)
	}
	testbed.Must(t, r.hibernate(t, made.Sandbox.ID))
	return made.Sandbox.ID
}

// hibernate hibernates a sandbox if attacks are to be run that way.
func (r *attackRun) hibernate(t *testing.T, sandbox string) error {
	t.Helper()
	if !r.hibernates {
		return nil
	}
	job, err := r.Hibernate(t.Context(), sandbox)
	if err == nil {
		job, err = r.Wait(t.Context(), job.ID)
	}
	if err != nil || job.State == "completed" {
		return err
	}
	return fmt.Errorf("hibernate ended as %s: %+v", job.State, job.Error)
}

func (r *attackRun) close(t *testing.T, sandbox string) {
	t.Helper()
	if box, err := r.Sandbox(t.Context(), sandbox); err == nil && box.State == "lost" {
		return // it has ended by itself; whether it may is stated by the attack
	}
	if job, err := r.Client.Close(t.Context(), sandbox, client.WithWait(60*time.Second)); err != nil || job.State != "completed" {
		t.Errorf("close: %v, %s", err, job.State)
	}
}

// try runs code and returns the job's state and the name of its exception. An error is one of the farm.
func (r *attackRun) try(t *testing.T, sandbox string, request wire.ExecuteRequest, timeout int) (state, exception, text string, err error) {
	t.Helper()
	return r.tryFor(t, sandbox, request, timeout, nil)
}

func (r *attackRun) tryFor(t *testing.T, sandbox string, request wire.ExecuteRequest, timeout int, artifacts *[]wire.Artifact) (state, exception, text string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(timeout)*time.Second+attackWait)
	defer cancel()
	request.TimeoutSeconds = &timeout
	job, err := r.Execute(ctx, sandbox, request, client.WithWait(attackWait))
	if err != nil {
		return "", "", "", err
	}
	if job, err = r.Wait(ctx, job.ID); err != nil {
		return "", "", "", err
	}
	if job.Result == nil || job.Result.Execute == nil {
		if job.Error != nil {
			return job.State, "", job.Error.Message, fmt.Errorf("the job has no result: %s", job.Error.Message)
		}
		return job.State, "", "", errors.New("the job has no result")
	}
	if artifacts != nil {
		*artifacts = job.Result.Execute.Artifacts
	}
	if e := job.Result.Execute.Error; e != nil {
		return job.State, e.Name, e.Value + "\n" + strings.Join(e.Traceback, "\n"), nil
	}
	return job.State, "", job.Result.Execute.Stdout, nil
}

// neighbour is another sandbox of the same farm.
type neighbour struct {
	f  *farmProcess
	id string
	n  int
}

func newNeighbour(t *testing.T, f *farmProcess) *neighbour {
	t.Helper()
	n := &neighbour{f: f, id: f.sandbox(wire.CreateRequest{}).ID}
	f.run(n.id, "kept = 41")
	return n
}

// one runs code in the neighbour and returns what it took.
func (n *neighbour) one(code string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), neighbourWait)
	defer cancel()
	started := time.Now()
	job, err := n.f.Execute(ctx, n.id, wire.ExecuteRequest{Code: code}, client.WithWait(neighbourWait))
	took := time.Since(started)
	if err == nil && (job.State != "completed" || job.Result == nil || job.Result.Execute == nil || job.Result.Execute.Error != nil) {
		err = fmt.Errorf("the neighbour's %q ended as %s: %+v", code, job.State, job.Result)
		if job.Result != nil && job.Result.Execute != nil && job.Result.Execute.Error != nil {
			err = fmt.Errorf("the neighbour's %q raised %s: %s", code, job.Result.Execute.Error.Name, job.Result.Execute.Error.Value)
		}
	}
	return took, err
}

// quiet measures print(1) before an attack.
func (n *neighbour) quiet(t *testing.T) (times []time.Duration) {
	t.Helper()
	for range 5 {
		took, err := n.one("print(1)")
		testbed.Must(t, err)
		times = append(times, took)
	}
	return times
}

// runs lets the neighbour work until stop is called, at least once.
func (n *neighbour) runs(t *testing.T, check string, times *[]time.Duration, problem func(string, ...any)) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var errs []error
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			took, err := n.one("print(1)")
			*times = append(*times, took)
			if err == nil && check != "" {
				_, err = n.one(check)
			}
			if err != nil && len(errs) < 3 {
				errs = append(errs, err)
			}
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		for _, err := range errs {
			problem("%v", err)
		}
	}
}

// check verifies that the neighbour has kept its variables.
func (n *neighbour) check(problem func(string, ...any)) {
	n.n++
	if _, err := n.one(fmt.Sprintf("kept += 1; assert kept == %d", 41+n.n)); err != nil {
		problem("%v", err)
	}
}
