//go:build compose

package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestCredentials makes MinIO's users twice, as two starts of compose do, and tries what each service does, and what it must not.
func TestCredentials(t *testing.T) {
	t.Parallel()
	m := startMinIO(t)
	m.makeUsers(t)
	m.makeUsers(t)
	root, api, worker, scheduler := m.store(t, "root"), m.store(t, "api"), m.store(t, "worker"), m.store(t, "scheduler")

	// What each service does, in an order in which the objects exist.
	for _, s := range []struct {
		name string
		*blob.Store
	}{{"api", api}, {"worker", worker}, {"scheduler", scheduler}} {
		allowed(t, s.name, map[string]error{"EnsureBucket": s.EnsureBucket(t.Context()), "Ping": s.Ping(t.Context())})
		for _, prefix := range []string{"records/a/job_1/", "manifests/a/job_1/"} {
			allowed(t, s.name+" "+prefix, map[string]error{"put": put(t, s.Store, prefix+s.name, 1), "get": read(t, s.Store, prefix+s.name)})
		}
	}
	const large = 12 << 20 // uploaded in parts
	allowed(t, "api", map[string]error{
		"stage": put(t, api, "staging/a/job_1/1", large), "unstage": put(t, api, "staging/a/job_2/1", 1),
		"removal": api.Delete(t.Context(), "staging/a/job_2/1"),
	})
	const artifact, output = "artifacts/a/sbx_1/job_1/art_1/x", "artifacts/a/sbx_1/job_1/art_2/stdout"
	allowed(t, "worker", map[string]error{
		"input": read(t, worker, "staging/a/job_1/1"), "artifact": put(t, worker, artifact, large), "output": upload(t, worker, output),
		"index": put(t, worker, "index/files/x", 1), "index again": read(t, worker, "index/files/x"),
		"snapshot": put(t, worker, "records/a/job_1/snapshot-1", 1),
	})
	_, err := worker.DeletePrefix(t.Context(), "records/a/job_1/snapshot-")
	_, aborted := worker.AbortUploadsOf(t.Context(), output)
	allowed(t, "worker", map[string]error{
		"end of snapshots": err, "abort": aborted, "eviction": worker.Delete(t.Context(), "index/files/x", "index/files/y"),
		"list": worker.List(t.Context(), "artifacts/a/", ignore), "stray": worker.Delete(t.Context(), output), "staged": worker.Delete(t.Context(), "staging/a/job_1/1"),
	})
	allowed(t, "api", map[string]error{"content": read(t, api, artifact), "link": follow(t, api, artifact)})
	_, err = scheduler.EnsureLifecycle(t.Context(), blob.LifecycleRule{ID: "x", Prefix: "staging/", Days: 1, AbortDays: 1})
	_, aborted = scheduler.AbortUploads(t.Context(), "artifacts/", time.Now())
	allowed(t, "scheduler", map[string]error{"rules": err, "abort": aborted, "list": scheduler.List(t.Context(), "artifacts/", ignore)})

	// What none of them needs.
	for _, key := range []string{"staging/a/job_3/1", "index/files/x"} {
		allowed(t, "root", map[string]error{key: put(t, root, key, 1)})
	}
	rule := blob.LifecycleRule{ID: "all", Prefix: "artifacts/", Days: 1, AbortDays: 1}
	_, apiRules := api.EnsureLifecycle(t.Context(), rule)
	_, workerRules := worker.EnsureLifecycle(t.Context(), rule)
	refused(t, "api", map[string]error{
		"artifact": put(t, api, artifact, 1), "package": put(t, api, "index/files/x", 1), "read of a package": read(t, api, "index/files/x"),
		"removal of a package": api.Delete(t.Context(), "index/files/x"), "removal of a record": api.Delete(t.Context(), "records/a/job_1/api"),
		"rules": apiRules, "another place": put(t, api, "x", 1), "bucket": m.bucket(t, "api").EnsureBucket(t.Context()),
	})
	refused(t, "worker", map[string]error{
		"rules": workerRules, "removal of a record": worker.Delete(t.Context(), "records/a/job_1/api"),
		"removal of a manifest": worker.Delete(t.Context(), "manifests/a/job_1/api"), "another place": put(t, worker, "x", 1),
		"bucket": m.bucket(t, "worker").EnsureBucket(t.Context()),
	})
	refused(t, "scheduler", map[string]error{
		"artifact": put(t, scheduler, artifact, 1), "read of an artifact": read(t, scheduler, artifact), "link": follow(t, scheduler, artifact),
		"read of a staged file": read(t, scheduler, "staging/a/job_3/1"), "staged file": put(t, scheduler, "staging/a/job_3/2", 1),
		"package": put(t, scheduler, "index/files/x", 1), "bucket": m.bucket(t, "scheduler").EnsureBucket(t.Context()),
	})
	allowed(t, "scheduler", map[string]error{"removal": scheduler.Delete(t.Context(), artifact, "staging/a/job_3/1", "records/a/job_1/api", "manifests/a/job_1/api")})
	if err := read(t, root, artifact); err == nil {
		t.Error("the scheduler removed nothing")
	}
}

