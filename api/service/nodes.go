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
	return s.needs.Get(ctx, s.Now(), noOlder[[]scale.Need](scaleTTL, false), func(ctx context.Context) ([]scale.Need, error) {
		snapshot, err := s.scaleSnapshot(ctx, s.Now())
		if err != nil {
			return nil, err
		}
		return scale.Plan(snapshot), nil
	})
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

// offeredFor is how long what workers say is cached. A lookup of an image that is not in the list reads it again at once.
const offeredFor = 2 * time.Second

// offered are the images that live workers offer.
func (s *Service) offered(ctx context.Context, fresh bool) ([]farm.Image, error) {
	return s.images.Get(ctx, s.Now(), noOlder[[]farm.Image](offeredFor, fresh), s.Store.OfferedImages)
}

const (
	// readPause is the time between two reads of what the workers say: anyone may ask for what is not known.
	readPause = 50 * time.Millisecond
	// sharedTimeout bounds a read of a Shared, for which others wait, too.
	sharedTimeout = 5 * time.Second
)

// Shared is what all requests ask for, such as what the workers say: they share its reads. The zero value knows nothing. It must not be copied once it is
// used.
type Shared[T any] struct {
	// Pause is the least time between the beginnings of two reads.
	Pause time.Duration

	mu      sync.Mutex
	known   bool
	last    T             // of the newest read that did not fail
	at      time.Time     // when it began, by the callers' clock
	err     error         // of the newest read
	began   time.Time     // when the newest read began, by the process's clock
	reads   int           // that have ended
	reading chan struct{} // closed when the read in progress ends; nil: there is none
}

// noOlder takes what is known for so long, unless it is to be fresh.
func noOlder[T any](limit time.Duration, fresh bool) func(T, time.Duration) bool {
	return func(_ T, age time.Duration) bool { return !fresh && age < limit }
}

// Get returns what is known if that is enough. Otherwise it returns what a read gives that began after the call, or one before it that
// is enough. All who ask share it: no flood of requests delays another one by more than Pause and two reads, and one that takes what is known waits for
// nothing. After an error of a read what was known stays known.
func (s *Shared[T]) Get(
	ctx context.Context, now time.Time, enough func(known T, age time.Duration) bool, read func(context.Context) (T, error),
) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.reads + 1
	if s.reading != nil {
		due++
	}
	for {
		switch rest := s.Pause - time.Since(s.began); {
		case s.known && enough(s.last, now.Sub(s.at)):
			return s.last, nil
		case s.reads >= due && s.err == nil:
			return s.last, nil
		case s.reads >= due:
			var none T
			return none, s.err
		case s.reading == nil && rest <= 0:
			s.read(ctx, now, read)
		default:
			if err := s.wait(ctx, rest); err != nil {
				var none T
				return none, err
			}
		}
	}
}

// read reads. mu is held, but not meanwhile; as in wait.
func (s *Shared[T]) read(ctx context.Context, now time.Time, read func(context.Context) (T, error)) {
	began, over := time.Now(), make(chan struct{})
	s.began, s.reading = began, over
	s.mu.Unlock()
	var got T
	var err error = errNoRead
	defer func() {
		s.mu.Lock()
		if err == nil {
			s.known, s.last, s.at = true, got, now
		}
		s.err, s.reading = err, nil
		s.reads++
		close(over)
	}()
	budget.LeaveCore(ctx)
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), sharedTimeout)
	defer done()
	got, err = read(ctx)
}

// errNoRead is the error of a read that panicked.
var errNoRead = farm.Errorf(farm.CodeInternal, "what all requests share was not read")

// wait waits for the read in progress; for a time if there is none.
func (s *Shared[T]) wait(ctx context.Context, rest time.Duration) error {
	over := s.reading
	s.mu.Unlock()
	defer s.mu.Lock()
	budget.LeaveCore(ctx)
	if over != nil {
		rest = sharedTimeout
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
