package service

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
)

// Drains are the drains of nodes.
type Drains interface {
	SetDrain(ctx context.Context, d farm.Drain) (farm.Drain, error)
	Drain(ctx context.Context, node string) (farm.Drain, error)
	Drains(ctx context.Context) ([]farm.Drain, error)
	EndDrain(ctx context.Context, node string) error
	OpenOnNode(ctx context.Context, node string) ([]*farm.Sandbox, error)
}

// idleKeep is the public name of farm.DrainKeep.
const idleKeep = "keep"

// DrainNode drains a node, or changes its drain; CodeNotFound if no live worker uses it.
func (s *Service) DrainNode(ctx context.Context, c Call, node string, r wire.DrainRequest) (wire.Drain, error) {
	p, idle := c.problems(), farm.DrainKeep
	switch value := orElse(r.Idle, idleKeep); farm.DrainIdle(value) {
	case idleKeep:
	case farm.DrainHibernate, farm.DrainClose:
		idle = farm.DrainIdle(value)
	default:
		p.addf("/idle", "idle %q is none of %s, %s and %s", farm.Shorten(value), idleKeep, farm.DrainHibernate, farm.DrainClose)
	}
	if err := p.err(); err != nil {
		return wire.Drain{}, err
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Drain{}, err
	}
	if !slices.ContainsFunc(workers, func(w farm.Worker) bool { return w.Node == node }) {
		return wire.Drain{}, farm.Errorf(farm.CodeNotFound, "No live worker uses node %s; GET /v1/workers names the nodes.", farm.Shorten(node))
	}
	d, err := s.Store.SetDrain(ctx, farm.Drain{Node: node, Since: s.Now().UTC(), Idle: idle})
	if err != nil {
		return wire.Drain{}, err
	}
	return s.progress(ctx, d, workers)
}

// NodeDrain reads the drain of a node; CodeNotFound if it has none.
func (s *Service) NodeDrain(ctx context.Context, node string) (wire.Drain, error) {
	d, err := s.Store.Drain(ctx, node)
	if err != nil {
		return wire.Drain{}, err
	}
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return wire.Drain{}, err
	}
	return s.progress(ctx, d, workers)
}

// EndNodeDrain ends the drain of a node; CodeNotFound if it has none.
func (s *Service) EndNodeDrain(ctx context.Context, node string) error {
	return s.Store.EndDrain(ctx, node)
}

