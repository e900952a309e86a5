package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

// Finish is the end of a job as its runner saw it.
type Finish struct {
	Ref       farm.Ref
	Attempt   int           // the claim's; 0 ends a job that was never claimed
	State     farm.JobState // a final one
	Result    *farm.Result  // nil: none
	Error     *farm.JobError
	Timings   farm.Timings // run and upload; the time in the queue is known
	Events    []farm.Event // the last ones before that of the final state, at most EndEventBytes; longer ones are for AppendEvents
	LastEvent uint64       // sequence number of the last event, those in Events included; the event of the final state gets the next one
	Token     string       // of this end: a call that repeats one whose answer was lost has the same; empty: the call is not repeated
}

// EndEventBytes is how many bytes of text and data the events have at most that go with the end of a job: encoded, they are no longer than the
// window of events in Redis.
const EndEventBytes = 4 << 10

// Ended is what follows from the end of a job, and is still to be done.
type Ended struct {
	Callback bool      // a callback must be delivered
	Sandbox  *farm.Ref // the sandbox that ended with its creation; its unfinished jobs must end too; nil: none
}

// Finish ends a job that runs under this attempt; ErrFenced otherwise. Result, final event, FIFO, sandbox and indexes change in one step, in
// which the new head of the FIFO and a parked job that gets the queue slot are enqueued. CodeExhausted: the result is a document and the tenant's
// storage has no room for it; nothing changes then, and a result of InlineBytes or less always ends the job. The result is encoded on a core of the
// tenant of ctx (budget.Core), and the caller has charged for it: a job that has ended never lacks the memory to say so.
func (s *Store) Finish(ctx context.Context, f Finish) (Ended, error) {
	if !f.State.Final() {
		return Ended{}, fmt.Errorf("finish job %s: %q is not a final state: %w", f.Ref.ID, f.State, db.ErrMove)
	}
	_, end, err := s.end(ctx, ending{
		mode: "finish", events: f.Events, ref: f.Ref, attempt: f.Attempt, state: f.State, result: f.Result, err: f.Error, timings: &f.Timings, lastEvent: f.LastEvent, token: f.Token,
	})
	return end, err
}

// Force ends an unfinished job, whichever worker runs it; its runner is fenced. A finished job stays unchanged, without an error.
func (s *Store) Force(ctx context.Context, ref farm.Ref, state farm.JobState, jerr *farm.JobError) (Ended, error) {
	if !state.Final() {
		return Ended{}, fmt.Errorf("force job %s: %q is not a final state: %w", ref.ID, state, db.ErrMove)
	}
	_, end, err := s.end(ctx, ending{mode: "force", ref: ref, state: state, err: jerr})
	return end, err
}

// Cancel ends a queued job at once and asks the worker of a running one to end it. A finished job stays unchanged. The job is returned as it
// is now. jerr says why a queued job ends, if its caller did not cancel it; the error of a running one is its worker's.
func (s *Store) Cancel(ctx context.Context, ref farm.Ref, jerr *farm.JobError) (*farm.Job, Ended, error) {
	return s.end(ctx, ending{mode: "cancel", ref: ref, state: farm.JobCanceled, err: jerr})
}

// ending is one end of a job, in one of the modes of job_finish.lua.
type ending struct {
	mode      string
	ref       farm.Ref
	attempt   int
	state     farm.JobState
	result    *farm.Result
	err       *farm.JobError
	timings   *farm.Timings
	events    []farm.Event
	lastEvent uint64
	token     string
}

// finishArgs are the arguments of job_finish.lua. Times to live are in seconds.
type finishArgs struct {
	ID        string   `lua:"id"`
	Mode      string   `lua:"mode"`
	Attempt   int      `lua:"attempt"`
	State     string   `lua:"state"`
	Result    []byte   `lua:"result"` // JSON, or a reference if Spilled; empty: none, like Error
	Spilled   bool     `lua:"spilled"`
	Stored    int      `lua:"stored"` // bytes of the document, if Spilled
	Error     []byte   `lua:"error"`
	Outcome   string   `lua:"outcome"` // may be empty
	RunMS     string   `lua:"run_ms"`  // empty: not known, like UploadMS
	UploadMS  string   `lua:"upload_ms"`
	Events    []string `lua:"events"` // ids and JSON that alternate
	LastEvent uint64   `lua:"last_event"`
	Token     string   `lua:"token"`  // see Finish
	Hint      []byte   `lua:"hint"`   // message to the workers about a cancel
	Reason    string   `lua:"reason"` // why the sandbox ends, if the job was its creation
	Retention int      `lua:"retention"`
	HiddenTTL int      `lua:"hidden_ttl"`
	ClosedTTL int      `lua:"closed_ttl"`
}

