package jupyter

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxValueBytes bounds the large types of one displayed value together: they are in memory at once.
const maxValueBytes = 16 << 20

// output turns the events of one job into messages.
type output struct {
	session *session
	work    *work
	value   *value // that is being collected
}

// value is one displayed value with all its types.
type value struct {
	number   int
	large    int64 // bytes of data that were charged
	size     int   // bytes of data
	data     map[string]any
	metadata json.RawMessage
	id       string
	update   bool
	result   bool
	unseen   bool // nobody was here for a part of it: it is not read, and not sent
}

// add sends what an event says.
func (o *output) add(ctx context.Context, e farm.Event) {
	if e.Name != farm.EventDisplay {
		o.flush(ctx)
	}
	switch {
	case e.Name == farm.EventStdout, e.Name == farm.EventStderr:
		o.send(ctx, "stream", len(e.Text), func() any { return map[string]string{"name": string(e.Name), "text": e.Text} })
	case e.Name == farm.EventDisplay && e.Display != nil:
		o.display(ctx, e.Display)
	case e.Name == farm.EventClear:
		o.session.iopub(o.work, "clear_output", map[string]bool{"wait": e.Wait})
	case e.Name == farm.EventProgress && e.Progress != nil:
		o.note("[" + e.Progress.Message + "]")
	}
}

// note tells the client something as a line of stderr.
func (o *output) note(text string) {
	o.session.iopub(o.work, "stream", map[string]string{"name": "stderr", "text": text + "\n"})
}

// send sends a message about size bytes of output, which is made on a core of the tenant's. Without one the context has ended, and with it the work.
func (o *output) send(ctx context.Context, kind string, size int, content func() any) {
	if !o.session.seen(o.work) {
		return
	}
	leave, err := budget.Core(ctx, size)
	if err != nil {
		return
	}
	raw, _ := json.Marshal(content()) // our own types always encode
	leave()
	o.session.iopub(o.work, kind, json.RawMessage(raw))
}

// display collects one type of a value, and sends the value when it is complete.
func (o *output) display(ctx context.Context, d *farm.RichResult) {
	if v := o.value; v != nil && (v.number != d.Display || v.update != d.Update) {
		o.flush(ctx)
	}
	if o.value == nil {
		o.value = &value{number: d.Display, data: map[string]any{}, metadata: d.Metadata, id: d.DisplayID, update: d.Update, result: d.Result}
	}
	if o.value.unseen = o.value.unseen || !o.session.seen(o.work); !o.value.unseen {
		if text, ok := o.text(ctx, d); ok {
			o.put(ctx, d.Mime, text)
		}
	}
	if !d.More {
		o.flush(ctx)
	}
}

// put adds one type to the value, on a core of the tenant's as send.
func (o *output) put(ctx context.Context, mime, text string) {
	leave, err := budget.Core(ctx, len(text))
	if err != nil {
		return
	}
	defer leave()
	o.value.data[mime] = shown(mime, text)
	o.value.size += len(text)
}

// text is the data of one type of a value; ok is false if it cannot be read; the client then gets a note.
func (o *output) text(ctx context.Context, d *farm.RichResult) (text string, ok bool) {
	if d.Artifact == nil {
		return d.Data, true
	}
	var raw []byte
	var err error
	fits := d.Artifact.Size <= maxValueBytes-o.value.large // a Hold at its tenant's share would take any more for nothing
	if fits {
		err = budget.Charge(ctx, d.Artifact.Size*budget.BodyWeight)
	}
	if fits && err == nil {
		o.value.large += d.Artifact.Size
		raw, err = o.session.kernel.server.cfg.Service.Linked(ctx, d.Artifact)
	}
	plain := strings.HasPrefix(d.Mime, "text/")
	if err == nil && (plain || wire.IsMarkup(d.Mime)) {
		err = budget.Quoting(ctx, raw, 1)
	}
	switch {
	case !fits, err != nil:
		o.note("[a displayed value is left out, since it is large: it is artifact " + d.Artifact.ID + "]")
		return "", false
	case plain:
		return string(raw), true
	default:
		return base64.StdEncoding.EncodeToString(raw), true
	}
}

