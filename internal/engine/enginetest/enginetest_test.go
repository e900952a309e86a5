//go:build integration

package enginetest_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const program = `package main

import "time"

func main() { time.Sleep(time.Hour) }
`

// image creates an image in the machine's own engine whose only program sleeps.
func image(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "sleeper")
	testbed.Must(t, os.WriteFile(source, []byte(program), 0o600))
	build := exec.Command("go", "build", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	testbed.Require(t, err == nil, "build the sleeper: %v: %s", err, out)
	data, err := os.ReadFile(path)
	testbed.Must(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	testbed.Must(t, w.WriteHeader(&tar.Header{Name: "sleeper", Mode: 0o755, Size: int64(len(data))}))
	_, err = w.Write(data)
	testbed.Must(t, err)
	testbed.Must(t, w.Close())
	ref := "sandfarm-test-" + strings.ToLower(rand.Text()) + ":1"
	load := exec.Command("docker", "import", "-", ref)
	load.Stdin = &archive
	out, err = load.CombinedOutput()
	testbed.Require(t, err == nil, "import image: %v: %s", err, out)
	t.Cleanup(func() {
		out, err := exec.Command("docker", "image", "rm", ref).CombinedOutput()
		testbed.Check(t, err == nil, "remove image: %v: %s", err, out)
	})
	return ref
}

// TestSeparateEngine starts an engine, kills it with a container in it, starts it again on its data, and stops it in order.
func TestSeparateEngine(t *testing.T) {
	t.Parallel()
	ref := image(t)
	bridge := func() string {
		out, err := exec.Command("ip", "link", "show", "docker0").CombinedOutput()
		testbed.Check(t, err == nil, "the machine's own engine has no bridge: %v: %s", err, out)
		return string(out)
	}
	bridge()
	d := enginetest.New(t, enginetest.Options{})
	d.Load(ref)
	id := d.Docker("run", "--detach", ref, "/sleeper")
	testbed.Check(t, exec.Command("docker", "inspect", id).Run() != nil, "the container is in the machine's own engine")
	state := d.Docker("inspect", "--format", "{{.State.Running}}", id)
	testbed.Require(t, state == "true", "the container runs: %s", state)
	d.Kill()
	d.Kill()
	d.Start()
	testbed.Diff(t, "after the kill the container runs", "false", d.Docker("inspect", "--format", "{{.State.Running}}", id))
	d.Docker("start", id)
	d.Stop()
	d.Start()
	testbed.Diff(t, "after an orderly stop the container runs", "false", d.Docker("inspect", "--format", "{{.State.Running}}", id))
	d.Docker("rm", id)
	bridge()
}
