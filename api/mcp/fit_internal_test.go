package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// limit is that of results, small so that the tests are fast.
const limit = 64 << 10

func TestResultsThatFitAreNotChanged(t *testing.T) {
	t.Parallel()
	long := func(n int) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(strings.Repeat("x", n))}}
	}
	room := limit - encodedLen(long(0))
	for more, same := range map[int]bool{-1: true, 0: true, 1: false} {
		r := long(room + more)
		fit(r, limit)
		if stays := reflect.DeepEqual(long(room+more), r); stays != same || encodedLen(r) > limit {
			t.Errorf("%+d bytes: %d bytes now, as it was: %t", more, encodedLen(r), stays)
		}
	}
}

// The library escapes <, > and & of the texts of a result, and of what is structured in it. What there is no memory for is shortened.
func TestEscapesOfALargeResultAreCharged(t *testing.T) {
	t.Parallel()
	const more = 10 // for each <: five, in the encoder and in the answer
	for _, c := range []struct {
		size, charged int
		structured    any
		held          int64
		short         bool
	}{
		{budget.SmallBytes, 0, nil, 0, false},
		{budget.SmallBytes + 1, more * (budget.SmallBytes + 1), nil, 0, false},
		{budget.SmallBytes + 1, 2 * more * (budget.SmallBytes + 1), map[string]any{}, 0, false},
		{1 << 20, 0, nil, 24 << 20, true},
	} {
		ctx, hold := budget.New(64<<20).With(t.Context(), "acme", 0)
		testbed.Must(t, budget.Charge(ctx, c.held))
		before := hold.Bytes()
		got, err := fitted(func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(strings.Repeat("<", c.size))}, StructuredContent: c.structured}, nil
		})(ctx, mcp.CallToolRequest{})
		testbed.Must(t, err)
		short := encodedLen(got) <= budget.SmallBytes && len(got.Content) == 2 && reflect.DeepEqual(got.Content[1], mcp.NewTextContent(tooLong))
		if got.IsError || short != c.short || hold.Bytes()-before != int64(c.charged) {
			t.Errorf("of %d bytes %d are charged, and %d are left in %d blocks; want %d, short %v", c.size, hold.Bytes()-before, encodedLen(got), len(got.Content), c.charged, c.short)
		}
		hold.Release()
	}
}

// oldShape is an answer of a toolset: its text is JSON.
func oldShape(t *testing.T, stdout string, files int) *mcp.CallToolResult {
	t.Helper()
	list := []string{}
	for i := range files {
		list = append(list, fmt.Sprintf("/app/results/%s/%d", strings.Repeat("f", 200), i))
	}
	type shape struct {
		Stdout   string   `json:"stdout"`
		ExitCode int      `json:"exit_code"`
		Files    []string `json:"files"`
	}
	value := shape{stdout, 3, list}
	text, err := farm.Encode(value)
	if err != nil {
		t.Fatal(err)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(string(text))}, StructuredContent: value}
}

func TestLongAnswersInJSONStayJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stdout string
		files  int
		cut    bool
	}{
		"Text":     {"begin" + strings.Repeat("x", 64<<10) + "end", 1, true},
		"Chinese":  {"begin" + strings.Repeat("图", 32<<10) + "end", 1, true},
		"Controls": {"begin" + strings.Repeat("\x00", 16<<10) + "end", 1, true},
		"Files":    {"begin end", 500, false},
		"Both":     {"begin" + strings.Repeat("\"\n", 16<<10) + "end", 500, true},
	} {
		r := oldShape(t, test.stdout, test.files)
		fit(r, limit)
		if n := encodedLen(r); n > limit || n < limit/20 {
			t.Errorf("%s: %d bytes", name, n)
		}
		text, _ := r.Content[0].(mcp.TextContent)
		if r.StructuredContent != nil {
			t.Errorf("%s: it has everything twice", name)
		}
		var got struct {
			Stdout   string
			ExitCode int `json:"exit_code"`
			Files    []string
		}
		if err := json.Unmarshal([]byte(text.Text), &got); err != nil || got.ExitCode != 3 {
			t.Errorf("%s: %v, exit code %d", name, err, got.ExitCode)
		}
		if !strings.HasPrefix(got.Stdout, "begin") || !strings.HasSuffix(got.Stdout, "end") || strings.Contains(got.Stdout, "left out") != test.cut {
			t.Errorf("%s: stdout has %d bytes", name, len(got.Stdout))
		}
		if len(got.Files) == 0 || len(got.Files) > test.files || (len(got.Files) < test.files) != (test.files > 1) {
			t.Errorf("%s: %d files", name, len(got.Files))
		}
		if note, _ := r.Content[len(r.Content)-1].(mcp.TextContent); len(r.Content) != 2 || note.Text != tooLong {
			t.Errorf("%s: nothing tells that it was cut", name)
		}
	}
}

