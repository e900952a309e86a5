//go:build kubernetes

package kube

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const (
	manyPods      = 20_000    // that memoryOfPods is for
	podsOfTest    = 2_000     // SANDFARM_TEST_PODS sets another number
	podsOfMachine = 20        // on each
	memoryOfPods  = 200 << 20 // bytes: what a worker may keep of manyPods
	atOnce        = 16        // requests of the test
)

// A namespace has thousands of sandboxes on machines without kubelets. What a worker keeps of them is small, and it neither lists them again nor needs more
// requests for a sandbox than in an empty one.
func TestManyPods(t *testing.T) {
	b := setup(t)
	n := podsOfTest
	if text := os.Getenv("SANDFARM_TEST_PODS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, b, n)

	e := b.connect(t, b.cfg)
	made := record(e)
	before := heap()
	began := time.Now()
	list, err := e.list(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("%d Pods: %v", len(list), err)
	}
	took := time.Since(began)
	list = nil
	kept := heap() - before
	testbed.Until(t, "the watch has begun", func() bool {
		made.mu.Lock()
		defer made.mu.Unlock()
		return made.seen["watch pods"] > 0
	})
	t.Logf("%d Pods on %d machines: listed after %s by %v; a worker keeps %.1f MiB of them, %d bytes for each", n, n/podsOfMachine, took, made.take(), float64(kept)/(1<<20), kept/int64(n))
	if most := int64(memoryOfPods) * int64(n) / manyPods; kept > most {
		t.Errorf("a worker keeps %d bytes of %d Pods; %d are allowed", kept, n, most)
	}
	const sandboxes = 3
	for range sandboxes {
		if err := use(t, e, b.spec(t, "listen")); err != nil {
			t.Fatal(err)
		}
	}
	cost, total := made.take(), 0
	for call, times := range cost {
		if total += times; strings.HasPrefix(call, "list") {
			t.Errorf("%d × %s", times, call)
		}
	}
	t.Logf("requests of %d sandboxes: %v", sandboxes, cost)
	if total > 6*sandboxes {
		t.Errorf("%d sandboxes cost %d requests", sandboxes, total)
	}
}

// use is the life of a sandbox.
func use(t *testing.T, e *Engine, s farm.ContainerSpec) error {
	t.Helper()
	id, err := e.Create(t.Context(), s)
	if err != nil {
		return err
	}
	if err := e.Start(t.Context(), id); err != nil {
		return err
	}
	if err := e.Note(t.Context(), s.SandboxID, "tenant-b", nil); err != nil {
		return err
	}
	link, err := e.DialSocket(t.Context(), id, "", []string{"/sandfarm/agent", "echo"}, "65533:65533")
	if err != nil {
		return err
	}
	_ = link.Close()
	if _, err := e.List(t.Context()); err != nil {
		return err
	}
	return e.Remove(t.Context(), id)
}

// heap is the memory that is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what has a finalizer is freed by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fill makes n Pods of sandboxes that look as if they ran, on machines that are not there.
func fill(t *testing.T, b *bundle, n int) {
	t.Helper()
	const mark = "sandfarm.test/namespace"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
		defer cancel()
		for { // a request may last for a minute
			err := b.admin.Delete().Namespace(b.cfg.Namespace).Resource("pods").Body(&metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}).Do(ctx).Error()
			if err == nil || ctx.Err() != nil {
				break
			}
		}
		if err := b.admin.Delete().Resource("nodes").Param("labelSelector", mark+"="+b.cfg.Namespace).Do(ctx).Error(); err != nil {
			t.Logf("remove nodes: %v", err)
		}
	})
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range n / podsOfMachine {
		group.Go(func() error {
			return b.admin.Post().Resource("nodes").Body(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: machine(b, i), Labels: map[string]string{mark: b.cfg.Namespace}},
				Spec:       corev1.NodeSpec{Unschedulable: true},
			}).Do(t.Context()).Error()
		})
	}
	for i := range n {
		s := b.spec(t, "wait")
		s.Labels = map[string]string{"sandfarm.record": strings.Repeat("x", 700)} // as long as one of a farm
		group.Go(func() error {
			p := b.pod(s, farm.FirstUID+i)
			p.Spec.SchedulingGates, p.Spec.NodeName = nil, machine(b, i/podsOfMachine)
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // nobody evicts them
			var got corev1.Pod
			if err := b.admin.Post().Namespace(p.Namespace).Resource("pods").Body(p).Do(t.Context()).Into(&got); err != nil {
				return err
			}
			runs(&got)
			return b.admin.Put().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("status").Body(&got).Do(t.Context()).Error()
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("made after %s", time.Since(began))
}

func machine(b *bundle, i int) string { return fmt.Sprintf("%s-%d", b.cfg.Namespace, i) }

// runs gives a Pod the status that a kubelet gives to one that runs.
func runs(p *corev1.Pod) {
	now := metav1.Now()
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	status := func(c corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, State: state, Ready: true, Started: ptr(true), AllocatedResources: c.Resources.Requests, Resources: &c.Resources,
			ImageID: "registry.example.com/image@sha256:" + strings.Repeat("0", 64), ContainerID: "containerd://" + strings.Repeat("0", 64),
		}
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: "containerd://" + strings.Repeat("0", 64)}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{status(p.Spec.InitContainers[0], ended), status(p.Spec.InitContainers[1], running)}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status(p.Spec.Containers[0], running)}
}
