package verbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// terminal is what a terminal shows of what is written to it, with the lines that have scrolled away.
type terminal struct {
	width, height int
	lines         [][]rune
	row, column   int
}

func (v *terminal) Write(p []byte) (int, error) {
	text := string(p)
	for len(text) > 0 {
		if strings.HasPrefix(text, "\x1b[") {
			end := strings.IndexAny(text, "ACJmK")
			n, _ := strconv.Atoi(text[2:end])
			switch text[end] {
			case 'A':
				v.row = max(v.row-n, len(v.lines)-v.height, 0)
			case 'C':
				v.column = min(v.column+n, v.width-1)
			case 'J':
				v.lines = v.lines[:v.row+1]
				v.lines[v.row] = v.lines[v.row][:min(v.column, len(v.lines[v.row]))]
			}
			text = text[end+1:]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch r {
		case '\n':
			v.row, v.column = v.row+1, 0
		case '\r':
			v.column = 0
		case '\t':
			v.column = min((v.column/8+1)*8, v.width-1)
		default:
			columns := columnsOf(r)
			if v.column+columns > v.width {
				v.row, v.column = v.row+1, 0
			}
			v.line()
			for len(v.lines[v.row]) < v.column+columns {
				v.lines[v.row] = append(v.lines[v.row], ' ')
			}
			v.lines[v.row][v.column] = r
			v.column += columns
		}
		v.line()
	}
	return len(p), nil
}

func (v *terminal) line() {
	for len(v.lines) <= v.row {
		v.lines = append(v.lines, nil)
	}
}

func (v *terminal) String() string {
	var b strings.Builder
	for _, line := range v.lines {
		fmt.Fprintln(&b, strings.TrimRight(string(line), " "))
	}
	return strings.TrimRight(b.String(), "\n")
}

func newTerminal(width, height int) (*terminal, *canvas) {
	v := &terminal{width: width, height: height}
	return v, &canvas{out: v, errs: v, size: func() (int, int) { return width, height }}
}

// following sends events to a follower.
func following(t *testing.T, f *follower, events ...any) {
	t.Helper()
	for _, data := range events {
		name := "stdout"
		switch data := data.(type) {
		case wire.DisplayData:
			name = "display"
		case wire.ClearData:
			name = "clear"
		case wire.TextData:
			if strings.HasPrefix(data.Text, "!") {
				name = "stderr"
			}
		}
		raw, err := json.Marshal(data)
		if err == nil {
			err = f.show(t.Context(), wire.Event{Name: name, Data: raw})
		}
		testbed.Must(t, err)
	}
}

func value(number int, text string) wire.DisplayData {
	return wire.DisplayData{Display: number, Mime: "text/plain", Data: text}
}

func printed(text string) wire.TextData { return wire.TextData{Text: text} }

func TestATerminalShowsTheLastState(t *testing.T) {
	t.Parallel()
	now, wait := wire.ClearData{}, wire.ClearData{Wait: true}
	for name, c := range map[string]struct {
		events []any
		want   string
	}{
		"update":                {[]any{value(0, "1"), value(0, "2"), value(0, "3")}, "3"},
		"update of two":         {[]any{value(0, "a1"), value(1, "b1"), value(0, "a2"), value(1, "b2"), value(0, "a3")}, "a3\nb2"},
		"update before text":    {[]any{value(0, "1"), printed("text\n"), printed("!more"), value(0, "2\n22")}, "2\n22\ntext\n!more"},
		"update that is less":   {[]any{value(0, "1\n2\n3"), printed("text"), value(0, "4")}, "4\ntext"},
		"update in a line":      {[]any{printed("bar: "), value(0, "1"), value(0, "2")}, "bar: 2"},
		"update of wide text":   {[]any{value(0, "日本語日本語"), printed("a"), value(0, "語")}, "語\na"},
		"update in colours":     {[]any{printed("\x1b[31mred\x1b[0m "), value(0, "\x1b[1m1\x1b[0m"), value(0, "2")}, "red 2"},
		"update of a full line": {[]any{value(0, "0123456789"), value(0, "0123456789"), printed("x")}, "0123456789\nx"},
		"update of long lines":  {[]any{value(0, "0123456789abc"), printed("text\n"), value(0, "1")}, "1\ntext"},
		"update out of sight":   {[]any{value(0, "1"), printed("a\nb\nc\nd\ne\n"), value(0, "2"), value(0, "3")}, "1\na\nb\nc\nd\ne\n3"},
		"clear":                 {[]any{printed("a\nb"), value(0, "1"), now, printed("c\n")}, "c"},
		"clear to the end":      {[]any{printed("a\n"), now}, ""},
		"wait":                  {[]any{printed("a\n"), wait}, "a"},
		"wait, then text":       {[]any{printed("a\n"), wait, printed("!b\n")}, "!b"},
		"wait, then update":     {[]any{printed("a\n"), value(0, "1"), wait, value(0, "2")}, "a\n2"},
		"animation":             {[]any{value(0, "1"), wait, value(1, "2"), wait, value(2, "3"), wait, value(3, "4\n")}, "4"},
		"clear of a long text":  {[]any{printed("a\nb\nc\nd\ne\nf\n"), now, printed("x")}, "a\nb\nc\nx"},
		"text that moves":       {[]any{printed("a\n\x1b[2C"), value(0, "1"), now, printed("b")}, "a\nb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, drawing := newTerminal(10, 4)
			f := &follower{app: &app{Streams: Streams{Out: v, Err: v}}, results: true, printed: map[string]int64{}, canvas: drawing}
			following(t, f, c.events...)
			testbed.Diff(t, "screen", c.want, v.String())
		})
	}
}

