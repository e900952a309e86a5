package budget

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Hold is a number of bytes that a tenant holds. It is safe for concurrent use. A nil Hold holds nothing.
type Hold struct {
	budget  *Budget
	tenant  string
	timeout time.Duration // of Charge; 0: without limit
	lasting bool          // it may have no end
	core    *core         // of a request; nil: its work waits for none

	mu           sync.Mutex
	small, large int64 // bytes of each pool
	pinned       int64 // what the function Keep leaves
}

// Bytes is how many bytes are held.
func (h *Hold) Bytes() int64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.small + h.large
}

// Add adds n bytes. All that a Hold has above its tenant's share counts as the share: callers bound what they need at once. The first large
// request of a Hold waits for its turn, and so does the first small one before it. Later ones do not wait, since two that wait for each other
// would wait for ever, and neither does a Hold of Lasting: what is not there then is refused with CodeExhausted. The error of one that waited
// is that of ctx.
func (h *Hold) Add(ctx context.Context, n int64) error {
	if h == nil || h.budget == nil || n <= 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.large > 0 || h.lasting {
		if !h.lasting {
			n = min(n, h.budget.large.share-h.large)
		}
		if n <= 0 || h.try(n, h.large) {
			return nil
		}
		return farm.Errorf(farm.CodeExhausted, "%s", noMemory)
	}
	if h.small > 0 {
		if h.try(n, 0) {
			return nil
		}
		n = max(n, SmallBytes+1) // who holds small bytes does not wait for small bytes
	}
	p := h.budget.pool(n)
	got, err := p.acquire(ctx, h.tenant, n)
	if err != nil {
		return fmt.Errorf("wait for memory: %w", err)
	}
	h.count(p, got)
	return nil
}

// addWhole is Add that refuses with CodeExhausted what does not fit into the tenant's share, of which Add takes the part that fits.
func (h *Hold) addWhole(ctx context.Context, n int64) error {
	if h != nil && h.budget != nil && n > 0 {
		h.mu.Lock()
		fits := n <= h.budget.large.share-h.large
		h.mu.Unlock()
		if !fits {
			return farm.Errorf(farm.CodeExhausted, "%s", noMemory)
		}
	}
	return h.Add(ctx, n)
}

// Grow adds n bytes if they are there now, and reports whether they are. It delays no waiting caller.
func (h *Hold) Grow(n int64) bool {
	if h == nil || h.budget == nil || n <= 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.try(n, 0)
}

// try adds n bytes if they are there; own is what the request holds of large ones, if they belong to it.
func (h *Hold) try(n, own int64) bool {
	p := h.budget.pool(n)
	if h.lasting {
		p = h.budget.large // what is kept for small requests must come back soon
	}
	if p == h.budget.small {
		own = 0
	}
	ok := p.try(h.tenant, n, own, h.lasting)
	if ok {
		h.count(p, n)
	}
	return ok
}

func (h *Hold) count(p *pool, n int64) {
	if p == h.budget.small {
		h.small += n
	} else {
		h.large += n
	}
}

// Keep gives back all but n bytes. It does nothing if fewer are held.
func (h *Hold) Keep(n int64) {
	if h == nil || h.budget == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	back := h.small + h.large - max(n, 0)
	if k := min(back, h.large); k > 0 {
		h.large -= k
		back -= k
		h.budget.large.release(h.tenant, k, h.lasting)
	}
	if back > 0 {
		h.small -= back
		h.budget.small.release(h.tenant, back, false)
	}
}

// Release gives all bytes back, and the core of TakeCore. A second call does nothing.
func (h *Hold) Release() {
	h.Keep(0)
	if h != nil {
		h.core.leave()
	}
}

