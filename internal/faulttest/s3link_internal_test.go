package faulttest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The link passes requests as they are, the host that is part of their signature too, and spoils them as it is told.
func TestS3LinkSpoilsRequests(t *testing.T) {
	t.Parallel()
	var host string
	var got []byte
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		host = r.Host
		got, _ = io.ReadAll(r.Body)
	}))
	t.Cleanup(store.Close)
	l := newS3Link(t, strings.TrimPrefix(store.URL, "http://"))
	put := func(method string) (status int, body string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), method, l.url+"/bucket/key", bytes.NewReader(make([]byte, 500)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text), err
	}
	passes := func(what, method string) {
		t.Helper()
		got = nil
		if status, _, err := put(method); err != nil || status != http.StatusOK || len(got) != 500 || "http://"+host != l.url {
			t.Errorf("%s: %d, %v; the store got %d bytes for %s", what, status, err, len(got), host)
		}
	}
	passes("untouched", http.MethodPut)
	l.Away(true)
	if _, _, err := put(http.MethodPut); err == nil {
		t.Error("a store that is away answers")
	}
	l.Away(false)
	l.Full(true)
	if status, body, err := put(http.MethodPut); err != nil || status != http.StatusInsufficientStorage || !strings.Contains(body, "XMinioStorageFull") {
		t.Errorf("a full store: %d, %v: %s", status, err, body)
	}
	passes("full, not a write", http.MethodGet)
	l.Full(false)
	l.Failing(1)
	if status, body, err := put(http.MethodGet); err != nil || status != http.StatusInternalServerError || !strings.Contains(body, "InternalError") {
		t.Errorf("a failing store: %d, %v: %s", status, err, body)
	}
	l.Failing(0)
	if n := l.Spoiled(); n != 3 {
		t.Errorf("%d requests spoiled, want 3", n)
	}
	l.Slow(2000)
	passes("slow", http.MethodPut)
	l.Slow(0)
	passes("well again", http.MethodPut)
}
