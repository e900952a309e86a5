//go:build kubernetes

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// release is a farm that the chart has installed in a namespace of its own.
type release struct {
	kubeconfig string // with the namespace as its default
	kubectl    string
	namespace  string
}

func newRelease(t *testing.T) *release {
	t.Helper()
	admin := os.Getenv("SANDFARM_TEST_KUBECONFIG")
	if admin == "" {
		t.Fatal("SANDFARM_TEST_KUBECONFIG is not set: run make test-kubernetes")
	}
	programs, err := exec.Command("./setup.sh", "kubernetes-dir").Output()
	testbed.Must(t, err)
	text, err := os.ReadFile(admin)
	testbed.Must(t, err)
	r := &release{
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), kubectl: filepath.Join(strings.TrimSpace(string(programs)), "kubectl"),
		namespace: "sfc-" + strings.ToLower(farm.NewID(""))[:10],
	}
	testbed.Must(t, os.WriteFile(r.kubeconfig, text, 0o600))
	r.do(t, "create", "namespace", r.namespace)
	t.Cleanup(func() {
		if t.Failed() {
			for _, argv := range [][]string{{"get", "pods", "-A"}, {"get", "events"}, {"logs", "-l", "app.kubernetes.io/component=worker", "--prefix", "--tail", "30"}} {
				out, _ := r.command(argv...).CombinedOutput()
				t.Logf("kubectl %v:\n%s", argv, out)
			}
		}
		_ = exec.Command(tool(t, "helm"), "--kubeconfig", r.kubeconfig, "uninstall", "farm").Run() // what a failed test leaves
		_ = r.command("delete", "namespace", r.namespace, r.namespace+"-sandboxes", "--wait=false", "--ignore-not-found").Run()
	})
	// The Pods of the farm are held to the restricted standard, too.
	r.do(t, "label", "namespace", r.namespace, "pod-security.kubernetes.io/enforce=restricted")
	r.do(t, "config", "set-context", "--current", "--namespace", r.namespace)
	return r
}

func (r *release) command(args ...string) *exec.Cmd {
	return exec.Command(r.kubectl, append([]string{"--kubeconfig", r.kubeconfig, "--request-timeout", "2m"}, args...)...)
}

func must(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", command.Args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *release) do(t *testing.T, args ...string) string {
	t.Helper()
	return must(t, r.command(args...))
}

func (r *release) helm(t *testing.T, args ...string) string {
	t.Helper()
	return must(t, exec.Command(tool(t, "helm"), append([]string{"--kubeconfig", r.kubeconfig, "--namespace", r.namespace, "--timeout", "5m"}, args...)...))
}

// forward makes a port of a Service a port of this machine.
func (r *release) forward(t *testing.T, service, port, to string) (stop func()) {
	t.Helper()
	command := exec.Command(r.kubectl, "--kubeconfig", r.kubeconfig, "port-forward", "service/"+service, port+":"+to)
	testbed.Must(t, command.Start())
	stop = func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	t.Cleanup(stop)
	testbed.AwaitListener(t, "127.0.0.1:"+port)
	return stop
}

// images builds the images of a farm and copies them into the cluster, as `make cluster-images` does; the file has them as values.
func images(t *testing.T) string {
	t.Helper()
	command := exec.Command("kubernetes/images.sh")
	command.Env = append(os.Environ(), "REGISTRY=registry.example.com/sandfarm", "PUSH=deploy/kubernetes/cluster.sh load")
	values, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command.Args, err)
	}
	file := filepath.Join(t.TempDir(), "images.yaml")
	testbed.Must(t, os.WriteFile(file, values, 0o600))
	return file
}

