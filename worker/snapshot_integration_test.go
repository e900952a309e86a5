//go:build integration

package worker

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A real redis-server is restored from a snapshot that is older than a sandbox, while its worker lives or after it was restarted. The sandbox
// is adopted from its container. What the snapshot has stays as it is, and a sandbox that was closed since then is lost, not running.
func TestRedisRestoredFromAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		name := "the worker lives"
		if restarted {
			name = "the worker was restarted"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.NewRedis(t, "--dbfilename", "dump.rdb")
			dump, kept := filepath.Join(filepath.Dir(server.Socket), "dump.rdb"), filepath.Join(t.TempDir(), "kept.rdb")
			b := &bundle{Farm: workertest.NewOn(t, server.Client(t))}
			b.deps = Deps{Store: b.Store, Blobs: b.Blobs, Engine: b.Engine, Log: b.Log, Dispatch: b.Dispatch}
			w := b.worker()
			w.registered.Store(true)
			workertest.Must(t, w.beat(t.Context()))
			older, closed := b.contained(w), b.contained(w)
			workertest.Must(t, server.Client(t).Save(t.Context()).Err())
			workertest.Must(t, copyFile(kept, dump))

			workertest.Must(t, w.beat(t.Context()))
			newer := b.contained(w)
			_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: closed, To: farm.SandboxClosing})
			workertest.Must(t, err)
			workertest.Must(t, w.lifecycle.Dismantle(t.Context(), b.Sandbox(closed), "", farm.SandboxClosed, ""))

			server.Kill()
			workertest.Must(t, copyFile(dump, kept))
			server.Start(t)
			if _, err := b.Store.Sandbox(t.Context(), newer); farm.CodeOf(err) != farm.CodeNotFound {
				t.Fatalf("the snapshot has the newer sandbox: %v", err)
			}
			if restarted {
				w = b.worker()
				w.registered.Store(true)
				workertest.Must(t, w.reconciler.Run(t.Context())) // as Start does
			}
			workertest.Must(t, w.beat(t.Context()))
			w.background.Wait()
			for box, want := range map[farm.Ref]farm.SandboxState{older: farm.SandboxReady, newer: farm.SandboxReady, closed: farm.SandboxLost} {
				if s := b.Sandbox(box); s.State != want || b.Fake.Has(box.ID) != (want == farm.SandboxReady) {
					t.Errorf("a sandbox is %s, its container exists: %v; want %s", s.State, b.Fake.Has(box.ID), want)
				}
			}
		})
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