func TestRepeatedContentIsDropped(t *testing.T) {
	t.Parallel()
	r := oldShape(t, strings.Repeat("x", limit*3/4), 1)
	want := r.Content[0]
	fit(r, limit)
	if r.StructuredContent != nil || len(r.Content) != 1 || !reflect.DeepEqual(want, r.Content[0]) {
		t.Errorf("%d blocks, %d bytes", len(r.Content), encodedLen(r))
	}
}

func TestPicturesAreDroppedFirstAndStreamsAreMarked(t *testing.T) {
	t.Parallel()
	picture := func(n int) mcp.Content { return mcp.NewImageContent(strings.Repeat("A", n), "image/png") }
	answer := func(stdout string, blocks ...mcp.Content) *mcp.CallToolResult {
		return &mcp.CallToolResult{
			Content: append([]mcp.Content{mcp.NewTextContent("Job job_1: completed.")}, blocks...),
			StructuredContent: map[string]any{
				"stdout": stdout, "stderr": "", "truncated": map[string]any{"stdout": false, "stderr": false},
			},
		}
	}
	r := answer("short", picture(60_000), picture(90_000), picture(3_000))
	fit(r, limit)
	if len(r.Content) != 4 || encodedLen(r) > limit || !reflect.DeepEqual(answer("short").StructuredContent, r.StructuredContent) {
		t.Errorf("%d blocks, %d bytes", len(r.Content), encodedLen(r))
	}
	r = answer(strings.Repeat("x", 64<<10), picture(900_000))
	fit(r, limit)
	var got struct{ Truncated map[string]bool }
	text, _ := json.Marshal(r.StructuredContent)
	if err := json.Unmarshal(text, &got); err != nil || !got.Truncated["stdout"] || got.Truncated["stderr"] || len(r.Content) != 2 {
		t.Errorf("%v %v %d blocks", err, got, len(r.Content))
	}
}

func TestPicturesAreDroppedAsAWhole(t *testing.T) {
	t.Parallel()
	const long = 100_000
	r := &mcp.CallToolResult{Content: []mcp.Content{mcp.NewTextContent(fmt.Sprintf(`{"stdout":%q,"results":[{"type":"image/png","data":%q,"url":"u"},{"type":"text/plain","data":%q}]}`,
		strings.Repeat("A", long), strings.Repeat("A", long), "begin "+strings.Repeat("A", long)))}}
	fit(r, limit)
	var got struct {
		Stdout  string
		Results []struct{ Data, URL string }
	}
	text, _ := r.Content[0].(mcp.TextContent)
	if err := json.Unmarshal([]byte(text.Text), &got); err != nil || len(got.Results) != 2 || encodedLen(r) > limit {
		t.Fatalf("%v: %d bytes", err, encodedLen(r))
	}
	if picture := got.Results[0]; !strings.HasPrefix(picture.Data, "[100000 bytes left out") || picture.URL != "u" {
		t.Errorf("the picture is %.80q", picture.Data)
	}
	if !strings.HasPrefix(got.Stdout, "AAAA") || !strings.HasPrefix(got.Results[1].Data, "begin AAAA") {
		t.Errorf("texts are %.80q and %.80q", got.Stdout, got.Results[1].Data)
	}
}
