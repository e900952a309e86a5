// Package index proxies a Python package index and an npm registry over plain HTTP. Sandboxes have no network and
// reach it over their agent's stream; image builds reach it on this host's loopback, since a container does not trust the
// host's certificate authorities.
//
// It answers GET and HEAD of project pages and of the files that those pages list, and nothing else. It fetches from the
// configured hosts alone, whatever a page or a redirect says. Responses are cached: pages for PageAge, after which
// they are revalidated; files under their hash, until Trim removes them. Concurrent requests for the same thing become one request
// upstream. What is limited is shared fairly between tenants, and what nobody reads ends (see work).
//
// A file's hash is verified during its download. The last byte is passed on only if the hash is right, so no caller ever gets a
// complete file that is not the one listed. Without its cache the index still works: everything then comes from upstream.
package index

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	pagesMemory  = 32 << 20  // pages in memory, in bytes
	absentKept   = 4096      // projects that upstream does not have
	knownKept    = 1 << 16   // files known to be in the cache
	pagesAtOnce  = 32        // pages that are read from upstream at once, and as many from the cache
	beyondAtOnce = 4         // pages in memory that the budget has no room for
	beyondLeast  = 2         // of them, each with less memory: two tenants
	beyondMost   = 320 << 20 // memory of one: the largest page, and more files than any has
	filesAtOnce  = 64        // files that are read from upstream at once
	storesAtOnce = 64        // files that are being put into the cache after their download, and marks of use
	keptLeast    = 64 << 10  // what a page that is being put there counts as at least, of pagesMemory for all of them
	partsAtOnce  = 32        // ranges from the middle of files, for callers that cannot wait for the download
	ownMemory    = 128 << 20 // the memory budget of an index that is given none
	absentFor    = time.Minute
	closeTimeout = 10 * time.Second // for downloaded files that are being put into the cache
)

// errClosed is the cause of requests that end because the index is closed.
var errClosed = errors.New("the package index is closed")

// Index serves packages. Its methods may be called concurrently.
type Index struct {
	cfg       Config
	log       *slog.Logger
	count     counters
	pypi, npm *upstream
	cache     *guard

	pages      *lru[*page]
	keeping    chan struct{} // has the page that is being written to the cache: one at a time
	keepRoom   *semaphore.Weighted
	absent     *lru[time.Time] // until when a project is not asked for again
	staleUntil *lru[time.Time] // until when an old page is served without asking again
	known      *lru[int64]     // sizes of files in the cache
	marked     *lru[time.Time] // when the use of a file in the cache was recorded
	refused    *lru[refusal]
	lookups    calls          // pages in the cache: a slow upstream does not hold these up
	refreshes  calls          // pages upstream
	beyond     *budget.Places // pages that the memory budget has no room for
	beyondMax  int64          // memory of each of them, in bytes
	fileSlots  *budget.Places
	slotless   atomic.Int64 // readers whose download waits for one of fileSlots
	storeSlots *budget.Places
	partSlots  *budget.Places // ranges of files that are being downloaded

	lingerSlots *budget.Places      // of work without readers
	rates       *lru[*rate.Limiter] // of requests, by tenant

	trimming  sync.Mutex
	spoolMax  int64               // space for downloads in bytes, on disk and in windows
	spoolRoom *semaphore.Weighted // the free part of it
	spooled   atomic.Int64        // the reserved part of it
	paced     pace                // of warnings

	mu       sync.Mutex
	flights  map[string]*flight
	retained []*retained
	spare    map[*flight]struct{} // in the cache, with spool files that are still read: the readers can continue in the cache
	grown    int64                // bytes put into the cache since the last trim
	closed   bool
	running  map[*context.CancelCauseFunc]struct{}
	wg       sync.WaitGroup
}

var _ http.Handler = (*Index)(nil)

// New makes an Index. It calls neither upstream nor the cache.
func New(cfg Config) (*Index, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	x := &Index{
		cfg: cfg, log: cfg.Logger,
		pages: newLRU[*page](pagesMemory), absent: newLRU[time.Time](absentKept), staleUntil: newLRU[time.Time](absentKept),
		known: newLRU[int64](knownKept), marked: newLRU[time.Time](knownKept), refused: newLRU[refusal](absentKept),
		keeping: make(chan struct{}, 1), keepRoom: semaphore.NewWeighted(pagesMemory), lookups: newCalls(), refreshes: newCalls(),
		fileSlots: budget.NewPlaces(filesAtOnce), storeSlots: budget.NewPlaces(storesAtOnce),
		partSlots: budget.NewPlaces(partsAtOnce), lingerSlots: budget.NewPlaces(lingerAtOnce), rates: newLRU[*rate.Limiter](ratesKept),
		flights: map[string]*flight{}, spare: map[*flight]struct{}{}, running: map[*context.CancelCauseFunc]struct{}{},
	}
	places := min(max(cfg.Pages/beyondMost, beyondLeast), beyondAtOnce)
	x.beyond, x.beyondMax = budget.NewPlaces(int(places)), min(cfg.Pages/places, beyondMost)
	x.spoolMax = cfg.spoolBytes()
	x.spoolRoom = semaphore.NewWeighted(x.spoolMax)
	x.cache = &guard{cache: cfg.Cache, timeout: cfg.Timeout, log: cfg.Logger, count: &x.count}
	var err error
	if x.pypi, err = newUpstream("package index", cfg.PyPIURL, cfg, &x.count); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	if x.npm, err = newUpstream("npm registry", cfg.NpmURL, cfg, &x.count); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	return x, nil
}

