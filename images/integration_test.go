//go:build integration

package images_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Every image is built, and its smoke test runs in a sandbox as callers get it.
func TestImagesInSandboxes(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID(""), Runtime: enginetest.Runtime()})
	testbed.Must(t, err)
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
	ref, err := images.EnsureBase(t.Context(), e, images.BaseOptions{}, tell)
	if err != nil {
		t.Fatalf("%v (last: %s)", err, last)
	}
	list, err := images.List()
	testbed.Must(t, err)
	for _, d := range list {
		if d.Name == "python-cuda" { // gigabytes, and useful only with a GPU: make test-gpu
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			begun := time.Now()
			ref, err := images.Build(t.Context(), d.Name, images.Docker{Engine: e}, images.Options{Base: ref}, tell)
			testbed.Must(t, err)
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
	testbed.Must(t, err)
	id, err := e.Create(t.Context(), farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Image: ref, Command: []string{"sleep", "600"},
		Env:       map[string]string{"HOME": "/home/sandbox", "MPLCONFIGDIR": "/home/sandbox/.config/matplotlib"},
		Resources: farm.Resources{MemoryMB: 1024, CPUs: 2, PIDs: 128, DiskMB: 256},
	})
	testbed.Must(t, err)
	testbed.Must(t, e.Start(t.Context(), id))
	// The script is sent on stdin with its length first, since closing stdin would end stdout as well.
	load := "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'smoke.py', 'exec'))"
	s, err := e.Dial(t.Context(), id, []string{"python3", "-c", load, strconv.Itoa(len(script))}, "")
	testbed.Must(t, err)
	defer s.Close()
	_, err = s.Write(script)
	testbed.Must(t, err)
	out, err := io.ReadAll(s)
	t.Logf("%s", out)
	if err != nil || !bytes.HasSuffix(out, []byte("smoke: ok\n")) {
		t.Errorf("smoke test: %v", err)
	}
	// First use writes no caches.
	found, err := e.Dial(t.Context(), id, []string{"sh", "-c", "find /home/sandbox /tmp -type f"}, "")
	testbed.Must(t, err)
	defer found.Close()
	if out, err := io.ReadAll(found); err != nil || strings.Contains(string(out), "fontlist") || strings.Contains(string(out), ".pyc") {
		t.Errorf("caches were written: %s (%v)", out, err)
	}
}

// offered checks that the engine lists the image for workers.
func offered(t *testing.T, e *engine.Engine, d images.Definition, ref string) {
	t.Helper()
	list, err := e.Images(t.Context())
	testbed.Must(t, err)
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

// Without a registry the base is built from Debian packages, and images can be built on it: apt-get works and Python is installed.
func TestBaseFromDebian(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID("")})
	testbed.Must(t, err)
	ref := "sandfarm-test/base:" + farm.NewID("")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range []error{e.RemoveImage(ctx, ref+"-on"), e.RemoveImage(ctx, ref), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	last, count := "", 0
	begun := time.Now()
	got, err := images.EnsureBase(t.Context(), e, images.BaseOptions{Ref: ref, Source: "none"}, func(p farm.Progress) { last, count = p.Message, count+1 })
	if err != nil || got != ref {
		t.Fatalf("ref %q, error %v (last: %s)", got, err, last)
	}
	t.Logf("%s in %v, %d lines", ref, time.Since(begun).Round(time.Second), count)
	if count < 100 {
		t.Errorf("%d lines of progress, want one for each step of each package", count)
	}
	err = e.Build(t.Context(), engine.BuildSpec{
		Context: fstest.MapFS{"Dockerfile": {Data: []byte("ARG BASE\nFROM ${BASE}\n" +
			"RUN python3 -c 'import sys; assert sys.version_info[:2] == (3, 13)' && python3 -m venv /v && apt-get update\n")}},
		Args: map[string]string{"BASE": ref}, Tags: []string{ref + "-on"}, Network: "host",
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestProgramRuns(t *testing.T) {
	t.Parallel()
	packages, err := index.New(index.Config{Dir: t.TempDir()})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = packages.Close() })
	var fetch images.FetchWheel = func(ctx context.Context, project, file, sha256 string) (io.ReadCloser, int64, error) {
		return packages.Fetch(ctx, project, file, sha256)
	}
	data, err := images.Installer(t.Context(), fetch, runtime.GOARCH)
	testbed.Must(t, err)
	program := filepath.Join(t.TempDir(), "uv")
	if err := os.WriteFile(program, data, 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || !strings.Contains(string(out), images.InstallerVersion) {
		t.Errorf("uv --version: %q, %v", out, err)
	}
}

// The steps of a build reach the exit, and nothing of the host's network.
func TestNetworkOfABuild(t *testing.T) {
	t.Parallel()
	e, err := engine.New(engine.Config{Namespace: "sandfarm-test-" + farm.NewID("")})
	testbed.Must(t, err)
	ref := "sandfarm/" + strings.ToLower(farm.NewID("test-"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		for _, err := range []error{e.RemoveImage(ctx, ref), e.RemoveAll(ctx, true), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	from, err := images.EnsureBase(t.Context(), e, images.BaseOptions{}, nil)
	testbed.Must(t, err)
	host, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:0")
	testbed.Must(t, err)
	defer host.Close()
	_, port, _ := net.SplitHostPort(host.Addr().String())

	var mu sync.Mutex
	var asked []string
	network, err := images.Docker{Engine: e}.Network(t.Context(), from, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.String())
		mu.Unlock()
		_, _ = fmt.Fprint(w, "from the exit")
	}))
	testbed.Must(t, err)
	program := `
import os, socket, urllib.request
def get(url, **proxies):
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies)).open(url, timeout=60).read()
assert get("http://` + network.Addr + `/pypi/simple/six/") == b"from the exit"
assert get("http://deb.debian.org/debian/", http="http://` + network.Addr + `") == b"from the exit"
assert os.listdir("/sys/class/net") == ["lo"], os.listdir("/sys/class/net")
for address in ("127.0.0.1", "` + address(t) + `"):
    try:
        socket.create_connection((address, ` + port + `), timeout=5)
    except OSError:
        continue
    raise SystemExit("reached the host at " + address)
`
	err = e.Build(t.Context(), engine.BuildSpec{
		Context: fstest.MapFS{
			"Dockerfile": {Data: []byte("FROM " + from + "\nCOPY try.py /\nRUN python3 /try.py\n")}, "try.py": {Data: []byte(program)},
		},
		Tags: []string{ref}, Network: network.Mode, NoCache: true,
	}, nil)
	if err != nil {
		t.Error(err)
	}
	testbed.Diff(t, "the exit was asked for", "/pypi/simple/six/ http://deb.debian.org/debian/", strings.Join(asked, " "))
	id := strings.TrimPrefix(network.Mode, engine.BuildNetwork(""))
	if err := network.Close(); err != nil {
		t.Error(err)
	}
	if _, err := e.Inspect(t.Context(), id); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("after Close the container is there: %v", err)
	}
}

// address is an address of this machine that is not on loopback; loopback where it has none.
func address(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	testbed.Must(t, err)
	for _, a := range all {
		if p, ok := a.(*net.IPNet); ok && p.IP.To4() != nil && !p.IP.IsLoopback() {
			return p.IP.String()
		}
	}
	return "127.0.0.1"
}
