//go:build kubernetes

package faulttest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// podFarm is a farm whose sandboxes are Pods.
type podFarm struct {
	*faulttest.Farm
	cluster *testbed.Cluster
}

// node runs a command in the cluster's node.
func (f *podFarm) node(t *testing.T, command ...string) {
	t.Helper()
	_, err := f.cluster.Exec(command...)
	testbed.Must(t, err)
}

// The parts of a cluster are taken away under a farm whose sandboxes are Pods.
func TestKubernetes(t *testing.T) {
	program, err := filepath.Abs("../../bin/sandfarm")
	testbed.Must(t, err)
	cluster := testbed.NewCluster(t, program)
	f := &podFarm{newFarm(t, faulttest.Config{Workers: 3, Schedulers: 1, Links: true, Cluster: cluster}), cluster}
	partsAreAway(t, f)
	for _, step := range []struct {
		name string
		do   func(*testing.T, *podFarm)
	}{
		{"WorkersAreKilled", workersKilled},
		{"WorkersShareTheNamespace", workersShare},
		{"PodsAreEvicted", podsEvicted},
	} {
		t.Run(step.name, func(t *testing.T) { step.do(t, f) })
	}
	f.End()
}

// fifty starts 50 runs in five sandboxes: some end before the fault does, some are silent through it and print afterwards, and some wait behind those.
func fifty(c *faulttest.Case, fault time.Duration) {
	after := fmt.Sprint((fault + 5*time.Second).Seconds())
	for _, box := range c.Boxes(5) {
		c.Accept(box, faulttest.Run{Lines: 20, Code: "time.sleep(" + after + ")\nprint('after')", Out: "after\n"})
		c.Accept(box, faulttest.Run{Lines: 20, Code: "sleep " + after + "; echo after", Out: "after\n", Background: true})
		for _, lines := range []int{20, 50, 100} {
			c.Accept(box, faulttest.Run{Lines: lines, Background: true})
		}
		for range 5 {
			c.Accept(box, faulttest.Run{Lines: 2, Files: 1})
		}
	}
}

// partsAreAway takes a part of the cluster away for a while under 50 runs.
func partsAreAway(t *testing.T, f *podFarm) {
	killed := func(process string) func(*testing.T) {
		return func(t *testing.T) { f.node(t, "sh", "-c", "touch /run/"+process+".away && pkill -KILL -x "+process) }
	}
	started := func(process string) func(*testing.T) {
		return func(t *testing.T) { f.node(t, "rm", "/run/"+process+".away") }
	}
	for _, part := range []struct {
		test, name string
		away       time.Duration
		take, give func(*testing.T)
	}{
		// It does not answer, and its connections stay open.
		{
			"APIServerIsStopped", "API server stopped", time.Minute,
			func(t *testing.T) { f.node(t, "pkill", "-STOP", "-x", "kube-apiserver") },
			func(t *testing.T) { f.node(t, "pkill", "-CONT", "-x", "kube-apiserver") },
		},
		// It refuses connections, and the streams to the agents break.
		{"APIServerIsKilled", "API server killed", time.Minute, killed("kube-apiserver"), started("kube-apiserver")},
		// The streams to the agents go through it, and the Pods run on.
		{"KubeletIsKilled", "kubelet killed", 20 * time.Second, killed("kubelet"), started("kubelet")},
		// The token of the workers ends, and the cluster accepts nothing from them.
		{"CredentialsExpire", "credentials of the workers ended", 20 * time.Second, f.revoke, func(t *testing.T) { f.cluster.Admit(t) }},
	} {
		t.Run(part.test, func(t *testing.T) {
			c := f.Case(t, fmt.Sprintf("%s for %s under 50 runs", part.name, part.away))
			fifty(c, part.away)
			c.Fault(func() { part.take(t) }, func() {
				<-time.After(part.away)
				part.give(t)
			})
			c.End()
		})
	}
}

// revoke ends the token of the workers, and waits until they notice.
func (f *podFarm) revoke(t *testing.T) {
	f.cluster.Revoke(t)
	f.Until(time.Minute, "the workers say that the cluster does not answer", func() bool {
		list, err := f.Client.Workers(t.Context())
		return err == nil && !slices.ContainsFunc(list, func(w wire.Worker) bool { return w.Problem == "" })
	})
}