// begin returns a context for work that outlives its request. Close cancels it and waits until end is called. The caller holds the mutex.
func (x *Index) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	if x.closed {
		return nil, nil, farm.Wrap(errClosed, farm.CodeUnavailable, "The package index is being closed.")
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	key := &cancel
	x.running[key] = struct{}{}
	x.wg.Add(1)
	return ctx, func() {
		cancel(context.Canceled)
		x.mu.Lock()
		delete(x.running, key)
		x.mu.Unlock()
		x.wg.Done()
	}, nil
}

// background runs f beside its caller, unless the index is closed; then it returns false. Close cancels its context and waits for it.
func (x *Index) background(ctx context.Context, f func(ctx context.Context)) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	ctx, end, err := x.begin(ctx)
	if err != nil {
		return false
	}
	go func() {
		defer end()
		f(ctx)
	}()
	return true
}

// Close aborts downloads and waits for them. Complete files are still put into the cache. Later requests are rejected.
func (x *Index) Close() error {
	x.mu.Lock()
	x.closed = true
	for cancel := range x.running {
		(*cancel)(errClosed)
	}
	x.mu.Unlock()
	x.wg.Wait()
	x.mu.Lock()
	for len(x.retained) > 0 {
		x.discard(x.retained[0])
	}
	x.mu.Unlock()
	if x.cfg.Client == nil {
		x.pypi.client.CloseIdleConnections()
		x.npm.client.CloseIdleConnections()
	}
	return nil
}

// Default package indexes.
const (
	DefaultPyPIURL  = "https://pypi.org/simple/"
	DefaultFilesURL = "https://files.pythonhosted.org/"
	DefaultNpmURL   = "https://registry.npmjs.org/"
)

// Config holds the settings of an Index. The zero value is the public indexes without a cache.
type Config struct {
	PyPIURL   string        `toml:"pypi_url" env:"SANDFARM_PYPI_INDEX_URL" default:"https://pypi.org/simple/" doc:"Python package index that sandboxes and image builds install from: its simple index."`
	FilesURL  string        `toml:"files_url" default:"https://files.pythonhosted.org/" doc:"Addresses that links of the index may lead to, besides its own host. Separate several with commas."`
	NpmURL    string        `toml:"npm_url" env:"SANDFARM_NPM_REGISTRY" default:"https://registry.npmjs.org/" doc:"npm registry that sandboxes and image builds install from."`
	CacheMB   int           `toml:"cache_mb" default:"20480" min:"1" doc:"Space for packages in the object store, in MiB; each object counts 48 KiB more than it has. What was not used for longest is removed first."`
	PageAge   time.Duration `toml:"page_age" default:"10m" min:"1ms" doc:"How long a project's page is used before the index is asked again."`
	Timeout   time.Duration `toml:"timeout" default:"30s" min:"10ms" doc:"How long the index may send nothing before a request fails."`
	MaxFileMB int           `toml:"-"` // largest file that is downloaded, in MiB

	SpoolMB int `toml:"spool_mb" default:"0" min:"0" doc:"Space for files during their download, in MiB. A file over 32 MiB takes 8 MiB, since it is streamed into the object store. 0: three quarters of the free space of the temporary directory."`

	Cache  Cache            `toml:"-"` // nil: no cache
	Client *http.Client     `toml:"-"` // nil: one with the host's trust store and proxy settings
	Logger *slog.Logger     `toml:"-"` // nil: nothing is logged
	Now    func() time.Time `toml:"-"` // nil: time.Now
	Memory *budget.Budget   `toml:"-"` // for pages that are read and sent, and for windows; nil: one of its own
	Pages  int64            `toml:"-"` // memory in bytes for large pages that Memory has no room for, of all tenants together; 0: as much as is of use
	Dir    string           `toml:"-"` // of files during their download; empty: os.TempDir
}