// The API server takes all that the chart can make, with strict fields, and the operators' kinds as their projects define them.
func TestChartIsTakenByTheAPIServer(t *testing.T) {
	r := newRelease(t)
	for module, file := range map[string]string{
		"github.com/kedacore/keda/v2@v2.17.2":                        "config/crd/bases/keda.sh_scaledobjects.yaml",
		"github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
	} {
		kinds := filepath.Join(moduleDir(t, module), file)
		r.do(t, "apply", "--server-side", "-f", kinds)
		t.Cleanup(func() { _ = r.command("delete", "-f", kinds, "--wait=false").Run() })
		r.do(t, "wait", "--for=condition=Established", "--timeout=60s", "-f", kinds)
	}
	r.do(t, "create", "namespace", r.namespace+"-sandboxes")
	manifests, err := render(t, everything, "--namespace", r.namespace)
	testbed.Must(t, err)
	apply := func(manifests string) (string, error) {
		command := r.command("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
		command.Stdin = strings.NewReader(manifests)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	out, err := apply(manifests)
	if err != nil || strings.Contains(out, "Warning") {
		t.Errorf("%v: %s", err, out)
	}
	if want := strings.Count(manifests, "\nkind: "); strings.Count(out, "(server dry run)") != want {
		t.Errorf("want %d objects: %s", want, out)
	}
	if out, err := apply(strings.Replace(manifests, "maxReplicaCount:", "maxReplicasCount:", 1)); err == nil {
		t.Errorf("a field that KEDA does not have is taken: %s", out)
	}
}

// From an empty namespace to a run with a file, over an update, to the end of the release with its sandboxes: docs/kubernetes.md.
func TestChartInACluster(t *testing.T) {
	r := newRelease(t)
	ctx := t.Context()
	api, files := testbed.Port(t), testbed.Port(t)
	values := []string{
		"farm", chart, "--values", images(t), "--set", "trial.enabled=true,sandboxes.seccomp.enabled=true,settings.SANDFARM_WORKER_POOL=none",
		"--set", "settings.SANDFARM_S3_PUBLIC_URL=http://127.0.0.1:" + files, "--wait",
	}
	begun := time.Now()
	said := r.helm(t, append([]string{"install"}, values...)...)
	t.Logf("installed after %s", time.Since(begun))
	if !strings.Contains(said, "sandfarm key create --local") {
		t.Errorf("the notes do not say how to make a key: %s", said)
	}
	key := must(t, exec.Command("sh", "-c", `"$0" "$@" 2>/dev/null`, r.kubectl, "--kubeconfig", r.kubeconfig, "exec", "deployment/farm-api", "--",
		"sandfarm", "key", "create", "--local", "--tenant", "default", "--scope", "admin", "--scope", "run"))
	stop := r.forward(t, "farm-api", api, "8000")
	r.forward(t, "farm-api", files, "8001")

	// As a user does it.
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "hello.py"), []byte("print(6 * 7)\nopen('hello.txt', 'w').write('from a Pod')\n"), 0o600))
	program, err := filepath.Abs("../bin/sandfarm")
	testbed.Must(t, err)
	run := exec.Command(program, "run", "hello.py")
	run.Dir, run.Env = dir, append(os.Environ(), "SANDFARM_URL=http://127.0.0.1:"+api, "SANDFARM_API_KEY="+key)
	if out := must(t, run); !strings.HasPrefix(out, "42\n") {
		t.Errorf("run prints %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "hello.txt")); err != nil || string(text) != "from a Pod" {
		t.Errorf("the file of the run: %q, %v", text, err)
	}

	c, err := client.New("http://127.0.0.1:"+api, client.WithKey(key))
	testbed.Must(t, err)
	created, err := c.CreateSandbox(ctx, wire.CreateRequest{}, client.WithWait(time.Minute))
	testbed.Must(t, err)
	box := created.Sandbox.ID
	_, err = c.Execute(ctx, box, wire.ExecuteRequest{Code: "kept = 'over the update'"}, client.WithWait(time.Minute))
	testbed.Must(t, err)
	// The live path: from the API to the worker's own port.
	if _, err := c.StartProcess(ctx, box, wire.ProcessRequest{Argv: []string{"true"}}); err != nil {
		t.Errorf("start a process: %v", err)
	}
	if got := r.do(t, "get", "pods", "--namespace", r.namespace+"-sandboxes", "-l", "sandfarm/sandbox="+box, "-o", "jsonpath={.items[*].spec.securityContext.seccompProfile.localhostProfile}"); got != "sandfarm.json" {
		t.Errorf("the seccomp profile of the sandbox is %q", got)
	}
	r.checkPolicies(t)

	before := r.do(t, "get", "secret", "farm-trial", "-o", "jsonpath={.data}")
	stop()
	r.helm(t, append([]string{"upgrade"}, append(values, "--set", "settings.SANDFARM_LOG_LEVEL=debug")...)...)
	if after := r.do(t, "get", "secret", "farm-trial", "-o", "jsonpath={.data}"); after != before {
		t.Error("the update changes the passwords of the trial")
	}
	r.forward(t, "farm-api", api, "8000")
	job, err := c.Execute(ctx, box, wire.ExecuteRequest{Code: "print(kept)"}, client.WithWait(time.Minute))
	if err != nil || stdoutOf(job) != "over the update\n" {
		t.Errorf("after the update: job %+v, error %v", job, err)
	}

	r.helm(t, "uninstall", "farm", "--wait")
	if left := r.do(t, "get", "all,configmaps,secrets,networkpolicies,poddisruptionbudgets", "-o", "name"); strings.Contains(left, "farm-") {
		t.Errorf("after the end of the release: %s", left)
	}
	if left := r.do(t, "get", "namespace", r.namespace+"-sandboxes", "--ignore-not-found", "-o", "name"); left != "" {
		t.Errorf("the namespace of the sandboxes is left, with: %s", r.do(t, "get", "pods", "--namespace", r.namespace+"-sandboxes"))
	}
	if left := r.do(t, "get", "pods", "-A", "-l", "sandfarm/sandbox="+box, "-o", "name"); left != "" {
		t.Errorf("the sandbox is left: %s", left)
	}
}

// checkPolicies connects from Pods of the farm, in which there is a shell.
func (r *release) checkPolicies(t *testing.T) {
	t.Helper()
	worker := r.do(t, "get", "pods", "-l", "app.kubernetes.io/component=worker", "-o", "jsonpath={.items[0].status.podIP}")
	for _, c := range []struct {
		from, to string
		open     bool
	}{
		{"farm-api", "farm-redis/6379", true},
		{"farm-worker", "farm-minio/9000", true},
		{"farm-api", worker + "/8003", true},
		{"farm-api", worker + "/8002", false},
		{"farm-scheduler", worker + "/8003", false},
		{"farm-minio", "farm-redis/6379", false},
	} {
		out, err := r.command("exec", "deployment/"+c.from, "--", "timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/"+c.to).CombinedOutput()
		if (err == nil) != c.open {
			t.Errorf("from %s to %s: error %v, want a connection %t: %s", c.from, c.to, err, c.open, out)
		}
	}
}

func stdoutOf(j wire.Job) string {
	if j.Result == nil || j.Result.Execute == nil {
		return ""
	}
	return j.Result.Execute.Stdout
}
