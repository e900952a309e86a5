package jupyter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

// Messages that wait for the output before them were not charged: a client that read nothing held 1000 of any size.
func TestMessagesThatWaitForOutputAreBoundedAndCharged(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	ctx, own := memory.With(t.Context(), "acme", 0)
	defer own.Release()
	k := &kernel{}
	done := k.place("cell")
	at := k.streams["cell"]
	message := func(after uint64, size int) said {
		return said{Message: relay.Message{Kind: "unknown", Parent: "cell", After: after, Content: make(json.RawMessage, size)}}
	}
	for i := range 8 {
		if got := at.hold(ctx, message(uint64(i+1), 200<<10)); got != (i < 5) {
			t.Errorf("message %d of 200 KiB is held: %v", i, got)
		}
	}
	if !at.hold(ctx, message(8, 1000)) || at.hold(ctx, message(8, maxHeldBytes)) {
		t.Error("a message that fits is not held, or one that does not is")
	}
	want := int64(5*(200<<10+heldBytes) + 1000 + heldBytes)
	if got := memory.Stats().Used; got != want || at.bytes != want {
		t.Errorf("%d bytes are charged, %d counted; want %d", got, at.bytes, want)
	}
	if whole, err := memory.Acquire(ctx, "acme", memory.Share()); err != nil || memory.Stats().Waited > 0 {
		t.Errorf("a request of the tenant's share waits for them: %v", err)
	} else {
		whole.Release()
	}
	k.reached("cell", 3)
	if want -= 3 * (200<<10 + heldBytes); memory.Stats().Used != want || len(at.held) != 3 {
		t.Errorf("%d bytes are charged for %d messages, want %d", memory.Stats().Used, len(at.held), want)
	}
	other := memory.Lasting("acme")
	for other.Grow(1 << 10) { // what the tenant has left
	}
	if at.hold(ctx, message(9, 10<<10)) {
		t.Error("a message is held without memory")
	}
	other.Release()
	done()
	if got := memory.Stats().Used; got != 0 {
		t.Errorf("%d bytes are charged at the end of the cell", got)
	}
}

// The headers of clients' messages are not charged, so few bytes of them are kept.
func TestHeadersOfMessagesAreBounded(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{60: maxParents, maxHeaderBytes: maxParentBytes / maxHeaderBytes} {
		k, s := &kernel{}, &session{}
		for range 2 {
			for i := range 2 * maxParents {
				k.note(&work{message: message{header: header{ID: fmt.Sprint(i), raw: make([]byte, size)}}}, s)
			}
		}
		bytes := 0
		for _, a := range k.parents.known {
			bytes += len(a.header)
		}
		if len(k.parents.known) != want || len(k.parents.order) != want || bytes != k.parents.bytes || bytes > maxParentBytes {
			t.Errorf("of headers of %d bytes %d are kept, %d bytes, counted as %d; want %d", size, len(k.parents.known), bytes, k.parents.bytes, want)
		}
		if _, by := k.parent(fmt.Sprint(2*maxParents - 1)); by != s {
			t.Error("the newest is not kept")
		}
	}
}

// Of a long prompt the beginning is remembered.
func TestPromptsAreRememberedInPart(t *testing.T) {
	t.Parallel()
	k := &kernel{}
	content, _ := json.Marshal(map[string]any{"prompt": strings.Repeat("x", 1<<20), "password": true})
	k.remember(relay.Message{Kind: "input_request", Number: 7, Content: content})
	var got struct {
		Prompt   string
		Password bool
	}
	if err := json.Unmarshal(k.input.Content, &got); err != nil || len(got.Prompt) != maxPrompt || !got.Password || k.input.Number != 7 {
		t.Errorf("%d bytes of the prompt are kept, password %v: %v", len(got.Prompt), got.Password, err)
	}
}

