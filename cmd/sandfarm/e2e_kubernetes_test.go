//go:build kubernetes

package main_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// cluster is a namespace for sandboxes, made as docs/kubernetes.md says.
type cluster struct {
	t          *testing.T
	kubeconfig string
	namespace  string
}

// kubectl is the program of the cluster's version.
var kubectl = sync.OnceValues(func() (string, error) {
	dir, err := exec.Command("../../deploy/setup.sh", "kubernetes-dir").Output()
	return filepath.Join(strings.TrimSpace(string(dir)), "kubectl"), err
})

// kubectl runs a command in the namespace and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	program, err := kubectl()
	if err != nil {
		c.t.Fatal(err)
	}
	command := exec.Command(program, append([]string{"--kubeconfig", c.kubeconfig, "-n", c.namespace}, args...)...)
	var failed bytes.Buffer
	command.Stderr = &failed
	out, err := command.Output()
	if err != nil {
		c.t.Fatalf("kubectl %v: %v: %s", args, err, &failed)
	}
	return strings.TrimSpace(string(out))
}

// load copies images of the Docker engine into the cluster.
func load(t *testing.T, images ...string) {
	t.Helper()
	if out, err := exec.Command("../../deploy/kubernetes/cluster.sh", append([]string{"load"}, images...)...).CombinedOutput(); err != nil {
		t.Fatalf("load %v: %v: %s", images, err, out)
	}
}

// clusterFarm starts a farm whose sandboxes are Pods. Its worker has the rights of deploy/kubernetes/sandboxes.yaml.
func clusterFarm(t *testing.T, env ...string) (*farmProcess, *cluster) {
	t.Helper()
	c := &cluster{t: t, kubeconfig: os.Getenv("SANDFARM_TEST_KUBECONFIG"), namespace: "sft-" + strings.ToLower(rand.Text()[:8])}
	if c.kubeconfig == "" {
		t.Fatal("SANDFARM_TEST_KUBECONFIG is not set: run make test-kubernetes")
	}
	c.kubectl("create", "namespace", c.namespace)
	t.Cleanup(func() { c.kubectl("delete", "namespace", c.namespace, "--wait=false") })
	c.kubectl("label", "namespace", c.namespace, "pod-security.kubernetes.io/enforce=restricted")
	c.kubectl("apply", "-f", "../../deploy/kubernetes/sandboxes.yaml")
	admin, err := os.ReadFile(c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	worker := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(worker, admin, 0o600); err != nil {
		t.Fatal(err)
	}
	user := c.kubectl("config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.user}")
	mine := &cluster{t: t, kubeconfig: worker, namespace: c.namespace}
	mine.kubectl("config", "unset", "users."+user)
	mine.kubectl("config", "set-credentials", user, "--token="+c.kubectl("create", "token", "sandfarm-worker"))

	dir := t.TempDir()
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"sandfarm": binary, "Dockerfile": []byte("FROM scratch\nCOPY sandfarm /bin/sandfarm\nENTRYPOINT [\"/bin/sandfarm\"]\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	const image = "sandfarm-test/farm:1"
	if out, err := exec.Command("docker", "build", "-q", "-t", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("build image: %v: %s", err, out)
	}
	python, err := exec.Command(program, "image", "build", "python").Output()
	if err != nil {
		t.Fatalf("build the image of sandboxes: %v", err)
	}
	ref := strings.TrimSpace(string(python))
	load(t, image, ref)
	return newFarm(t, append([]string{
		"SANDFARM_ENGINE_KIND=kubernetes", "SANDFARM_ENGINE_NAMESPACE=" + c.namespace, "SANDFARM_KUBERNETES_KUBECONFIG=" + worker,
		"SANDFARM_KUBERNETES_AGENT_IMAGE=" + image, "SANDFARM_KUBERNETES_IMAGES=python=" + ref,
	}, env...)...), c
}

// A farm in a cluster does what one with Docker does: a sandbox is created, runs code, keeps its variables, yields files, and ends; another comes from
// the warm pool, and is taken over when its worker is killed.
func TestKubernetesFarm(t *testing.T) {
	f, c := clusterFarm(t, "SANDFARM_WORKER_POOL=python=1")
	begun := time.Now()
	box := f.sandbox(wire.CreateRequest{})
	t.Logf("ready after %s", time.Since(begun))
	f.run(box.ID, "x = 41")
	got := f.run(box.ID, "print(x + 1)\nopen('result.txt', 'w').write('from a Pod')")
	if got.Stdout != "42\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	if len(got.Artifacts) != 1 || string(download(t, got.Artifacts[0].URL)) != "from a Pod" {
		t.Errorf("artifacts %+v", got.Artifacts)
	}
	pods := c.kubectl("get", "pods", "-l", "sandfarm/sandbox="+box.ID, "-o", "jsonpath={.items[*].status.phase}")
	if pods != "Running" {
		t.Errorf("Pods of the sandbox: %q", pods)
	}
	if network := f.run(box.ID, "import os, socket\ntry:\n    socket.create_connection((os.environ['KUBERNETES_SERVICE_HOST'], 443), 5)\n    print('open')\nexcept OSError as e:\n    print('closed')"); network.Stdout != "closed\n" {
		t.Errorf("the network of a sandbox is %s", network.Stdout)
	}
	if _, err := f.Close(t.Context(), box.ID, client.WithWait(60*time.Second)); err != nil {
		t.Fatal(err)
	}
	if left := c.kubectl("get", "pods", "-l", "sandfarm/sandbox="+box.ID, "-o", "name"); left != "" {
		t.Errorf("after the close: %s", left)
	}
	until(t.Context(), t, "the pool has a sandbox", 2*time.Minute, func() bool {
		list, err := f.Workers(t.Context())
		return err == nil && len(list) == 1 && len(list[0].Pool) == 1 && list[0].Pool[0].Ready == 1
	})
	begun = time.Now()
	pooled := f.sandbox(wire.CreateRequest{})
	t.Logf("from the pool after %s", time.Since(begun))
	if got := f.run(pooled.ID, "print(6 * 7)"); got.Stdout != "42\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	if owner := c.kubectl("get", "pods", "-l", "sandfarm/sandbox="+pooled.ID, "-o", `jsonpath={.items[*].metadata.annotations.sandfarm/note}`); !strings.Contains(owner, "default") {
		t.Errorf("the owner of a sandbox of the pool is noted as %q", owner)
	}
	f.run(pooled.ID, "kept = 'after all'")
	f.stop(syscall.SIGKILL)
	f.start()
	if got := f.run(pooled.ID, "print(kept)"); got.Stdout != "after all\n" {
		t.Errorf("after the end of its worker the sandbox says %q", got.Stdout)
	}
}
