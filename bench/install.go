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
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/index"
)

const (
	wanted        = "numpy==2.2.0" // the image has another version
	pythonVersion = "3.13"         // of the image
	installRounds = 3
)

// install installs one package and returns how long the caller waited.
func (b *bench) install(ctx context.Context, sandbox, requirement string) (time.Duration, error) {
	began := time.Now()
	job, err := b.Install(ctx, sandbox, wire.PackagesRequest{Packages: []string{requirement}}, client.WithWait(time.Minute))
	if err == nil && !job.Final() {
		job, err = b.Wait(ctx, job.ID)
	}
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if err := client.Failure(job); err != nil {
		return 0, err
	}
	if one := job.Result.Install.Packages[0]; one.Status != "installed" || "=="+one.Version != strings.TrimPrefix(requirement, one.Name) {
		return 0, fmt.Errorf("install %s: %s %s %s", requirement, one.Status, one.Version, one.Message)
	}
	return took, nil
}

// installTimes are the times of one installer.
type installTimes struct{ first, second []time.Duration }

func (t *installTimes) add(first, second time.Duration) {
	t.first, t.second = append(t.first, first), append(t.second, second)
}

// benchInstall installs numpy in an empty farm, in a second sandbox of that farm, and in a sandbox of a second worker with an empty
// disk. It compares that with uv and pip on the host, each with an empty cache and then with the filled one. All use the same
// upstream. Each round has its own farm.
func benchInstall(ctx context.Context, b *bench) []row {
	program := uvProgram(ctx, b.data)
	var rows []row
	for _, over := range lines {
		var farm, uvs, pips installTimes
		var workers []time.Duration
		for range installRounds {
			u := startUpstream(ctx, over)
			defer u.close()
			first, second, other := b.installOnce(ctx, u)
			farm.add(first, second)
			workers = append(workers, other)
			onHost(b.data, &uvs, func(cache, target string) *exec.Cmd { return uvInstall(ctx, program, u.url, cache, target, wanted) })
			onHost(b.data, &pips, func(cache, target string) *exec.Cmd { return pipInstall(ctx, u.url, cache, target) })
		}
		first, second, other := quantile(farm.first, 0.5), quantile(farm.second, 0.5), quantile(workers, 0.5)
		rows = append(rows,
			row{
				what: "install numpy, first in an empty farm, p50; " + over.name, ours: ms(first),
				other: fmt.Sprintf("empty caches: uv %s, pip %s", ms(quantile(uvs.first, 0.5)), ms(quantile(pips.first, 0.5))), ratio: times(first, quantile(uvs.first, 0.5)),
			},
			row{
				what: "second sandbox", ours: ms(second),
				other: fmt.Sprintf("own caches: uv %s, pip %s", ms(quantile(uvs.second, 0.5)), ms(quantile(pips.second, 0.5))),
				ratio: times(second, first) + " of the first", aim: "≤ 0.2×",
			},
			row{what: "second worker, empty disk", ours: ms(other), ratio: times(other, first) + " of the first", aim: ""})
	}
	return rows
}

// installOnce returns the three times, measured with a new farm.
func (b *bench) installOnce(ctx context.Context, u *upstream) (first, second, other time.Duration) {
	f := start(ctx, b.program, "SANDFARM_PYPI_INDEX_URL="+u.url)
	defer f.close()
	took := make([]time.Duration, 2)
	for i := range took {
		id := must(f.sandbox(ctx))
		took[i] = must(f.install(ctx, id, wanted))
	}
	w := f.service("worker", "SANDFARM_PYPI_INDEX_URL="+u.url)
	defer w.close()
	until(ctx, "start a second worker", func() bool {
		list, err := f.Workers(ctx)
		return err == nil && len(list) == 2
	})
	id := w.sandbox(ctx)
	other = must(f.install(ctx, id, wanted))
	must(f.Close(ctx, id, client.WithWait(time.Minute)))
	return took[0], took[1], other
}

// uvProgram writes the installer of sandboxes to a file and returns its path.
func uvProgram(ctx context.Context, dir string) string {
	x := must(index.New(index.Config{Dir: dir}))
	defer func() { _ = x.Close() }()
	data := must(images.Installer(ctx, x.Fetch, runtime.GOARCH))
	path := filepath.Join(dir, "uv")
	check(os.WriteFile(path, data, 0o700)) //nolint:gosec // a program
	return path
}

// onHost runs an installer twice into separate directories: with an empty cache, and with the cache of the first run.
func onHost(dir string, t *installTimes, command func(cache, target string) *exec.Cmd) {
	dir = must(os.MkdirTemp(dir, "host-*"))
	defer func() { _ = os.RemoveAll(dir) }()
	took := make([]time.Duration, 2)
	for i := range took {
		cmd := command(filepath.Join(dir, "cache"), filepath.Join(dir, fmt.Sprint("target", i)))
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			fail("%v: %w: %s", cmd.Args, err, out)
		}
		took[i] = time.Since(began)
	}
	t.add(took[0], took[1])
}

func uvInstall(ctx context.Context, program, from, cache, target, requirement string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, "pip", "install", "--quiet", "--python-version", pythonVersion, "--target", target, requirement)
	cmd.Env = append(plainEnv(), "UV_NO_CONFIG=1", "UV_DEFAULT_INDEX="+from, "UV_CACHE_DIR="+cache, "UV_PYTHON_DOWNLOADS=never")
	return cmd
}