// A pipe gets every state, one after the other.
func TestAPipeGetsEveryState(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	f := &follower{app: &app{Streams: Streams{Out: &out, Err: &errs}}, results: true, printed: map[string]int64{}}
	following(t, f, value(0, "1"), value(0, "2"), wire.ClearData{Wait: true}, printed("a\n"), wire.ClearData{}, printed("!b\n"))
	if out.String() != "1\n2\na\n" || errs.String() != "!b\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
}

// Whatever is written, the screen is the same as if the last states alone had been written, while nothing scrolls away.
func TestDrawingIsTheSameAsWritingTheLastState(t *testing.T) {
	t.Parallel()
	words := []string{"a", "bc\n", "日本 ", "a line that is too long\n", "\tx", "\n", "\x1b[1mbold\x1b[0m"}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		v, c := newTerminal(12, 1000)
		var want []string // by part
		at := map[int]int{}
		for range 30 {
			text := words[rng.IntN(len(words))]
			if rng.IntN(3) > 0 {
				want = append(want, text)
				testbed.Must(t, c.write(v, text))
				continue
			}
			number := rng.IntN(4)
			text = strings.TrimSpace(text) + "\n"
			if text == "\n" { // behind a full line, it is no line of its own
				text = "v\n"
			}
			if i, known := at[number]; known {
				want[i] = text
			} else {
				at[number] = len(want)
				want = append(want, text)
			}
			testbed.Must(t, c.show(number, text))
		}
		plain := &terminal{width: 12, height: 1000}
		if _, _ = plain.Write([]byte(strings.Join(want, ""))); plain.String() != v.String() {
			t.Fatalf("seed %d (-want +got):\n%s", seed, cmp.Diff(plain.String(), v.String()))
		}
	}
}

// What is kept to be drawn again is bounded, and so is what is written for an update.
func TestACanvasKeepsLittle(t *testing.T) {
	t.Parallel()
	for size, kept := range map[int]bool{maxKept - 3: true, maxKept - 2: true, maxKept - 1: false} {
		v, c := newTerminal(80, 24)
		testbed.Must(t, c.show(0, "1\n"))
		testbed.Must(t, c.write(v, strings.Repeat("\r", size)))
		if (len(c.parts) > 0) != kept || c.kept > maxKept {
			t.Errorf("after %d bytes: %d parts, %d bytes", size, len(c.parts), c.kept)
		}
	}
	_, c := newTerminal(80, 24)
	for n := range 100_000 {
		testbed.Must(t, c.show(n, "value\n"))
	}
	if len(c.parts) > 24 || c.kept > 24*len("value\n") {
		t.Errorf("%d parts of %d bytes are kept", len(c.parts), c.kept)
	}
}

// farmOnAndOff answers as a farm that runs job_1 and is down from a second to an end.
type farmOnAndOff struct {
	begun time.Time
	down  time.Duration
}

func (f farmOnAndOff) RoundTrip(r *http.Request) (*http.Response, error) {
	at := time.Since(f.begun)
	text := `{"id":"job_1","state":"completed"}`
	switch {
	case at >= time.Second && at < f.down:
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	case strings.HasSuffix(r.URL.Path, "/events") && at < time.Second:
		text = "id: 1-1\nevent: stdout\ndata: {\"text\":\"a\"}\n\n"
		time.Sleep(time.Second)
	case strings.HasSuffix(r.URL.Path, "/events"):
		text = "id: 2-1\nevent: stdout\ndata: {\"text\":\"b\"}\n\nid: 3-1\nevent: state\ndata: {\"state\":\"completed\"}\n\n"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// TestAJobIsFollowedThroughARestartOfTheFarm: the program ended at once, and advised to start a farm.
func TestAJobIsFollowedThroughARestartOfTheFarm(t *testing.T) {
	t.Parallel()
	const waits = "sandfarm: the farm does not answer; waiting for it, for up to a minute\n"
	for name, test := range map[string]struct {
		down             time.Duration
		out, said, error string
	}{
		"Short":   {2 * time.Second, "ab", "", ""},
		"Long":    {50 * time.Second, "ab", waits, ""},
		"TooLong": {time.Hour, "a", waits, "the farm does not answer; the job job_1 goes on: sandfarm job events job_1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var out, stderr bytes.Buffer
				a := &app{Streams: Streams{Out: &out, Err: &stderr}}
				transport := farmOnAndOff{begun: time.Now(), down: test.down}
				c, err := client.New("http://farm", client.WithHTTPClient(&http.Client{Transport: transport}), client.WithRetryNotice(a.sayRetry))
				testbed.Must(t, err)
				_, err = a.follower(c, true).do(t.Context(), func(context.Context) (wire.Job, error) { return wire.Job{ID: "job_1", State: "running"}, nil })
				text := ""
				if err != nil {
					text = Sentence(err, c.URL())
				}
				testbed.Diff(t, "stdout, stderr, error", []string{test.out, test.said, test.error}, []string{out.String(), stderr.String(), text})
			})
		})
	}
}
