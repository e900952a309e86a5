package faulttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// component is one process of a farm, which may not run now.
type component struct {
	argv   []string
	env    []string // in addition to the farm's
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	out    *testbed.Log
}

// add adds a component without starting it.
func (f *Farm) add(name string, argv ...string) {
	if f.cfg.Command != nil {
		argv = f.cfg.Command(name, argv)
	}
	f.components[name] = &component{argv: argv, out: &testbed.Log{}}
}

// Start starts components that do not run. See AwaitReady.
func (f *Farm) Start(names ...string) {
	f.t.Helper()
	for _, name := range names {
		p := f.components[name]
		p.out = &testbed.Log{}
		p.cmd = exec.Command(p.argv[0], p.argv[1:]...) //nolint:gosec,noctx // the components of a farm; remove ends them
		p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = slices.Concat(f.env, p.env), p.out, p.out
		// Its own process group keeps it from the terminal's Ctrl-C; the test ends it.
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := p.cmd.Start(); err != nil {
			f.t.Fatalf("start %s: %v", name, err)
		}
		p.exited = make(chan struct{})
		go func(cmd *exec.Cmd, exited chan struct{}) {
			_ = cmd.Wait()
			close(exited)
		}(p.cmd, p.exited)
	}
}

// Use gives components another program, from their next start on.
func (f *Farm) Use(program string, names ...string) {
	for _, name := range names {
		f.components[name].argv[0] = program
	}
}

// Alive reports whether a component runs.
func (f *Farm) Alive(name string) bool {
	p := f.components[name]
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// PID is the process id of a component that was started.
func (f *Farm) PID(name string) int { return f.components[name].cmd.Process.Pid }

// Kill ends components with kill -9, all at once, and waits until they have exited.
func (f *Farm) Kill(names ...string) { f.end(syscall.SIGKILL, names) }

// Term stops components with SIGTERM, and waits until they have exited.
func (f *Farm) Term(names ...string) { f.end(syscall.SIGTERM, names) }

// exitWithin is after what time a component hangs that should end.
const exitWithin = time.Minute

// Pause stops components with SIGSTOP: they neither answer nor end.
func (f *Farm) Pause(names ...string) { f.signal(syscall.SIGSTOP, names) }

// Resume continues paused components.
func (f *Farm) Resume(names ...string) { f.signal(syscall.SIGCONT, names) }

func (f *Farm) signal(s syscall.Signal, names []string) {
	for _, name := range names {
		if f.Alive(name) {
			_ = f.components[name].cmd.Process.Signal(s)
		}
	}
}

func (f *Farm) end(s syscall.Signal, names []string) {
	f.signal(s, names)
	for _, name := range names {
		if f.components[name].cmd == nil {
			continue
		}
		select {
		case <-f.components[name].exited:
		case <-time.After(exitWithin):
			f.t.Errorf("%s did not end within %s\n%s", name, exitWithin, f.components[name].out.Tail())
		}
	}
}

// logs are the last lines of every component.
func (f *Farm) logs() string {
	var b strings.Builder
	for _, name := range f.names("") {
		b.WriteString("--- " + name + "\n" + f.components[name].out.Tail() + "\n")
	}
	return b.String()
}

// started finds the id that a worker logs when it has started.
var started = regexp.MustCompile(`worker started.*?(wrk_[0-9a-z]{26})`)

// worker is the worker's id, "" until it has started.
func (p *component) worker() string {
	if found := started.FindStringSubmatch(p.out.String()); found != nil {
		return found[1]
	}
	return ""
}

// queueScripts are the names of the scripts of asynq, with a piece of the text of each.
func queueScripts() map[string]string {
	return map[string]string{
		"task_dequeue": `redis.call("RPOPLPUSH", KEYS[1], KEYS[3])`,
		"task_done":    `if redis.call("DEL", KEYS[3]) == 0 then`,
		"task_retry":   `redis.call("HSET", KEYS[1], "msg", ARGV[2], "state", "retry")`,
	}
}

// spoilable puts links between the farm's processes and their Redis and object store.
func (f *Farm) spoilable(store, s3 string) {
	f.t.Helper()
	scripts, err := testbed.NewScripts(os.DirFS(filepath.Join(moduleDir(f.t), "internal", "store")), queueScripts())
	testbed.Must(f.t, err)
	f.s3 = newS3Link(f.t, s3)
	for _, name := range f.names("") {
		if name == Redis || name == S3 {
			continue
		}
		f.links[name] = testbed.NewProxyTo(f.t, "tcp", store, scripts)
		f.components[name].env = []string{
			"SANDFARM_REDIS_URL=redis://" + f.links[name].Address(), "SANDFARM_S3_ENDPOINT=" + f.s3.urlOf(name),
			"SANDFARM_METRICS_LISTEN=" + testbed.Address(f.t),
		}
	}
}

// Link is a component's way to Redis. The farm needs Config.Links.
func (f *Farm) Link(name string) *testbed.Proxy { return f.links[name] }

// S3Link is the way of all processes to the object store. The farm needs Config.Links.
func (f *Farm) S3Link() *S3Link { return f.s3 }

// moduleDir is the folder of this module's go.mod.
func moduleDir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above this folder: ", err)
	return ""
}

// redisData is the folder in which Redis keeps its append-only file.
func (f *Farm) redisData() string { return filepath.Join(f.dir, "appendonlydir") }

// Wipe deletes all data of Redis, as when its disk is lost.
func (f *Farm) Wipe() {
	f.t.Helper()
	testbed.Must(f.t, f.redis.FlushAll(f.t.Context()).Err())
}

// CopyRedis copies the data of Redis, for RestoreRedis.
func (f *Farm) CopyRedis() (dir string) {
	f.t.Helper()
	testbed.Must(f.t, f.redis.BgRewriteAOF(f.t.Context()).Err())
	f.Until(30*time.Second, "the append-only file is written", func() bool {
		info, err := f.redis.InfoMap(f.t.Context(), "persistence").Result()
		return err == nil && info["Persistence"]["aof_rewrite_in_progress"] == "0" && info["Persistence"]["aof_rewrite_scheduled"] == "0"
	})
	dir = filepath.Join(f.t.TempDir(), "copy")
	testbed.Must(f.t, os.CopyFS(dir, os.DirFS(f.redisData())))
	return dir
}

// RestoreRedis kills Redis and starts it again on an older copy of its data.
func (f *Farm) RestoreRedis(dir string) {
	f.t.Helper()
	f.Kill(Redis)
	err := os.RemoveAll(f.redisData())
	if err == nil {
		err = os.CopyFS(f.redisData(), os.DirFS(dir))
	}
	testbed.Must(f.t, err)
	f.Start(Redis)
}

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