func allowed(t *testing.T, who string, calls map[string]error) {
	t.Helper()
	for what, err := range calls {
		if err != nil {
			t.Errorf("%s: %s: %v", who, what, err)
		}
	}
}

func refused(t *testing.T, who string, calls map[string]error) {
	t.Helper()
	for what, err := range calls {
		if err == nil {
			t.Errorf("%s: %s is allowed", who, what)
		} else if !strings.Contains(strings.ToLower(err.Error()), "access denied") && !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: %s fails for another reason: %v", who, what, err)
		}
	}
}

func ignore(blob.Info) error { return nil }

func put(t *testing.T, s *blob.Store, key string, size int) error {
	t.Helper()
	_, err := s.Put(t.Context(), key, strings.NewReader(strings.Repeat("x", size)), int64(size), blob.PutOptions{})
	return err
}

func read(t *testing.T, s *blob.Store, key string) error {
	t.Helper()
	r, _, err := s.Get(t.Context(), key, 0, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

// upload makes an object in parts, as the worker does with output.
func upload(t *testing.T, s *blob.Store, key string) error {
	t.Helper()
	id, err := s.BeginUpload(t.Context(), key, blob.PutOptions{})
	if err != nil {
		return err
	}
	if err := s.PutPart(t.Context(), key, id, 1, strings.NewReader("x"), 1); err != nil {
		return err
	}
	return s.CompleteUpload(t.Context(), key, id, 1)
}

// follow downloads an object by a link that the service signed.
func follow(t *testing.T, s *blob.Store, key string) error {
	t.Helper()
	link, err := s.Presign(t.Context(), key, blob.PresignOptions{})
	if err != nil {
		return err
	}
	if status, _ := get(t, link, ""); status != http.StatusOK {
		return fmt.Errorf("status %d", status)
	}
	return nil
}

// minio is a MinIO server without a container.
type minio struct {
	address string
	secrets map[string]string // by service; "root" is MinIO's own
}

func startMinIO(t *testing.T) *minio {
	t.Helper()
	m := &minio{
		address: "127.0.0.1:" + testbed.Port(t),
		secrets: map[string]string{"root": "root-secret", "api": "api-secret", "worker": "worker-secret", "scheduler": "scheduler-secret"},
	}
	cmd := exec.Command(os.Getenv("SANDFARM_TEST_MINIO"), "server", "--quiet", "--address", m.address, t.TempDir()) // killed below
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER=sandfarm-root", "MINIO_ROOT_PASSWORD="+m.secrets["root"], "MINIO_BROWSER=off")
	if err := cmd.Start(); err != nil {
		t.Fatalf("start MinIO (`make test-compose` brings it): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	await(t, time.Minute, func(ctx context.Context) error {
		status, body, err := fetch(ctx, "http://"+m.address+"/minio/health/cluster", "") // it resets connections while it starts
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
	return m
}

// makeUsers runs the script of the service credentials.
func (m *minio) makeUsers(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "minio/credentials.sh")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(os.Getenv("SANDFARM_TEST_MC"))+":"+os.Getenv("PATH"), "MC_CONFIG_DIR="+t.TempDir(),
		"MINIO_ADDRESS="+m.address, "MINIO_ROOT_USER=sandfarm-root", "MINIO_ROOT_PASSWORD="+m.secrets["root"],
		"API_SECRET="+m.secrets["api"], "WORKER_SECRET="+m.secrets["worker"], "SCHEDULER_SECRET="+m.secrets["scheduler"])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("credentials.sh: %v\n%s", err, out)
	}
}

// store is the farm's bucket, as a service reaches it.
func (m *minio) store(t *testing.T, service string) *blob.Store {
	return m.open(t, service, "sandfarm")
}

// bucket is a bucket that does not exist.
func (m *minio) bucket(t *testing.T, service string) *blob.Store {
	return m.open(t, service, "other-"+service)
}

func (m *minio) open(t *testing.T, service, bucket string) *blob.Store {
	t.Helper()
	s, err := blob.New(blob.Config{Endpoint: "http://" + m.address, AccessKey: "sandfarm-" + service, SecretKey: m.secrets[service], Bucket: bucket})
	testbed.Must(t, err)
	return s
}
