//go:build compose

package main_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The tests here take turns: each starts a farm of ten containers.

func TestComposeRefusesToStartWithoutPasswords(t *testing.T) {
	p := newProject(t, false)
	all := variables(t, p.file)
	for _, missing := range []string{"SANDFARM_REDIS_PASSWORD", "SANDFARM_S3_ACCESS_KEY", "SANDFARM_S3_SECRET_KEY", "SANDFARM_S3_API_SECRET", "SANDFARM_S3_WORKER_SECRET", "SANDFARM_S3_SCHEDULER_SECRET", "SANDFARM_API_KEYS"} {
		var text strings.Builder
		for name, value := range all {
			if name != missing {
				fmt.Fprintf(&text, "%s=%s\n", name, value)
			}
		}
		one := *p
		one.file = filepath.Join(t.TempDir(), ".env")
		testbed.Must(t, os.WriteFile(one.file, []byte(text.String()), 0o600))
		if out, err := one.compose(t.Context(), "up", "--no-start"); err == nil || !strings.Contains(out, missing) || !strings.Contains(out, "run deploy/compose/init.sh") {
			t.Errorf("without %s: error %v; want one that says what to run:\n%s", missing, err, out)
		}
	}
}

// Compose builds with buildx where that is installed, else with a BuildKit client of its own (the test after this one), or
// with the engine's classic builder.
func TestComposeBuildsEitherWay(t *testing.T) {
	for name, c := range map[string]struct {
		buildx bool
		env    string
		sign   string // in the output
	}{
		"Buildx":         {true, "DOCKER_BUILDKIT=1", "load local bake definitions"},
		"ClassicBuilder": {false, "DOCKER_BUILDKIT=0", "Step 1/"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProject(t, c.buildx)
			p.env = append(p.env, c.env)
			out := p.must(t, "--progress", "plain", "up", "--build", "--detach", "--wait", "--scale", "worker=2")
			if !strings.Contains(out, c.sign) {
				t.Errorf("no %q in the output:\n%s", c.sign, out)
			}
			farm := p.client(t)
			p.awaitReady(t, farm, 2)
			job, err := farm.Run(t.Context(), wire.RunRequest{Code: "print(6*7)"}, client.WithWait(time.Minute))
			prints(t, "a run", "42\n", job, err)
			p.must(t, "down")
			p.nothingIsLeft(t)
		})
	}
}

func TestComposeFromUpToUpAgain(t *testing.T) {
	p := newProject(t, false)
	ctx := t.Context()
	out := p.must(t, "--progress", "plain", "up", "--build", "--detach", "--wait", "--scale", "worker=3")
	if strings.Contains(out, "bake definitions") {
		t.Errorf("buildx was used, though there is none:\n%s", out)
	}
	c := p.client(t)
	p.awaitReady(t, c, 3)
	p.awaitPool(t, c)
	p.checkContainers(t)
	p.checkKeyIsNeeded(t)
	p.checkRunsSpread(t, c)
	p.checkPackages(t, c)

	job, err := c.Run(ctx, wire.RunRequest{Code: "open('told.txt', 'w').write('from inside'); print('kept')"}, client.WithWait(time.Minute))
	if err != nil || job.Result == nil || job.Result.Execute == nil || len(job.Result.Execute.Artifacts) != 1 {
		t.Fatalf("job %+v, error %v; want one artifact", job, err)
	}
	artifact := job.Result.Execute.Artifacts[0]
	p.checkLink(t, c, artifact)
	p.checkBrowsable(t, job, artifact)

	created, err := c.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(time.Minute))
	testbed.Must(t, err)
	_, err = c.Execute(ctx, created.Sandbox.ID, wire.ExecuteRequest{Code: "x = 41"}, client.WithWait(time.Minute))
	testbed.Must(t, err)

	// An update, and a restart: every container is a new process, and the sandbox has its variables.
	p.must(t, "up", "--detach", "--wait", "--force-recreate", "--scale", "worker=3")
	p.must(t, "restart")
	p.awaitReady(t, c, 3)
	again, err := c.Execute(ctx, created.Sandbox.ID, wire.ExecuteRequest{Code: "print(x + 1)"}, client.WithWait(time.Minute))
	prints(t, "after an update and a restart", "42\n", again, err)

	// Down removes everything, even if the farm was stopped before, so that no process was left to clean up.
	p.must(t, "stop")
	p.must(t, "down")
	p.nothingIsLeft(t)

	p.must(t, "up", "--detach", "--wait", "--scale", "worker=2")
	p.awaitReady(t, c, 2)
	found, err := c.Job(ctx, job.ID)
	prints(t, "after down and up", "kept\n", found, err)
	p.checkLink(t, c, artifact)
	p.awaitState(t, c, created.Sandbox.ID, "lost")
}

