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
func (b *bench) service(name string, set ...string) (*service, error) {
	access, secret, err := embedded.LoadOrCreateCredentials(b.data + "/s3-credentials")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.data, name+"-*")
	if err != nil {
		return nil, err
	}
	s := &service{b: b, name: name, dir: dir}
	s.env = append(os.Environ(), "SANDFARM_DATA="+dir, "TMPDIR="+dir, "XDG_CACHE_HOME="+dir, "SANDFARM_LOG_LEVEL=warn",
		"SANDFARM_REDIS_URL=unix://"+b.data+"/redis/redis.sock", "SANDFARM_S3_ENDPOINT=http://"+b.s3,
		"SANDFARM_S3_ACCESS_KEY="+access, "SANDFARM_S3_SECRET_KEY="+secret, "SANDFARM_ENGINE_NAMESPACE="+filepath.Base(b.data)+"-"+filepath.Base(dir))
	s.env = append(s.env, set...)
	s.cmd = exec.Command(b.program, name)
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = s.env, b.log, b.log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return s, nil
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
func (s *service) sandbox(ctx context.Context) (string, error) {
	for range 50 {
		id, err := s.b.sandbox(ctx)
		if err != nil {
			return "", err
		}
		out, err := exec.CommandContext(ctx, "docker", "ps", "-q", "--filter", "label=sandfarm.sandbox="+id, "--filter", "name="+filepath.Base(s.dir)).Output()
		if err != nil {
			return "", err
		}
		if strings.TrimSpace(string(out)) != "" {
			return id, nil
		}
		if _, err := s.b.Close(ctx, id, client.WithWait(time.Minute)); err != nil { // it would run during the measurement
			return "", err
		}
	}
	return "", fmt.Errorf("no sandbox was created by the second %s", s.name)
}

// until polls until ok returns true, for a few minutes.
func until(ctx context.Context, what string, ok func() bool) error {
	for end := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("%s: it takes too long", what)
		}
	}
	return nil
}
