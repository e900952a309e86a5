package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

var errTest = errors.New("made to fail")

// fake is a store, a dispatcher and an object store. A tenant named bad fails.
type fake struct {
	mu        sync.Mutex
	owner     string
	lease     time.Time
	lockErr   error
	lockHangs bool
	tenants   []string
	due       map[string][]farm.Ref
	boxes     map[string]*farm.Sandbox // records; none: it is gone
	expired   map[string][]farm.Artifact
	deleteErr error
	staged    map[string]time.Time
	named     []string // keys of staged objects that a record names
	namedErr  error
	steps     []string // what was done, in order
	reason    string   // of the last close

	kept keptFake
}

func (f *fake) Lock(ctx context.Context, _, owner string, ttl time.Duration) (bool, error) {
	f.mu.Lock()
	hangs := f.lockHangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return false, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lockErr != nil {
		return false, f.lockErr
	}
	if f.owner != owner && f.owner != "" && time.Now().Before(f.lease) {
		return false, nil
	}
	f.owner, f.lease = owner, time.Now().Add(ttl)
	return true, nil
}

func (f *fake) Unlock(_ context.Context, _, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner == owner {
		f.owner = ""
	}
	return nil
}

func (f *fake) Tenants(context.Context) ([]string, error) { return slices.Clone(f.tenants), nil }

func (f *fake) Due(_ context.Context, tenant string, limit int) ([]farm.Ref, error) {
	if tenant == "bad" {
		return nil, errTest
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.due[tenant][:min(limit, len(f.due[tenant]))]), nil
}

func (f *fake) Sandbox(_ context.Context, ref farm.Ref) (*farm.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.HasPrefix(ref.ID, "bare") {
		return &farm.Sandbox{ID: ref.ID, Tenant: ref.Tenant}, fmt.Errorf("read sandbox: %w", store.ErrDocumentGone)
	}
	if box := f.boxes[ref.ID]; box != nil {
		return box, nil
	}
	return nil, farm.NotFoundf("there is no sandbox %s", ref.ID)
}

// MoveSandbox only touches a sandbox, which is then due later.
func (f *fake) MoveSandbox(_ context.Context, m store.Move) (*farm.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := (store.Move{Ref: m.Ref, Touch: true, Generation: 1}); m != want {
		return nil, errTest
	}
	f.steps = append(f.steps, "touch "+m.Ref.ID)
	f.due[m.Ref.Tenant] = slices.DeleteFunc(f.due[m.Ref.Tenant], func(r farm.Ref) bool { return r.ID == m.Ref.ID })
	if strings.HasSuffix(m.Ref.ID, "moved") {
		return nil, store.ErrFenced
	}
	return f.boxes[m.Ref.ID], nil
}

func (f *fake) ExpiredArtifacts(_ context.Context, tenant string, limit int) ([]farm.Artifact, error) {
	if tenant == "bad" {
		return nil, errTest
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.expired[tenant]
	return slices.Clone(list[:min(limit, len(list))]), nil
}

func (f *fake) DeleteArtifacts(_ context.Context, artifacts []farm.Artifact) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, fmt.Sprintf("forget %d", len(artifacts)))
	for _, a := range artifacts {
		f.expired[a.Tenant] = slices.DeleteFunc(f.expired[a.Tenant], func(o farm.Artifact) bool { return o.ID == a.ID })
	}
	return len(artifacts), nil
}

func (f *fake) ArtifactsOfJob(_ context.Context, job farm.Ref) ([]farm.Artifact, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept.artifacts[job], nil
}

func (f *fake) OrphanedObjects(_ context.Context, keys []string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.namedErr != nil {
		return nil, f.namedErr
	}
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(f.named, key) }), nil
}

// RepairStored does not end for the tenant endless.
func (f *fake) RepairStored(ctx context.Context, tenant string, _ int, _ bool) (store.StoredDrift, bool, error) {
	switch tenant {
	case "bad":
		return store.StoredDrift{}, false, errTest
	case "endless":
		<-ctx.Done()
		return store.StoredDrift{}, false, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	drift := f.kept.drift[tenant]
	delete(f.kept.drift, tenant)
	return drift, true, nil
}

func (f *fake) ListAfter(ctx context.Context, prefix, after string, each func(blob.Info) error) error {
	f.mu.Lock()
	objects, takes := slices.Clone(f.kept.objects), f.kept.listTakes
	for key, modified := range f.staged {
		objects = append(objects, blob.Info{Key: key, Modified: modified})
	}
	f.mu.Unlock()
	slices.SortFunc(objects, func(a, b blob.Info) int { return strings.Compare(a.Key, b.Key) })
	for _, o := range objects {
		if !strings.HasPrefix(o.Key, prefix) || o.Key <= after {
			continue
		}
		if time.Sleep(takes); ctx.Err() != nil {
			return ctx.Err()
		}
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Delete(_ context.Context, keys ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, fmt.Sprintf("remove %d", len(keys)))
	for _, key := range keys {
		delete(f.staged, key)
		f.kept.objects = slices.DeleteFunc(f.kept.objects, func(o blob.Info) bool { return o.Key == key })
	}
	return f.deleteErr
}

func (f *fake) Submit(_ context.Context, a store.Accept) (store.Accepted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.HasPrefix(a.Job.SandboxID, "full") && a.Job.Kind == farm.KindHibernate {
		return store.Accepted{}, farm.Errorf(farm.CodeExhausted, "Too many jobs wait.")
	}
	if a.Request.Close != nil {
		f.reason = a.Request.Close.Reason
	}
	f.steps = append(f.steps, fmt.Sprintf("%s %s %s expired=%v inline=%v", a.Job.Kind, a.Job.Tenant, a.Job.SandboxID, a.Request.Close != nil && a.Request.Close.Expired, a.Job.Inline))
	f.due[a.Job.Tenant] = slices.DeleteFunc(f.due[a.Job.Tenant], func(r farm.Ref) bool { return r.ID == a.Job.SandboxID })
	if strings.HasPrefix(a.Job.SandboxID, "gone") {
		return store.Accepted{}, farm.NotFoundf("There is no sandbox.")
	}
	return store.Accepted{}, nil
}

// DropCallbacks gives up one callback of the tenant a.
func (f *fake) DropCallbacks(ctx context.Context, tenant string) (int, error) {
	if tenant == "a" && ctx.Err() == nil {
		return 1, nil
	}
	return 0, nil
}

func (f *fake) Sweep(_ context.Context, tenant string) (int, error) {
	if tenant == "bad" {
		return 0, errTest
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, "sweep "+tenant)
	return 1, nil
}

func (f *fake) TrimKeys(context.Context, time.Time) (int, error) { return 0, nil }

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.steps)
}

func (f *fake) leader() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owner
}

func (f *fake) left(tenant string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.expired[tenant])
}