func (s *Store) end(ctx context.Context, e ending) (*farm.Job, Ended, error) {
	leave, err := budget.Core(ctx, resultBytes(e.result))
	if err != nil {
		return nil, Ended{}, err
	}
	args, err := s.finishArgs(e)
	leave()
	if err != nil {
		return nil, Ended{}, err
	}
	key := db.DocumentKey(e.ref, "result-"+args.Token) // its own for each call, so that a fenced worker overwrites nothing
	size := len(args.Result)
	if args.Result, err = s.StoreLarge(ctx, key, args.Result, db.InlineBytes); err != nil {
		return nil, Ended{}, err
	}
	if args.Spilled = db.IsReference(string(args.Result)); args.Spilled {
		args.Stored = size
	}
	r, err := s.RunBatched(ctx, e.mode+" job", "job_finish", e.ref.Tenant, args)
	if err != nil {
		return nil, Ended{}, err // the result may be stored, so its document stays
	}
	if args.Spilled && r.Text(0) != "ok" {
		s.DropDocuments(ctx, key)
	}
	switch r.Text(0) {
	case "ok":
		follows := r.Fields(1)
		if follows["request"] == "1" {
			s.DropDocuments(ctx, db.DocumentKey(e.ref, requestDocument))
		}
		end := Ended{Callback: follows["callback"] == "1", Sandbox: optionalRef(e.ref.Tenant, follows["sandbox"])}
		if e.mode != "cancel" {
			return nil, end, nil
		}
		job, err := s.readJob(ctx, r.Fields(2))
		return job, end, err
	case "notfound":
		return nil, Ended{}, noJob(e.ref.ID)
	case "full":
		return nil, Ended{}, tenants.StorageFull(r)
	case "fenced":
		return nil, Ended{}, fmt.Errorf("%s job %s: %w", e.mode, e.ref.ID, db.ErrFenced)
	default:
		return nil, Ended{}, fmt.Errorf("%s job %s: %s → %s: %w", e.mode, e.ref.ID, r.Text(1), e.state, db.ErrMove)
	}
}

// resultEntry is about what an entry of a list in a result takes beside its texts, in bytes.
const resultEntry = 64

// resultBytes is about how long a result is as text.
func resultBytes(r *farm.Result) (n int) {
	if r == nil {
		return 0
	}
	if e := r.Execute; e != nil {
		n += len(e.Stdout) + len(e.Stderr)
		for i := range e.Rich {
			n += resultEntry + len(e.Rich[i].Data) + len(e.Rich[i].Metadata)
		}
	}
	if r.Command != nil {
		for i := range r.Command.Commands {
			o := &r.Command.Commands[i]
			n += resultEntry + len(o.Command) + len(o.Stdout) + len(o.Stderr)
		}
	}
	if r.Install != nil {
		n += len(r.Install.Stdout) + len(r.Install.Stderr)
	}
	if r.File != nil {
		n += len(r.File.Content)
		for i := range r.File.Entries {
			n += resultEntry + len(r.File.Entries[i].Path)
		}
	}
	for i := range r.Artifacts {
		n += resultEntry + len(r.Artifacts[i].Path)
	}
	return n + resultEntry*len(r.Packages)
}

func (s *Store) finishArgs(e ending) (finishArgs, error) {
	result, err := encodeMaybe("result", e.result)
	if err != nil {
		return finishArgs{}, err
	}
	if e.err != nil {
		e.err = &farm.JobError{Code: e.err.Code, Message: db.ClipText(e.err.Message, messageBytes)}
	}
	jerr, err := encodeMaybe("job error", e.err)
	if err != nil {
		return finishArgs{}, err
	}
	args := finishArgs{
		ID: e.ref.ID, Mode: e.mode, Attempt: e.attempt, State: string(e.state), Result: result, Error: jerr, Outcome: string(farm.OutcomeOf(e.state, e.result)), LastEvent: e.lastEvent,
		Token: cmp.Or(e.token, rand.Text()), Hint: db.Hint(e.ref), Reason: "Its creation was canceled.",
		Retention: s.Limits.RetentionSeconds, HiddenTTL: s.Limits.HiddenSeconds, ClosedTTL: s.Limits.ClosedSeconds,
	}
	if e.err != nil {
		args.Reason = e.err.Message
	}
	for _, event := range e.events {
		data, err := db.Encode("event", event)
		if err != nil {
			return finishArgs{}, err
		}
		args.Events = append(args.Events, event.ID, string(data))
	}
	if e.timings != nil {
		args.RunMS, args.UploadMS = decimal(e.timings.RunMS), decimal(e.timings.UploadMS)
	}
	return args, nil
}

