package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// pods are the Pods of sandboxes as the watch reports them. The watch begins with the first use. It may be behind what another process did, but not
// behind what this Engine has seen itself: await and all wait for that. It is the store of client-go's Reflector, which lists once and then watches.
type pods struct {
	e     *Engine
	begin sync.Once

	mu      sync.Mutex
	synced  bool
	known   map[string]*corev1.Pod // by name; nobody changes them
	version uint64                 // of the cluster, as far as the watch has reported
	seen    uint64                 // version of the newest Pod that this Engine saw in an answer
	changed chan struct{}          // closed by the next change
}

var _ cache.ReflectorStore = (*pods)(nil)

func newPods(e *Engine) *pods {
	return &pods{e: e, known: map[string]*corev1.Pod{}, changed: make(chan struct{})}
}

// start begins the watch.
func (p *pods) start() {
	p.begin.Do(func() {
		list := cache.NewFilteredListWatchFromClient(p.e.rest, "pods", p.e.cfg.Namespace, func(o *metav1.ListOptions) { o.LabelSelector = labelRole + "=" + roleSandbox })
		reflector := cache.NewReflectorWithOptions(list, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "sandboxes"})
		ctx := klog.NewContext(p.e.base, logr.FromSlogHandler(p.e.log.Handler()))
		p.e.wait.Go(func() { reflector.RunWithContext(ctx) })
	})
}

// change changes what is known, and wakes all who wait.
func (p *pods) change(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// Add takes a Pod that is new or has changed.
func (p *pods) Add(object any) error { return p.Update(object) }

// Update takes a Pod that has changed.
func (p *pods) Update(object any) error { return p.change(func() { p.keep(object) }) }

// Delete forgets a Pod.
func (p *pods) Delete(object any) error {
	return p.change(func() {
		if pod, ok := object.(*corev1.Pod); ok {
			delete(p.known, pod.Name)
			p.version = max(p.version, versionOf(pod.ResourceVersion))
		}
	})
}

// Replace takes all Pods anew.
func (p *pods) Replace(list []any, version string) error {
	return p.change(func() {
		clear(p.known)
		for _, object := range list {
			p.keep(object)
		}
		p.synced, p.version = true, versionOf(version)
	})
}

// Resync does nothing.
func (*pods) Resync() error { return nil }

// UpdateResourceVersion takes the version of an event, also of one without a Pod.
func (p *pods) UpdateResourceVersion(version string) {
	_ = p.change(func() { p.version = max(p.version, versionOf(version)) })
}

func (p *pods) keep(object any) {
	if pod, ok := object.(*corev1.Pod); ok {
		p.known[pod.Name] = essence(pod)
		p.version = max(p.version, versionOf(pod.ResourceVersion))
	}
}

// essence is what is used of a Pod of the watch. All of it would be six times as large, and a namespace has thousands.
func essence(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp, Annotations: pod.Annotations,
			Labels: map[string]string{labelRole: pod.Labels[labelRole], labelSandbox: pod.Labels[labelSandbox]},
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message},
	}
	if s := pod.Spec.SecurityContext; s != nil {
		kept.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: s.RunAsUser}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodResizePending {
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
	statuses := func(list []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
		for _, s := range list {
			kept = append(kept, corev1.ContainerStatus{Name: s.Name, Image: s.Image, State: s.State, Resources: s.Resources})
		}
		return kept
	}
	kept.Status.ContainerStatuses = statuses(pod.Status.ContainerStatuses)
	if state(pod).Running == nil { // they say why it does not
		kept.Status.InitContainerStatuses = statuses(pod.Status.InitContainerStatuses)
	}
	return kept
}

// saw takes a Pod of an answer.
func (p *pods) saw(pod *corev1.Pod) {
	if pod.Labels[labelRole] != roleSandbox {
		return // the watch does not report it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = max(p.seen, versionOf(pod.ResourceVersion))
}

// versionOf is a resource version as a number, which it is in every API server.
func versionOf(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// get returns a Pod that the watch has reported; nil if there is none, or the watch has not begun.
func (p *pods) get(name string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[name]
}

// all returns the Pods.
func (p *pods) all(ctx context.Context) (list []*corev1.Pod, err error) {
	err = p.await(ctx, func(known map[string]*corev1.Pod) (bool, error) {
		list = slices.Collect(maps.Values(known))
		return true, nil
	})
	return list, err
}

// await calls look with all Pods by name, whenever one has changed, until it is done or fails. It begins when the watch has reported what this Engine
// saw. CodeUnavailable if the watch does not begin; the cause of ctx if it ends.
func (p *pods) await(ctx context.Context, look func(known map[string]*corev1.Pod) (done bool, err error)) error {
	p.start() //nolint:contextcheck // the watch lives as long as the Engine
	for {
		p.mu.Lock()
		changed, synced := p.changed, p.synced
		if synced && p.version >= p.seen {
			if done, err := look(p.known); done || err != nil {
				p.mu.Unlock()
				return err
			}
		}
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			if !synced {
				return farm.Wrap(fmt.Errorf("watch sandboxes: %w", context.Cause(ctx)), farm.CodeUnavailable, "The cluster's API server does not answer. Try again in a moment.")
			}
			return context.Cause(ctx)
		}
	}
}
