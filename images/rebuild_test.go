package images_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// memory is an in-memory package cache.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (m *memory) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok := m.values[key]
	if !ok {
		return nil, 0, farm.NotFoundf("there is no %s", key)
	}
	part := value[offset:]
	if length > 0 {
		part = part[:min(length, int64(len(part)))]
	}
	return io.NopCloser(bytes.NewReader(part)), int64(len(value)), nil
}

func (m *memory) Put(_ context.Context, key string, r io.Reader, size int64) error {
	value, err := io.ReadAll(r)
	if err != nil || int64(len(value)) != size {
		return fmt.Errorf("%d of %d bytes: %w", len(value), size, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value
	return nil
}

func (m *memory) Delete(context.Context, ...string) error { return nil }

func (m *memory) List(context.Context, string, func(string, int64, time.Time) error) error {
	return nil
}

// download reads an address to its end.
func download(ctx context.Context, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", address, resp.StatusCode, body)
	}
	return string(body), err
}

// A rebuild gets the Python and npm packages of the first build from the cache.
func TestRebuildDownloadsNothingTwice(t *testing.T) {
	t.Parallel()
	const wheel, tarball = "a wheel", "a tarball"
	var mu sync.Mutex
	asked := map[string]int{}
	var up *httptest.Server
	up = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/simple/six/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<a href="/six-1.0-py3-none-any.whl#sha256=%x">six</a>`, sha256.Sum256([]byte(wheel)))
		case "/six-1.0-py3-none-any.whl":
			_, _ = io.WriteString(w, wheel)
		case "/npm/left":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"name":"left","versions":{"1.0.0":{"dist":{"tarball":"%s/left.tgz","shasum":"%s"}}}}`,
				up.URL, "846530ea61600296d244c44b156680e0c67403ef")
		case "/left.tgz":
			_, _ = io.WriteString(w, tarball)
		default:
			http.NotFound(w, r)
		}
	}))
	defer up.Close()
	opts := images.Options{IndexURL: up.URL + "/simple/", FilesURL: up.URL, NpmURL: up.URL + "/npm/", Cache: &memory{values: map[string][]byte{}}}
	for range 2 {
		f := &fakeEngine{tags: map[string]bool{}, during: func(ctx context.Context, args map[string]string) error {
			if args["PIP_TRUSTED_HOST"] != "127.0.0.1" || !strings.HasPrefix(args["NPM_REGISTRY"], "http://127.0.0.1:") {
				t.Errorf("arguments %v", args)
			}
			for address, want := range map[string]string{
				strings.TrimSuffix(args["PIP_INDEX_URL"], "simple/") + "files/six/six-1.0-py3-none-any.whl": wheel,
				args["NPM_REGISTRY"] + "left/-/left-1.0.0.tgz":                                              tarball,
			} {
				got, err := download(ctx, address)
				if err != nil || got != want {
					t.Errorf("%s: %q, error %v", address, got, err)
				}
			}
			return nil
		}}
		_, err := images.Build(t.Context(), "python", f, opts, nil)
		testbed.Must(t, err)
	}
	want := map[string]int{"/simple/six/": 1, "/six-1.0-py3-none-any.whl": 1, "/npm/left": 1, "/left.tgz": 1}
	mu.Lock()
	defer mu.Unlock()
	testbed.Diff(t, "requests to upstream", want, asked)
}
