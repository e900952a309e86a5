package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// DefaultContext is the context of executions that specify none.
	DefaultContext = "default"
	// All stands for all contexts.
	All = "*"

	defaultLanguage = "python"
)

// slotKey identifies a slot: a context in a language. Executions of a slot run one at a time.
type slotKey struct{ context, language string }

// slot is a context in a language, with its kernel if one runs.
type slot struct {
	slotKey
	number int                // of the slots of the sandbox, from 1
	cwd    string             // where its code starts
	turn   execution.FairLock // held while an execution runs
	used   uint64             // the number of its last use; guarded by Kernels.mu, as users is
	users  int                // executions that run in it or wait for it

	messages messages

	mu      sync.Mutex
	kernel  *kernel
	lost    bool // the previous kernel ended unexpectedly while nothing ran
	removed bool // nothing runs in it any more
}

// Config holds paths and what executions need.
type Config struct {
	RunDir    string // the agent's own files
	TmpDir    string
	Workspace string
	Image     []string // the environment of the image, in which its programs are found
	Env       []string // the environment of user code
	Reaper    *process.Reaper

	// Installed counts package installs: after one, a kernel rescans for modules.
	Installed func() int64
	// Measure runs an execution and adds the measurements to its outcome.
	Measure func(e *execution.Execution, body func(*execution.Execution) agent.Outcome) agent.Outcome
}

// Kernels runs code in the kernels of a sandbox and starts them when needed. Create it with New and stop it with Close.
type Kernels struct {
	cfg     Config
	life    context.Context // a kernel outlives the request that starts it
	running sync.WaitGroup  // kernels
	langs   languages

	mu      sync.Mutex
	slots   map[slotKey]*slot
	made    int              // slots so far
	uses    uint64           // uses of slots so far
	evicted map[slotKey]bool // contexts that made room for others and were not used again; MaxContexts at most
}

// New creates the Kernels of a sandbox; no kernel runs yet. Kernels end with life.
func New(life context.Context, cfg Config) *Kernels {
	return &Kernels{cfg: cfg, life: life, slots: map[slotKey]*slot{}, evicted: map[slotKey]bool{}}
}

// Check reports whether an execution of a context in a language can run here, and reserves the context. Empty names are the
// defaults. The errors are for the caller.
func (ks *Kernels) Check(contextName, language string) error {
	key, err := ks.normalize(contextName, language)
	if err != nil {
		return err
	}
	_, err = ks.slot(key)
	return err
}

// normalize fills in the defaults and checks the names.
func (ks *Kernels) normalize(contextName, language string) (slotKey, error) {
	p := slotKey{contextName, strings.ToLower(language)}
	if p.context == "" {
		p.context = DefaultContext
	}
	switch p.language {
	case "":
		p.language = defaultLanguage
	case "sh", "shell":
		p.language = "bash"
	}
	if len(p.context) > agent.MaxContextBytes || p.context == All {
		return p, farm.Invalidf("context is not a valid name: at most %d bytes, and not %q", agent.MaxContextBytes, All)
	}
	if langs := ks.languages(); !langs.known(p.language) {
		return p, farm.Invalidf("language %q is not available in this sandbox; available: %s", execution.Cut(language, 64), strings.Join(langs.names(), ", "))
	}
	return p, nil
}

// slot returns a slot, and creates it unless there are too many that run code.
func (ks *Kernels) slot(p slotKey) (*slot, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	return ks.slotIn(p, ks.cfg.Workspace)
}

// hold is slot for an execution: until it calls release, the slot is not evicted.
func (ks *Kernels) hold(p slotKey) (at *slot, release func(), err error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if at, err = ks.slotIn(p, ks.cfg.Workspace); err != nil {
		return nil, nil, err
	}
	at.users++
	return at, func() {
		ks.mu.Lock()
		defer ks.mu.Unlock()
		at.users--
		ks.use(at)
	}, nil
}