// pipInstall trusts the upstream: otherwise pip caches nothing from plain HTTP.
func pipInstall(ctx context.Context, from, cache, target string) *exec.Cmd {
	host := strings.TrimSuffix(strings.TrimPrefix(from, "http://"), "/simple/")
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--python-version", pythonVersion, "--only-binary", ":all:", "--target", target, wanted)
	cmd.Env = append(plainEnv(), "PIP_CONFIG_FILE=/dev/null", "PIP_INDEX_URL="+from, "PIP_TRUSTED_HOST="+host, "PIP_CACHE_DIR="+cache, "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore")
	return cmd
}

// plainEnv returns the environment without the settings of installers.
func plainEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PIP_") && !strings.HasPrefix(kv, "UV_") {
			env = append(env, kv)
		}
	}
	return env
}

const (
	crowd       = 20
	crowdWanted = "pandas==2.3.3" // the image has another version, and lacks some dependencies of this one
)

// benchCrowd installs pandas in 20 sandboxes at once in an empty farm and counts the requests to upstream. It compares that with 20
// uv processes on the host, each with an empty cache.
func benchCrowd(ctx context.Context, b *bench) []row {
	program := uvProgram(ctx, b.data)
	u := startUpstream(ctx, lines[0])
	defer u.close()
	took, whole := must2(b.crowdOnce(ctx, u))
	asked, limit, all := u.downloads()
	parts := u.parts

	direct := startUpstream(ctx, lines[0])
	defer direct.close()
	dir := must(os.MkdirTemp(b.data, "crowd-*"))
	defer func() { _ = os.RemoveAll(dir) }()
	alone, aloneWhole := must2(together(func(n int) (time.Duration, error) {
		began := time.Now()
		out, err := uvInstall(ctx, program, direct.url, filepath.Join(dir, fmt.Sprint("cache", n)), filepath.Join(dir, fmt.Sprint("target", n)), crowdWanted).CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("uv: %w: %s", err, out)
		}
		return time.Since(began), nil
	}))
	directAsked, _, directAll := direct.downloads()
	return []row{{
		what: "20 sandboxes install pandas at once, until the last has it", ours: fmt.Sprintf("%.1f s, each p50 %.1f s, p95 %.1f s", whole.Seconds(), quantile(took, 0.5).Seconds(), quantile(took, 0.95).Seconds()),
		other: fmt.Sprintf("20 uv with empty caches on the host %.1f s, p50 %.1f s, p95 %.1f s", aloneWhole.Seconds(), quantile(alone, 0.5).Seconds(), quantile(alone, 0.95).Seconds()), ratio: times(whole, aloneWhole),
	}, {
		what: "downloads from upstream meanwhile", ours: fmt.Sprintf("%d of %d files (at most %d of one), %d parts", all, asked, limit, parts),
		other: fmt.Sprintf("%d of %d files, %d parts", directAll, directAsked, direct.parts), aim: "1 of each",
	}}
}

func (b *bench) crowdOnce(ctx context.Context, u *upstream) ([]time.Duration, time.Duration, error) {
	f := start(ctx, b.program, "SANDFARM_PYPI_INDEX_URL="+u.url)
	defer f.close()
	ids := make([]string, crowd)
	for i := range ids {
		ids[i] = must(f.sandbox(ctx))
	}
	return together(func(n int) (time.Duration, error) { return f.install(ctx, ids[n], crowdWanted) })
}

// together calls a function for the whole crowd at once and returns the time of each call and of all together.
func together(do func(n int) (time.Duration, error)) ([]time.Duration, time.Duration, error) {
	took := make([]time.Duration, crowd)
	var g errgroup.Group
	began := time.Now()
	for n := range took {
		g.Go(func() error {
			var err error
			took[n], err = do(n)
			return err
		})
	}
	err := g.Wait()
	return took, time.Since(began), err
}

// benchNeighbour compares print(1) while code of another sandbox sleeps with the same on a quiet farm. Blocks of both
// alternate.
func benchNeighbour(ctx context.Context, b *bench) []row {
	id := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, id) }()
	other := must(b.sandbox(ctx))
	defer func() { _, _ = b.Close(ctx, other) }()
	var quiet, beside []time.Duration
	block := func(into *[]time.Duration) {
		for n := range 60 {
			_, took := must2(b.execute(ctx, id, "print(1)"))
			if n >= 10 { // warm
				*into = append(*into, took)
			}
		}
	}
	for range 4 {
		block(&quiet)
		sleeping := must(b.Execute(ctx, other, wire.ExecuteRequest{Code: "import time; time.sleep(10)"}))
		block(&beside)
		job := must(b.Job(ctx, sleeping.ID))
		if job.Final() {
			fail("the sleep ended before the block: %s", job.State)
		}
		must(b.Interrupt(ctx, other, client.WithWait(30*time.Second)))
		must(b.Wait(ctx, sleeping.ID))
	}
	return []row{{
		what: "`print(1)` while another client's code sleeps 10 s, p50 (p95)", ours: spread(beside),
		other: "quiet " + spread(quiet), ratio: times(quantile(beside, 0.5), quantile(quiet, 0.5)), aim: "≤ 1.2×",
	}}
}

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
