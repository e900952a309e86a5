//go:build integration

package main_test

import (
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The source of uv on a host that has none yet: everything else in these tests comes from the upstream.
const (
	publicIndex = "https://pypi.org/simple/"
	publicFiles = "https://files.pythonhosted.org/"
)

// realIndex is the index that a farm here would use.
func realIndex() string {
	return strings.TrimRight(cmp.Or(os.Getenv("SANDFARM_PYPI_INDEX_URL"), publicIndex), "/") + "/"
}

// upstream is a Python package index of a test. Its packages are made here, and it fails on demand.
type upstream struct {
	t    *testing.T
	addr string

	mu     sync.Mutex
	server *http.Server
	pages  map[string][]upstreamFile
	data   map[string][]byte
	faults map[string]http.HandlerFunc // by the beginning of the path
	asked  map[string]int
}

// upstreamFile is a file as a page of PEP 691 lists it.
type upstreamFile struct {
	Filename string            `json:"filename"`
	URL      string            `json:"url"`
	Hashes   map[string]string `json:"hashes"`
	Metadata bool              `json:"core-metadata"` // PEP 658
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{
		t: t, addr: testbed.Address(t), pages: map[string][]upstreamFile{}, data: map[string][]byte{},
		faults: map[string]http.HandlerFunc{}, asked: map[string]int{},
	}
	u.up()
	t.Cleanup(u.down)
	return u
}

// up starts to listen; down stops it and closes all connections.
func (u *upstream) up() {
	u.t.Helper()
	listener, err := net.Listen("tcp", u.addr)
	testbed.Must(u.t, err)
	u.server = &http.Server{Handler: u, ReadHeaderTimeout: time.Minute}
	go func(s *http.Server) { _ = s.Serve(listener) }(u.server)
}

func (u *upstream) down() { _ = u.server.Close() }

// env is the environment of a farm that installs from here.
func (u *upstream) env() []string {
	files := []string{publicIndex, publicFiles}
	for _, name := range []string{"SANDFARM_PYPI_INDEX_URL", "SANDFARM_INDEX_FILES_URL"} {
		if value := os.Getenv(name); value != "" {
			files = append(files, value)
		}
	}
	return []string{
		"SANDFARM_PYPI_INDEX_URL=http://" + u.addr + "/simple/", "SANDFARM_NPM_REGISTRY=http://" + u.addr + "/npm/",
		"SANDFARM_INDEX_FILES_URL=" + strings.Join(files, ","),
		"SANDFARM_INDEX_PAGE_AGE=1ms", "SANDFARM_INDEX_TIMEOUT=1s", // pages are requested again each time
	}
}

// ServeHTTP serves pages and files, unless a fault is set.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.asked[r.URL.Path]++
	var fault http.HandlerFunc
	for prefix, f := range u.faults {
		if strings.HasPrefix(r.URL.Path, prefix) && (prefix == "/" || !strings.HasSuffix(r.URL.Path, ".metadata")) {
			fault = f
		}
	}
	u.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	u.serve(w, r)
}

// serve answers without a fault.
func (u *upstream) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/simple/uv/" {
		http.Redirect(w, r, realIndex()+"uv/", http.StatusFound)
		return
	}
	u.mu.Lock()
	files, known := u.pages[path.Base(r.URL.Path)]
	data, there := u.data[path.Base(r.URL.Path)]
	u.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/files/") && there:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	case strings.HasPrefix(r.URL.Path, "/simple/") && known:
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]string{"api-version": "1.0"}, "name": path.Base(r.URL.Path), "files": files})
	default:
		http.NotFound(w, r)
	}
}

// fail makes everything below a path fail until the returned function is called.
func (u *upstream) fail(prefix string, how http.HandlerFunc) (heal func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.faults[prefix] = how
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.faults, prefix)
	}
}

// count is how often a path was requested.
func (u *upstream) count(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[path]
}

// add lists a file.
func (u *upstream) add(project, name string, data []byte) {
	sum := sha256.Sum256(data)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.data[name] = data
	u.pages[project] = append(u.pages[project], upstreamFile{
		Filename: name, URL: "/files/" + project + "/" + name, Hashes: map[string]string{"sha256": hex.EncodeToString(sum[:])},
		Metadata: u.data[name+".metadata"] != nil,
	})
}

// wheel lists a package with one module that has its version.
func (u *upstream) wheel(name, version string, needs ...string) {
	u.add(name, wheelName(name, version, "py3-none-any"), wheel(name, version, "py3-none-any", 0, needs))
}

// largeWheel lists a wheel with a number of incompressible bytes, and its metadata file.
func (u *upstream) largeWheel(name string, size int) {
	file := wheelName(name, "1.0", "py3-none-any")
	u.mu.Lock()
	u.data[file+".metadata"] = []byte(metadata(name, "1.0", nil))
	u.mu.Unlock()
	u.add(name, file, wheel(name, "1.0", "py3-none-any", size, nil))
}

func moduleOf(name string) string { return strings.ReplaceAll(name, "-", "_") }

func wheelName(name, version, tag string) string {
	return moduleOf(name) + "-" + version + "-" + tag + ".whl"
}

func metadata(name, version string, needs []string) string {
	text := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version)
	for _, need := range needs {
		text += "Requires-Dist: " + need + "\n"
	}
	return text
}

// wheel makes a wheel; size is that of an incompressible file in it.
func wheel(name, version, tag string, size int, needs []string) []byte {
	module, info := moduleOf(name), moduleOf(name)+"-"+version+".dist-info"
	files := [][2]string{
		{module + "/__init__.py", fmt.Sprintf("__version__ = %q\n", version)},
		{info + "/METADATA", metadata(name, version, needs)},
		{info + "/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + tag + "\n"},
	}
	if size > 0 {
		filler := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(filler)
		files = append(files, [2]string{module + "/filler.bin", string(filler)})
	}
	record := ""
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1]))
	}
	files = append(files, [2]string{info + "/RECORD", record + info + "/RECORD,,\n"})
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, f := range files {
		w, err := archive.CreateRaw(&zip.FileHeader{
			Name: f[0], Method: zip.Store, CRC32: crc32.ChecksumIEEE([]byte(f[1])),
			CompressedSize64: uint64(len(f[1])), UncompressedSize64: uint64(len(f[1])),
		})
		if err == nil {
			_, _ = io.WriteString(w, f[1])
		}
	}
	_ = archive.Close()
	return out.Bytes()
}

// Faults of an upstream.

// leads redirects to another address.
func leads(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
}

// half sends the first half of a file, and then calls then with the rest.
func (u *upstream) half(then func(w http.ResponseWriter, r *http.Request, rest []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		data := u.data[path.Base(r.URL.Path)]
		u.mu.Unlock()
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		then(w, r, data[len(data)/2:])
	}
}

// holds withholds the rest until release is closed; reached gets a signal for each request that waits.
func holds(reached chan<- struct{}, release <-chan struct{}) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, r *http.Request, rest []byte) {
		select {
		case reached <- struct{}{}:
		default:
		}
		for sent := 0; ; sent++ { // a byte now and then: the connection is slow, not dead
			select {
			case <-release:
				_, _ = w.Write(rest[sent:])
				return
			case <-r.Context().Done():
				return
			case <-time.After(500 * time.Millisecond):
				if sent < len(rest)-1 {
					_, _ = w.Write(rest[sent : sent+1])
					w.(http.Flusher).Flush()
				} else {
					sent--
				}
			}
		}
	}
}