// Park is for bytes that may be held for long, such as those of a message that waits for its turn: none of them are then of those that are kept for small
// requests, which all else of their tenant needs, and so does what they wait for. They become lasting (see Budget.Lasting) or, where that has no room, bytes
// for large requests, which are waited for as Charge does. The Hold that is returned has them instead. The error is that of Charge.
func (h *Hold) Park(ctx context.Context) (*Hold, error) {
	if h == nil || h.budget == nil {
		return h, nil
	}
	if lasting := h.budget.Lasting(h.tenant); lasting.Grow(h.Bytes()) {
		h.Release()
		return lasting, nil
	}
	h.mu.Lock()
	small := h.small
	h.small = 0
	h.mu.Unlock()
	if small == 0 {
		return h, nil
	}
	h.budget.small.release(h.tenant, small, false)
	return h, Charge(context.WithValue(ctx, holdKey{}, h), max(small, SmallBytes+1))
}

type holdKey struct{}

// With gives a request a Hold of its own, for a tenant, which Charge and Keep find in the context. The caller releases it when the
// request is over. timeout is how long Charge waits; 0: as long as its context lasts.
func (b *Budget) With(ctx context.Context, tenant string, timeout time.Duration) (context.Context, *Hold) {
	h := &Hold{budget: b, tenant: tenant, timeout: timeout}
	if b != nil {
		h.core = &core{places: b.cores, tenant: tenant}
	}
	return context.WithValue(ctx, holdKey{}, h), h
}

// Renew is With for work that outlives the request that started it: the same budget and tenant, nothing held. It returns ctx and nil if
// ctx has no Hold, or one without a Budget.
func Renew(ctx context.Context) (context.Context, *Hold) {
	h := of(ctx)
	if h == nil || h.budget == nil {
		return ctx, nil
	}
	return h.budget.With(ctx, h.tenant, h.timeout)
}

// HandOver is Renew for work that goes on with what the request of ctx holds: its Hold takes that over.
func HandOver(ctx context.Context) (context.Context, *Hold) {
	later, to := Renew(ctx)
	if to == nil {
		return later, nil
	}
	h := of(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	to.small, to.large, to.pinned = h.small, h.large, h.pinned
	h.small, h.large, h.pinned = 0, 0, 0
	return later, to
}

// Lasting makes an empty Hold for the tenant of the request's (nil if it has none), see Budget.Lasting. The caller releases it.
func Lasting(ctx context.Context) *Hold {
	h := of(ctx)
	if h == nil {
		return nil
	}
	return h.budget.Lasting(h.tenant)
}

func of(ctx context.Context) *Hold {
	h, _ := ctx.Value(holdKey{}).(*Hold)
	return h
}

// Charge adds n bytes to the Hold of the request, as Hold.Add does. If the timeout of With ends while it waits, the error is
// CodeExhausted. Without a Hold it does nothing.
func Charge(ctx context.Context, n int64) error { return charge(ctx, n, (*Hold).Add) }

func charge(ctx context.Context, n int64, add func(*Hold, context.Context, int64) error) error {
	h := of(ctx)
	if h == nil {
		return nil
	}
	if h.timeout > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, h.timeout, errNoMemory)
		defer done()
	}
	err := add(h, ctx, n)
	if errors.Is(err, errNoMemory) {
		return farm.Errorf(farm.CodeExhausted, "%s", noMemory)
	}
	return err
}

const noMemory = "This server has no memory for a request of this size now. Send it again later, or send less at once."

var errNoMemory = errors.New("no memory became free in time")

// Held is how many bytes the request of ctx holds.
func Held(ctx context.Context) int64 { return of(ctx).Bytes() }

// Without hides the bytes of the request from code that would give them back while other code needs them. Its work waits for cores all the same.
func Without(ctx context.Context) context.Context {
	hidden := (*Hold)(nil)
	if h := of(ctx); h != nil {
		hidden = &Hold{core: h.core}
	}
	return context.WithValue(ctx, holdKey{}, hidden)
}

// Keep gives back what the request was charged beyond n bytes, or beyond what Pin said: it is not needed any more.
func Keep(ctx context.Context, n int64) {
	h := of(ctx)
	if h == nil {
		return
	}
	h.mu.Lock()
	n = max(n, h.pinned)
	h.mu.Unlock()
	h.Keep(n)
}

