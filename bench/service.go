package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/embedded"
)

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
