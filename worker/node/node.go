// Package node is the engine's side of sandboxes: their images, their containers, the connection to the agent in each, and
// the deadlines that agents know. A Node is the engine of the worker, whatever kind it is of (Engine); every other package of the worker builds on it.
//
// A container carries its sandbox's record, for a Redis that loses it (see LabelRecord).
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/signature"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

const (
	// imagesFor is how long a list of images is used again: an image that was built by hand is offered soon.
	imagesFor = 10 * time.Second
	// uvTimeout is how long the start waits for the installer: some 25 MiB from the package index, once for each engine.
	uvTimeout = 3 * time.Minute
)

// ErrStopping says that the worker is stopping. Contexts of its jobs end with it.
var ErrStopping = errors.New("the worker is stopping")

// Deps are the dependencies of a Node. All fields except UV, Index, Admit, Exit, BuildImage and Metrics are required.
type Deps struct {
	Engine Engine
	Log    *slog.Logger
	Now    func() time.Time
	// Agent gives the agent's binary for the engine, and its version.
	Agent func(arch string) (binary []byte, version string, err error)
	// UV gives the installer for the engine; nil: sandboxes install with what their image has.
	UV func(ctx context.Context, arch string) ([]byte, error)
	// UVVersion is the version of the installer.
	UVVersion string
	// Index gives what answers installers in a tenant's sandboxes whose network is packages or allowlist; nil: they cannot install.
	Index func(tenant string) http.Handler
	// Admit charges a tenant for a connection of a sandbox to the Index until release is called, if there is memory for it; nil: nothing is charged.
	Admit func(tenant string) (release func(), ok bool)
	// Exit makes the proxy of a sandbox whose network is allowlist; nil: it reaches nothing.
	Exit func(ctx context.Context, s *farm.Sandbox) Exit
	// BuildImage builds a sandbox image by its name; nil: none is built.
	BuildImage func(ctx context.Context, name string, progress func(farm.Progress)) error
	// Runtimes are the OCI runtimes that callers may choose, beside the engine's default.
	Runtimes []string
	// ImageRuntimes are those of images whose sandboxes do not have the default, by the image's name.
	ImageRuntimes map[string]string
	// AllowedImages are the ids or digests of the images that sandboxes may have; empty: any.
	AllowedImages []string
	// Signatures are those that images need beside that; nil: none.
	Signatures *signature.Folder
	// Metrics registers the metrics of connections; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Node is the engine of a worker. Its methods are safe for concurrent use after Prepare.
type Node struct {
	deps        Deps
	engine      Engine
	checkpoints Checkpoints
	id          string          // set by Identify
	arch        string          // set by Identify
	agents      map[bool]string // for runtimes with a kernel of their own, and others; set by Prepare
	runtimes    []string        // the default first; set by Identify
	hibernates  []string        // those of runtimes whose sandboxes can hibernate; set by Identify

	connections connections
	deadlines   deadlines
	images      imageCache
	preloaded   map[string]time.Time // when Preload has read an image, by its id
	base        context.Context      // the life of background work, ended by the worker
}

// New makes a Node. Background work ends with base.
func New(base context.Context, deps Deps) (*Node, error) {
	n := &Node{
		deps: deps, engine: deps.Engine, checkpoints: noCheckpoints{}, base: base, connections: connections{open: map[string]*connection{}},
		deadlines: deadlines{rounds: newRounds(), known: map[string]time.Time{}},
	}
	if c, ok := deps.Engine.(Checkpoints); ok {
		n.checkpoints = c
	}
	breaks := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sandfarm_worker_agent_link_breaks_total", Help: "Streams to agents that broke, not closed by this worker.",
	})
	dialErrors := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sandfarm_worker_agent_dial_errors_total", Help: "Streams to agents that could not be opened.",
	})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sandfarm_worker_agent_links", Help: "Streams to agents that are open or being opened.",
	}, func() float64 { return float64(n.connections.count()) })
	n.connections.onBreak, n.connections.onDialError = breaks.Inc, dialErrors.Inc
	if deps.Metrics == nil {
		return n, nil
	}
	return n, telemetry.Register(deps.Metrics, breaks, dialErrors, open)
}

// ID is the identity of the engine, "" before Prepare.
func (n *Node) ID() string { return n.id }

// Checkpoints are those of the engine.
func (n *Node) Checkpoints() Checkpoints { return n.checkpoints }

// Agent is what the engine calls the agent of sandboxes with a runtime; "" before Prepare.
func (n *Node) Agent(runtime string) string { return n.agents[farm.OwnKernel(runtime)] }

// UseIdentity sets what Prepare determines. It is for tests, whose engines have neither.
func (n *Node) UseIdentity(id, agent string) {
	n.id, n.agents = id, map[bool]string{false: agent, true: agent}
}

// UseRuntimes sets what Identify determines: the OCI runtimes, the default first. It is for tests, whose engines have none.
func (n *Node) UseRuntimes(names ...string) { n.runtimes = names }

// UseHibernates sets what Identify determines: the OCI runtimes whose sandboxes can hibernate. It is for tests, whose engines have none.
func (n *Node) UseHibernates(names ...string) { n.hibernates = names }

