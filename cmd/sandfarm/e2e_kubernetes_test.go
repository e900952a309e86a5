//go:build kubernetes

package main_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// clusterFarm starts a farm whose sandboxes are Pods.
func clusterFarm(t testing.TB, env ...string) (*farmProcess, *testbed.Cluster) {
	t.Helper()
	c := testbed.NewCluster(t, program)
	return newFarm(t, append(c.Env, env...)...), c
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
	pods := c.Kubectl(t, "get", "pods", "-l", "sandfarm/sandbox="+box.ID, "-o", "jsonpath={.items[*].status.phase}")
	if pods != "Running" {
		t.Errorf("Pods of the sandbox: %q", pods)
	}
	if network := f.run(box.ID, "import os, socket\ntry:\n    socket.create_connection((os.environ['KUBERNETES_SERVICE_HOST'], 443), 5)\n    print('open')\nexcept OSError as e:\n    print('closed')"); network.Stdout != "closed\n" {
		t.Errorf("the network of a sandbox is %s", network.Stdout)
	}
	if _, err := f.Close(t.Context(), box.ID, client.WithWait(60*time.Second)); err != nil {
		t.Fatal(err)
	}
	used, err := f.Usage(t.Context(), 1)
	if err != nil || len(used.Days) != 1 || used.Days[0].CPUSeconds <= 0 || used.Days[0].MemoryGBSeconds <= 0 || used.Days[0].SandboxSeconds <= 0 {
		t.Errorf("usage %+v, %v", used, err)
	}
	t.Logf("usage of the day: %+v", used.Days)
	if left := c.Kubectl(t, "get", "pods", "-l", "sandfarm/sandbox="+box.ID, "-o", "name"); left != "" {
		t.Errorf("after the close: %s", left)
	}
	awaitPool(t, f)
	begun = time.Now()
	pooled := f.sandbox(wire.CreateRequest{})
	t.Logf("from the pool after %s", time.Since(begun))
	if got := f.run(pooled.ID, "print(6 * 7)"); got.Stdout != "42\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	if owner := c.Kubectl(t, "get", "pods", "-l", "sandfarm/sandbox="+pooled.ID, "-o", `jsonpath={.items[*].metadata.annotations.sandfarm/note}`); !strings.Contains(owner, "default") {
		t.Errorf("the owner of a sandbox of the pool is noted as %q", owner)
	}
	f.run(pooled.ID, "kept = 'after all'")
	f.stop(syscall.SIGKILL)
	f.start()
	if got := f.run(pooled.ID, "print(kept)"); got.Stdout != "after all\n" {
		t.Errorf("after the end of its worker the sandbox says %q", got.Stdout)
	}
}

// The limit of processes is the agent's in a cluster. Code that reaches it gets an error, and the sandbox goes on.
func TestKubernetesProcessLimit(t *testing.T) {
	f, _ := clusterFarm(t, "SANDFARM_WORKER_POOL=none")
	pids := 48
	box := f.sandbox(wire.CreateRequest{Resources: &wire.ResourcesRequest{PIDs: &pids}})
	got := f.run(box.ID, `import os, resource, signal
children = []
try:
    while len(children) < 200:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except BlockingIOError:
    print(len(children) < 48, resource.getrlimit(resource.RLIMIT_NPROC))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)`)
	if got.Stdout != "True (48, 48)\n" {
		t.Errorf("stdout %q, stderr %q", got.Stdout, got.Stderr)
	}
	if got := f.run(box.ID, "print(6 * 7)"); got.Stdout != "42\n" {
		t.Errorf("after that: %+v", got)
	}
}

// awaitPool waits until the warm pool of a farm has a sandbox.
func awaitPool(t testing.TB, f *farmProcess) {
	t.Helper()
	until(t.Context(), t, "the pool has a sandbox", 2*time.Minute, func() bool {
		list, err := f.Workers(t.Context())
		return err == nil && len(list) == 1 && len(list[0].Pool) == 1 && list[0].Pool[0].Ready > 0
	})
}

// What a caller waits for if sandboxes are Pods, and in turn if they are containers of Docker: print(1), and a create from the warm pool.
func BenchmarkKubernetes(b *testing.B) {
	inPods, _ := clusterFarm(b, "SANDFARM_WORKER_POOL=python=1")
	inDocker := newFarm(b, "SANDFARM_WORKER_POOL=python=1")
	farms := map[string]*farmProcess{"pod": inPods, "docker": inDocker}
	boxes := map[string]string{}
	for name, f := range farms {
		boxes[name] = f.sandbox(wire.CreateRequest{}).ID
		f.run(boxes[name], "print(1)")
	}
	prints, creates, ratios := map[string][]float64{}, map[string][]float64{}, []float64{}
	for b.Loop() {
		for range 20 {
			for name, f := range farms {
				began := time.Now()
				f.run(boxes[name], "print(1)")
				prints[name] = append(prints[name], time.Since(began).Seconds()*1000)
			}
			ratios = append(ratios, prints["pod"][len(ratios)]/prints["docker"][len(ratios)])
		}
		for name, f := range farms {
			awaitPool(b, f)
			began := time.Now()
			box := f.sandbox(wire.CreateRequest{})
			creates[name] = append(creates[name], time.Since(began).Seconds()*1000)
			if _, err := f.Close(b.Context(), box.ID, client.WithWait(60*time.Second)); err != nil {
				b.Fatal(err)
			}
		}
	}
	median := func(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/2] }
	for name := range farms {
		b.ReportMetric(median(prints[name]), "ms/print-"+name)
		b.ReportMetric(median(creates[name]), "ms/pool-"+name)
	}
	b.ReportMetric(median(ratios), "print-pod/docker")
	b.ReportMetric(0, "ns/op")
}
