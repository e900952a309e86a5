package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
	"github.com/sandfarm/sandfarm/internal/store"
)

// nodeFacts are what the live workers say of their nodes. They do not change once read.
type nodeFacts struct {
	largest    map[string]farm.Capacity // the largest sandbox of each node that is measured
	runtimes   map[string][]string      // OCI runtimes that each node offers; nil: a worker of it is of a release that offers none
	hibernates map[string][]string      // those of runtimes whose sandboxes can hibernate
	defaults   map[imageOnNode]string   // runtime of sandboxes of an image that ask for none
	pooled     map[poolKey]bool         // what has a warm pool on some node
	silent     map[string]bool          // whose engine does not answer, or that are drained
	scale      []scale.Node
}

type imageOnNode struct{ image, node string }

// poolKey distinguishes the members of a pool; Runtime is empty for the default of the image.
type poolKey struct{ image, runtime string }

// offers reports whether a node can start a sandbox with a runtime; "" is its default.
func (n nodeFacts) offers(node, runtime string) bool {
	return runtime == "" || slices.Contains(n.runtimes[node], runtime)
}

// readNodes returns what is known of the nodes. It is cached as long as the list of images.
func (s *Service) readNodes(ctx context.Context, fresh bool) (nodeFacts, error) {
	return s.nodes.Get(ctx, s.Now(), noOlder[nodeFacts](offeredFor, fresh), s.nodeFacts)
}

func (s *Service) nodeFacts(ctx context.Context) (nodeFacts, error) {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return nodeFacts{}, err
	}
	facts := nodeFacts{
		largest: map[string]farm.Capacity{}, runtimes: map[string][]string{}, defaults: map[imageOnNode]string{}, pooled: map[poolKey]bool{},
		hibernates: map[string][]string{}, silent: map[string]bool{},
		scale: scale.NodesOf(workers, s.poolMember().Capacity()),
	}
	for _, w := range workers {
		if w.Capacity != (farm.Capacity{}) {
			facts.largest[w.Node] = w.Largest()
		}
		if before, seen := facts.runtimes[w.Node]; !seen || before != nil { // any worker of a node may take a create
			facts.runtimes[w.Node] = w.Runtimes
		}
		facts.hibernates[w.Node] = w.Hibernates
		for _, image := range w.Images {
			facts.defaults[imageOnNode{image.Name, w.Node}] = image.Runtime
		}
		facts.silent[w.Node] = facts.silent[w.Node] || w.Problem != "" || w.Draining
		for _, p := range w.Pool {
			at := poolKey{p.Image, p.Runtime}
			facts.pooled[at] = facts.pooled[at] || p.Target > 0 || p.Ready > 0
		}
	}
	return facts, nil
}

// checkCapacity refuses a sandbox that is larger than every node which offers its runtime: it would wait forever. If no node is known, it may
// wait.
func (s *Service) checkCapacity(ctx context.Context, r farm.Resources, runtime string) error {
	var largest farm.Capacity
	for _, fresh := range []bool{false, true} {
		nodes, err := s.readNodes(ctx, fresh)
		if err != nil || len(nodes.largest) == 0 {
			return err
		}
		largest = farm.Capacity{}
		for node, capacity := range nodes.largest {
			if !nodes.offers(node, runtime) {
				continue
			}
			if r.Capacity().Within(capacity) {
				return nil
			}
			if capacity.MemoryMB > largest.MemoryMB || capacity.MemoryMB == largest.MemoryMB && capacity.CPUs > largest.CPUs {
				largest = capacity
			}
		}
	}
	if runtime != "" {
		return farm.Invalidf("A sandbox of %d MiB and %g cores is larger than any node with the runtime %s: the largest has %d MiB and %g cores for sandboxes. Ask for less (resources.memory_mb, resources.cpus).",
			r.MemoryMB, r.CPUs, runtime, largest.MemoryMB, largest.CPUs)
	}
	return farm.Invalidf("A sandbox of %d MiB and %g cores is larger than any node: the largest has %d MiB and %g cores for sandboxes. Ask for less (resources.memory_mb, resources.cpus).",
		r.MemoryMB, r.CPUs, largest.MemoryMB, largest.CPUs)
}

const (
	// poolMemoryMB is the least memory of a sandbox from the pool: its kernel has packages imported already, and less memory is
	// not enough for them and the code.
	poolMemoryMB = 512
	// poolTimeout bounds the claim: a create whose claim times out starts cold.
	poolTimeout = 2 * time.Second
)