// slotIn returns a slot. A new one has the working directory cwd, and evicts another if there are as many as there may be. The caller holds mu.
func (ks *Kernels) slotIn(p slotKey, cwd string) (*slot, error) {
	at := ks.slots[p]
	if at == nil {
		if len(ks.slots) >= agent.MaxContexts && !ks.evict() {
			return nil, farm.Errorf(farm.CodeExhausted, "The sandbox has %d contexts, which is the limit, and code runs in all of them: wait, use one of them, or another sandbox.", agent.MaxContexts)
		}
		ks.made++
		at = &slot{slotKey: p, number: ks.made, cwd: cwd, lost: ks.evicted[p]}
		ks.slots[p] = at
		delete(ks.evicted, p)
	}
	ks.use(at)
	return at, nil
}

// use makes a slot the last to be evicted. The caller holds mu.
func (ks *Kernels) use(at *slot) {
	ks.uses++
	at.used = ks.uses
}

// evict removes the context that was not used for longest, and reports whether there was one. Code of the default context stays. The next
// execution in an evicted context is told that its variables are lost. The caller holds mu.
func (ks *Kernels) evict() bool {
	var oldest *slot
	for _, at := range ks.slots {
		if at.users == 0 && at.context != DefaultContext && (oldest == nil || at.used < oldest.used) {
			oldest = at
		}
	}
	if oldest == nil {
		return false
	}
	delete(ks.slots, oldest.slotKey)
	for p := range ks.evicted {
		if len(ks.evicted) < agent.MaxContexts {
			break
		}
		delete(ks.evicted, p)
	}
	ks.evicted[oldest.slotKey] = true
	ks.running.Go(func() { oldest.remove(ks.cfg.Reaper) })
	return true
}

// byAge lists all slots, the oldest first.
func (ks *Kernels) byAge() []*slot {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	return slices.SortedFunc(maps.Values(ks.slots), func(a, b *slot) int { return a.number - b.number })
}

// slotsOf lists the slots of a context, or of all contexts.
func (ks *Kernels) slotsOf(contextName string) []*slot {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	var list []*slot
	for p, at := range ks.slots {
		if contextName == All || contextName == p.context {
			list = append(list, at)
		}
	}
	sort.Slice(list, func(i, j int) bool {
		return list[i].context+"\x00"+list[i].language < list[j].context+"\x00"+list[j].language
	})
	return list
}

// kernelOf returns the kernel of a slot, and starts one if none runs. lost: an earlier one ended unexpectedly. It returns nil for
// languages that have no kernel, and for slots that were removed.
func (ks *Kernels) kernelOf(at *slot) (k *kernel, lost bool) {
	langs := ks.languages()
	if at.language != defaultLanguage || langs.python == "" {
		return nil, false
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.removed {
		return nil, false
	}
	if at.kernel != nil && at.kernel.dead() {
		at.lost = at.kernel.err == nil && !at.kernel.endedOnPurpose()
		at.kernel = nil
	}
	if at.kernel == nil {
		at.kernel = ks.startKernel(at, langs.python)
	}
	lost, at.lost = at.lost, false
	return at.kernel, lost
}

// endedOnPurpose reports whether the agent ended the kernel.
func (k *kernel) endedOnPurpose() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.onPurpose
}

// notStarted is the sentence for callers on what, such as a kernel, that could not be started.
func notStarted(what string, err error) string {
	why := execution.Cut(err.Error(), 4<<10)
	if process.IsOutOfProcesses(why) {
		return what + " could not be started: " + process.OutOfProcesses
	}
	return what + " could not be started: " + why + "."
}

