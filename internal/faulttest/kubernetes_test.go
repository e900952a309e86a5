//go:build kubernetes

package faulttest_test

import (
	"path/filepath"
	"testing"
	"time"

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
	f := &podFarm{newFarm(t, faulttest.Config{Workers: 2, Schedulers: 1, Links: true, Cluster: cluster}), cluster}
	for _, step := range []struct {
		name string
		do   func(*testing.T, *podFarm)
	}{
		{"APIServerIsStopped", apiServerStopped},
		{"APIServerIsKilled", apiServerKilled},
	} {
		t.Run(step.name, func(t *testing.T) { step.do(t, f) })
	}
	f.End()
}

// away is how long the API server is away.
const away = time.Minute

// fifty starts 50 runs in five sandboxes: some end before the fault does, some go on through it, and some wait behind those.
func fifty(c *faulttest.Case) {
	for _, box := range c.Boxes(5) {
		c.Accept(box, faulttest.Run{Lines: 700})
		for _, lines := range []int{50, 100, 200, 400} {
			c.Accept(box, faulttest.Run{Lines: lines, Background: true})
		}
		for range 5 {
			c.Accept(box, faulttest.Run{Lines: 2, Files: 1})
		}
	}
}

// The API server does not answer, and its connections stay open.
func apiServerStopped(t *testing.T, f *podFarm) {
	c := f.Case(t, "API server stopped for 60 s under 50 runs")
	fifty(c)
	c.Fault(func() { f.node(t, "pkill", "-STOP", "-x", "kube-apiserver") }, func() {
		<-time.After(away)
		f.node(t, "pkill", "-CONT", "-x", "kube-apiserver")
	})
	c.End()
}

// The API server is gone: it refuses connections, and the streams to the agents break.
func apiServerKilled(t *testing.T, f *podFarm) {
	c := f.Case(t, "API server killed for 60 s under 50 runs")
	fifty(c)
	c.Fault(func() { f.node(t, "sh", "-c", "touch /run/kube-apiserver.away && pkill -KILL -x kube-apiserver") }, func() {
		<-time.After(away)
		f.node(t, "rm", "/run/kube-apiserver.away")
	})
	c.End()
}