// fromPool claims a pool member for a create if one fits: the record gets its id, and the job is sent to its node. Otherwise
// nothing changes.
func (s *Service) fromPool(ctx context.Context, job *farm.Job, box *farm.Sandbox) {
	spec := box.Spec
	if spec.GPU != nil || len(spec.Env) > 0 || len(spec.AllowHosts) > 0 || len(spec.Secrets) > 0 || spec.Resources.MemoryMB < poolMemoryMB {
		return // these are fixed when a container is created
	}
	claims, err := s.poolClaims(ctx, spec)
	if err != nil || len(claims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout) // a claim whose answer nobody waits for stays
	defer cancel()
	var m *store.Member
	for _, claim := range claims {
		claim.Tenant, claim.Image, claim.Network, claim.DiskMB = box.Tenant, spec.Image, spec.Network, spec.Resources.DiskMB
		if m, err = s.Store.ClaimMember(ctx, claim); !errors.Is(err, store.ErrNoMember) {
			break
		}
	}
	s.Pooled(err == nil)
	if err != nil {
		if !errors.Is(err, store.ErrNoMember) {
			s.Logger.WarnContext(ctx, "the warm pool does not answer; the sandbox starts cold", slog.String("sandbox_id", box.ID), slog.Any("error", err))
		}
		return
	}
	box.ID, box.Node, box.Pooled = m.ID, m.Node, true
	job.SandboxID, job.Queue = m.ID, farm.NodeQueue(m.Node)
}

// poolClaims says which members a create may claim, and on which nodes: those whose engine answers and that are not drained. There are none if no known node has a
// pool for it. Members of an image's default runtime are kept as such, so a runtime that is the default somewhere is claimed there too. Under gVisor a
// member keeps its limits: claimed by a create with others it would be removed, and such creates of one tenant would empty the pool.
func (s *Service) poolClaims(ctx context.Context, spec farm.SandboxSpec) ([]store.MemberClaim, error) {
	known, err := s.readNodes(ctx, false)
	if err != nil {
		return nil, err
	}
	var standard, named []string
	for node := range known.largest {
		standardRuntime := known.defaults[imageOnNode{spec.Image, node}]
		switch {
		case known.silent[node]:
		case farm.GVisor(cmp.Or(spec.Runtime, standardRuntime)) && spec.Resources != s.poolMember():
		case spec.Runtime == "" || spec.Runtime == standardRuntime:
			standard = append(standard, node)
		default:
			named = append(named, node)
		}
	}
	var claims []store.MemberClaim
	if len(standard) > 0 && known.pooled[poolKey{image: spec.Image}] {
		claims = append(claims, store.MemberClaim{Nodes: standard})
	}
	if len(named) > 0 && known.pooled[poolKey{spec.Image, spec.Runtime}] {
		claims = append(claims, store.MemberClaim{Runtime: spec.Runtime, Nodes: named})
	}
	return claims, nil
}

// settle returns a claimed member to the pool if its job does not use it: the job was refused, or an earlier job answers the
// call. If that is not certain, the claim stays and the node's worker reconciles it.
func (s *Service) settle(ctx context.Context, a store.Accept, accepted store.Accepted, err error) {
	if a.Sandbox == nil || !a.Sandbox.Pooled {
		return
	}
	switch code := farm.CodeOf(err); {
	case err == nil && accepted.Job.SandboxID == a.Sandbox.ID:
		return
	case err != nil && (code == farm.CodeUnavailable || code == farm.CodeInternal):
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
	defer cancel()
	if err := s.Store.ReturnMember(ctx, a.Sandbox.ID, a.Sandbox.Tenant); err != nil && !errors.Is(err, store.ErrNoMember) {
		s.Logger.WarnContext(ctx, "a claimed sandbox was not given back; its node's worker removes it", slog.String("sandbox_id", a.Sandbox.ID), slog.Any("error", err))
	}
}

// gpu returns the devices of a request; nil: none. Only here is the rule applied that a model without a count means one
// device.
func gpu(p *problems, r *wire.GPURequest) *farm.GPU {
	if r == nil {
		return nil
	}
	out := farm.GPU{Model: farm.NormalGPUModel(r.Model)}
	switch {
	case r.Count != nil:
		out.Count = between(p, "/gpu/count", r.Count, 0, 0, farm.MaxGPUs)
	case r.Model != "":
		out.Count = 1
	}
	if len(r.Model) > farm.MaxGPUModelBytes {
		p.addf("/gpu/model", "gpu.model has %d bytes; at most %d are allowed", len(r.Model), farm.MaxGPUModelBytes)
	} else if err := checkText("gpu.model", r.Model); err != nil {
		p.check("/gpu/model", err)
	} else if r.Model != "" && out.Model == "" {
		p.addf("/gpu/model", "gpu.model %q is not a model: give a name such as a100", farm.Shorten(r.Model))
	}
	if out.Count == 0 {
		return nil
	}
	return &out
}

// checkGPUEnv refuses variables that NVIDIA's runtime and the loader of its tools read before the sandbox is isolated.
func checkGPUEnv(p *problems, g *farm.GPU, r wire.CreateRequest) {
	if !g.Wanted() {
		return
	}
	refuse := func(field string, names []string) {
		for _, name := range names {
			if farm.GPUEnv(name) {
				name = farm.Shorten(name)
				p.addf(strict.Pointer("/"+field, name), "%s.%s cannot be set for a sandbox with a GPU: it would reach the engine's GPU tools. Set it in the code.", field, name)
			}
		}
	}
	refuse("env", slices.Sorted(maps.Keys(r.Env)))
	refuse("secrets", slices.Sorted(maps.Keys(r.Secrets)))
}

// checkGPUCapacity refuses a sandbox whose devices no live worker has: it would wait forever.
func (s *Service) checkGPUCapacity(ctx context.Context, spec *farm.SandboxSpec) error {
	if !spec.GPU.Wanted() {
		return nil
	}
	budget.LeaveCore(ctx)
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return err
	}
	devices, isolated := false, ""
	for _, w := range workers {
		n := 0
		for _, d := range w.GPUs {
			if d.Is(spec.GPU.Model) {
				n++
			}
		}
		if n < spec.GPU.Count {
			continue
		}
		devices = true
		if spec.Runtime != "" && !slices.Contains(w.Runtimes, spec.Runtime) {
			continue
		}
		image := slices.IndexFunc(w.Images, func(i farm.Image) bool { return i.Name == spec.Image })
		if image < 0 || w.Capacity != (farm.Capacity{}) && !spec.Resources.Capacity().Within(w.Largest()) {
			continue
		}
		runtime := cmp.Or(spec.Runtime, w.Images[image].Runtime)
		if !farm.OwnKernel(runtime) {
			return nil
		}
		isolated = runtime
	}
	if isolated != "" {
		return farm.Invalidf("A sandbox with the runtime %s has a kernel of its own, which does not reach GPUs: leave gpu out, or give a runtime that shares the host's kernel, such as runc.", isolated)
	}
	there := offeredGPUs(workers)
	switch {
	case there == "":
		return farm.Invalidf("No worker of this farm offers a GPU: leave gpu out. The operator of the farm can add workers with GPUs (docs/gpu.md).")
	case devices:
		return farm.Invalidf("No node has the requested GPUs together with image %q, %d MiB and %g cores%s. One sandbox can have at most %s.",
			spec.Image, spec.Resources.MemoryMB, spec.Resources.CPUs, runtimeText(spec.Runtime), there)
	case spec.GPU.Model == "":
		return farm.Invalidf("No worker offers %d GPUs to one sandbox. One sandbox can have at most %s.", spec.GPU.Count, there)
	default:
		return farm.Invalidf("No worker offers %d × %s to one sandbox. One sandbox can have at most %s.", spec.GPU.Count, spec.GPU.Model, there)
	}
}

