package blob_test

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// expiryTimeout is how long to wait for a link of one second to expire by the server's clock.
const expiryTimeout = time.Minute

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
	testbed.Must(t, err)
	req.Header = header
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	testbed.Must(t, err)
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	testbed.Must(t, err)
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
			testbed.Diff(t, "Content-Type", c.kind, resp.Header.Get("Content-Type"))
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
			testbed.Must(t, err)
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
		deadline := time.Now().Add(expiryTimeout)
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

func beginUpload(t *testing.T, s *blob.Store, key string) string {
	t.Helper()
	upload, err := s.BeginUpload(t.Context(), key, blob.PutOptions{ContentType: "text/plain; charset=utf-8", Filename: "out.txt"})
	if err != nil {
		t.Fatalf("BeginUpload(%q): %v", key, err)
	}
	return upload
}

// putParts sends data in parts, from part number on.
func putParts(t *testing.T, s *blob.Store, key, upload string, number int, data []byte) {
	t.Helper()
	for ; len(data) > 0; number++ {
		n := min(len(data), blob.PartBytes)
		if err := s.PutPart(t.Context(), key, upload, number, bytes.NewReader(data[:n]), int64(n)); err != nil {
			t.Fatalf("PutPart %d of %q: %v", number, key, err)
		}
		data = data[n:]
	}
}

func testUploadInParts(t *testing.T, s *blob.Store) {
	for _, size := range []int{1, blob.PartBytes - 1, blob.PartBytes, blob.PartBytes + 1, 3*blob.PartBytes + 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			key, data := fmt.Sprintf("parts/%d", size), content(size)
			upload := beginUpload(t, s, key)
			putParts(t, s, key, upload, 1, data)
			if _, err := s.Stat(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
				t.Errorf("Stat before the upload is completed = %v, want code %s", err, farm.CodeNotFound)
			}
			for _, wrong := range []int64{int64(size) - 1, int64(size) + 1} {
				if err := s.CompleteUpload(t.Context(), key, upload, wrong); farm.CodeOf(err) != farm.CodeInvalid {
					t.Errorf("CompleteUpload with %d bytes of %d = %v, want code %s", wrong, size, err, farm.CodeInvalid)
				}
			}
			testbed.Must(t, s.CompleteUpload(t.Context(), key, upload, int64(size)))
			got, info := get(t, s, key, 0, 0)
			same(t, got, data)
			if info.Size != int64(size) || info.ContentType != "text/plain; charset=utf-8" {
				t.Errorf("Get says %+v", info)
			}
		})
	}
}

// What a process that died may have done already can be done again.
func testUploadInPartsAgain(t *testing.T, s *blob.Store) {
	const key = "again"
	data := content(2*blob.PartBytes + 9)
	upload := beginUpload(t, s, key)
	putParts(t, s, key, upload, 1, data[:blob.PartBytes])
	testbed.Must(t, s.PutPart(t.Context(), key, upload, 3, bytes.NewReader(data[2*blob.PartBytes:]), int64(len(data)-2*blob.PartBytes)))
	if err := s.CompleteUpload(t.Context(), key, upload, int64(len(data))); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("CompleteUpload without part 2 = %v, want code %s", err, farm.CodeInvalid)
	}
	putParts(t, s, key, upload, 1, data) // parts 1 and 3 once more
	for range 2 {
		testbed.Must(t, s.CompleteUpload(t.Context(), key, upload, int64(len(data))))
	}
	got, _ := get(t, s, key, 0, 0)
	same(t, got, data)
	if err := s.PutPart(t.Context(), key, upload, 4, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart after the end = %v, want code %s", err, farm.CodeNotFound)
	}
	if err := s.CompleteUpload(t.Context(), key, upload, 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("CompleteUpload with another size after the end = %v, want code %s", err, farm.CodeNotFound)
	}
	gone := beginUpload(t, s, "aborted")
	putParts(t, s, "aborted", gone, 1, data[:9])
	for range 2 {
		testbed.Must(t, s.AbortUpload(t.Context(), "aborted", gone))
	}
	if err := s.PutPart(t.Context(), "aborted", gone, 2, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart of an aborted upload = %v, want code %s", err, farm.CodeNotFound)
	}
	if err := s.CompleteUpload(t.Context(), "aborted", gone, 9); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("CompleteUpload of an aborted upload = %v, want code %s", err, farm.CodeNotFound)
	}
	// All uploads of one key are found by the key, in every service.
	lost := beginUpload(t, s, "lost")
	putParts(t, s, "lost", lost, 1, data[:9])
	if n, err := s.AbortUploadsOf(t.Context(), "lost"); n != 1 || err != nil {
		t.Errorf("AbortUploadsOf = %d, %v; want 1", n, err)
	}
	if err := s.PutPart(t.Context(), "lost", lost, 2, bytes.NewReader(data[:1]), 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("PutPart of a lost upload = %v, want code %s", err, farm.CodeNotFound)
	}
}

func testDocuments(t *testing.T, s *blob.Store) {
	const key = "records/acme/job_1/result"
	if _, err := s.GetDocument(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("GetDocument of a missing document = %v, want code %s", err, farm.CodeNotFound)
	}
	for _, size := range []int{0, 1, 100, mib, 9 * mib, 100} { // each replaces the one before
		want := content(size)
		if err := s.PutDocument(t.Context(), key, want); err != nil {
			t.Fatalf("PutDocument of %d bytes: %v", size, err)
		}
		got, err := s.GetDocument(t.Context(), key)
		if err != nil {
			t.Fatalf("GetDocument of %d bytes: %v", size, err)
		}
		same(t, got, want)
	}
	if n, err := s.DeletePrefix(t.Context(), "records/acme/job_1/"); n != 1 || err != nil {
		t.Errorf("DeletePrefix = %d, %v, want 1", n, err)
	}
	if _, err := s.GetDocument(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("GetDocument of a deleted document = %v, want code %s", err, farm.CodeNotFound)
	}
}
