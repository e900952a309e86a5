package blob_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// newLinks makes Links whose pace no test notices.
func newLinks() *blob.Links { return blob.NewLinks(1<<30, 1<<30) }

// farmKey is the key of a farm; "": it cannot be read.
type farmKey string

// LinkKey implements access.KeyStore.
func (k farmKey) LinkKey(context.Context) ([]byte, error) {
	if k == "" {
		return nil, farm.Errorf(farm.CodeUnavailable, "There is no Redis.")
	}
	return []byte(strings.Repeat(string(k), 32)), nil
}

// tokens are those of a farm with that key.
func tokens(key string) blob.Tokens { return access.NewSigner(farmKey(key), time.Now) }

// testDownloads tests what callers reach of a service that is behind Downloads.
func testDownloads(t *testing.T, s *blob.Store) {
	data := content(mib)
	put(t, s, "tenant/plot.bin", data, blob.PutOptions{})
	front := httptest.NewServer(s.Downloads(newLinks()))
	t.Cleanup(front.Close)
	link, err := url.Parse(presign(t, s, "tenant/plot.bin", blob.PresignOptions{}))
	testbed.Must(t, err)
	missing, err := url.Parse(presign(t, s, "tenant/none", blob.PresignOptions{}))
	testbed.Must(t, err)
	send := func(method string, u url.URL, header http.Header) (int, []byte) {
		host := u.Host
		u.Host = strings.TrimPrefix(front.URL, "http://")
		req, err := http.NewRequestWithContext(t.Context(), method, u.String(), nil)
		testbed.Must(t, err)
		req.Host, req.Header = host, header
		resp, err := front.Client().Do(req)
		testbed.Must(t, err)
		defer func() { _ = resp.Body.Close() }()
		got, err := io.ReadAll(resp.Body)
		testbed.Must(t, err)
		return resp.StatusCode, got
	}
	status, got := send("GET", *link, nil)
	testbed.Diff(t, "status", http.StatusOK, status)
	same(t, got, data)
	status, got = send("GET", *link, http.Header{"Range": {"bytes=100-199"}, "Authorization": {"Basic eDp5"}})
	testbed.Diff(t, "status of a range", http.StatusPartialContent, status)
	same(t, got, data[100:200])
	changed, bare, bucket := *link, *link, *link
	changed.RawQuery = strings.Replace(link.RawQuery, "X-Amz-Signature=", "X-Amz-Signature=0", 1)
	bare.RawQuery = ""
	bucket.Path, bucket.RawPath = strings.Replace(link.Path, "/tenant", "x/tenant", 1), ""
	for name, c := range map[string]struct {
		method string
		u      url.URL
		want   int
	}{
		"HEAD":    {"HEAD", *link, http.StatusForbidden}, // it is signed for GET
		"missing": {"GET", *missing, http.StatusNotFound}, "a changed signature": {"GET", changed, http.StatusForbidden},
		"no signature": {"GET", bare, http.StatusForbidden}, "another bucket": {"GET", bucket, http.StatusForbidden},
		"POST": {"POST", *link, http.StatusMethodNotAllowed}, "PUT": {"PUT", *link, http.StatusMethodNotAllowed}, "DELETE": {"DELETE", *link, http.StatusMethodNotAllowed},
	} {
		status, _ := send(c.method, c.u, nil)
		testbed.Diff(t, "status of "+name, c.want, status)
	}
}

// opener opens links of a service by way of Downloads.
func opener(t *testing.T, service http.HandlerFunc) func(key string) (*http.Response, error) {
	t.Helper()
	behind := httptest.NewServer(service)
	t.Cleanup(behind.Close)
	s := newStore(t, newConfig(t, behind.URL))
	front := httptest.NewServer(s.Downloads(newLinks()))
	t.Cleanup(front.Close)
	return func(key string) (*http.Response, error) {
		link := presign(t, s, key, blob.PresignOptions{})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(link, behind.URL, front.URL, 1), nil)
		if err != nil {
			return nil, err
		}
		req.Host = strings.TrimPrefix(behind.URL, "http://")
		return front.Client().Do(req)
	}
}

