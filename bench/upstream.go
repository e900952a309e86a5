package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
)

// line is the network between a farm and the package index.
type line struct {
	name  string
	speed int           // bytes per second, for all transfers together; 0: no limit
	delay time.Duration // before each answer
}

// lines are the networks over which installs are measured. The second one makes results comparable between machines: a mirror on
// the local network hides what a cache saves.
var lines = []line{
	{name: "index as it is reached here"},
	{name: "index slowed to 50 Mbit/s, 20 ms", speed: 50_000_000 / 8, delay: 20 * time.Millisecond},
}

// upstream is a proxy of the public Python index that counts requests and can be slow. Its links lead to itself.
type upstream struct {
	line
	url  string // of the simple index
	http *http.Server
	done chan struct{}

	mu    sync.Mutex
	pages int
	whole map[string]int // downloads of files by path
	parts int            // requests for parts of files
	free  time.Time      // when the line has sent all its data
}

// files is the address of the public index's files.
const files = "https://files.pythonhosted.org"

// startUpstream starts an upstream, which serves until close.
func startUpstream(ctx context.Context, over line) *upstream {
	pages := must(url.Parse(index.DefaultPyPIURL))
	packages := must(url.Parse(files))
	var config net.ListenConfig
	l := must(config.Listen(ctx, "tcp", "127.0.0.1:0"))
	u := &upstream{line: over, url: "http://" + l.Addr().String() + "/simple/", whole: map[string]int{}, done: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			to := packages
			if strings.HasPrefix(r.In.URL.Path, "/simple/") {
				to = pages
			}
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, to.Host
			r.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: u.answer,
	}
	u.http = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(u.done)
		_ = u.http.Serve(l)
	}()
	return u
}

func (u *upstream) close() {
	_ = u.http.Close()
	<-u.done
}

// answer counts a response, rewrites its links to lead here, and slows it down. It sets how long clients may cache the response, as
// the public index does; a mirror may not.
func (u *upstream) answer(r *http.Response) error {
	age := "max-age=365000000, immutable, public"
	if strings.HasPrefix(r.Request.URL.Path, "/simple/") {
		age = "max-age=600, public"
		u.mu.Lock()
		u.pages++
		u.mu.Unlock()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_ = r.Body.Close()
		text = bytes.ReplaceAll(text, []byte(files), []byte(strings.TrimSuffix(u.url, "/simple/")))
		r.Body = io.NopCloser(bytes.NewReader(text))
		r.ContentLength = int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
	} else if r.Request.Method == http.MethodGet {
		u.mu.Lock()
		if r.StatusCode == http.StatusPartialContent {
			u.parts++
		} else {
			u.whole[r.Request.URL.Path]++
		}
		u.mu.Unlock()
	}
	if r.Header.Get("Cache-Control") == "" && r.StatusCode < 300 {
		r.Header.Set("Cache-Control", age)
	}
	time.Sleep(u.delay)
	if u.speed > 0 {
		r.Body = &slow{ReadCloser: r.Body, line: u}
	}
	return nil
}

// downloads returns how many files were downloaded, the most downloads of one file, and the number of all downloads.
func (u *upstream) downloads() (files, limit, all int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range u.whole {
		files++
		limit = max(limit, n)
		all += n
	}
	return files, limit, all
}

func (u *upstream) String() string {
	files, limit, all := u.downloads()
	return fmt.Sprintf("%d pages, %d files, %d downloads, at most %d of one, %d parts", u.pages, files, all, limit, u.parts)
}

// slow is a body that is sent over the line.
type slow struct {
	io.ReadCloser
	line *upstream
}

// packet is how much is sent over the line at once, so that transfers share it evenly.
const packet = 16 << 10

// burst is how far the line may catch up: a busy machine sleeps longer than requested.
const burst = 50 * time.Millisecond

// Read waits until the line can send.
func (s *slow) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p[:min(len(p), packet)])
	u := s.line
	u.mu.Lock()
	now := time.Now()
	if idle := now.Add(-burst); u.free.Before(idle) {
		u.free = idle
	}
	u.free = u.free.Add(time.Duration(n) * time.Second / time.Duration(u.speed))
	wait := u.free.Sub(now)
	u.mu.Unlock()
	time.Sleep(wait)
	return n, err
}
