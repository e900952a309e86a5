package faulttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// containers are those of a farm's sandboxes, reached past the farm.
type containers interface {
	// list has the sandboxes that have a container, or one that runs, once for each container.
	list(running bool) ([]string, error)
	// exec runs a command in a sandbox.
	exec(box string, command ...string) error
	// kill kills the first process of a sandbox.
	kill(box string) error
	// remove removes everything that the farm has left.
	remove() error
}

// dockers are containers of Docker engines.
type dockers struct {
	engines   []string // their sockets
	namespace string
}

func docker(engine string, args ...string) (string, error) {
	out, err := exec.Command("docker", append([]string{"-H", "unix://" + engine}, args...)...).Output() //nolint:noctx // bounded by the test's end
	return string(out), err
}

func (d *dockers) list(running bool) (all []string, failed error) {
	which := "--all"
	if running {
		which = "--filter=status=running"
	}
	for _, engine := range d.engines {
		out, err := docker(engine, "ps", which, "--no-trunc", "--filter", "label=sandfarm.namespace="+d.namespace, "--format", `{{.Label "sandfarm.sandbox"}}`)
		all, failed = append(all, strings.Fields(out)...), errors.Join(failed, err)
	}
	return all, failed
}

func (d *dockers) exec(box string, command ...string) error {
	id, err := d.of(box)
	if err == nil {
		_, err = docker(d.engines[0], append([]string{"exec", id}, command...)...)
	}
	return err
}

func (d *dockers) kill(box string) error {
	container, err := d.of(box)
	if err != nil {
		return err
	}
	out, err := docker(d.engines[0], "inspect", "--format", "{{.State.Pid}}", container)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || pid <= 1 {
		return fmt.Errorf("its process is %d: %w", pid, err)
	}
	// An engine in a pid namespace of its own means another process.
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && !strings.Contains(string(groups), container) {
		err = fmt.Errorf("process %d is not in the container: the engine must count processes as this test does", pid)
	}
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// of is the container of a sandbox on the first engine.
func (d *dockers) of(box string) (string, error) {
	id, err := docker(d.engines[0], "ps", "-q", "--no-trunc", "--filter", "label=sandfarm.sandbox="+box)
	if id = strings.TrimSpace(id); err == nil && id == "" {
		err = fmt.Errorf("no container of %s runs", box)
	}
	return id, err
}

func (d *dockers) remove() (failed error) {
	for _, engine := range d.engines {
		for _, kind := range [][2][]string{{{"ps", "-aq"}, {"rm", "-f"}}, {{"volume", "ls", "-q"}, {"volume", "rm", "-f"}}} {
			ids, err := docker(engine, append(kind[0], "--filter", "label=sandfarm.namespace="+d.namespace)...)
			if err == nil && ids != "" {
				_, err = docker(engine, append(kind[1], strings.Fields(ids)...)...)
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("docker %v: %w", kind[1], err))
			}
		}
	}
	for _, parent := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} { // versions 1 and 2; a worker that is killed leaves its cgroup
		dirs, _ := filepath.Glob(parent + "sandboxes-" + d.namespace)
		for _, dir := range dirs {
			_ = os.Remove(dir)
		}
	}
	return failed
}

// pods are Pods of a cluster.
type pods struct{ *testbed.Cluster }

func (p pods) list(running bool) (all []string, err error) {
	out, err := p.Try("get", "pods", "-l", "sandfarm/role=sandbox", "-o", `jsonpath={range .items[*]}{.metadata.labels.sandfarm/sandbox} {.status.phase}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		box, phase, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !running || phase == "Running" {
			all = append(all, box)
		}
	}
	return all, err
}

func (p pods) exec(box string, command ...string) error {
	_, err := p.Try(slices.Concat([]string{"exec", PodOf(box), "-c", "sandbox", "--"}, command)...)
	return err
}

func (p pods) kill(box string) error {
	id, err := p.Exec("ctr", "-n", "k8s.io", "containers", "ls", "-q", `labels."io.kubernetes.pod.name"==`+PodOf(box)+`,labels."io.kubernetes.container.name"==sandbox`)
	if err == nil {
		_, err = p.Exec("ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", id)
	}
	return err
}

// remove does nothing: the namespace ends with the test.
func (pods) remove() error { return nil }

// PodOf is the name of a sandbox's Pod.
func PodOf(box string) string { return strings.ReplaceAll(box, "_", "-") }