// The types of a value are in memory together, and the first may charge the tenant's whole share.
func TestLargeTypesOfAValueAreBoundedTogether(t *testing.T) {
	t.Parallel()
	memory := budget.New(16 << 20)
	ctx, own := memory.With(t.Context(), "acme", 0)
	defer own.Release()
	s := &session{kernel: &kernel{server: &Server{cfg: Config{Now: time.Now}}}}
	o := output{session: s, work: &work{}, value: &value{large: maxValueBytes - 10}}
	if _, ok := o.text(ctx, &farm.RichResult{Mime: "image/png", Artifact: &farm.Artifact{ID: "art_1", Size: 11}}); ok || len(s.missed) != 1 || own.Bytes() != 0 {
		t.Errorf("read: %v, %d notes, %d bytes charged", ok, len(s.missed), own.Bytes())
	}
}

// stored is an object store in which each object has the same content.
type stored struct {
	service.Blobs
	content string
}

func (s stored) Get(context.Context, string, int64, int64) (io.ReadCloser, blob.Info, error) {
	return io.NopCloser(strings.NewReader(s.content)), blob.Info{}, nil
}

// A value of which nobody gets all types is not read from the object store.
func TestValuesAreNotReadForNobody(t *testing.T) {
	t.Parallel()
	from := &service.Service{Deps: service.Deps{Blobs: stored{content: "x"}}}
	large := &farm.RichResult{Mime: "image/png", Artifact: &farm.Artifact{Size: 1}}
	part := &farm.RichResult{Mime: "text/plain", Data: "x", More: true}
	for name, c := range map[string]struct {
		own, other bool // who is here
		work       work
		before     *farm.RichResult // a type for which nobody was here
		want       int64            // bytes that are read
	}{
		"Nobody":               {want: 0},
		"Own":                  {own: true, want: 1},
		"OwnAgain":             {own: true, work: work{quiet: true}, want: 1},
		"Other":                {other: true, want: 1},
		"OtherHasIt":           {other: true, work: work{quiet: true}, want: 0},
		"OtherCameInItsMiddle": {other: true, before: part, want: 0},
	} {
		ctx, own := budget.New(16<<20).With(t.Context(), "acme", 0)
		k := &kernel{server: &Server{cfg: Config{Service: from, Now: time.Now}}, sessions: map[string]*session{}}
		s, other := newSession(ctx, k, "s"), newSession(ctx, k, "other")
		k.sessions["s"], k.sessions["other"] = s, other
		c.work.job = "job_1"
		o := output{session: s, work: &c.work}
		if c.before != nil {
			o.add(ctx, farm.Event{Name: farm.EventDisplay, Display: c.before})
		}
		at := newSocket(ctx, 0)
		if c.own {
			s.sockets = append(s.sockets, at)
		}
		if c.other {
			other.sockets = append(other.sockets, at)
		}
		o.add(ctx, farm.Event{Name: farm.EventDisplay, Display: large})
		if own.Bytes() != c.want*budget.BodyWeight || len(at.out) != int(c.want) {
			t.Errorf("%s: %d bytes are charged for %d, and %d messages are sent", name, own.Bytes(), c.want, len(at.out))
		}
		own.Release()
	}
}

// A text of control characters takes six times its bytes as JSON.
func TestEscapesOfALargeValueAreCharged(t *testing.T) {
	t.Parallel()
	const size = 10_000
	for mime, more := range map[string]int64{"text/html": 10 * size, "image/svg+xml": 10 * size, "image/png": 0} {
		ctx, own := budget.New(16<<20).With(t.Context(), "acme", 0)
		from := &service.Service{Deps: service.Deps{Blobs: stored{content: strings.Repeat("\x01", size)}}}
		o := output{session: &session{kernel: &kernel{server: &Server{cfg: Config{Service: from}}}}, work: &work{}, value: &value{}}
		if _, ok := o.text(ctx, &farm.RichResult{Mime: mime, Artifact: &farm.Artifact{Size: size}}); !ok || own.Bytes() != budget.BodyWeight*size+more {
			t.Errorf("%s: read %v, %d bytes charged", mime, ok, own.Bytes())
		}
		own.Release()
	}
}

