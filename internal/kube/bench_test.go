//go:build kubernetes

package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// A sandbox's Pod, from its create to the moment in which the cluster says that it runs, against a bare Pod of the same image. Both in turn, so that the
// machine's other work meets both.
func BenchmarkColdCreate(b *testing.B) {
	of := setup(b)
	took := map[string][]time.Duration{}
	var ratios []float64
	for b.Loop() {
		whole := timed(b, of, func(*corev1.Pod) {})
		bare := timed(b, of, func(p *corev1.Pod) {
			p.Spec.InitContainers = nil
			p.Spec.Volumes = p.Spec.Volumes[1:]
			p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[1:]
			p.Spec.Containers[0].Command[0] = "/probe"
		})
		took["whole"], took["bare"] = append(took["whole"], whole), append(took["bare"], bare)
		ratios = append(ratios, float64(whole)/float64(bare))
	}
	b.ReportMetric(median(took["whole"]).Seconds(), "s/sandbox")
	b.ReportMetric(median(took["bare"]).Seconds(), "s/bare")
	b.ReportMetric(median(ratios), "sandbox/bare")
	b.ReportMetric(0, "ns/op")
}

// timed makes a Pod of a sandbox as change leaves it, waits until it runs, and removes it.
func timed(b *testing.B, of *bundle, change func(*corev1.Pod)) time.Duration {
	b.Helper()
	p := of.pod(of.spec(b, "wait"), farm.FirstUID)
	change(p)
	began := time.Now()
	var made corev1.Pod
	if err := of.ask(b.Context(), of.rest.Post().Resource("pods").Body(p), &made); err != nil {
		b.Fatal(err)
	}
	if err := of.Start(b.Context(), containerID(&made)); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	if err := of.Remove(b.Context(), containerID(&made)); err != nil {
		b.Fatal(err)
	}
	return took
}

func median[T time.Duration | float64](list []T) T {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}
