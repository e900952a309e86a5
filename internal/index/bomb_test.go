package index_test

import (
	"compress/gzip"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A page of a few MiB whose base has a MiB, before links of a few bytes, once expanded to a TiB of addresses.
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

// Responses of a hostile index are limited in size after decompression, and so are the headers that are kept.
func TestAnswersThatGrowAreBounded(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mux.HandleFunc("/simple/zeros/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		for range 256 {
			if _, err := z.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	tags := 0
	u.mux.HandleFunc("/simple/tagged/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			tags++
		}
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("ETag", `"`+strings.Repeat("e", 30_000)+`"`)
		_, _ = w.Write([]byte(`<a href="a-1.0.zip">a</a>`))
	})
	u.mux.HandleFunc("/simple/headed/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("h", 1<<20))
	})
	cfg := u.config()
	cfg.PageAge = time.Nanosecond
	cfg.Client = nil
	x, err := index.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	address := serveHandler(t, x)
	for _, project := range []string{"zeros", "headed"} {
		if a := ask(t, http.MethodGet, address+"/pypi/simple/"+project+"/"); a.status != http.StatusBadGateway && a.status != http.StatusGatewayTimeout {
			t.Errorf("%s: status %d, %.100q", project, a.status, a.body)
		}
	}
	for range 2 {
		get(t, address+"/pypi/simple/tagged/")
	}
	if tags != 0 {
		t.Error("an ETag of 30 kB is kept")
	}
}

// A caller can cause a warning with each request, but cannot fill the disk with them.
func TestWarningsArePaced(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mux.HandleFunc("/simple/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	log := &logged{}
	cfg := u.config()
	cfg.Logger = log.logger()
	_, address := serve(t, cfg)
	for i := range 300 {
		ask(t, http.MethodGet, fmt.Sprintf("%s/pypi/simple/p%d/", address, i))
	}
	if n := log.has("level=WARN"); n < 20 || n > 60 {
		t.Errorf("%d warnings of 300 requests", n)
	}
}

// Metadata without a hash of its own is cached by the hash of its file. A page that claims the hash of another project's file must
// not replace that file's metadata.
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
	testbed.Until(t, "it is kept", func() bool { return x.Spooled() == 0 })
	for range 2 {
		if got := get(t, address+"/pypi/files/good"+file); got != "Requires-Dist: good-dependency\n" {
			t.Errorf("metadata %q", got)
		}
	}
}
