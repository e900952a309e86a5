//go:build compose

package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
				if b.HostIP != "127.0.0.1" {
					t.Errorf("%s: port %s is published on %s", name, inside, b.HostIP)
				}
				ports[name+" "+inside] = b.HostPort
			}
		}
	}
	wantCount := map[string]int{"api": 1, "worker": 3, "scheduler": 1, "redis": 1, "minio": 1, "images": 1, "caretaker": 1, "credentials": 1, "engine-proxy": 1}
	if diff := cmp.Diff(wantCount, count); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	wantPorts := map[string]string{
		"api 8000/tcp":   p.ports["SANDFARM_PORT"],
		"api 8002/tcp":   p.ports["SANDFARM_METRICS_PORT"],
		"minio 9000/tcp": p.ports["SANDFARM_S3_PORT"],
		"minio 9001/tcp": p.ports["SANDFARM_CONSOLE_PORT"],
	}
	if diff := cmp.Diff(wantPorts, ports); diff != "" {
		t.Errorf("published ports (-want +got):\n%s", diff)
	}
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
	if mayReach := slices.Contains([]string{"engine-proxy", "images"}, c.service()); engine != mayReach {
		t.Errorf("%s: has the engine's socket: %v, want %v", c.service(), engine, mayReach)
	}
	if mayReach := slices.Contains([]string{"engine-proxy", "worker", "caretaker"}, c.service()); proxy != mayReach {
		t.Errorf("%s: has the proxy's socket: %v, want %v", c.service(), proxy, mayReach)
	}
	want := "10001:10001"
	switch c.service() {
	case "engine-proxy", "images":
		want = "0:0"
	}
	if user := c.Config.User; user != want {
		t.Errorf("%s: user %q, want %q", c.service(), user, want)
	}
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
	if want := slices.Contains([]string{"minio", "credentials"}, c.service()); has != want {
		t.Errorf("%s: has MinIO's own password: %v, want %v", c.service(), has, want)
	}
}

// checkLife checks that services are healthy and restart, and that the image build has ended.
func (p *project) checkLife(t *testing.T, c container) {
	t.Helper()
	switch c.service() {
	case "images", "credentials":
		if c.State.Status != "exited" {
			t.Errorf("%s is %s, want exited", c.service(), c.State.Status)
		}
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
