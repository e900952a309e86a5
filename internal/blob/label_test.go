package blob_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
)

// labels presigns a link, which shows how a download will be labelled.
func labels(t *testing.T, opts blob.PresignOptions) (kind, disposition string) {
	t.Helper()
	s := newStore(t, newConfig(t, "http://127.0.0.1:1"))
	link, err := s.Presign(t.Context(), "dir/key.bin", opts)
	if err != nil {
		t.Fatalf("Presign: %v", err)
	}
	u, err := url.Parse(link)
	if err != nil {
		t.Fatalf("parse link: %v", err)
	}
	return u.Query().Get("response-content-type"), u.Query().Get("response-content-disposition")
}

func TestSafeTypes(t *testing.T) {
	t.Parallel()
	const stream = "application/octet-stream"
	for given, want := range map[string]string{
		"":                               stream,
		"nonsense":                       stream,
		"text":                           stream,
		"a/b/c":                          stream,
		"text/html":                      stream,
		"TEXT/HTML; charset=utf-8":       stream,
		"application/xhtml+xml":          stream,
		"image/svg+xml":                  stream,
		"text/xml":                       stream,
		"application/xml":                stream,
		"application/rss+xml":            stream,
		"application/xml-dtd":            stream,
		"text/xsl":                       stream,
		"text/javascript":                stream,
		"application/javascript":         stream,
		"application/x-javascript":       stream,
		"application/ecmascript":         stream,
		"multipart/related":              stream,
		"message/rfc822":                 stream,
		"x-world/x-vrml":                 stream,
		"text/plain":                     "text/plain",
		"text/csv; charset=UTF-8":        "text/csv; charset=UTF-8",
		`text/csv; charset="a\r\nb"`:     "text/csv",
		"text/csv; header=present":       "text/csv",
		"application/json":               "application/json",
		"application/pdf":                "application/pdf",
		"application/zip":                "application/zip",
		"image/png; x=y":                 "image/png",
		"audio/wav":                      "audio/wav",
		"application/vnd.apache.parquet": "application/vnd.apache.parquet",
		"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	} {
		if got, _ := labels(t, blob.PresignOptions{ContentType: given}); got != want {
			t.Errorf("type %q = %q, want %q", given, got, want)
		}
	}
}

func TestFilenames(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"":                 `attachment; filename="key.bin"; filename*=UTF-8''key.bin`,
		"..":               `attachment; filename="key.bin"; filename*=UTF-8''key.bin`,
		"/":                `attachment; filename="key.bin"; filename*=UTF-8''key.bin`,
		"a.csv":            `attachment; filename="a.csv"; filename*=UTF-8''a.csv`,
		"../../etc/passwd": `attachment; filename="passwd"; filename*=UTF-8''passwd`,
		`C:\dir\a.csv`:     `attachment; filename="a.csv"; filename*=UTF-8''a.csv`,
		"ü.csv":            `attachment; filename="_.csv"; filename*=UTF-8''%C3%BC.csv`,
		`a\b"c`:            `attachment; filename="b_c"; filename*=UTF-8''b%22c`,
		"a\r\nX: y":        `attachment; filename="aX: y"; filename*=UTF-8''aX%3A%20y`,
		"50%41":            `attachment; filename="50_41"; filename*=UTF-8''50%2541`,
		"x\u202Egnp.exe":   `attachment; filename="xgnp.exe"; filename*=UTF-8''xgnp.exe`,
		"a\xffb":           `attachment; filename="a_b"; filename*=UTF-8''a_b`,
		"it's (1)*.txt":    `attachment; filename="it's (1)*.txt"; filename*=UTF-8''it%27s%20%281%29%2A.txt`,
	} {
		if _, got := labels(t, blob.PresignOptions{Filename: given}); got != want {
			t.Errorf("name %q =\n %s, want\n %s", given, got, want)
		}
	}
	_, got := labels(t, blob.PresignOptions{Filename: strings.Repeat("日", 100) + ".csv"})
	if !strings.HasSuffix(got, ".csv") || strings.Count(got, "%") != 3*65 {
		t.Errorf("long name = %s, want 65 whole characters and the extension", got)
	}
}
