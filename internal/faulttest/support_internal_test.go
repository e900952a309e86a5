package faulttest

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
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
	url := l.urlOf("worker-1")
	put := func(method string) (status int, body string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), method, url+"/bucket/key", bytes.NewReader(make([]byte, 500)))
		testbed.Must(t, err)
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
		if status, _, err := put(method); err != nil || status != http.StatusOK || len(got) != 500 || "http://"+host != url {
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
	testbed.Diff(t, "requests spoiled", 3, l.Spoiled())
	l.Slow(2000)
	passes("slow", http.MethodPut)
	l.Slow(0)
	passes("well again", http.MethodPut)
}

// A stop keeps a process's request from the store, or the answer from the process, once. Other requests and processes pass.
func TestS3LinkStopsAtRequests(t *testing.T) {
	t.Parallel()
	var got []string
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.URL.Path) }))
	t.Cleanup(store.Close)
	l := newS3Link(t, strings.TrimPrefix(store.URL, "http://"))
	one, other := l.urlOf("worker-1"), l.urlOf("worker-2")
	put := func(url, key string) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/bucket/"+key, strings.NewReader("body"))
		testbed.Must(t, err)
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err
	}
	var stopped []string
	end := func(words []string) bool { stopped = append(stopped, words...); return false }
	l.At(S3Stop{Process: "worker-1", Call: "PUT artifacts", Nth: 2, Do: end})
	l.At(S3Stop{Process: "worker-1", Call: "PUT records", After: true, Do: end})
	for _, r := range []struct {
		url, key string
		passes   bool
	}{
		{one, "artifacts/1", true},
		{other, "artifacts/2", true},
		{one, "staging/3", true},
		{one, "artifacts/4", false},
		{one, "artifacts/5", true},
		{other, "records/6", true},
		{one, "records/7", false},
		{one, "records/8", true},
	} {
		if err := put(r.url, r.key); (err == nil) != r.passes {
			t.Errorf("%s: %v", r.key, err)
		}
	}
	if want := []string{"/bucket/artifacts/4", "/bucket/records/7"}; !slices.Equal(stopped, want) {
		t.Errorf("stopped at %v, want %v", stopped, want)
	}
	if slices.Contains(got, "/bucket/artifacts/4") || !slices.Contains(got, "/bucket/records/7") {
		t.Errorf("the store got %v", got)
	}
	l.At(S3Stop{Process: "worker-1", Call: "PUT staging", Do: end})
	l.At(S3Stop{Process: "worker-2", Call: "PUT staging", Do: end})
	l.Clear("worker-1")
	if put(one, "staging/9") != nil || put(other, "staging/10") == nil {
		t.Error("the stops of one process are not what is cleared")
	}
}

// TestGrowthIsOfTheSecondHalf: what a farm needs to warm up does not count as growth.
func TestGrowthIsOfTheSecondHalf(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, c := range []struct {
		name   string
		values []float64
		growth float64
	}{
		{"Flat", []float64{0, 50, 100, 100, 100, 100}, 0},
		{"Grows", []float64{0, 0, 0, 10, 20, 30}, 20},
		{"Noise", []float64{5, 5, 5, 10, 0, 10}, 0},
		{"One", []float64{7}, 0},
	} {
		var samples []Sample
		for i, v := range c.values {
			samples = append(samples, Sample{At: began.Add(time.Duration(i) * time.Second), Values: map[string]float64{"x": v}})
		}
		if growth, _ := Growth(samples, "x"); math.Abs(growth-c.growth) > 1e-9 {
			t.Errorf("%s: growth %g, want %g", c.name, growth, c.growth)
		}
	}
}
