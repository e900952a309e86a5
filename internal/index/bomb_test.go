package index_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/index"
)

// A base of a MiB before links of some bytes made addresses of a TiB of a page of some MiB.
func TestLinksThatGrowAreBounded(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("https://index.example/simple/x/")
	if err != nil {
		t.Fatal(err)
	}
	page := func(base, links int) (index.Page, error) {
		text := `<meta name="pypi:repository-version" content="1.0"><base href="/` + strings.Repeat("a", base) + `/">` + strings.Repeat("<a href=a.whl>", links)
		return index.ParsePyPI(strings.NewReader(text), "text/html", at)
	}
	if p, err := page(1000, 10); err != nil || len(p.Names()) != 10 {
		t.Fatalf("%v of an ordinary page, %v", p.Names(), err)
	}
	if p, err := page(1<<19, 1000); err != nil || strings.Contains(strings.Join(p.Links(), ""), "aaaa") {
		t.Errorf("a base of half a MiB counts, %v", err)
	}
	if _, err := page(4000, 100_000); err == nil || !strings.Contains(err.Error(), "links") {
		t.Errorf("400 MiB of addresses: %v", err)
	}
	json := `{"meta":{"api-version":"1.1"},"files":[` + strings.TrimSuffix(strings.Repeat(`{"filename":"a.whl","url":"a"},`, 40_000), ",") + `]}`
	at.Path = "/" + strings.Repeat("b", 4000) + "/"
	if _, err := index.ParsePyPI(strings.NewReader(json), "application/json", at); err == nil || !strings.Contains(err.Error(), "links") {
		t.Errorf("160 MiB of addresses: %v", err)
	}
	at.Path = "/" + strings.Repeat("b", 8000) + "/"
	if p, err := index.ParsePyPI(strings.NewReader(json), "application/json", at); err != nil || len(p.Names()) != 0 {
		t.Errorf("addresses of 8000 bytes: %d, %v", len(p.Names()), err)
	}
}

// Metadata without a hash of its own is kept for its file. A page that claims another project's hash must not put its own
// in the place of that.
func TestMetadataWithoutAHashIsNotSharedBetweenPages(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	hash := sha([]byte("wheel"))
	for _, project := range []string{"good", "bad"} {
		u.page(project, "application/vnd.pypi.simple.v1+json", fmt.Sprintf(`{"meta":{"api-version":"1.1"},"name":%q,"files":[`+
			`{"filename":"x-1.0-py3-none-any.whl","url":"%s/%s.whl","hashes":{"sha256":%q},"core-metadata":true}]}`, project, u.URL, project, hash))
		u.mux.HandleFunc("/"+project+".whl.metadata", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "Requires-Dist: %s-dependency\n", project)
		})
	}
	cfg := u.config()
	cache := newMemory()
	cfg.Cache = cache
	x, address := serve(t, cfg)
	file := "/x-1.0-py3-none-any.whl.metadata"
	if got := get(t, address+"/pypi/files/bad"+file); got != "Requires-Dist: bad-dependency\n" {
		t.Fatalf("metadata %q", got)
	}
	eventually(t, "it is kept", func() bool { return x.Spooled() == 0 })
	for range 2 {
		if got := get(t, address+"/pypi/files/good"+file); got != "Requires-Dist: good-dependency\n" {
			t.Errorf("metadata %q", got)
		}
	}
}
