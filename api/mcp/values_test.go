package mcp_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Two displayed values used to look like one: the HTML of b was left out because a, another value, had a plain text.
func TestDisplayedValuesAreSeparated(t *testing.T) {
	t.Parallel()
	r := python(setup(t, executed(wire.ExecuteResult{Results: []wire.Rich{
		{Display: 0, Mime: "image/png", Data: b64([]byte("\x89PNG a"))},
		{Display: 0, Mime: "text/plain", Data: "<Figure a>"},
		{Display: 1, Mime: "image/png", Data: b64([]byte("\x89PNG b"))},
		{Display: 1, Mime: "text/html", Data: "<b>b</b>"},
		{Display: 2, Mime: "text/plain", Data: "42"},
		{Display: 2, Mime: "text/html", Data: "<i>42</i>"},
	}})), nil)
	for _, want := range []string{
		"result 1 (text/plain):\n<Figure a>\nresult 1 is image 1 of this answer.\n",
		"result 2 (text/html):\n<b>b</b>\nresult 2 is image 2 of this answer.\n",
		"result 3 (text/plain):\n42\n",
	} {
		if !strings.Contains(textOf(r), want) {
			t.Errorf("the text lacks %q:\n%s", want, textOf(r))
		}
	}
	if strings.Contains(textOf(r), "<i>") {
		t.Errorf("a value is in the text twice:\n%s", textOf(r))
	}
	if got := len(blocksOf[protocol.ImageContent](r)); got != 2 {
		t.Errorf("%d images", got)
	}
	want := []any{
		map[string]any{"display": 0.0, "mime": "text/plain", "data": "<Figure a>"},
		map[string]any{"display": 1.0, "mime": "text/html", "data": "<b>b</b>"},
		map[string]any{"display": 2.0, "mime": "text/plain", "data": "42"},
		map[string]any{"display": 2.0, "mime": "text/html", "data": "<i>42</i>"},
	}
	if diff := cmp.Diff(want, field(t, r, "results")); diff != "" {
		t.Error(diff)
	}
}

// JSON and SVG used to be in the text in base64, as on the wire.
func TestMarkupIsPlainInTheText(t *testing.T) {
	t.Parallel()
	for mime, data := range map[string]string{"application/json": `{"rows":3}`, "image/svg+xml": "<svg></svg>"} {
		encoded := base64.StdEncoding.EncodeToString([]byte(data))
		r := python(setup(t, executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: mime, Data: encoded}}})), nil)
		if !strings.Contains(textOf(r), data) || strings.Contains(textOf(r), encoded) {
			t.Errorf("%s: %s", mime, textOf(r))
		}
	}
}