// drainsOf are the drains of the nodes of some workers, by node.
func (s *Service) drainsOf(ctx context.Context, workers []farm.Worker) (map[string]wire.Drain, error) {
	drains, err := s.Store.Drains(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]wire.Drain{}
	for _, d := range drains {
		if !slices.ContainsFunc(workers, func(w farm.Worker) bool { return w.Node == d.Node }) {
			continue
		}
		if out[d.Node], err = s.progress(ctx, d, workers); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// progress is a drain with what is left on its node.
func (s *Service) progress(ctx context.Context, d farm.Drain, workers []farm.Worker) (wire.Drain, error) {
	open, err := s.Store.OpenOnNode(ctx, d.Node)
	if err != nil {
		return wire.Drain{}, err
	}
	own := slices.DeleteFunc(slices.Clone(workers), func(w farm.Worker) bool { return w.Node != d.Node })
	p := farm.ProgressOfDrain(own, open)
	out := wire.Drain{
		Node: d.Node, Since: d.Since.UTC(), Idle: idleKeep, State: string(p.State), Sandboxes: p.Sandboxes, Hibernated: p.Hibernated, Jobs: p.Jobs,
	}
	if d.Idle != farm.DrainKeep {
		out.Idle = string(d.Idle)
	}
	if !p.Ends.IsZero() {
		ends := p.Ends.UTC()
		out.EndsBy = &ends
	}
	return out, nil
}

// Bounds of the scale signal.
const (
	// ScaleAfter is how long a create must have waited to count: what a burst needs is often free again before a node could be added.
	ScaleAfter = 5 * time.Second
	scaleTTL   = 2 * time.Second // how long the answer is remembered, so that autoscalers and scrapes cost little
	// maxScale bounds how many creates of a queue are read. Those beyond it count as if they were like these.
	maxScale = 1000
	scaleIDs = 100 // ids of idle nodes that are named
)

// needs remembers what Needs has found. One caller asks at a time.
type needs struct {
	mu   sync.Mutex
	last []scale.Need
	asOf time.Time
}

// Scale says how many nodes of each kind the farm needs.
func (s *Service) Scale(ctx context.Context) (wire.Items[wire.NodeNeed], error) {
	found, err := s.Needs(ctx)
	if err != nil {
		return wire.Items[wire.NodeNeed]{}, err
	}
	list := wire.Items[wire.NodeNeed]{Items: make([]wire.NodeNeed, len(found))}
	for i, n := range found {
		list.Items[i] = wire.NodeNeed{
			Kind: KindName(n.Kind), Model: n.Kind.Model, Nodes: n.Nodes, Wanted: n.Wanted, IdleNodes: len(n.Idle),
			Idle: emptyIfNil(n.Idle[:min(len(n.Idle), scaleIDs)]), Draining: n.Draining, Failing: n.Failing,
			Waiting: n.Waiting, OldestSeconds: n.Oldest.Seconds(), Asked: wire.Room(n.Room), AskedGPUs: n.GPUs, Placeable: n.Placeable, Unfit: n.Unfit,
			Capacity: wire.Room(n.Capacity), Promised: wire.Room(n.Reserved), PoolMissing: n.PoolMissing,
		}
	}
	return list, nil
}

// KindName is the public name of a kind of node, without the model.
func KindName(k scale.Kind) string {
	if k.GPU {
		return "gpu"
	}
	return "cpu"
}

// Needs says how many nodes of each kind the farm needs. The answer is up to 2 seconds old.
func (s *Service) Needs(ctx context.Context) ([]scale.Need, error) {
	s.needs.mu.Lock()
	defer s.needs.mu.Unlock()
	now := s.Now()
	if age := now.Sub(s.needs.asOf); s.needs.last != nil && age >= 0 && age < scaleTTL {
		return s.needs.last, nil
	}
	snapshot, err := s.scaleSnapshot(ctx, now)
	if err != nil {
		return nil, err
	}
	s.needs.last, s.needs.asOf = scale.Plan(snapshot), now
	return s.needs.last, nil
}

// poolMember is what a member of the warm pool has: the defaults of creates.
func (s *Service) poolMember() farm.Resources { return s.resources(&problems{}, nil) }

// scaleSnapshot reads the workers, the depths of the queues, the creates of queues that have some, and what is on nodes that seem idle.
func (s *Service) scaleSnapshot(ctx context.Context, now time.Time) (scale.Snapshot, error) {
	workers, err := s.Store.Workers(ctx)
	if err != nil {
		return scale.Snapshot{}, err
	}
	out := scale.Snapshot{Nodes: scale.NodesOf(workers, s.poolMember().Capacity()), More: map[string]int{}, Now: now}
	var idle []string
	for _, n := range out.Nodes {
		if n.Idle() {
			idle = append(idle, n.ID)
		}
	}
	open, err := s.Store.CountOpenOn(ctx, idle...)
	if err != nil {
		return scale.Snapshot{}, err
	}
	for i := range out.Nodes {
		out.Nodes[i].Used = open[out.Nodes[i].ID] > 0
	}
	depths, err := s.Deps.Queues.Depths(ctx)
	if err != nil {
		return scale.Snapshot{}, err
	}
	for _, q := range depths {
		if _, gpu := farm.GPUQueue(q.Name); !gpu && q.Name != farm.QueueCPU || q.Depth == 0 {
			continue
		}
		waiting, err := s.Store.WaitingCreates(ctx, q.Name, now.Add(-ScaleAfter), maxScale)
		if err != nil {
			return scale.Snapshot{}, err
		}
		out.More[q.Name] = waiting.More
		out.Waiting = slices.Grow(out.Waiting, len(waiting.Sandboxes))
		for _, box := range waiting.Sandboxes {
			create := createOf(q.Name, &box.Spec, box.OneShot)
			create.Since = box.CreatedAt
			out.Waiting = append(out.Waiting, create)
		}
	}
	return out, nil
}

// offeredFor is how long the list of images is cached. A lookup of an image that is not in it reads the list again at once.
const offeredFor = 2 * time.Second

// offered are the images that live workers offer.
func (s *Service) offered(ctx context.Context, fresh bool) ([]farm.Image, error) {
	return s.images.get(ctx, s.Now(), fresh, s.Store.OfferedImages)
}

const (
	// readPause is the time between two reads of what is shared: anyone may ask for what is not known.
	readPause = 50 * time.Millisecond
	// readTimeout bounds a read, for which others wait, too.
	readTimeout = 5 * time.Second
)

// shared caches for offeredFor what all requests ask for, such as what the workers say. The zero value knows nothing.
type shared[T any] struct {
	mu      sync.Mutex
	last    T
	err     error         // of the newest read
	began   time.Time     // when it began
	at      time.Time     // the same, by the clock of the service
	reading chan struct{} // closed when the read in progress ends; nil: there is none
}

// get returns what is known or, if that is too old, failed or is to be fresh, what a read gives that began after the call. All who ask share it: no flood
// of requests delays another one by more than readPause and two reads, and one that takes what is known waits for nothing.
func (s *shared[T]) get(ctx context.Context, now time.Time, fresh bool, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := time.Now()
	if !fresh && s.err == nil && now.Sub(s.at) < offeredFor {
		return s.last, nil
	}
	budget.LeaveCore(ctx)
	for s.began.Before(asked) {
		rest := readPause - time.Since(s.began)
		if s.reading == nil && rest <= 0 {
			s.read(ctx, now, read)
		} else if err := s.wait(ctx, rest); err != nil {
			var none T
			return none, err
		}
	}
	return s.last, s.err
}

// read reads. mu is held, but not meanwhile; as in wait.
func (s *shared[T]) read(ctx context.Context, now time.Time, read func(context.Context) (T, error)) {
	began, over := time.Now(), make(chan struct{})
	s.reading = over
	s.mu.Unlock()
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer done()
	got, err := read(ctx)
	s.mu.Lock()
	s.last, s.err, s.began, s.at, s.reading = got, err, began, now, nil
	close(over)
}

// wait waits for the read in progress; for a time if there is none.
func (s *shared[T]) wait(ctx context.Context, rest time.Duration) error {
	over := s.reading
	s.mu.Unlock()
	defer s.mu.Lock()
	if over != nil {
		rest = readTimeout
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// image finds an offered image. Without a live worker nothing is known about images: then it returns false and no error,
// because the job may wait for a worker. If the live workers have no engine, the error is CodeUnavailable.
func (s *Service) image(ctx context.Context, name string) (farm.Image, bool, error) {
	if !imageName.MatchString(name) {
		return farm.Image{}, false, farm.Invalidf("image %q is not the name of an image (GET /v1/images lists them)", farm.Shorten(name))
	}
	for _, fresh := range []bool{false, true} {
		images, err := s.offered(ctx, fresh)
		if err != nil {
			return farm.Image{}, false, err
		}
		if i := slices.IndexFunc(images, func(i farm.Image) bool { return i.Name == name }); i >= 0 {
			return images[i], true, nil
		}
		if len(images) == 0 && fresh {
			return farm.Image{}, false, s.down(ctx)
		}
	}
	images, _ := s.offered(ctx, false)
	names := make([]string, len(images))
	for i, image := range images {
		names[i] = image.Name
	}
	return farm.Image{}, false, farm.Invalidf("image %q is not offered; there is %s. The operator of the farm adds images (sandfarm image build NAME, docs/images.md)", farm.Shorten(name), strings.Join(names, ", "))
}

// checkLanguage refuses a language that the image is known not to have.
func (s *Service) checkLanguage(ctx context.Context, lang, imageName string) error {
	if !language.MatchString(lang) {
		return farm.Invalidf("language %q is not the name of a language", farm.Shorten(lang))
	}
	image, known, err := s.image(ctx, imageName)
	if err != nil || !known || len(image.Languages) == 0 || slices.Contains(image.Languages, lang) {
		return err
	}
	return farm.Invalidf("image %s does not run the language %q; it runs %s", image.Name, lang, strings.Join(image.Languages, ", "))
}

// speaks reports whether every known image runs the language: then a sandbox's record need not be read to check it.
func (s *Service) speaks(ctx context.Context, lang string) bool {
	images, err := s.offered(ctx, false)
	return err == nil && len(images) > 0 && !slices.ContainsFunc(images, func(i farm.Image) bool { return !slices.Contains(i.Languages, lang) })
}