// optionalRef names a record; nil for the empty id.
func optionalRef(tenant, id string) *farm.Ref {
	if id == "" {
		return nil
	}
	return &farm.Ref{Tenant: tenant, ID: id}
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

// Callbacks lists finished jobs whose callback has not been delivered, the longest waiting first.
func (s *Store) Callbacks(ctx context.Context, tenant string, limit int) ([]farm.Ref, error) {
	return s.CallbacksBehind(ctx, tenant, 0, limit)
}

// CallbacksBehind is Callbacks without the first ones, so many of them.
func (s *Store) CallbacksBehind(ctx context.Context, tenant string, skip, limit int) ([]farm.Ref, error) {
	ids, err := s.Redis.ZRange(ctx, s.Index(tenant, db.IndexCallbacks), int64(skip), int64(skip+max(limit, 1))-1).Result()
	if err != nil {
		return nil, db.Wrap("list callbacks", err)
	}
	return db.Refs(tenant, ids), nil
}

// CallbacksBeyond lists the callbacks that a tenant has beyond a number of them, the longest waiting first, at most limit.
func (s *Store) CallbacksBeyond(ctx context.Context, tenant string, keep, limit int) ([]farm.Ref, error) {
	n, err := s.Redis.ZCard(ctx, s.Index(tenant, db.IndexCallbacks)).Result()
	if err != nil {
		return nil, db.Wrap("count callbacks", err)
	}
	if excess := min(int(n)-keep, limit); excess > 0 {
		return s.Callbacks(ctx, tenant, excess)
	}
	return nil, nil
}

// callbackDoneArgs are the arguments of callback_done.lua.
type callbackDoneArgs struct {
	ID string `lua:"id"`
}

// CallbackDone removes a job from Callbacks: its callback was delivered, or given up.
func (s *Store) CallbackDone(ctx context.Context, ref farm.Ref) error {
	_, err := s.Run(ctx, "finish callback", "callback_done", ref.Tenant, callbackDoneArgs{ID: ref.ID})
	return err
}

// CancelRequested reports whether a cancel of the job was requested.
func (s *Store) CancelRequested(ctx context.Context, ref farm.Ref) (bool, error) {
	value, err := s.Redis.HGet(ctx, s.Key(ref.Tenant, db.KeyJob, ref.ID), "cancel").Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return value == "1", db.Wrap("read cancel flag", err)
}

// maxCancels is how many cancels a worker has not looked at yet; more are dropped by the client.
const maxCancels = 100

// Cancels is a worker's subscription to cancels of running jobs, ends of queued ones and to changed deadlines and hosts of sandboxes.
type Cancels struct {
	refs chan farm.Ref
	sub  db.Subscription
	done chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

// Cancels subscribes to the cancels of all tenants. It returns once Redis has confirmed the subscription.
func (s *Store) Cancels(ctx context.Context) (*Cancels, error) {
	sub := s.Listen(ctx, s.Farm(db.FarmCancel, ""))
	if _, err := sub.Receive(ctx); err != nil {
		return nil, errors.Join(db.Wrap("subscribe to cancels", err), sub.Close())
	}
	c := &Cancels{refs: make(chan farm.Ref, 64), sub: sub, done: make(chan struct{})}
	messages := sub.Messages(maxCancels)
	c.wg.Go(func() { c.pump(messages) })
	return c, nil
}

// C delivers the jobs to cancel and the sandboxes whose deadline or hosts changed. The zero Ref means that messages may have been missed: check
// CancelRequested of every job that runs here. Close closes the channel.
func (c *Cancels) C() <-chan farm.Ref { return c.refs }

// Close ends the subscription.
func (c *Cancels) Close() error {
	var err error
	c.once.Do(func() {
		close(c.done)
		err = c.sub.Close()
	})
	c.wg.Wait()
	return err
}

func (c *Cancels) pump(messages <-chan any) {
	defer close(c.refs)
	for {
		var ref farm.Ref // stays zero after a reconnect
		select {
		case <-c.done:
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if message, isMessage := m.(*redis.Message); isMessage {
				if json.Unmarshal([]byte(message.Payload), &ref) != nil {
					ref = farm.Ref{} // unreadable: the worker must check the flags
				}
			}
		}
		select {
		case <-c.done:
			return
		case c.refs <- ref:
		}
	}
}