// prints checks what a job has printed.
func prints(t *testing.T, what, want string, j wire.Job, err error) {
	t.Helper()
	if err != nil || stdout(j) != want {
		t.Errorf("%s: job %+v, error %v", what, j, err)
	}
}

func stdout(j wire.Job) string {
	if j.Result == nil || j.Result.Execute == nil {
		return ""
	}
	return j.Result.Execute.Stdout
}

// await calls try until it is nil, and fails with its last error.
func await(t *testing.T, limit time.Duration, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v: %v", limit, err)
		case <-ticker.C:
		}
	}
}

// awaitReady waits until the farm is ready with so many workers on one node.
func (p *project) awaitReady(t *testing.T, c *client.Client, workers int) {
	t.Helper()
	await(t, 90*time.Second, func(ctx context.Context) error {
		if err := c.Ready(ctx); err != nil {
			return err
		}
		found, err := c.Workers(ctx)
		if err != nil {
			return err
		}
		hosts, nodes := map[string]bool{}, map[string]bool{}
		for _, w := range found {
			hosts[w.Host], nodes[w.Node] = true, true
		}
		if len(found) != workers || len(hosts) != workers || len(nodes) != 1 {
			return fmt.Errorf("workers %+v, want %d on one node", found, workers)
		}
		return nil
	})
}

// awaitPool waits until the node's warm pool has all members that its size asks for, at least one.
func (p *project) awaitPool(t *testing.T, c *client.Client) {
	t.Helper()
	await(t, 3*time.Minute, func(ctx context.Context) error {
		found, err := c.Workers(ctx)
		if err != nil {
			return err
		}
		for _, w := range found {
			if len(w.Pool) != 1 || w.Pool[0].Target < 1 || w.Pool[0].Ready < w.Pool[0].Target {
				return fmt.Errorf("worker %s has the pool %+v, want one that is full", w.ID, w.Pool)
			}
		}
		return nil
	})
}

func (p *project) awaitState(t *testing.T, c *client.Client, id, state string) {
	t.Helper()
	await(t, time.Minute, func(ctx context.Context) error {
		s, err := c.Sandbox(ctx, id)
		if err == nil && s.State != state {
			err = fmt.Errorf("sandbox is %s, want %s", s.State, state)
		}
		return err
	})
}

// checkRunsSpread makes 30 runs and checks which worker created their sandboxes.
func (p *project) checkRunsSpread(t *testing.T, c *client.Client) {
	t.Helper()
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(10)
	var mu sync.Mutex
	var got []string
	for i := range 30 {
		group.Go(func() error {
			job, err := c.Run(t.Context(), wire.RunRequest{Code: fmt.Sprintf("print(%d)", i)}, client.WithWait(time.Minute))
			if err == nil && !job.Final() {
				job, err = c.Wait(t.Context(), job.ID)
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, strings.TrimSpace(stdout(job)))
			return err
		})
	}
	testbed.Must(t, group.Wait())
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint(i))
	}
	slices.Sort(got)
	slices.Sort(want)
	testbed.Diff(t, "outputs", want, got)
	by := map[string]int{}
	for line := range strings.SplitSeq(p.must(t, "logs", "--no-color", "worker"), "\n") {
		worker, text, _ := strings.Cut(line, "|")
		if strings.Contains(text, `"msg":"sandbox ready"`) {
			by[strings.TrimSpace(worker)]++
		}
	}
	t.Logf("30 runs in %v, by worker: %v", time.Since(began).Round(time.Second), by)
	if len(by) != 3 {
		t.Errorf("runs went to %d workers, want all 3: %v", len(by), by)
	}
}

