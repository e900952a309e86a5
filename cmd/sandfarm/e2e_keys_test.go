//go:build integration

package main_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// local runs a verb with --local as the operator on the farm's machine does, and returns its answer. It may print no log.
func (f *farmProcess) local(into any, args ...string) {
	f.t.Helper()
	var out, noise bytes.Buffer
	verb := exec.CommandContext(f.t.Context(), program, append(args, "--local", "--json")...)
	verb.Env, verb.Stdout, verb.Stderr = f.env, &out, &noise
	if err := verb.Run(); err != nil {
		f.t.Fatalf("%v: %v\n%s", args, err, noise.String())
	}
	if strings.Contains(noise.String(), "level=") {
		f.t.Errorf("%v printed a log: %s", args, noise.String())
	}
	if into != nil {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			f.t.Fatalf("%v: %v in %s", args, err, out.String())
		}
	}
}

// TestKeysMadeLocally: the first key, made without one on the farm's machine, closes an open farm. A key that is revoked ends its event
// streams, and the job goes on.
func TestKeysMadeLocally(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	if _, err := f.Limits(t.Context()); err != nil {
		t.Fatalf("an open farm asks for a key: %v", err)
	}
	var first, second wire.NewKey
	f.local(&first, "key", "create", "--tenant", "blue", "--scope", "admin", "--scope", "run")
	f.local(&second, "key", "create", "--tenant", "blue")
	until(t.Context(), t, "the farm asks for a key", time.Minute, func() bool {
		_, err := f.Limits(t.Context())
		return client.CodeOf(err) == "unauthorized"
	})
	open := func(key wire.NewKey) *client.Client {
		c, err := client.New(f.url, client.WithKey(key.Secret))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mine, other := open(first), open(second)
	made, err := mine.CreateSandbox(t.Context(), wire.CreateRequest{}, client.WithWait(60*time.Second))
	if err != nil || made.Job.State != "completed" {
		t.Fatalf("create: %v %+v", err, made.Job)
	}
	job, err := mine.Execute(t.Context(), made.Sandbox.ID, wire.ExecuteRequest{Code: "import time\nprint('begun', flush=True)\ntime.sleep(600)", TimeoutSeconds: new(900)})
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for event, err := range mine.Events(t.Context(), job.ID, "") {
			if err != nil {
				ended <- err
				return
			}
			if event.Name == "stdout" {
				close(begun)
			}
		}
		ended <- nil
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the stream ended: %v", err)
	}
	f.local(nil, "key", "revoke", first.Key.ID)
	if err := <-ended; client.CodeOf(err) != "unauthorized" {
		t.Errorf("the stream of a revoked key ended with %v", err)
	}
	if now, err := other.Job(t.Context(), job.ID); err != nil || now.State != "running" {
		t.Errorf("the job of a revoked key is %s, %v", now.State, err)
	}
	if _, err := other.Close(t.Context(), made.Sandbox.ID); err != nil {
		t.Error(err)
	}
	var keys wire.List[wire.Key]
	f.local(&keys, "key", "ls")
	if len(keys.Items) != 1 || keys.Items[0].ID != second.Key.ID {
		t.Errorf("keys %+v", keys)
	}
	// Tenants, usage and the audit can be read locally too.
	var tenant wire.Tenant
	f.local(&tenant, "tenant", "set", "blue", "--max-gpus", "0")
	if tenant.Own["max_gpus"] != 0 || len(tenant.Own) != 1 {
		t.Errorf("tenant %+v", tenant)
	}
	var usage wire.Usage
	f.local(&usage, "usage", "--tenant", "blue")
	if usage.Tenant != "blue" || len(usage.Quotas) == 0 {
		t.Errorf("usage %+v", usage)
	}
}
