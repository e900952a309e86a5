//go:build compose

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// timeout is the longest that a command of compose may take: a build on a slow machine.
const timeout = 15 * time.Minute

// root is where docker-compose.yml is.
const root = ".."

// project is a compose project of its own: name, passwords, ports and image tags.
type project struct {
	name    string
	file    string // its .env
	key     string // API key
	plugins string // DOCKER_CONFIG with the plugins that are wanted
	ports   map[string]string
	env     []string
}

// newProject creates a project, which is removed at the end of the test. The docker command finds compose, and buildx if requested.
func newProject(t *testing.T, buildx bool) *project {
	t.Helper()
	p := &project{name: "sandfarm-test-" + farm.NewID("")[:10], plugins: t.TempDir(), ports: map[string]string{}}
	plugins := []string{"docker-compose"}
	if buildx {
		plugins = append(plugins, "docker-buildx")
	}
	testbed.Must(t, os.Mkdir(filepath.Join(p.plugins, "cli-plugins"), 0o700))
	for _, plugin := range plugins {
		binary := filepath.Join(os.Getenv("SANDFARM_TEST_PLUGINS"), plugin)
		_, err := os.Stat(binary)
		testbed.Must(t, err)
		testbed.Must(t, os.Symlink(binary, filepath.Join(p.plugins, "cli-plugins", plugin)))
	}
	p.file = filepath.Join(t.TempDir(), ".env")
	p.key = keyIn(t, initialise(t, p.file))
	p.env = []string{"DOCKER_CONFIG=" + p.plugins, "SANDFARM_TAG=" + p.name}
	for _, name := range []string{"SANDFARM_PORT", "SANDFARM_S3_PORT", "SANDFARM_CONSOLE_PORT", "SANDFARM_MINIO_PORT", "SANDFARM_METRICS_PORT"} {
		p.ports[name] = testbed.Port(t)
		p.env = append(p.env, name+"="+p.ports[name])
	}
	t.Cleanup(func() { p.destroy(t) })
	return p
}

// command returns a docker command with this project's settings and none of the caller's.
func (p *project) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "docker", args...)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "SANDFARM_") && !strings.HasPrefix(entry, "COMPOSE_") && !strings.HasPrefix(entry, "DOCKER_BUILDKIT=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, p.env...)
	return cmd
}

