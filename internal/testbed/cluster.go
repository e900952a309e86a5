//go:build unix

package testbed

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Cluster is a namespace for sandboxes in the cluster of `make test-kubernetes`, made as docs/kubernetes.md says, with the images of a farm.
type Cluster struct {
	Kubeconfig string // of the administrator
	Namespace  string
	// Env are the settings of a farm in the namespace, whose workers have the rights of deploy/kubernetes/sandboxes.yaml.
	Env []string

	kubectl string
	token   string // file with the token of workers
}

// NewCluster makes a namespace for farms of a built program, and removes it after the test. The test runs in a folder two levels below the module's.
func NewCluster(t testing.TB, program string) *Cluster {
	t.Helper()
	c := &Cluster{Kubeconfig: os.Getenv("SANDFARM_TEST_KUBECONFIG"), Namespace: "sft-" + strings.ToLower(rand.Text()[:8])}
	if c.Kubeconfig == "" {
		t.Fatal("SANDFARM_TEST_KUBECONFIG is not set: run make test-kubernetes")
	}
	folder, err := output("../../deploy/setup.sh", "kubernetes-dir")
	Must(t, err)
	c.kubectl = filepath.Join(folder, "kubectl")
	c.Kubectl(t, "create", "namespace", c.Namespace)
	t.Cleanup(func() { c.Kubectl(t, "delete", "namespace", c.Namespace, "--wait=false") })
	c.Kubectl(t, "label", "namespace", c.Namespace, "pod-security.kubernetes.io/enforce=restricted")
	c.Kubectl(t, "apply", "-f", "../../deploy/kubernetes/sandboxes.yaml")

	dir := t.TempDir()
	worker := &Cluster{Kubeconfig: filepath.Join(dir, "kubeconfig"), Namespace: c.Namespace, kubectl: c.kubectl}
	admin, err := os.ReadFile(c.Kubeconfig)
	Must(t, err)
	Must(t, os.WriteFile(worker.Kubeconfig, admin, 0o600))
	user := c.Kubectl(t, "config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.user}")
	worker.Kubectl(t, "config", "unset", "users."+user)
	c.token = filepath.Join(dir, "token")
	worker.Kubectl(t, "config", "set", "users."+user+".tokenFile", c.token)
	c.Admit(t)

	binary, err := os.ReadFile(program)
	Must(t, err)
	for name, data := range map[string][]byte{"sandfarm": binary, "Dockerfile": []byte("FROM scratch\nCOPY sandfarm /bin/sandfarm\nENTRYPOINT [\"/bin/sandfarm\"]\n")} {
		Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o755)) //nolint:gosec // a program
	}
	const image = "sandfarm-test/farm:1"
	_, err = output("docker", "build", "-q", "-t", image, dir)
	Must(t, err)
	python, err := output(program, "image", "build", "python")
	Must(t, err)
	_, err = output("../../deploy/kubernetes/cluster.sh", "load", image, python)
	Must(t, err)
	c.Env = []string{
		"SANDFARM_ENGINE_KIND=kubernetes", "SANDFARM_ENGINE_NAMESPACE=" + c.Namespace, "KUBECONFIG=" + worker.Kubeconfig,
		"SANDFARM_KUBERNETES_AGENT_IMAGE=" + image, "SANDFARM_KUBERNETES_IMAGES=python=" + python,
	}
	return c
}

// key is the Secret with which the token of workers ends.
const key = "sandfarm-worker-key"

// Admit gives the workers a token.
func (c *Cluster) Admit(t testing.TB) {
	t.Helper()
	c.Kubectl(t, "create", "secret", "generic", key)
	token := c.Kubectl(t, "create", "token", "sandfarm-worker", "--bound-object-kind=Secret", "--bound-object-name="+key)
	Must(t, os.WriteFile(c.token, []byte(token), 0o600))
}

// Revoke ends the token of the workers, as when it has expired.
func (c *Cluster) Revoke(t testing.TB) {
	t.Helper()
	c.Kubectl(t, "delete", "secret", key)
}

// Kubectl runs a command of kubectl in the namespace, which must succeed, and returns its output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.Try(args...)
	Must(t, err)
	return out
}

// Try is Kubectl for a command that may fail.
func (c *Cluster) Try(args ...string) (string, error) {
	return output(c.kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "-n", c.Namespace}, args...)...)
}

// Exec runs a command in the cluster's node.
func (*Cluster) Exec(command ...string) (string, error) {
	return output("../../deploy/kubernetes/cluster.sh", append([]string{"exec"}, command...)...)
}

// output runs a command and returns what it prints.
func output(program string, args ...string) (string, error) {
	command := exec.Command(program, args...) //nolint:gosec,noctx // a test's own; bounded by the test's end
	var failed bytes.Buffer
	command.Stderr = &failed
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w: %s", program, args, err, &failed)
	}
	return strings.TrimSpace(string(out)), nil
}