// offeredGPUs says how many devices of each model one sandbox can have at most; "": none. Which hosts have them, how many there are and who has them
// is not the caller's to know.
func offeredGPUs(workers []farm.Worker) string {
	limit, one, several := map[string]int{}, 0, 0
	for _, w := range eachNode(workers) {
		models := map[string]int{}
		for _, d := range w.GPUs {
			name := d.Model
			if d.MemoryMB > 0 {
				name += fmt.Sprintf(" (%d MiB)", d.MemoryMB)
			}
			models[name]++
			limit[name] = max(limit[name], models[name])
			one = max(one, limit[name])
		}
		several = max(several, len(w.GPUs))
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(limit)) {
		words = append(words, fmt.Sprintf("%d × %s", limit[name], name))
	}
	if several > one {
		words = append(words, fmt.Sprintf("%d of several models", several))
	}
	return strings.Join(words, " or ")
}

// eachNode returns one worker of each node, the one with the latest heartbeat: all workers of a node offer the same devices.
func eachNode(workers []farm.Worker) []farm.Worker {
	nodes := map[string]farm.Worker{}
	for _, w := range workers {
		if w.SeenAt.After(nodes[w.Node].SeenAt) || nodes[w.Node].ID == "" {
			nodes[w.Node] = w
		}
	}
	return slices.SortedFunc(maps.Values(nodes), func(a, b farm.Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Node, b.Node))
	})
}

// gpuCount is the number of devices of a queue, and how many of them are leased.
type gpuCount struct{ all, leased int }

// gpuQueues counts the devices of each GPU queue.
func gpuQueues(workers []farm.Worker) map[string]gpuCount {
	out := map[string]gpuCount{}
	for _, w := range eachNode(workers) {
		for _, d := range w.GPUs {
			for _, name := range d.Queues() {
				n := out[name]
				n.all++
				if d.Leased {
					n.leased++
				}
				out[name] = n
			}
		}
	}
	return out
}

// FreeGPUs counts the free devices by the queue whose jobs may use them.
func FreeGPUs(workers []farm.Worker) map[string]int {
	out := map[string]int{}
	for queue, n := range gpuQueues(workers) {
		out[queue] = n.all - n.leased
	}
	return out
}

func gpusOf(devices []farm.GPUDevice) []wire.GPUDevice {
	out := make([]wire.GPUDevice, len(devices))
	for i, d := range devices {
		out[i] = wire.GPUDevice(d)
	}
	return out
}

// GPUModels counts the devices of each model, and how many of them are leased.
func GPUModels(workers []farm.Worker) (all, leased map[string]int) {
	all, leased = map[string]int{}, map[string]int{}
	for _, w := range eachNode(workers) {
		for _, d := range w.GPUs {
			all[d.Model]++
			if d.Leased {
				leased[d.Model]++
			}
		}
	}
	return all, leased
}