// compose runs docker compose and returns stdout and stderr together.
func (p *project) compose(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args = append([]string{"compose", "--project-directory", root, "--file", root + "/docker-compose.yml", "--env-file", p.file, "--project-name", p.name}, args...)
	out, err := p.command(ctx, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (p *project) must(t *testing.T, args ...string) string {
	t.Helper()
	began := time.Now()
	out, err := p.compose(t.Context(), args...)
	if err != nil {
		logs, _ := p.compose(t.Context(), "logs", "--tail", "15")
		t.Fatalf("%v\nlogs:\n%s", err, logs)
	}
	t.Logf("docker compose %s: %v", strings.Join(args, " "), time.Since(began).Round(100*time.Millisecond))
	return out
}

// docker runs a docker command and returns the lines of its output.
func (p *project) docker(t *testing.T, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := p.command(ctx, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %v: %v\n%s", args, err, stderr.String())
	}
	return strings.Fields(string(out))
}

// namespace labels the containers of the workers in the engine.
func (p *project) namespace() string { return "compose-" + p.name }

// sandboxes lists the sandboxes' containers, running or not.
func (p *project) sandboxes(t *testing.T) []string {
	t.Helper()
	return p.docker(t, "ps", "--all", "--quiet", "--filter", "label=sandfarm.namespace="+p.namespace())
}

// client returns a client of the published port.
func (p *project) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(fmt.Sprintf("http://127.0.0.1:%s", p.ports["SANDFARM_PORT"]), client.WithKey(p.key))
	testbed.Must(t, err)
	return c
}

// destroy removes all resources of the project and reports what cannot be removed.
func (p *project) destroy(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	if t.Failed() {
		logs, _ := p.compose(ctx, "logs", "--tail", "40")
		t.Log(logs)
	}
	if _, err := p.compose(ctx, "down", "--volumes", "--remove-orphans"); err != nil {
		t.Error(err)
	}
	// Not with --rmi: that leaves the layers of the classic builder behind.
	for _, tag := range p.docker(t, "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference=sandfarm/*:"+p.name) {
		p.docker(t, "rmi", tag)
	}
	for _, id := range p.sandboxes(t) {
		p.docker(t, "rm", "--force", id)
	}
	for _, name := range p.docker(t, "volume", "ls", "--quiet", "--filter", "label=sandfarm.namespace="+p.namespace()) {
		p.docker(t, "volume", "rm", name)
	}
}

// container describes a service's container, as the engine reports it.
type container struct {
	ID     string `json:"Id"`
	Config struct {
		User   string
		Env    []string
		Labels map[string]string
	}
	HostConfig struct {
		Memory, NanoCpus, PidsLimit int64
		Privileged, ReadonlyRootfs  bool
		CapAdd, CapDrop             []string
		SecurityOpt                 []string
		Binds                       []string
		NetworkMode, PidMode        string
		RestartPolicy               struct{ Name string }
		LogConfig                   struct{ Config map[string]string }
	}
	Mounts          []struct{ Source, Destination string }
	NetworkSettings struct {
		Ports map[string][]struct{ HostIP, HostPort string }
	}
	State struct {
		Status string
		Health *struct{ Status string }
	}
}

func (c container) service() string { return c.Config.Labels["com.docker.compose.service"] }

// containers inspects the project's containers.
func (p *project) containers(t *testing.T) []container {
	t.Helper()
	ids := p.docker(t, "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+p.name)
	if len(ids) == 0 {
		return nil
	}
	var found []container
	text := strings.Join(p.docker(t, append([]string{"inspect", "--format", "{{json .}}"}, ids...)...), " ")
	d := json.NewDecoder(strings.NewReader(text))
	for d.More() {
		var c container
		testbed.Must(t, d.Decode(&c))
		found = append(found, c)
	}
	return found
}

// checkContainers checks the engine's actual settings of each container: limits, rights, ports.
func (p *project) checkContainers(t *testing.T) {
	t.Helper()
	count := map[string]int{}
	ports := map[string]string{}
	for _, c := range p.containers(t) {
		name, host := c.service(), c.HostConfig
		count[name]++
		if host.Memory <= 0 || host.NanoCpus <= 0 || host.PidsLimit <= 0 {
			t.Errorf("%s: memory %d, CPUs %d, processes %d; each must have a limit", name, host.Memory, host.NanoCpus, host.PidsLimit)
		}
		if host.Privileged || len(host.CapAdd) > 0 || !slices.Equal(host.CapDrop, []string{"ALL"}) || host.PidMode != "" ||
			!slices.Contains(host.SecurityOpt, "no-new-privileges:true") || !host.ReadonlyRootfs {
			t.Errorf("%s has rights that it does not need: %+v", name, host)
		}
		if host.LogConfig.Config["max-size"] == "" {
			t.Errorf("%s: its log has no size limit", name)
		}
		p.checkSocket(t, c)
		p.checkCredentials(t, c)
		p.checkSpool(t, c)
		p.checkLife(t, c)
		for inside, bound := range c.NetworkSettings.Ports {
			for _, b := range bound {
				testbed.Diff(t, fmt.Sprintf("%s: port %s is published on", name, inside), "127.0.0.1", b.HostIP)
				ports[name+" "+inside] = b.HostPort
			}
		}
	}
	wantCount := map[string]int{"api": 1, "worker": 3, "scheduler": 1, "redis": 1, "minio": 1, "images": 1, "caretaker": 1, "credentials": 1, "engine-proxy": 1}
	testbed.Diff(t, "containers", wantCount, count)
	wantPorts := map[string]string{
		"api 8000/tcp":   p.ports["SANDFARM_PORT"],
		"api 8001/tcp":   p.ports["SANDFARM_S3_PORT"],
		"api 8002/tcp":   p.ports["SANDFARM_METRICS_PORT"],
		"minio 9000/tcp": p.ports["SANDFARM_MINIO_PORT"],
		"minio 9001/tcp": p.ports["SANDFARM_CONSOLE_PORT"],
	}
	testbed.Diff(t, "published ports", wantPorts, ports)
}

// checkSocket checks that only the proxy and the image build have the engine's socket and run as root, and that workers and the
// caretaker have the proxy's.
func (p *project) checkSocket(t *testing.T, c container) {
	t.Helper()
	var engine, proxy bool
	for _, m := range c.Mounts {
		engine = engine || m.Destination == "/var/run/docker.sock"
		proxy = proxy || m.Destination == "/run/sandfarm"
	}
	testbed.Diff(t, fmt.Sprintf("%s: has the engine's socket", c.service()), slices.Contains([]string{"engine-proxy", "images"}, c.service()), engine)
	testbed.Diff(t, fmt.Sprintf("%s: has the proxy's socket", c.service()), slices.Contains([]string{"engine-proxy", "worker", "caretaker"}, c.service()), proxy)
	want := "10001:10001"
	switch c.service() {
	case "engine-proxy", "images":
		want = "0:0"
	}
	testbed.Diff(t, fmt.Sprintf("%s: user", c.service()), want, c.Config.User)
}

// checkSpool checks that workers have disk space of a limited size for temporary files, and that they can write there.
func (p *project) checkSpool(t *testing.T, c container) {
	t.Helper()
	if c.service() != "worker" {
		return
	}
	for _, name := range []string{"SANDFARM_WORKER_OUTPUT_SPOOL_MB", "SANDFARM_INDEX_SPOOL_MB"} {
		if !slices.Contains(c.Config.Env, name+"=1024") {
			t.Errorf("%s is not 1024 in %q", name, c.Config.Env)
		}
	}
	const script = `f=$(mktemp) && rm "$f" && echo "${f%/*}" && stat --file-system --format %T "$TMPDIR"`
	out := p.docker(t, "exec", c.ID, "sh", "-c", script)
	if len(out) != 2 || out[0] != "/var/tmp" || out[1] == "tmpfs" {
		t.Errorf("directory and file system of temporary files: %q, want /var/tmp on a disk", out)
	}
}

// checkCredentials checks that only MinIO and the service that makes its users have MinIO's own password.
func (p *project) checkCredentials(t *testing.T, c container) {
	t.Helper()
	root := variables(t, p.file)["SANDFARM_S3_SECRET_KEY"]
	has := slices.ContainsFunc(c.Config.Env, func(entry string) bool { return strings.Contains(entry, root) })
	testbed.Diff(t, fmt.Sprintf("%s: has MinIO's own password", c.service()), slices.Contains([]string{"minio", "credentials"}, c.service()), has)
}

// checkLife checks that services are healthy and restart, and that the image build has ended.
func (p *project) checkLife(t *testing.T, c container) {
	t.Helper()
	switch c.service() {
	case "images", "credentials":
		testbed.Diff(t, c.service(), "exited", c.State.Status)
		return
	case "caretaker": // it only waits: if it runs, it is healthy
	default:
		if c.State.Health == nil || c.State.Health.Status != "healthy" {
			t.Errorf("%s: health %+v", c.service(), c.State.Health)
		}
	}
	if c.State.Status != "running" || c.HostConfig.RestartPolicy.Name != "unless-stopped" {
		t.Errorf("%s is %s, with restart policy %q", c.service(), c.State.Status, c.HostConfig.RestartPolicy.Name)
	}
}
