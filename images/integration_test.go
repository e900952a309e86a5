//go:build integration

package images_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/deploy/base"
	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Every image is built, and its smoke test runs in a sandbox as callers get it.
func TestImagesInSandboxes(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID(""), Runtime: enginetest.Runtime()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := e.RemoveAll(ctx, true); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	last := ""
	tell := func(p farm.Progress) { last = p.Message }
	ref, err := base.EnsureBase(t.Context(), e, base.Options{}, tell)
	if err != nil {
		t.Fatalf("%v (last: %s)", err, last)
	}
	list, err := images.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Name == "python-cuda" { // gigabytes, and useful only with a GPU: make test-gpu
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			begun := time.Now()
			ref, err := images.Build(t.Context(), d.Name, images.Docker{Engine: e}, images.Options{Base: ref}, tell)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s in %v", ref, time.Since(begun).Round(time.Millisecond))
			steps := 0
			if again, err := images.Build(t.Context(), d.Name, images.Docker{Engine: e}, images.Options{Base: ref}, func(farm.Progress) { steps++ }); err != nil || again != ref || steps > 0 {
				t.Errorf("second build gives %q after %d steps, error %v; want no step", again, steps, err)
			}
			smoke(t, e, d, ref)
			offered(t, e, d, ref)
		})
	}
}

// smoke runs the image's smoke test in a hardened container.
func smoke(t *testing.T, e *engine.Engine, d images.Definition, ref string) {
	t.Helper()
	script, err := fs.ReadFile(d.Files, "smoke.py")
	if err != nil {
		t.Fatal(err)
	}
	id, err := e.Create(t.Context(), engine.Spec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Image: ref, Command: []string{"sleep", "600"}, UID: 4321,
		Env:       map[string]string{"HOME": "/home/sandbox", "MPLCONFIGDIR": "/home/sandbox/.config/matplotlib"},
		Resources: farm.Resources{MemoryMB: 1024, CPUs: 2, PIDs: 128, DiskMB: 256},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// The script is sent on stdin with its length first, since closing stdin would end stdout as well.
	load := "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'smoke.py', 'exec'))"
	s, err := e.Dial(t.Context(), id, []string{"python3", "-c", load, strconv.Itoa(len(script))}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Write(script); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(s)
	t.Logf("%s", out)
	if err != nil || !bytes.HasSuffix(out, []byte("smoke: ok\n")) {
		t.Errorf("smoke test: %v", err)
	}
	// First use writes no caches.
	found, err := e.Dial(t.Context(), id, []string{"sh", "-c", "find /home/sandbox /tmp -type f"}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if out, err := io.ReadAll(found); err != nil || strings.Contains(string(out), "fontlist") || strings.Contains(string(out), ".pyc") {
		t.Errorf("caches were written: %s (%v)", out, err)
	}
}

// offered checks that the engine lists the image for workers.
func offered(t *testing.T, e *engine.Engine, d images.Definition, ref string) {
	t.Helper()
	list, err := e.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Name == d.Name {
			t.Logf("%+v", i)
			if i.Ref != ref || i.Description != d.Description || strings.Join(i.Languages, ",") != strings.Join(d.Languages, ",") {
				t.Errorf("image %+v, want %s", i, ref)
			}
			return
		}
	}
	t.Errorf("%s is not among %v", d.Name, list)
}