// flush sends the value that is being collected, if there is one.
func (o *output) flush(ctx context.Context) {
	v := o.value
	if v == nil {
		return
	}
	o.value = nil
	if len(v.data) == 0 || v.unseen {
		return
	}
	o.send(ctx, v.kind(), v.size, func() any { return v.content(o.session.kernel) })
}

func (v *value) kind() string {
	switch {
	case v.result:
		return "execute_result"
	case v.update:
		return "update_display_data"
	default:
		return "display_data"
	}
}

func (v *value) content(k *kernel) map[string]any {
	out := map[string]any{"data": v.data, "metadata": orEmpty(v.metadata)}
	transient := map[string]string{}
	if v.id != "" {
		transient["display_id"] = v.id
	}
	if v.result {
		out["execution_count"] = k.counted(0) + 1
	} else {
		out["transient"] = transient
	}
	return out
}

// shown is a value as notebooks expect it: objects as such, text as it is, other bytes as base64.
func shown(mime, data string) any {
	if strings.HasPrefix(mime, "text/") {
		return data
	}
	isJSON := strings.HasSuffix(mime, "json")
	if !isJSON && !strings.HasSuffix(mime, "+xml") && mime != "application/javascript" && mime != "application/xml" {
		return data
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return data
	}
	if isJSON && json.Valid(raw) {
		return json.RawMessage(raw)
	}
	return string(raw)
}

const (
	// kindExecution is the kind of the kernel's message that a job begins which is no cell.
	kindExecution = "execution"
	// otherSession is the session of such jobs in what clients get.
	otherSession = "v1"
	// maxOthers bounds the jobs whose output is still to be shown. Beyond them the oldest are not.
	maxOthers = 32
)

// other has clients see the output of a job that is no cell, as that of another client. One that ended long ago is left out: clients were
// not here. k.feeding is held.
//
//nolint:contextcheck // the work outlives who is told of the job: its context is that of a client
func (k *kernel) other(job string) {
	if !farm.ValidID(farm.JobPrefix, job) { // such as the installation of packages
		return
	}
	k.others = append(k.others, job)
	k.others = k.others[max(0, len(k.others)-maxOthers):]
	if k.shows {
		return
	}
	ctx := k.caller()
	if ctx == nil {
		return
	}
	k.shows = true
	k.server.work.Go(func() { k.showOthers(ctx) })
}

// caller is the context of one of the clients; nil: there is none.
func (k *kernel) caller() context.Context {
	for _, s := range k.all() {
		s.mu.Lock()
		ctx := s.ctx
		s.mu.Unlock()
		if ctx != nil {
			return ctx
		}
	}
	return nil
}

// showOthers shows one job after another.
func (k *kernel) showOthers(caller context.Context) {
	s := newSession(caller, k, otherSession) // it has no client: what it says goes to all others
	s.ctx, s.gone = caller, true
	for {
		k.feeding.Lock()
		if len(k.others) == 0 || k.server.life.Err() != nil {
			k.shows = false
			k.feeding.Unlock()
			return
		}
		job := k.others[0]
		k.others = k.others[1:]
		k.feeding.Unlock()
		ctx, done := s.context()
		s.showJob(ctx, job) //nolint:contextcheck // it is made of caller
		done()
	}
}

// showJob shows one job from its beginning to its end.
func (s *session) showJob(ctx context.Context, id string) {
	k := s.kernel
	out, err := k.server.cfg.Service.Job(ctx, k.ref.Tenant, id, 0)
	if err != nil || out.Job.FinishedAt != nil && out.Job.FinishedAt.Before(k.server.cfg.Now().Add(-replayFor)) {
		return
	}
	w := &work{job: id, early: true, cell: &executeContent{}, message: message{channel: channelShell}}
	if out.Job.Request != nil {
		w.cell.Code = out.Job.Request.Code
	}
	w.header = executeHeader(id, otherSession, out.Job.CreatedAt)
	budget.Keep(ctx, 0)
	s.cell(ctx, w)
}
