package blob_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func rules(days int) []blob.LifecycleRule {
	return []blob.LifecycleRule{
		{ID: "sandfarm-a", Prefix: "a/", Days: days, AbortDays: 3}, {ID: "sandfarm-b", Prefix: "b/", Days: 4, AbortDays: 3},
	}
}

// bucket answers for one bucket's lifecycle.
type bucket struct {
	mu   sync.Mutex
	xml  string // "": none
	puts []string
	fail int // a status to answer with instead
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.fail != 0:
		w.WriteHeader(b.fail)
		_, _ = fmt.Fprint(w, `<Error><Code>Whatever</Code></Error>`)
	case r.Method == http.MethodPut:
		body, _ := io.ReadAll(r.Body)
		b.xml = string(body)
		b.puts = append(b.puts, b.xml)
	case b.xml == "":
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `<Error><Code>NoSuchLifecycleConfiguration</Code></Error>`)
	default:
		_, _ = fmt.Fprint(w, b.xml)
	}
}

func serveBucket(t *testing.T, b *bucket) *blob.Store {
	t.Helper()
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	return newStore(t, newConfig(t, server.URL))
}

func TestLifecycleIsSetOnceAndKeepsOtherRules(t *testing.T) {
	t.Parallel()
	b := &bucket{xml: `<LifecycleConfiguration><Rule><ID>theirs</ID><Status>Enabled</Status><Filter><Prefix>c/</Prefix></Filter>` +
		`<Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>`}
	s := serveBucket(t, b)
	for _, c := range []struct {
		days    int
		changed bool
		want    string
	}{
		{15, true, "<Days>15</Days>"},
		{15, false, "<Days>15</Days>"},
		{16, true, "<Days>16</Days>"},
		{15, false, "<Days>16</Days>"}, // existing objects may rely on the longer life
	} {
		changed, err := s.EnsureLifecycle(t.Context(), rules(c.days)...)
		if err != nil || changed != c.changed || !strings.Contains(b.xml, c.want) {
			t.Errorf("EnsureLifecycle of %d days = %v, %v: %s", c.days, changed, err, b.xml)
		}
	}
	testbed.Diff(t, "it was set, times", 2, len(b.puts))
	for _, want := range []string{"<ID>theirs</ID>", "<Prefix>c/</Prefix>", "<Days>1</Days>", "<Prefix>a/</Prefix>", "<Prefix>b/</Prefix>", "<Days>4</Days>", "<DaysAfterInitiation>3<"} {
		if !strings.Contains(b.xml, want) {
			t.Errorf("%s is missing in %s", want, b.xml)
		}
	}
}

// Parts of a rule that the service drops are not added again; parts that somebody changed are restored.
func TestLifecycleIsRepaired(t *testing.T) {
	t.Parallel()
	rule := func(id, prefix, status string, days int) string {
		return fmt.Sprintf(`<Rule><ID>%s</ID><Status>%s</Status><Prefix>%s</Prefix><Expiration><Days>%d</Days></Expiration></Rule>`, id, status, prefix, days)
	}
	for name, c := range map[string]struct {
		a       string
		changed bool
	}{
		"AbortDropped": {rule("sandfarm-a", "a/", "Enabled", 15), false},
		"Disabled":     {rule("sandfarm-a", "a/", "Disabled", 15), true},
		"Shortened":    {rule("sandfarm-a", "a/", "Enabled", 14), true},
		"OtherPrefix":  {rule("sandfarm-a", "", "Enabled", 15), true},
		"Gone":         {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bucket{xml: "<LifecycleConfiguration>" + c.a + rule("sandfarm-b", "b/", "Enabled", 4) + "</LifecycleConfiguration>"}
			if changed, err := serveBucket(t, b).EnsureLifecycle(t.Context(), rules(15)...); err != nil || changed != c.changed {
				t.Errorf("EnsureLifecycle = %v, %v; want %v", changed, err, c.changed)
			}
		})
	}
}

// A rule that the bucket must not have is removed, and no other. If it has none of that kind, nothing changes.
func TestLifecycleRuleIsRemoved(t *testing.T) {
	t.Parallel()
	b := &bucket{xml: `<LifecycleConfiguration>` +
		`<Rule><ID>sandfarm-old</ID><Status>Enabled</Status><Prefix>old/</Prefix><Expiration><Days>9</Days></Expiration></Rule>` +
		`<Rule><ID>theirs</ID><Status>Enabled</Status><Prefix>c/</Prefix><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>`}
	s := serveBucket(t, b)
	for _, want := range []bool{true, false} {
		changed, err := s.EnsureLifecycle(t.Context(), append(rules(15), blob.LifecycleRule{ID: "sandfarm-old"})...)
		if err != nil || changed != want || strings.Contains(b.xml, "old") || strings.Count(b.xml, "<ID>") != 3 || !strings.Contains(b.xml, "theirs") {
			t.Errorf("EnsureLifecycle = %v, %v; want %v: %s", changed, err, want, b.xml)
		}
	}
	none := &bucket{}
	changed, err := serveBucket(t, none).EnsureLifecycle(t.Context(), blob.LifecycleRule{ID: "sandfarm-old"})
	testbed.Check(t, !changed && err == nil && len(none.puts) == 0, "without rules EnsureLifecycle = %v, %v, with %d writes", changed, err, len(none.puts))
}

// A service that does not support rules is distinguished from one that is unavailable.
func TestLifecycleErrors(t *testing.T) {
	t.Parallel()
	for status, never := range map[int]bool{
		http.StatusNotImplemented: true, http.StatusForbidden: true, http.StatusMethodNotAllowed: true, http.StatusBadRequest: true,
		http.StatusNotFound: false, http.StatusInternalServerError: false, http.StatusServiceUnavailable: false,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			_, err := serveBucket(t, &bucket{fail: status}).EnsureLifecycle(t.Context(), rules(1)...)
			if err == nil || errors.Is(err, blob.ErrNoLifecycle) != never {
				t.Errorf("EnsureLifecycle = %v", err)
			}
		})
	}
	embedded := newStore(t, newConfig(t, endpoint))
	testbed.Must(t, embedded.EnsureBucket(t.Context()))
	if _, err := embedded.EnsureLifecycle(t.Context(), rules(1)...); !errors.Is(err, blob.ErrNoLifecycle) {
		t.Errorf("the embedded service gives %v", err)
	}
	if _, err := newStore(t, newConfig(t, "http://127.0.0.1:1")).EnsureLifecycle(t.Context(), rules(1)...); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("a service that is down gives %v", err)
	}
	for _, bad := range []blob.LifecycleRule{{}, {Prefix: "a/", Days: 1, AbortDays: 1}, {ID: "a", Days: 1, AbortDays: 1}, {ID: "a", Prefix: "a/", AbortDays: 1}, {ID: "a", Prefix: "a/", Days: 1}, {ID: "a", Prefix: "a/"}} {
		if _, err := newStore(t, newConfig(t, endpoint)).EnsureLifecycle(t.Context(), bad); err == nil || errors.Is(err, blob.ErrNoLifecycle) {
			t.Errorf("%+v gives %v", bad, err)
		}
	}
}

// labels presigns a link, which shows how a download will be labelled.
func labels(t *testing.T, opts blob.PresignOptions) (kind, disposition string) {
	t.Helper()
	s := newStore(t, newConfig(t, "http://127.0.0.1:1"))
	link, err := s.Presign(t.Context(), "dir/key.bin", opts)
	testbed.Must(t, err)
	u, err := url.Parse(link)
	testbed.Must(t, err)
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