// A link that is longer than those of the farm is refused before it is read.
func TestLinksAreShort(t *testing.T) {
	t.Parallel()
	const most = 8 << 10
	plain := link(t, "download1", "acme", end(time.Minute)) + "&X-Amz-Signature="
	for size, want := range map[int]int{most - 1: http.StatusOK, most: http.StatusOK, most + 1: http.StatusForbidden} {
		testbed.Diff(t, fmt.Sprintf("a query of %d bytes", size), want, pass(t, "farm", plain+strings.Repeat("x", size-len(plain))))
	}
	for count, want := range map[int]int{15: http.StatusOK, 16: http.StatusOK, 17: http.StatusForbidden} {
		testbed.Diff(t, fmt.Sprintf("%d parameters", count), want, pass(t, "farm", plain+strings.Repeat("&x", count-2)))
	}
}

// Links of callbacks are made by workers, which may have credentials of their own: the token of a link says whose it is, and the service checks the rest.
func TestLinksOfOtherCredentials(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	behind := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(behind.Close)
	cfg := newConfig(t, behind.URL)
	front := newStore(t, cfg).Downloads(newLinks())
	worker, silent := cfg, cfg
	worker.AccessKey, silent.Tokens = "worker", nil
	for name, c := range map[string]struct {
		cfg  blob.Config
		want int
	}{
		"the API": {cfg, http.StatusOK}, "a worker": {worker, http.StatusOK}, "a store without tokens": {silent, http.StatusForbidden},
	} {
		asked.Store(0)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, presign(t, newStore(t, c.cfg), "artifacts/acme/k", blob.PresignOptions{}), nil)
		answer := httptest.NewRecorder()
		front.ServeHTTP(answer, request)
		testbed.Check(t, answer.Code == c.want && (asked.Load() == 1) == (c.want == http.StatusOK), "a link of %s: %d, %d are passed on", name, answer.Code, asked.Load())
	}
}

// end is the end of a link.
func end(after time.Duration) string { return strconv.FormatInt(time.Now().Add(after).Unix(), 10) }

// link is the query of a link whose token says this.
func link(t *testing.T, parts ...string) string {
	t.Helper()
	token, err := tokens("farm").Seal(t.Context(), parts...)
	testbed.Must(t, err)
	return "x-sandfarm=" + token
}

// pass is the status of a request with that query where the farm has that key.
func pass(t *testing.T, key, query string) int {
	t.Helper()
	return passBody(t, key, query, nil)
}

func passBody(t *testing.T, key, query string, body io.Reader) int {
	t.Helper()
	behind := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(behind.Close)
	cfg := newConfig(t, behind.URL)
	cfg.Tokens = tokens(key)
	answer := httptest.NewRecorder()
	newStore(t, cfg).Downloads(newLinks()).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+cfg.Bucket+"/artifacts/acme/k?"+query, body))
	return answer.Code
}