// Pin says that n bytes more stay in memory until the request is over, whatever Keep is called with. The request is charged (see Charge) for what it does
// not hold yet of all that is pinned. What does not fit into the tenant's share is refused with CodeExhausted, and then nothing more is pinned.
func Pin(ctx context.Context, n int64) error {
	h := of(ctx)
	if h == nil || n <= 0 {
		return nil
	}
	h.mu.Lock()
	lacks := h.pinned + n - h.small - h.large
	h.mu.Unlock()
	if err := charge(ctx, lacks, (*Hold).addWhole); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinned += n
	return nil
}

const (
	// BodyWeight is how often the bytes of a body are in memory at once: as they came, decoded, and encoded for the store, and what the
	// collector has not freed.
	BodyWeight = 4
	// freeBytes of each body are read before it is charged: of small ones that arrive slowly nothing is held.
	freeBytes = SmallBytes / BodyWeight
)

// Gathered charges a request (see Charge) for what it gathers in small pieces as they come, such as the names in a form. Up to SmallBytes are not charged;
// then it charges ahead, in steps, of which as with Hold.Add only the first waits. The zero value has gathered nothing.
type Gathered struct {
	Limit          int64 // of bytes; 0: none
	bytes, charged int64
}

// gatherStep is how much Gathered charges at once. Small steps would use up what is kept for small requests.
const gatherStep = 512 << 10

// Add counts n bytes more, before they are kept. Beyond the limit it fails with ErrTooLong.
func (g *Gathered) Add(ctx context.Context, n int64) error {
	g.bytes += n
	if g.Limit > 0 && g.bytes > g.Limit {
		return ErrTooLong
	}
	if g.bytes <= max(g.charged, SmallBytes) {
		return nil
	}
	step := max(g.bytes-g.charged, gatherStep)
	if err := Charge(ctx, step); err != nil {
		return err
	}
	g.charged += step
	return nil
}

// ErrTooLong says that a body, or what is gathered, is longer than its limit.
var ErrTooLong = errors.New("it is longer than its limit")

// ReadAll reads a body of up to limit bytes, and charges the request (see Charge) with BodyWeight times its length; length is what the
// caller announced, -1 if it is unknown. It is charged as it arrives, in steps that double: of what is only announced nothing is held. As with
// Hold.Add, only the first step waits, so bodies that are half read do not wait for each other. Errors of r are returned as they are.
func ReadAll(ctx context.Context, r io.Reader, length, limit int64) ([]byte, error) {
	text, err := read(ctx, r, freeBytes, length, limit)
	if err == nil && len(text) < freeBytes {
		err = Charge(ctx, int64(len(text))*BodyWeight)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// ReadAnswer is ReadAll for the answer of a sandbox, of unknown length. Up to SmallBytes are not charged.
func ReadAnswer(ctx context.Context, r io.Reader, limit int64) ([]byte, error) {
	return read(ctx, r, SmallBytes, -1, limit)
}

// read reads a body of which the first bytes are free. What is longer is charged before it is read.
func read(ctx context.Context, r io.Reader, free, length, limit int64) (all []byte, err error) {
	if length > limit {
		return nil, ErrTooLong
	}
	if length >= 0 {
		limit = length
	}
	text := new(bytes.Buffer)
	before, charged := Held(ctx), int64(0)
	defer func() {
		if charged > 0 {
			Keep(ctx, before+int64(len(all))*BodyWeight)
		}
	}()
	for room := min(free, limit+1); ; {
		if length >= 0 || charged > 0 { // no more than will come
			text = bytes.NewBuffer(append(make([]byte, 0, room+bytes.MinRead), text.Bytes()...))
		}
		if _, err := text.ReadFrom(io.LimitReader(r, room-int64(text.Len()))); err != nil {
			return nil, err
		}
		switch n := int64(text.Len()); {
		case n > limit:
			return nil, ErrTooLong
		case n < room:
			return text.Bytes(), nil
		}
		bound := min(max(2*room, SmallBytes), limit)
		if err := Charge(ctx, (bound-charged)*BodyWeight); err != nil {
			return nil, err
		}
		if charged, room = bound, bound; bound == limit {
			room = limit + 1
		}
	}
}