// HasIndex reports whether sandboxes can reach a package index.
func (n *Node) HasIndex() bool { return n.deps.Index != nil }

// Close waits for background work and closes all connections. base must have ended.
func (n *Node) Close() {
	n.deadlines.rounds.background.Wait()
	n.connections.closeAll()
}

// Identify checks the engine and reads its identity.
func (n *Node) Identify(ctx context.Context) error {
	id, err := n.engine.Identify(ctx, slices.Concat(n.deps.Runtimes, slices.Sorted(maps.Values(n.deps.ImageRuntimes)))...)
	if err != nil {
		return err
	}
	n.id, n.arch, n.runtimes, n.hibernates = id.Node, id.Arch, id.Runtimes, id.Hibernates
	return nil
}

// Prepare builds the named images that the engine lacks and puts the agent into a volume of the engine.
func (n *Node) Prepare(ctx context.Context, images []string) error {
	for _, name := range images {
		if n.deps.BuildImage == nil {
			continue
		}
		if err := n.deps.BuildImage(ctx, name, func(p farm.Progress) {
			n.deps.Log.InfoContext(ctx, "image build", "image", name, "progress", p.Message)
		}); err != nil {
			return fmt.Errorf("build image %s: %w", name, err)
		}
	}
	offered, err := n.refreshImages(ctx)
	if err != nil {
		return err
	}
	if len(offered) == 0 {
		return farm.Errorf(farm.CodeUnavailable, "the engine has no sandbox image, or none that images.allowed and images.signature_key admit: run `sandfarm image build python`, or see the worker's log")
	}
	agents := map[bool]string{}
	for _, runtime := range n.runtimes {
		own := farm.OwnKernel(runtime)
		if agents[own] != "" {
			continue
		}
		if agents[own], err = n.installAgent(ctx, runtime, offered[0].Ref); err != nil {
			return fmt.Errorf("install the agent in the engine: %w", err)
		}
	}
	n.agents = agents
	return nil
}

// installAgent gives the agent to the engine, and the installer with it. Where the installer cannot be fetched
// the farm starts without it: images that have pip install with that.
func (n *Node) installAgent(ctx context.Context, runtime, image string) (string, error) {
	binary, version, err := n.deps.Agent(n.arch)
	if err != nil {
		return "", err
	}
	programs := []farm.AgentProgram{{Name: path.Base(agent.BinaryPath), Data: binary}}
	if n.deps.UV != nil {
		name, err := n.engine.EnsureAgent(ctx, version+"-uv-"+n.deps.UVVersion, runtime, func(ctx context.Context) ([]farm.AgentProgram, error) {
			ctx, done := context.WithTimeout(ctx, uvTimeout)
			defer done()
			program, err := n.deps.UV(ctx, n.arch)
			return append(programs, farm.AgentProgram{Name: path.Base(agent.UVPath), Data: program}), err
		}, image)
		if err == nil {
			return name, nil
		}
		n.deps.Log.WarnContext(ctx, "the installer uv could not be fetched; until the worker restarts only images with pip can install", "error", err)
	}
	return n.engine.EnsureAgent(ctx, version, runtime, func(context.Context) ([]farm.AgentProgram, error) { return programs, nil }, image)
}

// imageCache remembers the engine's sandbox images.
type imageCache struct {
	mu   sync.Mutex
	list []farm.Image
	at   time.Time

	logged sync.Map // what was logged about images and signatures
}

// Images lists the engine's sandbox images, at most imagesFor old.
func (n *Node) Images(ctx context.Context) ([]farm.Image, error) {
	if list, ok := n.images.recent(); ok {
		return list, nil
	}
	return n.refreshImages(ctx)
}

// Listed reports whether the engine had an image when its images were last listed. It does not ask the engine, which may hang.
func (n *Node) Listed(name string) bool {
	list, _ := n.images.recent()
	return slices.ContainsFunc(list, func(i farm.Image) bool { return i.Name == name })
}

func (n *Node) refreshImages(ctx context.Context) ([]farm.Image, error) {
	list, err := n.engine.Images(ctx) // not under the lock: callers do not wait for each other
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	signed := n.signed(ctx)
	list = slices.DeleteFunc(list, func(i farm.Image) bool { return !n.allows(ctx, i, signed) })
	for i := range list {
		list[i].Runtime = n.Runtime(farm.SandboxSpec{Image: list[i].Name})
	}
	n.images.set(list)
	return list, nil
}

func (c *imageCache) recent() ([]farm.Image, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list), time.Since(c.at) < imagesFor
}

func (c *imageCache) set(list []farm.Image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.at = slices.Clone(list), time.Now()
}

const (
	// preloadAgain is how long the files of an image count as in memory. The kernel may need it for others.
	preloadAgain = time.Hour
	// preloadShare is the part of the engine's memory that the images that are read may have together: a quarter.
	preloadShare = 4
)