// What is no token of a link that has not expired is refused before the service is asked. Without the farm's key nobody knows.
func TestTokensOfLinks(t *testing.T) {
	t.Parallel()
	const signed = "&X-Amz-Signature=x"
	right := link(t, "download1", "acme", end(time.Minute))
	for name, c := range map[string]struct {
		query string
		want  int
	}{
		"a link":       {right + signed, http.StatusOK},
		"expired":      {link(t, "download1", "acme", end(0)) + signed, http.StatusForbidden},
		"no tenant":    {link(t, "download1", "", end(time.Minute)) + signed, http.StatusForbidden},
		"no end":       {link(t, "download1", "acme", "") + signed, http.StatusForbidden},
		"another kind": {link(t, "port1", "acme", end(time.Minute)) + signed, http.StatusForbidden},
		"more parts":   {link(t, "download1", "acme", end(time.Minute), "") + signed, http.StatusForbidden},
		"no signature": {right, http.StatusForbidden},
		"no token":     {signed, http.StatusForbidden},
	} {
		testbed.Diff(t, name, c.want, pass(t, "farm", c.query))
	}
	testbed.Diff(t, "with a body", http.StatusBadRequest, passBody(t, "farm", right+signed, strings.NewReader("x")))
	testbed.Diff(t, "with a body of some length", http.StatusBadRequest, passBody(t, "farm", right+signed, io.MultiReader(strings.NewReader("x"))))
	testbed.Diff(t, "of another farm", http.StatusForbidden, pass(t, "another", right+signed))
	testbed.Diff(t, "without a key", http.StatusServiceUnavailable, pass(t, "", right+signed))
}

// The bytes of a tenant's downloads, and some for each, are those of its limiter.
func TestDownloadsArePaced(t *testing.T) {
	t.Parallel()
	const burst, size = 4 << 20, 100_000
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, zeros{}, size) }))
	t.Cleanup(behind.Close)
	s, links := newStore(t, newConfig(t, behind.URL)), blob.NewLinks(1, burst)
	front := httpserver.New(httpserver.Config{
		Name: "test", Listen: "127.0.0.1:0", HTTP: &http.Server{Handler: s.Downloads(links), ReadHeaderTimeout: time.Minute}, Log: slog.New(slog.DiscardHandler),
	})
	testbed.Must(t, front.Start(t.Context()))
	t.Cleanup(front.Stop)
	for range 3 {
		_, got := fetch(t, strings.Replace(presign(t, s, "artifacts/acme/k", blob.PresignOptions{}), behind.URL, "http://"+front.Addr(), 1), nil)
		testbed.Diff(t, "bytes", size, len(got))
	}
	took := burst - links.Left("acme")
	testbed.Check(t, took >= 3*(size+512<<10) && took < 3*(size+513<<10), "%d bytes were taken for three downloads of %d", took, size)
	testbed.Diff(t, "what another tenant has", burst, links.Left("other"))
}

// A client that leaves, or that the server cuts off, holds nothing of the service any more.
func TestADownloadEndsWithItsClient(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	open := opener(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(w, zeros{}, 64<<20) // more than buffers take
		<-r.Context().Done()
		close(ended)
	})
	resp, err := open("artifacts/acme/k")
	testbed.Must(t, err)
	_, err = io.ReadFull(resp.Body, make([]byte, 1<<20))
	testbed.Must(t, err)
	_ = resp.Body.Close()
	<-ended
}

// A tenant's downloads have half of the places that others leave. As many wait for one, and what is beyond that is refused.
func TestDownloadsOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	const share = 64
	var running atomic.Int32
	release := make(chan struct{})
	open := opener(t, func(w http.ResponseWriter, _ *http.Request) {
		running.Add(1)
		<-release
		_, _ = io.WriteString(w, "here")
	})
	status := make(chan int, 2*share+1)
	for range cap(status) {
		go func() {
			resp, err := open("artifacts/acme/k")
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			status <- resp.StatusCode
		}()
	}
	testbed.Diff(t, "the first answer, while the others wait", http.StatusServiceUnavailable, <-status)
	testbed.Until(t, "the tenant's share is read", func() bool { return running.Load() == share })
	other := make(chan struct{})
	go func() {
		defer close(other)
		if resp, err := open("artifacts/other/k"); err != nil {
			t.Error(err)
		} else {
			_ = resp.Body.Close()
		}
	}()
	testbed.Until(t, "another tenant's download is read", func() bool { return running.Load() == share+1 })
	close(release)
	<-other
	for range 2 * share {
		testbed.Diff(t, "the answer of one that has waited", http.StatusOK, <-status)
	}
}