// All workers but one are killed while they have runs and creates. The last one takes them over: any worker of the namespace reaches any sandbox.
func workersKilled(t *testing.T, f *podFarm) {
	c := f.Case(t, "2 of 3 workers killed mid-run and mid-create")
	var jobs []*faulttest.Job
	for _, box := range c.Boxes(5) {
		jobs = append(jobs, c.Accept(box, faulttest.Run{Lines: 20, Held: true}))
		c.Accept(box, faulttest.Run{Lines: 2})
	}
	for _, j := range jobs {
		f.AwaitHolder(j.ID)
	}
	var created []wire.Created
	for range 3 {
		made, err := f.CreateSandbox(t.Context(), wire.CreateRequest{})
		testbed.Must(t, err)
		created = append(created, made)
	}
	victims := f.Workers()[:2]
	c.Fault(func() { f.Kill(victims...) }, nil)
	c.Release(jobs...)
	for _, made := range created {
		f.Completed("a create whose worker was killed", made.Job.ID)
		c.Own(made.Sandbox.ID)
		c.Accept(made.Sandbox.ID, faulttest.Run{Lines: 1})
	}
	f.Back(victims...)
	c.End()
}

// Three workers on one namespace create sandboxes, run code in them and let them expire: each has one Pod, and each job runs once.
func workersShare(t *testing.T, f *podFarm) {
	c := f.Case(t, "3 workers on one namespace")
	boxes := make([]string, 9)
	var group sync.WaitGroup
	for i := range boxes {
		group.Go(func() { boxes[i] = c.Create(wire.CreateRequest{}) })
	}
	group.Wait()
	c.Own(boxes...)
	workers := map[string]bool{}
	for range 3 {
		for _, box := range boxes {
			j := c.Accept(box, faulttest.Run{Lines: 3, Files: 1})
			workers[f.AwaitHolder(j.ID)] = true
		}
	}
	if len(workers) < 2 {
		t.Errorf("all jobs were those of %v", workers)
	}
	r := c.End()
	ends := time.Now()
	for _, box := range boxes {
		ends = expireSoon(t, f.Farm, box).ExpiresAt
	}
	f.Until(time.Until(ends)+2*time.Minute, "the sandboxes have expired, and none has a Pod", func() bool {
		for _, box := range boxes {
			if now, err := f.Sandbox(t.Context(), box); err != nil || now.State != "expired" || slices.Contains(f.Containers(), box) {
				return false
			}
		}
		return true
	})
	if r.Left > 0 {
		t.Errorf("%d Pods are left", r.Left)
	}
	f.CloseIdle()
}

// Pods are evicted in mid-run: by the eviction API, as a drain of the machine does it, and by the kubelet, which ends a Pod that uses too much of the
// machine's disk. Their jobs and sandboxes are lost, as when Docker has removed a container, and say why.
func podsEvicted(t *testing.T, f *podFarm) {
	c := f.Case(t, "Pods evicted by the API and by the kubelet")
	boxes := c.Boxes(3)
	var lost []*faulttest.Job
	for _, box := range boxes[:2] {
		j := c.Accept(box, faulttest.Run{Lines: 3000, Want: []string{"lost"}})
		f.AwaitHolder(j.ID)
		lost = append(lost, j)
		c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true})
	}
	c.Accept(boxes[2], faulttest.Run{Lines: 100})
	c.Fault(func() {
		eviction := filepath.Join(t.TempDir(), "eviction.json")
		pod := faulttest.PodOf(boxes[0])
		testbed.Must(t, os.WriteFile(eviction, []byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+pod+`"}}`), 0o600))
		f.cluster.Kubectl(t, "create", "--raw", "/api/v1/namespaces/"+f.cluster.Namespace+"/pods/"+pod+"/eviction", "-f", eviction)
		uid := f.cluster.Kubectl(t, "get", "pod", faulttest.PodOf(boxes[1]), "-o", "jsonpath={.metadata.uid}")
		f.node(t, "dd", "if=/dev/zero", "of=/var/lib/kubelet/pods/"+uid+"/volumes/kubernetes.io~empty-dir/agent/filler", "bs=1M", "count=300")
	}, nil)
	for i, reason := range []string{"gone", "Evicted"} {
		end, err := f.Wait(t.Context(), lost[i].ID)
		if err != nil || end.State != "lost" || end.Error == nil || !strings.Contains(end.Error.Message, reason) {
			t.Errorf("a job whose Pod was evicted: %v %+v %+v", err, end.State, end.Error)
		}
		if box, err := f.Sandbox(t.Context(), boxes[i]); err != nil || box.State != "lost" || !strings.Contains(box.Reason, reason) {
			t.Errorf("its sandbox is %s: %s (%v)", box.State, box.Reason, err)
		}
	}
	c.Abandon(boxes[:2]...)
	c.End()
}
