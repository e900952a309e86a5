package api_test

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestFilesAreShownWhereTheyDoNoHarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	for name, want := range map[string]struct{ kind, shown string }{
		"a.png":             {"image/png", "inline"},
		"a.csv":             {"text/csv; charset=utf-8", "inline"},
		"报告 1 (终).TXT":      {"text/plain; charset=utf-8", "inline"},
		"100%\"+\\a;b.json": {"application/json", "inline"},
		"a.xlsx":            {"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "inline"},
		"noext":             {"application/octet-stream", "inline"},
		".hidden":           {"application/octet-stream", "inline"},
		"a.html":            {"application/octet-stream", "attachment"},
		"a.SVG":             {"application/octet-stream", "attachment"},
		"a.js":              {"application/octet-stream", "attachment"},
		"a.xhtml":           {"application/octet-stream", "attachment"},
		"a.xml":             {"application/octet-stream", "attachment"},
	} {
		get[wire.FileEntry](b, http.StatusCreated, "PUT", "/v1/sandboxes/"+box+"/files/"+url.PathEscape(name), []byte("x"))
		answer, text := b.do("GET", "/sandbox/file?"+url.Values{"sandbox_id": {box}, "file_path": {"/app/results/" + name}}.Encode(), nil)
		given := answer.Header.Get("Content-Disposition")
		shown, params, err := mime.ParseMediaType(given)
		if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != want.kind || err != nil || shown != want.shown || params["filename"] != name {
			t.Errorf("%s: %d %q %q %v %s", name, answer.StatusCode, answer.Header.Get("Content-Type"), given, err, text)
		}
		if !strings.Contains(given, "; filename*=UTF-8''") || strings.ContainsFunc(given, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%s: %q", name, given)
		}
		answer, _ = b.do("GET", "/v1/sandboxes/"+box+"/files/"+url.PathEscape(name), nil)
		if shown, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Disposition")); shown != "attachment" {
			t.Errorf("%s: /v1 shows it %s", name, shown)
		}
	}
}
