package worker

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/uv"
)

// imageCache remembers what the engine offers, for the registration.
type imageCache struct {
	mu   sync.Mutex
	list []farm.Image
	at   time.Time
}

// imagesFor is how long a list of images is believed: an image that was built by hand is offered soon after.
const imagesFor = 10 * time.Second

// prepare readies the engine: who it is, the images, the agent's volume.
func (w *Worker) prepare(ctx context.Context) error {
	if err := w.engine.Ping(ctx); err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	if err := w.engine.CheckRuntime(ctx); err != nil {
		return fmt.Errorf("look for the sandboxes' runtime: %w", err)
	}
	node, err := w.engine.NodeID(ctx)
	if err != nil {
		return fmt.Errorf("read the engine's identity: %w", err)
	}
	w.node = node
	if err := w.measure(ctx); err != nil {
		return err
	}
	if err := w.findGPUs(ctx); err != nil {
		return err
	}
	for _, name := range w.cfg.Images {
		if w.deps.BuildImage == nil {
			continue
		}
		if err := w.deps.BuildImage(ctx, name, func(p farm.Progress) {
			w.log.InfoContext(ctx, "image build", "image", name, "progress", p.Message)
		}); err != nil {
			return fmt.Errorf("build image %s: %w", name, err)
		}
	}
	images, err := w.offered(ctx, true)
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return farm.Errorf(farm.CodeUnavailable, "the engine offers no sandbox image: run `sandfarm image build python`")
	}
	arch, err := w.engine.Arch(ctx)
	if err != nil {
		return fmt.Errorf("ask the engine: %w", err)
	}
	if w.volume, err = w.bringAgent(ctx, arch, images[0].Ref); err != nil {
		return fmt.Errorf("bring the agent to the engine: %w", err)
	}
	return nil
}

// bringAgent puts the agent into a volume of the engine, and the installer with it. An installer that cannot be fetched
// does not stop the farm: images that have pip install with that.
func (w *Worker) bringAgent(ctx context.Context, arch, image string) (string, error) {
	binary, version, err := w.deps.Agent(arch)
	if err != nil {
		return "", err
	}
	programs := []engine.Program{{Name: path.Base(agent.BinaryPath), Data: binary}}
	if w.deps.UV != nil {
		volume, err := w.engine.EnsureAgent(ctx, version+"-uv-"+uv.Version, func(ctx context.Context) ([]engine.Program, error) {
			ctx, done := context.WithTimeout(ctx, uvTimeout)
			defer done()
			program, err := w.deps.UV(ctx, arch)
			return append(programs, engine.Program{Name: path.Base(agent.UVPath), Data: program}), err
		}, image)
		if err == nil {
			return volume, nil
		}
		w.log.WarnContext(ctx, "the installer uv could not be brought; until the worker starts again only images with pip can install", "error", err)
	}
	return w.engine.EnsureAgent(ctx, version, func(context.Context) ([]engine.Program, error) { return programs, nil }, image)
}

// uvTimeout is how long the start waits for the installer: some 25 MiB from the package index, once for each engine.
const uvTimeout = 3 * time.Minute

// offered lists the engine's sandbox images.
func (w *Worker) offered(ctx context.Context, fresh bool) ([]farm.Image, error) {
	if list, ok := w.images.recent(); ok && !fresh {
		return list, nil
	}
	list, err := w.engine.Images(ctx) // not under the lock: one caller's wait is not another's
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	w.images.set(list)
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

// image finds an image by its name.
func (w *Worker) image(ctx context.Context, name string) (farm.Image, error) {
	for _, fresh := range []bool{false, true} {
		list, err := w.offered(ctx, fresh)
		if err != nil {
			return farm.Image{}, err
		}
		for _, image := range list {
			if image.Name == name {
				return image, nil
			}
		}
	}
	return farm.Image{}, farm.Invalidf("image %q is not offered by this engine", name)
}
