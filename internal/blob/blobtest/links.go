package blobtest

import (
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// expiryPatience is how long to wait for a link of one second to expire by the server's clock.
const expiryPatience = time.Minute

func presign(t *testing.T, s *blob.Store, key string, opts blob.PresignOptions) string {
	t.Helper()
	link, err := s.Presign(t.Context(), key, opts)
	if err != nil {
		t.Fatalf("Presign(%q): %v", key, err)
	}
	return link
}

// fetch requests a link as any HTTP client would.
func fetch(t *testing.T, link string, header http.Header) (*http.Response, []byte) {
	t.Helper()
	return send(t, http.MethodGet, link, header)
}

func send(t *testing.T, method, link string, header http.Header) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, link, nil)
	if err != nil {
		t.Fatalf("make request: %v", err)
	}
	req.Header = header
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("fetch link: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read link: %v", err)
	}
	return resp, data
}

func testPresign(t *testing.T, s *blob.Store) {
	data := content(2 * mib)
	put(t, s, "tenant/job 1/plot.bin", data, blob.PutOptions{})
	link := presign(t, s, "tenant/job 1/plot.bin", blob.PresignOptions{})

	resp, got := fetch(t, link, nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET = %s: %.300s", resp.Status, got)
	}
	same(t, got, data)

	resp, got = fetch(t, link, http.Header{"Range": {"bytes=100-199"}})
	if resp.StatusCode != http.StatusPartialContent {
		t.Errorf("GET of a range = %s, want 206", resp.Status)
	}
	same(t, got, data[100:200])

	resp, _ = fetch(t, presign(t, s, "no/such", blob.PresignOptions{}), nil)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("GET of a missing object = %s, want 404", resp.Status)
	}
}

func testPresignLabels(t *testing.T, s *blob.Store) {
	put(t, s, "dir/raw", []byte("x"), blob.PutOptions{ContentType: "text/html", Filename: "evil.html", Inline: true})
	for _, c := range []struct {
		name                string
		opts                blob.PresignOptions
		kind, verb, decoded string
	}{
		{"Nothing", blob.PresignOptions{}, "application/octet-stream", "attachment", "raw"},
		{"CSV", blob.PresignOptions{ContentType: "text/csv; charset=utf-8", Filename: "a b.csv"}, "text/csv; charset=utf-8", "attachment", "a b.csv"},
		{"InlinePNG", blob.PresignOptions{ContentType: "image/png", Filename: "p.png", Inline: true}, "image/png", "inline", "p.png"},
		{"PNG", blob.PresignOptions{ContentType: "image/png", Filename: "p.png"}, "image/png", "attachment", "p.png"},
		{"InlinePDF", blob.PresignOptions{ContentType: "application/pdf", Filename: "p.pdf", Inline: true}, "application/pdf", "attachment", "p.pdf"},
		{"InlineSVG", blob.PresignOptions{ContentType: "image/svg+xml", Filename: "p.svg", Inline: true}, "application/octet-stream", "attachment", "p.svg"},
		{"HTML", blob.PresignOptions{ContentType: "text/html", Filename: "p.html", Inline: true}, "application/octet-stream", "attachment", "p.html"},
		{"Unicode", blob.PresignOptions{Filename: "Übersicht 日本 (1);\"%41.csv"}, "application/octet-stream", "attachment", "Übersicht 日本 (1);\"%41.csv"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := fetch(t, presign(t, s, "dir/raw", c.opts), nil)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("GET = %s: %s", resp.Status, body)
			}
			if got := resp.Header.Get("Content-Type"); got != c.kind {
				t.Errorf("Content-Type = %q, want %q", got, c.kind)
			}
			verb, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition"))
			// The parser takes filename* where both are given, as browsers do.
			if err != nil || verb != c.verb || params["filename"] != c.decoded {
				t.Errorf("Content-Disposition %q = %s of %q, %v; want %s of %q",
					resp.Header.Get("Content-Disposition"), verb, params["filename"], err, c.verb, c.decoded)
			}
		})
	}
}

