package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/embedded"
)

// bench is a running farm with clients to measure it.
type bench struct {
	*client.Client
	cmd     *exec.Cmd
	env     []string
	program string
	data    string
	s3      string // address of its object store
	log     *os.File
	machine string
}

// start starts a farm with the given variables added to the environment.
func start(ctx context.Context, program string, set ...string) *bench {
	program = must(filepath.Abs(program))
	data := must(os.MkdirTemp("", "sandfarm-bench-*"))
	b := &bench{program: program, data: data}
	listen := freeAddress()
	b.s3 = freeAddress()
	b.env = append(os.Environ(), "SANDFARM_DATA="+data, "SANDFARM_API_LISTEN="+listen, "SANDFARM_S3_LISTEN="+b.s3, "SANDFARM_LOG_LEVEL=warn",
		"SANDFARM_WORKER_POOL=none", "SANDFARM_WORKER_MEMORY_OVERCOMMIT=1000", "SANDFARM_WORKER_CPU_OVERCOMMIT=1000") // measure the farm, not the reservations of a small machine
	b.env = append(b.env, set...)
	b.Client = must(client.New("http://" + listen))
	b.log = must(os.Create(filepath.Join(data, "farm.log")))
	b.cmd = exec.Command(program, "up")
	b.cmd.Env, b.cmd.Stdout, b.cmd.Stderr = b.env, b.log, b.log
	check(b.cmd.Start())
	for end := time.Now().Add(10 * time.Minute); b.Ready(ctx) != nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			b.close()
			fail("the farm did not become ready")
		}
	}
	version, _ := exec.CommandContext(ctx, "docker", "version", "--format", "Docker {{.Server.Version}}").Output()
	b.machine = strings.TrimSpace(string(version)) + " · Linux " + kernel()
	return b
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(text))
}

func freeAddress() string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	check(l.Close())
	return l.Addr().String()
}

// close stops the farm and removes all its resources.
func (b *bench) close() {
	_ = b.cmd.Process.Signal(os.Interrupt)
	_ = b.cmd.Wait()
	down := exec.Command(b.program, "down")
	down.Env = b.env
	if out, err := down.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "down: %v %s\n", err, out)
	}
	_ = b.log.Close()
	_ = os.RemoveAll(b.data)
}

// sandbox creates a sandbox and waits until it is ready.
func (b *bench) sandbox(ctx context.Context) (string, error) {
	made, err := b.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(time.Minute))
	if err != nil {
		return "", err
	}
	if made.Job.State != "completed" {
		return "", client.Failure(made.Job)
	}
	return made.Sandbox.ID, nil
}

// execute runs code and returns the finished job and how long the caller waited.
func (b *bench) execute(ctx context.Context, sandbox, code string) (wire.Job, time.Duration, error) {
	began := time.Now()
	job, err := b.Execute(ctx, sandbox, wire.ExecuteRequest{Code: code}, client.WithWait(time.Minute))
	took := time.Since(began)
	if err == nil && (job.State != "completed" || job.Result.Execute.Error != nil) {
		err = fmt.Errorf("execute: %s %+v", job.State, job.Error)
	}
	return job, took, err
}

// floor runs floor.py in a sandbox: the same kernel, called directly by Jupyter's own client.
func (b *bench) floor(ctx context.Context, sandbox string, args ...string) (string, error) {
	if err := b.Files(sandbox).Write(ctx, "floor.py", bytes.NewReader(floorScript)); err != nil {
		return "", err
	}
	command := "python floor.py " + strings.Join(args, " ")
	job, err := b.Command(ctx, sandbox, wire.CommandRequest{Command: &command}, client.WithWait(time.Minute))
	if err != nil {
		return "", err
	}
	if !job.Final() {
		if job, err = b.Wait(ctx, job.ID); err != nil {
			return "", err
		}
	}
	out := job.Result.Command.Results[0]
	if out.ExitCode != 0 {
		return "", fmt.Errorf("floor.py: %s", out.Stderr)
	}
	return strings.TrimSpace(out.Stdout), nil
}

// service is an additional service of a farm that uses the farm's Redis and object store.
type service struct {
	b    *bench
	cmd  *exec.Cmd
	env  []string
	name string
	dir  string
}

// service starts a service with an empty disk: it has its own temporary files, caches and data directory.
func (b *bench) service(name string, set ...string) *service {
	access, secret := must2(embedded.LoadOrCreateCredentials(b.data + "/s3-credentials"))
	dir := must(os.MkdirTemp(b.data, name+"-*"))
	s := &service{b: b, name: name, dir: dir}
	s.env = append(os.Environ(), "SANDFARM_DATA="+dir, "TMPDIR="+dir, "XDG_CACHE_HOME="+dir, "SANDFARM_LOG_LEVEL=warn",
		"SANDFARM_REDIS_URL=unix://"+b.data+"/redis/redis.sock", "SANDFARM_S3_ENDPOINT=http://"+b.s3,
		"SANDFARM_S3_ACCESS_KEY="+access, "SANDFARM_S3_SECRET_KEY="+secret, "SANDFARM_ENGINE_NAMESPACE="+filepath.Base(b.data)+"-"+filepath.Base(dir))
	s.env = append(s.env, set...)
	s.cmd = exec.Command(b.program, name)
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = s.env, b.log, b.log
	check(s.cmd.Start())
	return s
}

// close stops the service and removes its containers from the engine.
func (s *service) close() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	_ = s.cmd.Wait()
	if s.name != "worker" {
		return
	}
	down := exec.Command(s.b.program, "down")
	down.Env = s.env
	if out, err := down.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "down: %v %s\n", err, out)
	}
}

// sandbox creates sandboxes until this worker has taken one of the creates.
func (s *service) sandbox(ctx context.Context) string {
	for range 50 {
		id := must(s.b.sandbox(ctx))
		out := must(exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id, "--filter", "name="+filepath.Base(s.dir)).Output())
		if strings.TrimSpace(string(out)) != "" {
			return id
		}
		must(s.b.Close(ctx, id, client.WithWait(time.Minute))) // it would run during the measurement
	}
	fail("no sandbox was created by the second %s", s.name)
	return ""
}

// until polls until ok returns true, for a few minutes.
func until(ctx context.Context, what string, ok func() bool) {
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			fail("%s: it takes too long", what)
		}
	}
}