// checkPackages installs a package: the worker reads the index from its container.
func (p *project) checkPackages(t *testing.T, c *client.Client) {
	t.Helper()
	job, err := c.Run(t.Context(), wire.RunRequest{Code: "import six; print(six.__name__)", Packages: []string{"six"}}, client.WithWait(time.Minute))
	if err == nil && !job.Final() {
		job, err = c.Wait(t.Context(), job.ID)
	}
	prints(t, "a run with a package", "six\n", job, err)
}

// checkLink downloads an artifact by its link, as a caller on the host does, without a key.
func (p *project) checkLink(t *testing.T, c *client.Client, a wire.Artifact) {
	t.Helper()
	link, err := c.Link(t.Context(), a.ID)
	testbed.Must(t, err)
	if status, body := get(t, link, ""); status != http.StatusOK || body != "from inside" {
		t.Errorf("link %s: status %d, body %q", link, status, body)
	}
	if bare, _, _ := strings.Cut(link, "?"); bare != link {
		if status, _ := get(t, bare, ""); status != http.StatusForbidden {
			t.Errorf("link without its signature: status %d, want 403", status)
		}
	}
}

// checkKeyIsNeeded sends requests without a key and with a wrong one.
func (p *project) checkKeyIsNeeded(t *testing.T) {
	t.Helper()
	url := fmt.Sprintf("http://127.0.0.1:%s/v1/workers", p.ports["SANDFARM_PORT"])
	for _, key := range []string{"", "sf_" + strings.Repeat("0", 48)} {
		if status, _ := get(t, url, key); status != http.StatusUnauthorized {
			t.Errorf("key %q: status %d, want 401", key, status)
		}
	}
}

// checkBrowsable finds the artifact in MinIO's files under the name that docs/compose.md promises, and the console.
func (p *project) checkBrowsable(t *testing.T, job wire.Job, a wire.Artifact) {
	t.Helper()
	want := fmt.Sprintf("/data/sandfarm/artifacts/default/%s/%s/%s/told.txt/xl.meta", job.SandboxID, job.ID, a.ID)
	p.must(t, "exec", "-T", "minio", "test", "-f", want)
	if status, body := get(t, fmt.Sprintf("http://127.0.0.1:%s/", p.ports["SANDFARM_CONSOLE_PORT"]), ""); status != http.StatusOK || !strings.Contains(body, "MinIO") {
		t.Errorf("console: status %d, body %.200q", status, body)
	}
}

// nothingIsLeft checks that no container and no network is left.
func (p *project) nothingIsLeft(t *testing.T) {
	t.Helper()
	if left := p.sandboxes(t); len(left) > 0 {
		t.Errorf("sandboxes after down: %v", left)
	}
	if left := p.containers(t); len(left) > 0 {
		t.Errorf("containers after down: %+v", left)
	}
	if left := p.docker(t, "network", "ls", "--quiet", "--filter", "label=com.docker.compose.project="+p.name); len(left) > 0 {
		t.Errorf("networks after down: %v", left)
	}
}

// get fails the test where the server cannot be reached; fetch is for a server that is starting.
func get(t *testing.T, url, key string) (int, string) {
	t.Helper()
	status, body, err := fetch(t.Context(), url, key)
	testbed.Must(t, err)
	return status, body
}

func fetch(ctx context.Context, url, key string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("User-Agent", "Mozilla/5.0") // the console sends anything else to the S3 service
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}
