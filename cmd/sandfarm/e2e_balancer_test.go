//go:build integration

package main_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// balancer is a load balancer without affinity: each request has a connection of its own, and goes to the API after the one that had the
// last request for the same path.
type balancer struct {
	apis []*url.URL
	*httptest.Server

	mu     sync.Mutex
	paths  int
	next   map[string]int          // API of the next request, by path
	served map[string]map[int]bool // APIs that had requests, by path
	open   map[string][]net.Conn   // of callers, by path
}

type connKey struct{}

func newBalancer(t *testing.T, apis ...string) *balancer {
	t.Helper()
	b := &balancer{next: map[string]int{}, served: map[string]map[int]bool{}, open: map[string][]net.Conn{}}
	for _, api := range apis {
		b.apis = append(b.apis, &url.URL{Scheme: "http", Host: api})
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(b.pick(r.In))
			r.Out.Host = r.In.Host
		},
	}
	b.Server = httptest.NewUnstartedServer(proxy)
	b.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	b.Config.SetKeepAlivesEnabled(false)
	b.Start()
	t.Cleanup(func() { b.CloseClientConnections(); b.Close() })
	return b
}

func (b *balancer) pick(r *http.Request) *url.URL {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := r.URL.Path
	if b.served[path] == nil {
		b.served[path], b.next[path] = map[int]bool{}, b.paths
		b.paths++
	}
	at := b.next[path] % len(b.apis)
	b.next[path]++
	b.served[path][at] = true
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		b.open[path] = append(b.open[path], conn)
	}
	return b.apis[at]
}

// cut breaks the connections of a path.
func (b *balancer) cut(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.open[path] {
		_ = conn.Close()
	}
	delete(b.open, path)
}

// by is how many APIs had requests for a path.
func (b *balancer) by(path string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.served[path])
}