// awaitKernel waits until a kernel can be used.
func awaitKernel(ctx context.Context, k *kernel) error {
	select {
	case <-k.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if k.err != nil {
		return farm.Wrap(k.err, farm.CodeUnavailable, "%s", notStarted("The kernel", k.err))
	}
	return nil
}

// Start starts the kernel of a context in advance, and waits until it can be used.
func (ks *Kernels) Start(ctx context.Context, contextName, language string) error {
	p, err := ks.normalize(contextName, language)
	if err != nil {
		return err
	}
	at, err := ks.slot(p)
	if err != nil {
		return err
	}
	k, _ := ks.kernelOf(at) //nolint:contextcheck // a kernel outlives the request that starts it
	if k == nil {
		return nil // each execution has a fresh process: nothing to start
	}
	return awaitKernel(ctx, k)
}

// Restart kills the kernels of a context (All: of every context) and waits for new ones.
func (ks *Kernels) Restart(ctx context.Context, contextName string) error {
	list := ks.slotsOf(contextName)
	if len(list) == 0 && contextName != All {
		return farm.NotFoundf("The sandbox has no context %q.", execution.Cut(contextName, 64))
	}
	var errs []error
	for _, at := range list {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k != nil {
			k.announceRestart(&at.messages)
			k.stopOnPurpose(ks.cfg.Reaper)
			select {
			case <-k.ready: // dead reports true only after this
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for _, at := range list {
		if k, _ := ks.kernelOf(at); k != nil { //nolint:contextcheck // a kernel outlives the request that starts it
			errs = append(errs, awaitKernel(ctx, k))
		}
	}
	return errors.Join(errs...)
}

// Running describes the kernels that run.
func (ks *Kernels) Running() []agent.Kernel {
	list := []agent.Kernel{}
	for _, at := range ks.slotsOf(All) {
		at.mu.Lock()
		k := at.kernel
		at.mu.Unlock()
		if k == nil || k.dead() {
			continue
		}
		k.mu.Lock()
		if k.proc != nil {
			list = append(list, agent.Kernel{Context: at.context, Language: at.language, PID: k.proc.PID, Busy: k.current != nil})
		}
		k.mu.Unlock()
	}
	return list
}

// Close ends all kernels and waits for them.
func (ks *Kernels) Close() {
	for _, at := range ks.slotsOf(All) {
		at.mu.Lock()
		if at.kernel != nil {
			at.kernel.stopOnPurpose(ks.cfg.Reaper)
		}
		at.mu.Unlock()
	}
	ks.running.Wait()
}

// Run waits for its turn, runs the code of an execution in its context, and finishes the execution.
func (ks *Kernels) Run(e *execution.Execution) {
	p, err := ks.normalize(e.Spec.Context, e.Spec.Language)
	if err != nil {
		e.Finish(execution.Failed("NotAvailable", farm.MessageOf(err)))
		return
	}
	at, release, err := ks.hold(p)
	if err != nil {
		e.Finish(execution.Failed("NotAvailable", farm.MessageOf(err)))
		return
	}
	defer release()
	if !at.turn.Lock(e.Stopped()) {
		e.Finish(execution.NotStarted())
		return
	}
	defer at.turn.Unlock()
	e.Begin()
	if interpreter, ok := ks.languages().fresh[p.language]; ok && !at.isRemoved() {
		e.Finish(ks.cfg.Measure(e, func(e *execution.Execution) agent.Outcome { return ks.runFresh(e, at, interpreter) }))
		return
	}
	k, lost := ks.kernelOf(at)
	if k == nil {
		e.Finish(execution.Failed("NotAvailable", "The context was removed before the code ran."))
		return
	}
	select {
	case <-k.ready:
	case <-e.Stopped():
		e.Finish(execution.NotStarted())
		return
	}
	if k.err != nil {
		e.Finish(execution.Failed("KernelStartError", notStarted("The kernel", k.err)))
		return
	}
	if e.Spec.Cell == nil {
		at.messages.add(agent.Message{Kind: KindExecution, Content: json.RawMessage("{}"), Execution: e.ID})
	}
	out := ks.cfg.Measure(e, func(e *execution.Execution) agent.Outcome { return ks.execute(k, e) })
	if out.Restarted {
		ks.kernelOf(at) // in the background, for the next execution
	}
	out.Restarted = out.Restarted || lost
	e.Finish(out)
}