// testPresignRefusals forges links in the ways that every implementation refuses. MinIO ignores a second X-Amz-SignedHeaders and
// an unsigned X-Amz-Copy-Source of a GET; the built-in S3 refuses them, see TestLinksAreCoveredWhole in its package.
func testPresignRefusals(t *testing.T, s *blob.Store) {
	put(t, s, "mine", []byte("mine"), blob.PutOptions{})
	put(t, s, "other", []byte("other"), blob.PutOptions{})
	link := presign(t, s, "mine", blob.PresignOptions{ContentType: "text/plain"})

	for name, forge := range map[string]func(*url.URL, url.Values){
		"OtherObject": func(u *url.URL, _ url.Values) { u.Path = u.Path[:len(u.Path)-len("mine")] + "other" },
		"Signature":   func(_ *url.URL, q url.Values) { q.Set("X-Amz-Signature", flip(q.Get("X-Amz-Signature"))) },
		"NoSignature": func(_ *url.URL, q url.Values) { q.Del("X-Amz-Signature") },
		"NoQuery":     func(_ *url.URL, q url.Values) { clear(q) },
		"ContentType": func(_ *url.URL, q url.Values) { q.Set("response-content-type", "text/html") },
		"LongerLife":  func(_ *url.URL, q url.Values) { q.Set("X-Amz-Expires", "604800") },
		"NoExpiry":    func(_ *url.URL, q url.Values) { q.Del("X-Amz-Expires") },
		"LaterDate": func(_ *url.URL, q url.Values) {
			q.Set("X-Amz-Date", time.Now().UTC().Add(time.Minute).Format("20060102T150405Z"))
		},
		"Region": func(_ *url.URL, q url.Values) {
			q.Set("X-Amz-Credential", strings.Replace(q.Get("X-Amz-Credential"), "us-east-1", "eu-west-1", 1))
		},
		"AccessKey": func(_ *url.URL, q url.Values) { q.Set("X-Amz-Credential", "x"+q.Get("X-Amz-Credential")) },
		"Algorithm": func(_ *url.URL, q url.Values) { q.Set("X-Amz-Algorithm", "AWS4-HMAC-SHA1") },
		"MoreSignedHeaders": func(_ *url.URL, q url.Values) {
			q.Set("X-Amz-SignedHeaders", q.Get("X-Amz-SignedHeaders")+";user-agent")
		},
		"MissingSignedHeader": func(_ *url.URL, q url.Values) {
			q.Set("X-Amz-SignedHeaders", q.Get("X-Amz-SignedHeaders")+";x-absent")
		},
		"NoSignedHeaders":     func(_ *url.URL, q url.Values) { q.Del("X-Amz-SignedHeaders") },
		"Filename":            func(_ *url.URL, q url.Values) { q.Set("response-content-disposition", "inline") },
		"NoFilename":          func(_ *url.URL, q url.Values) { q.Del("response-content-disposition") },
		"ContentTypeTwice":    func(_ *url.URL, q url.Values) { q.Add("response-content-type", "text/html") },
		"AddedOverride":       func(_ *url.URL, q url.Values) { q.Set("response-cache-control", "no-store") },
		"AddedOperation":      func(_ *url.URL, q url.Values) { q.Set("uploads", "") },
		"AddedUnknown":        func(_ *url.URL, q url.Values) { q.Set("extra", "1") },
		"AddedWithoutContent": func(_ *url.URL, q url.Values) { q.Set("extra", "") },
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(link)
			if err != nil {
				t.Fatalf("parse link: %v", err)
			}
			q := u.Query()
			forge(u, q)
			u.RawQuery = q.Encode()
			if resp, body := fetch(t, u.String(), nil); resp.StatusCode < 400 || resp.StatusCode > 403 {
				t.Errorf("GET = %s: %s; want a refusal", resp.Status, body)
			}
		})
	}
	t.Run("OtherMethod", func(t *testing.T) {
		for _, method := range []string{http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete} {
			switch resp, body := send(t, method, link, nil); resp.StatusCode {
			case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed:
			default:
				t.Errorf("%s = %s: %s; want a refusal", method, resp.Status, body)
			}
		}
	})
	t.Run("Expired", func(t *testing.T) {
		link := presign(t, s, "mine", blob.PresignOptions{Expiry: time.Second})
		deadline := time.Now().Add(expiryPatience)
		for {
			resp, body := fetch(t, link, nil)
			if resp.StatusCode == http.StatusForbidden {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("GET of an expired link = %s: %s; want 403", resp.Status, body)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	for _, expiry := range []time.Duration{-time.Second, time.Second - 1, blob.MaxExpiry + 1} {
		if _, err := s.Presign(t.Context(), "mine", blob.PresignOptions{Expiry: expiry}); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("Presign for %s = %v, want code %s", expiry, err, farm.CodeInvalid)
		}
	}
}

func flip(signature string) string {
	last := byte('0')
	if signature[len(signature)-1] == last {
		last = '1'
	}
	return signature[:len(signature)-1] + string(last)
}