// User code writes what a kernel says. A message of 16 MiB with a key for every eight bytes, or with empty buffers, took half a GiB.
func TestMessagesOfManyKeysTakeLittle(t *testing.T) { //nolint:paralleltest // it counts what all allocate
	many := func(element string) string { return strings.TrimSuffix(strings.Repeat(element+",", 100_000), ",") }
	for name, content := range map[string]string{
		"Keys":    `{"comm_id":"c","data":{"a":1},` + many(`"k":0`) + `}`,
		"Data":    `{"comm_id":"c","data":{` + many(`"k":0`) + `}}`,
		"Buffers": `{"comm_id":"c","data":{"a":1},"buffers":[` + many(`""`) + `]}`,
	} {
		m := relay.Message{Kind: "comm_msg", Content: json.RawMessage(content)}
		if n := testing.AllocsPerRun(1, func() { split(m) }); n > 3*MaxBuffers {
			t.Errorf("%s: %.0f pieces of memory", name, n)
		}
	}
}

// The buffers and the metadata of a message of a comm are beside its content, as in Jupyter's protocol.
func TestPartsOfComms(t *testing.T) {
	t.Parallel()
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`"YQ==",`, n), ",") + "]" }
	for name, c := range map[string]struct {
		kind, content, want, metadata string
		buffers                       int
	}{
		"Open":        {"comm_open", `{"data":{"a":[1]},"target_name":"t","target_module":null,"comm_id":"c","metadata":{"v":"2"},"buffers":["YQ=="]}`, `{"comm_id":"c","target_name":"t","target_module":null,"data":{"a":[1]}}`, `{"v":"2"}`, 1},
		"OtherKeys":   {"comm_msg", `{"comm_id":"c","data":1,"x":2}`, `{"comm_id":"c","data":1}`, "", 0},
		"Display":     {"display_data", `{"data":{"text/plain":"x"},"metadata":{},"buffers":["YQ=="]}`, `{"data":{"text/plain":"x"},"metadata":{},"buffers":["YQ=="]}`, "", 1},
		"Stream":      {"stream", `{"name":"stdout","text":"x"}`, `{"name":"stdout","text":"x"}`, "", 0},
		"NoList":      {"comm_msg", `{"comm_id":"c","buffers":{}}`, `{"comm_id":"c"}`, "", 0},
		"NoText":      {"comm_msg", `{"comm_id":"c","buffers":["YQ==",1]}`, `{"comm_id":"c"}`, "", 0},
		"NoBase64":    {"comm_msg", `{"comm_id":"c","buffers":["*","YQ=="]}`, `{"comm_id":"c"}`, "", 2},
		"OneLess":     {"comm_msg", `{"comm_id":"c","buffers":` + list(MaxBuffers-1) + `}`, `{"comm_id":"c"}`, "", MaxBuffers - 1},
		"AtTheLimit":  {"comm_msg", `{"comm_id":"c","buffers":` + list(MaxBuffers) + `}`, `{"comm_id":"c"}`, "", MaxBuffers},
		"BeyondIt":    {"comm_msg", `{"comm_id":"c","buffers":` + list(MaxBuffers+1) + `}`, `{"comm_id":"c"}`, "", MaxBuffers},
		"NoObject":    {"comm_msg", `[1]`, `[1]`, "", 0},
		"NothingElse": {"comm_close", `{}`, `{}`, "", 0},
	} {
		got := split(relay.Message{Kind: c.kind, Content: json.RawMessage(c.content)})
		if string(got.Content) != c.want || string(got.metadata) != c.metadata || len(got.buffers) != c.buffers {
			t.Errorf("%s: %s, metadata %s, %d buffers", name, got.Content, got.metadata, len(got.buffers))
		}
	}
}
