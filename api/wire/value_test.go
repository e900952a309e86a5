package wire_test

import (
	"encoding/base64"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
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
		if diff := cmp.Diff(test.want, wire.Values(test.entries)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
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