func (c Config) withDefaults() Config {
	c.PyPIURL = cmp.Or(c.PyPIURL, DefaultPyPIURL)
	c.FilesURL = cmp.Or(c.FilesURL, DefaultFilesURL)
	c.NpmURL = cmp.Or(c.NpmURL, DefaultNpmURL)
	c.CacheMB = cmp.Or(c.CacheMB, 20480)
	c.PageAge = cmp.Or(c.PageAge, 10*time.Minute)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.MaxFileMB = cmp.Or(c.MaxFileMB, 8192)
	c.Dir = cmp.Or(c.Dir, os.TempDir())
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Pages = cmp.Or(c.Pages, beyondAtOnce*beyondMost)
	if c.Memory == nil {
		c.Memory = budget.New(ownMemory)
	}
	return c
}

// minSpool is the minimum space for downloads: one spooled file and some windows.
const minSpool = 64 << 20

// spoolBytes is the space for downloads: as configured, or most of the free disk space, and never more than the largest file or the
// cache.
func (c Config) spoolBytes() int64 {
	limit := int64(max(c.CacheMB, c.MaxFileMB)) << 20
	if c.SpoolMB > 0 {
		return min(int64(c.SpoolMB)<<20, limit)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(c.Dir, &disk); err != nil {
		return limit // the first download reports the error
	}
	return min(max(int64(disk.Bavail)*disk.Bsize/4*3, minSpool), limit) //nolint:gosec // no disk has that many blocks
}

// Validate reports all problems of the settings. Zero fields stand for their defaults.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	var errs []error
	for _, a := range []struct{ name, value string }{{"pypi_url", c.PyPIURL}, {"npm_url", c.NpmURL}} {
		if _, err := base(a.value); err != nil {
			errs = append(errs, fmt.Errorf("index.%s: %w", a.name, err))
		}
	}
	if _, err := bases(c.FilesURL); err != nil {
		errs = append(errs, fmt.Errorf("index.files_url: %w", err))
	}
	if c.CacheMB < 1 {
		errs = append(errs, fmt.Errorf("index.cache_mb is %d; it must be at least 1", c.CacheMB))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"page_age", c.PageAge}, {"timeout", c.Timeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("index.%s is %s; it must be above 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// base parses a base address. The error does not contain it: it may have a password.
func base(address string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(strings.TrimSpace(address), "/") + "/")
	if err != nil {
		return nil, errors.New("it is not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is not an http address", u.Redacted())
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q has a query or a fragment", u.Redacted())
	}
	return u, nil
}

// bases parses addresses that are separated by commas.
func bases(addresses string) ([]*url.URL, error) {
	var list []*url.URL
	for address := range strings.SplitSeq(addresses, ",") {
		u, err := base(address)
		if err != nil {
			return nil, err
		}
		list = append(list, u)
	}
	return list, nil
}

const (
	// valueMax is the longest value that is read at once, such as a version of an npm package; real ones have under a MiB.
	valueMax = 8 << 20
	// valuesMax is how many values one may contain, since each takes dozens of bytes once it is decoded; real ones have some hundred.
	valuesMax = 1 << 16
)

// errValueSize is the error for a value of more than valueMax bytes.
var errValueSize = fmt.Errorf("a value in it has more than %d MiB", valueMax>>20)

// newDecoder decodes a page value by value. It fails at a value of more than valueMax bytes, so that it never buffers a page, and counts long ones.
func newDecoder(p *page, body io.Reader) *json.Decoder {
	s := &stepped{r: body, page: p, longest: readWeighed}
	s.dec = json.NewDecoder(s)
	return s.dec
}

// stepped is what a decoder reads from. The decoder only reads on when all that it has is the beginning of one value.
type stepped struct {
	r       io.Reader
	dec     *json.Decoder
	read    int64
	page    *page
	longest int64 // value that is counted
}

// Read reads on if the value is not too long yet.
func (s *stepped) Read(p []byte) (int, error) {
	held := s.read - s.dec.InputOffset()
	if held > valueMax {
		return 0, errValueSize
	}
	p = p[:min(int64(len(p)), valueMax+1-held)]
	if longer := held + int64(len(p)) - s.longest; longer > 0 {
		if err := s.page.grow(valueWeight * longer); err != nil {
			return 0, err
		}
		s.longest += longer
	}
	n, err := s.r.Read(p)
	s.read += int64(n)
	return n, err
}

// value reads the next value.
func value(dec *json.Decoder, into any) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	if len(raw) > valueMax {
		return errValueSize
	}
	if budget.Values(raw) > valuesMax {
		return fmt.Errorf("a value in it has more than %d values", valuesMax)
	}
	return json.Unmarshal(raw, into)
}
