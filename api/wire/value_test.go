package wire_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestEntriesAreGroupedByTheirValue(t *testing.T) {
	t.Parallel()
	rich := func(display int, mime, data string) wire.Rich {
		return wire.Rich{Display: display, Mime: mime, Data: data}
	}
	for name, test := range map[string]struct {
		entries []wire.Rich
		want    []wire.Value
	}{
		"None": {nil, []wire.Value{}},
		"One":  {[]wire.Rich{rich(0, "text/plain", "a"), rich(0, "image/png", "b")}, []wire.Value{{rich(0, "text/plain", "a"), rich(0, "image/png", "b")}}},
		"Two": {
			[]wire.Rich{rich(0, "text/plain", "a"), rich(0, "image/png", "b"), rich(1, "text/plain", "c")},
			[]wire.Value{{rich(0, "text/plain", "a"), rich(0, "image/png", "b")}, {rich(1, "text/plain", "c")}},
		},
		"Updated": {
			[]wire.Rich{rich(0, "text/plain", "old"), rich(1, "text/plain", "between"), rich(0, "text/plain", "new")},
			[]wire.Value{{rich(0, "text/plain", "new")}, {rich(1, "text/plain", "between")}},
		},
		"Gap": {[]wire.Rich{rich(3, "text/plain", "a"), rich(1, "text/plain", "b")}, []wire.Value{{rich(1, "text/plain", "b")}, {rich(3, "text/plain", "a")}}},
	} {
		testbed.Diff(t, name, test.want, wire.Values(test.entries))
	}
}

func TestTheTextOfAnEntry(t *testing.T) {
	t.Parallel()
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, test := range []struct {
		mime, data, want string
		ok               bool
	}{
		{"text/plain", "40", "40", true},
		{"text/html", "<b>", "<b>", true},
		{"application/json", b64(`{"a":1}`), `{"a":1}`, true},
		{"application/geo+json", b64(`{}`), `{}`, true},
		{"image/svg+xml", b64("<svg/>"), "<svg/>", true},
		{"image/svg+xml", "<svg/>", "<svg/>", true},
		{"image/png", b64("\x89PNG"), "", false},
		{"text/plain", "", "", false},
	} {
		if got, ok := (wire.Rich{Mime: test.mime, Data: test.data}).Text(); got != test.want || ok != test.ok {
			t.Errorf("%s %q: %q, %t", test.mime, test.data, got, ok)
		}
	}
}

func TestDisplayedValueHasDataOrALink(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		`{"display":0,"mime":"text/plain","data":""}`:                              wire.Rich{Mime: "text/plain"},
		`{"display":0,"mime":"text/plain","data":"42"}`:                            wire.Rich{Mime: "text/plain", Data: "42"},
		`{"display":0,"mime":"image/png","artifact_id":"art_1","url":"http://x/"}`: wire.Rich{Mime: "image/png", ArtifactID: "art_1", URL: "http://x/"},
		`{"display":0,"mime":"text/html","data":""}`:                               wire.DisplayData{Mime: "text/html"},
		`{"display":2,"mime":"text/html","data":""}`:                               wire.DisplayData{Display: 2, Mime: "text/html"},
		`{"display":1,"mime":"text/html","data":"a"}`:                              wire.Rich{Display: 1, Mime: "text/html", Data: "a"},
		`{"display":0,"mime":"text/html","artifact_id":"art_2","url":"http://x/"}`: wire.DisplayData{Mime: "text/html", ArtifactID: "art_2", URL: "http://x/"},
		`{"display":0,"mime":"a/b","display_id":"n","metadata":{"a":1},"data":""}`: wire.Rich{Mime: "a/b", DisplayID: "n", Metadata: []byte(`{"a":1}`)},
		`{"display":0,"mime":"a/b","display_id":"n","update":true,"data":""}`:      wire.DisplayData{Mime: "a/b", DisplayID: "n", Update: true},
		`{"display":0,"mime":"a/b","data":"x","display_id":"n","update":true}`:     wire.DisplayData{Mime: "a/b", Data: "x", DisplayID: "n", Update: true},
		`{"wait":false}`: wire.ClearData{},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%+v is written as %s, %v; want %s", value, got, err, want)
		}
	}
}

// A value is mostly text with <, > and &, which take six bytes each where they are escaped for HTML.
func TestValuesAreNotEscapedForHTML(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		`"data":"<&>"`:       wire.Rich{Mime: "text/html", Data: "<&>"},
		`"mime":"text/html"`: wire.Rich{Mime: "text/html"},
		`"data":"<b>"`:       wire.DisplayData{Mime: "text/html", Data: "<b>"},
		`"url":"/x?a=1&b=2"`: wire.DisplayData{URL: "/x?a=1&b=2"},
		`"data":""`:          wire.DisplayData{},
	} {
		data, err := farm.Encode(v)
		testbed.Check(t, err == nil && strings.Contains(string(data), want), "%s has no %s: %v", data, want, err)
	}
}
