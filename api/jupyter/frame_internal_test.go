package jupyter

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func sample(buffers ...[]byte) *message {
	raw := json.RawMessage(`{"msg_id":"m1","msg_type":"comm_msg","session":"s","odd":1}`)
	h, _ := parseHeader(raw)
	return &message{
		channel: channelShell, header: h, parent: json.RawMessage(`{"msg_id":"p"}`), metadata: json.RawMessage(`{}`), content: json.RawMessage(`{"a":[1]}`), buffers: buffers,
	}
}

func TestMessagesSurviveBothFramings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		v1      bool
		buffers [][]byte
		kind    websocket.MessageType
	}{
		"JSON":          {false, nil, websocket.MessageText},
		"JSONBuffers":   {false, [][]byte{{0, 255}, {}, []byte("x")}, websocket.MessageBinary},
		"Binary":        {true, nil, websocket.MessageBinary},
		"BinaryBuffers": {true, [][]byte{{0, 255}, {}, []byte("x")}, websocket.MessageBinary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := sample(c.buffers...)
			kind, data := encode(want, c.v1)
			if kind != c.kind {
				t.Errorf("kind %v, want %v", kind, c.kind)
			}
			got, err := decode(kind, data, c.v1)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*want, got, cmp.AllowUnexported(message{}, header{}), cmp.Comparer(func(a, b [][]byte) bool {
				return len(a) == len(b) && bytes.Equal(bytes.Join(a, []byte("|")), bytes.Join(b, []byte("|")))
			})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Many clients read the id and the type outside of the header, and take a binary message for one with buffers.
func TestJSONMessagesNameTheirTypeTwice(t *testing.T) {
	t.Parallel()
	_, data := encode(sample(), false)
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil || got["msg_id"] != "m1" || got["msg_type"] != "comm_msg" || got["channel"] != "shell" {
		t.Errorf("%s: %v", data, err)
	}
	if buffers, ok := got["buffers"].([]any); !ok || len(buffers) != 0 {
		t.Errorf("buffers are %v", got["buffers"])
	}
}

func TestWhatClientsSendInOddForms(t *testing.T) {
	t.Parallel()
	const head = `{"header":{"msg_id":"m","msg_type":"execute_request"}`
	for name, text := range map[string]string{
		"NoChannel":       head + `}`,
		"ObjectOfBuffers": head + `,"channel":"shell","buffers":{}}`,
		"NoParent":        head + `,"channel":"shell","parent_header":null,"metadata":null}`,
		"Space":           "\n " + head + `}`,
	} {
		m, err := decode(websocket.MessageText, []byte(text), false)
		if err != nil || m.channel != channelShell || string(m.content) != "{}" {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	// Jupyter's own proxy sends binary messages as text.
	_, data := encode(sample([]byte{1}), false)
	if m, err := decode(websocket.MessageText, data, false); err != nil || len(m.buffers) != 1 {
		t.Errorf("binary as text: %+v, %v", m, err)
	}
	if m, err := decode(websocket.MessageText, []byte(head+`}`), true); err != nil || m.header.ID != "m" {
		t.Errorf("JSON from a client that asked for the other framing: %+v, %v", m, err)
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	offsets := func(numbers ...uint64) []byte {
		var out []byte
		for _, n := range numbers {
			out = binary.LittleEndian.AppendUint64(out, n)
		}
		return out
	}
	for name, c := range map[string]struct {
		data []byte
		v1   bool
	}{
		"Empty":          {nil, false},
		"EmptyV1":        {nil, true},
		"NoJSON":         {[]byte("{"), false},
		"List":           {[]byte("[1]"), false},
		"NoHeader":       {[]byte(`{"channel":"shell"}`), false},
		"HeaderIsText":   {[]byte(`{"header":"x"}`), false},
		"NoType":         {[]byte(`{"header":{"msg_id":"m"}}`), false},
		"UnknownChannel": {[]byte(`{"header":{"msg_id":"m","msg_type":"t"},"channel":"iopub"}`), false},
		"HugeCount":      {offsets(1<<63, 1), true},
		"FewOffsets":     {offsets(6, 1, 2), true},
		"OffsetsTurn":    {append(offsets(3, 32, 40, 34), make([]byte, 20)...), true},
		"OffsetsBeyond":  {offsets(2, 24, 1<<62), true},
		"FewParts":       {append(offsets(2, 24, 29), []byte("shell")...), true},
		"PartNoJSON":     {layoutV1().join([][]byte{[]byte("shell"), []byte(`{"msg_id":"m","msg_type":"t"}`), []byte("{"), []byte("{}"), []byte("{}")}), true},
	} {
		for _, kind := range []websocket.MessageType{websocket.MessageBinary, websocket.MessageText} {
			if m, err := decode(kind, c.data, c.v1); err == nil {
				t.Errorf("%s as %v is accepted: %+v", name, kind, m)
			}
		}
	}
}

func TestLimitsOfMessages(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{maxIDBytes - 1: true, maxIDBytes: true, maxIDBytes + 1: false} {
		if _, err := parseHeader(fmt.Appendf(nil, `{"msg_id":%q,"msg_type":"t"}`, strings.Repeat("x", n))); (err == nil) != ok {
			t.Errorf("an id of %d bytes: %v", n, err)
		}
	}
	empty := len(`{"msg_id":"m","msg_type":"t","x":""}`)
	for n, ok := range map[int]bool{maxHeaderBytes - 1: true, maxHeaderBytes: true, maxHeaderBytes + 1: false} {
		if _, err := parseHeader(fmt.Appendf(nil, `{"msg_id":"m","msg_type":"t","x":%q}`, strings.Repeat("x", n-empty))); (err == nil) != ok {
			t.Errorf("a header of %d bytes: %v", n, err)
		}
	}
	for n, ok := range map[int]bool{MaxBuffers - 1: true, MaxBuffers: true, MaxBuffers + 1: false} {
		kind, data := encode(sample(make([][]byte, n)...), true)
		if _, err := decode(kind, data, true); (err == nil) != ok {
			t.Errorf("%d buffers: %v", n, err)
		}
	}
}

// Whatever comes in is refused, or is a message that both framings carry.
func FuzzMessages(f *testing.F) {
	for _, m := range []*message{sample(), sample([]byte{1}, nil)} {
		for _, v1 := range []bool{false, true} {
			_, data := encode(m, v1)
			f.Add(data, v1)
		}
	}
	f.Add([]byte(`{"header":{"msg_id":"m","msg_type":"t"},"buffers":{}}`), false)
	f.Fuzz(func(t *testing.T, data []byte, v1 bool) {
		m, err := decode(websocket.MessageBinary, data, v1)
		if err != nil {
			return
		}
		for _, as := range []bool{false, true} {
			kind, again := encode(&m, as)
			back, err := decode(kind, again, as)
			if err != nil || back.header.ID != m.header.ID || back.header.Type != m.header.Type || back.channel != m.channel || len(back.buffers) != len(m.buffers) {
				t.Fatalf("%q became %q: %v", data, again, err)
			}
		}
	})
}

// A header is kept longer than its message, which may be large.
func TestAHeaderIsNoPartOfItsMessage(t *testing.T) {
	t.Parallel()
	raw := json.RawMessage(`{"msg_id":"m1","msg_type":"foo"}`)
	h, err := parseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	clear(raw)
	if string(h.raw) != `{"msg_id":"m1","msg_type":"foo"}` {
		t.Errorf("the header is now %q", h.raw)
	}
}

// What is kept of a cell whose job is known is small: nobody is charged for it.
func TestWhatIsKeptOfACell(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", keptCode+1)
	atLimit := map[string]string{"a": strings.Repeat("x", keptCode-expressionWeight-1)}
	many := map[string]string{} // of small ones, which take most beside their texts
	for i := range keptCode / expressionWeight {
		many[strconv.Itoa(i)] = ""
	}
	for name, c := range map[string]struct {
		cell executeContent
		want executeContent
	}{
		"Small":           {executeContent{Code: "1", Expressions: map[string]string{"a": "b"}}, executeContent{Code: "1", Expressions: map[string]string{"a": "b"}}},
		"Large":           {executeContent{Code: large, Expressions: map[string]string{"a": large}}, executeContent{}},
		"AtTheLimit":      {executeContent{Code: large[1:], Expressions: atLimit}, executeContent{Code: large[1:], Expressions: atLimit}},
		"AboveTheLimit":   {executeContent{Expressions: map[string]string{"ab": atLimit["a"]}}, executeContent{}},
		"ManyExpressions": {executeContent{Expressions: many}, executeContent{}},
	} {
		w := &work{message: *sample([]byte(large)), cell: &c.cell, job: "job_1"}
		w.content = json.RawMessage(large)
		got := w.kept(keptCode)
		want := &work{message: message{channel: channelShell, header: w.header}, cell: &c.want, job: "job_1"}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(work{}, message{}, header{}, executeContent{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What is kept of a cell that has ended, for clients that come back, took up to 12 KiB, and a kernel may have a thousand of them.
func TestWhatIsKeptOfACellThatHasEnded(t *testing.T) {
	t.Parallel()
	s := &session{kernel: &kernel{server: &Server{cfg: Config{Now: time.Now}}}}
	for more, all := range map[int]bool{-1: true, 0: true, 1: false} {
		head, tail := `{"msg_id":"m1","msg_type":"execute_request","session":"s","odd":"`, `"}`
		h, err := parseHeader([]byte(head + strings.Repeat("x", keptEnded+more-len(head+tail)) + tail))
		if err != nil {
			t.Fatal(err)
		}
		code, expression := strings.Repeat("x", keptEnded+more), strings.Repeat("x", keptEnded+more-expressionWeight-1)
		s.over(&work{message: message{header: h}, cell: &executeContent{Code: code, Expressions: map[string]string{"a": expression}}, job: "job_1"})
		got := s.ended[len(s.ended)-1]
		if (got.cell.Code == code) != all || (got.cell.Expressions["a"] == expression) != all || bytes.Equal(got.header.raw, h.raw) != all {
			t.Errorf("of %d bytes each %d of the code, %d of the expression, and %d of the header are kept", len(code), len(got.cell.Code), len(got.cell.Expressions["a"]), len(got.header.raw))
		}
		if back, err := parseHeader(got.header.raw); err != nil || back.ID != "m1" || back.Type != h.Type || back.Session != "s" || len(got.header.raw) > keptEnded {
			t.Errorf("its header is %s: %v", got.header.raw, err)
		}
	}
	for n := range 2 * replayCells {
		s.over(&work{cell: &executeContent{}, job: strconv.Itoa(n)})
		if last := s.ended[len(s.ended)-1].job; len(s.ended) != min(n+4, replayCells) || last != strconv.Itoa(n) {
			t.Errorf("after cell %d there are %d, the last of which is %s", n, len(s.ended), last)
		}
	}
}

// Beside its bytes, which the connection counts, a message counts three times more.
func TestMessagesCountFourTimesTheirBytes(t *testing.T) {
	t.Parallel()
	const burst = 1 << 20
	text := []byte(`{"header":{"msg_id":"1","msg_type":"kernel_info_request"},"content":{}}`)
	left := rate.NewLimiter(rate.Every(time.Hour), burst)
	server := httpserver.New(httpserver.Config{Name: "test", Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), HTTP: &http.Server{
		ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			httpserver.Known(r.Context(), "", left)
			if _, _, err := newSocket(r.Context(), 0).decode(r.Context(), websocket.MessageText, text); err != nil {
				t.Error(err)
			}
			httpserver.Pay(r.Context())
			if took := burst - int(left.Tokens()); took != 3*len(text) {
				t.Errorf("%d bytes were taken for a message of %d", took, len(text))
			}
		}),
	}})
	testbed.Must(t, server.Start(t.Context()))
	t.Cleanup(server.Stop)
	answer, err := http.Get("http://" + server.Addr())
	testbed.Must(t, err)
	_ = answer.Body.Close()
}

func TestSplitReadsWhatJoinWrites(t *testing.T) {
	t.Parallel()
	parts := [][]byte{[]byte("shell"), []byte("{}"), nil, {0, 1, 2}}
	for name, l := range map[string]layout{"v1": layoutV1(), "binary": layoutBinary()} {
		data := l.join(parts)
		got, err := l.split(data, len(parts)+1)
		if err != nil || len(got) != len(parts) {
			t.Fatalf("%s: %d parts, %v", name, len(got), err)
		}
		for i := range parts {
			if !bytes.Equal(got[i], parts[i]) {
				t.Errorf("%s: part %d is %q, want %q", name, i, got[i], parts[i])
			}
		}
	}
}

// layoutV1 has an offset for the end, layoutBinary has none.
func TestSplitBoundsTheOffsets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layout layout
		limit  int
	}{"v1": {layoutV1(), 4}, "binary": {layoutBinary(), 3}} {
		for extra, want := range map[int]error{-1: nil, 0: nil, 1: errOffsets} {
			data := c.layout.join(make([][]byte, 3+extra))
			if _, err := c.layout.split(data, c.limit); !errors.Is(err, want) {
				t.Errorf("%s with %d parts: %v, want %v", name, 3+extra, err, want)
			}
		}
	}
}

func TestSplitRefusesWrongOffsets(t *testing.T) {
	t.Parallel()
	offsets := func(numbers ...uint64) []byte {
		var out []byte
		for _, n := range numbers {
			out = binary.LittleEndian.AppendUint64(out, n)
		}
		return append(out, "abcd"...)
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "half a number": {1, 2, 3}, "no offsets": offsets(0), "only the end": offsets(1, 20), "more offsets than data": offsets(1 << 60),
		"inside the offsets": offsets(2, 8, 28), "beyond the data": offsets(2, 24, 29), "backwards": offsets(3, 26, 25, 28),
	} {
		if parts, err := layoutV1().split(data, 100); !errors.Is(err, errOffsets) {
			t.Errorf("%s: %q, %v", name, parts, err)
		}
	}
	if parts, err := layoutV1().split(offsets(2, 24, 28), 100); err != nil || string(parts[0]) != "abcd" {
		t.Errorf("right offsets: %q, %v", parts, err)
	}
}