// Preload reads the files of images for which it did not so for an hour, see Preloader, of as many as there is memory for. There is one call at a time.
func (n *Node) Preload(ctx context.Context) error {
	engine, can := n.engine.(Preloader)
	if !can {
		return nil
	}
	images, err := n.Images(ctx)
	if err != nil {
		return err
	}
	capacity, err := n.engine.Capacity(ctx)
	if err != nil {
		return err
	}
	read := map[string]time.Time{} // by id, of images that are still there
	room := int64(capacity.MemoryMB) << 20 / preloadShare
	defer func() { n.preloaded = read }()
	for _, image := range images {
		if at, ok := n.preloaded[image.ID]; ok {
			read[image.ID] = at
		}
		if image.Size > room {
			continue
		}
		if room -= image.Size; n.deps.Now().Sub(read[image.ID]) < preloadAgain {
			continue
		}
		read[image.ID] = n.deps.Now()
		if preloadErr := engine.Preload(ctx, image.Ref); preloadErr != nil {
			err = errors.Join(err, fmt.Errorf("read the files of image %s: %w", image.Name, preloadErr))
		}
	}
	return err
}

// Image finds a sandbox image by its name; farm.CodeInvalid when the engine has none of that name.
func (n *Node) Image(ctx context.Context, name string) (farm.Image, error) {
	for _, list := range []func(context.Context) ([]farm.Image, error){n.Images, n.refreshImages} {
		images, err := list(ctx)
		if err != nil {
			return farm.Image{}, err
		}
		for _, image := range images {
			if image.Name == name {
				return image, nil
			}
		}
	}
	return farm.Image{}, farm.Invalidf("this engine has no image %q", name)
}

// Runtimes are the OCI runtimes that sandboxes of the node may have, the default first; nil before Identify.
func (n *Node) Runtimes() []string { return slices.Clone(n.runtimes) }

// Hibernates are those of Runtimes whose sandboxes can hibernate; nil before Identify.
func (n *Node) Hibernates() []string { return slices.Clone(n.hibernates) }

// CheckHibernates refuses a sandbox that cannot hibernate on this node.
func (n *Node) CheckHibernates(s *farm.Sandbox) error {
	if slices.Contains(n.hibernates, s.Runtime) {
		return nil
	}
	return farm.CannotHibernate(s)
}

// Runtime is the OCI runtime of a sandbox on this node: the one that it asks for, or else that of its image, or else the default. It is empty
// if none is known, which is the engine's default.
func (n *Node) Runtime(s farm.SandboxSpec) string {
	var standard string
	if len(n.runtimes) > 0 {
		standard = n.runtimes[0]
	}
	return cmp.Or(n.chosenRuntime(s), standard)
}

// chosenRuntime is the OCI runtime of a sandbox if it is not the node's default. The engine is not asked for its default by name.
func (n *Node) chosenRuntime(s farm.SandboxSpec) string {
	return cmp.Or(s.Runtime, n.deps.ImageRuntimes[s.Image])
}

// Offers reports whether a sandbox may have the OCI runtime that it asks for on this node. A sandbox that asks for none may have the node's.
func (n *Node) Offers(s farm.SandboxSpec) bool {
	return s.Runtime == "" || slices.Contains(n.runtimes, s.Runtime)
}

// signed reads the digests that the operator's keys sign; nil if images need no signature. If the signatures cannot be read, nothing is
// signed. What is wrong with one of them is logged once.
func (n *Node) signed(ctx context.Context) map[string]bool {
	if n.deps.Signatures == nil {
		return nil
	}
	digests, problems, err := n.deps.Signatures.Signed()
	if err != nil {
		n.deps.Log.ErrorContext(ctx, "the signatures of images cannot be read, so no image is offered", "error", err)
		return map[string]bool{}
	}
	for _, p := range problems {
		if _, logged := n.images.logged.LoadOrStore(p.Error(), true); !logged {
			n.deps.Log.WarnContext(ctx, "a file has no valid signature of an image", "error", p)
		}
	}
	return digests
}

// allows reports whether sandboxes may have an image: it has no volumes, the operator lists it, or lists none, and it is signed, or need not be. One that they
// may not have is logged once for each content.
func (n *Node) allows(ctx context.Context, image farm.Image, signed map[string]bool) bool {
	known := append([]string{image.ID}, image.Digests...)
	var refusal string
	switch {
	case len(image.Volumes) > 0:
		refusal = "an image is not offered, since directories of it are volumes (VOLUME), which sandboxes could fill without a limit"
	case len(n.deps.AllowedImages) > 0 && !slices.ContainsFunc(known, func(id string) bool { return slices.Contains(n.deps.AllowedImages, id) }):
		refusal = "an image is not offered, since images.allowed does not contain its id"
	case signed != nil && !slices.ContainsFunc(known, func(id string) bool { return signed[id] }):
		refusal = "an image is not offered, since no file of images.signatures has a valid signature of its id or digest"
	default:
		return true
	}
	if _, logged := n.images.logged.LoadOrStore(refusal+image.ID, true); !logged {
		n.deps.Log.WarnContext(ctx, refusal, "image", image.Name, "id", image.ID, "digests", image.Digests)
	}
	return false
}
