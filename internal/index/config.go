package index

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/budget"
)

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
	CacheMB   int           `toml:"cache_mb" default:"20480" min:"1" doc:"Space for packages in the object store, in MiB. What was not used for longest is removed first."`
	PageAge   time.Duration `toml:"page_age" default:"10m" min:"1ms" doc:"How long a project's page is used before the index is asked again."`
	Timeout   time.Duration `toml:"timeout" default:"30s" min:"10ms" doc:"How long the index may send nothing before a request fails."`
	MaxFileMB int           `toml:"max_file_mb" default:"8192" min:"1" doc:"Largest file that is downloaded, in MiB."`

	SpoolMB int `toml:"spool_mb" default:"0" min:"0" doc:"Space for files during their download, in MiB. A file over 32 MiB takes 8 MiB, since it is streamed into the object store. 0: three quarters of the free space of the temporary directory."`

	Cache  Cache            `toml:"-"` // nil: no cache
	Client *http.Client     `toml:"-"` // nil: one with the host's trust store and proxy settings
	Logger *slog.Logger     `toml:"-"` // nil: nothing is logged
	Now    func() time.Time `toml:"-"` // nil: time.Now
	Memory *budget.Budget   `toml:"-"` // for large pages that are being sent, and for windows; nil: without limit
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
	return c
}

// minSpool is the minimum space for downloads: one spooled file and some windows.
const minSpool = 64 << 20

// spoolBytes is the space for downloads: as configured, or most of the free disk space, and never more than the largest file or the
// cache.
func (c Config) spoolBytes() int64 {
	most := int64(max(c.CacheMB, c.MaxFileMB)) << 20
	if c.SpoolMB > 0 {
		return min(int64(c.SpoolMB)<<20, most)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(c.Dir, &disk); err != nil {
		return most // the first download reports the error
	}
	return min(max(int64(disk.Bavail)*disk.Bsize/4*3, minSpool), most) //nolint:gosec // no disk has that many blocks
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
	for _, n := range []struct {
		name  string
		value int
	}{{"cache_mb", c.CacheMB}, {"max_file_mb", c.MaxFileMB}} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("index.%s is %d; it must be at least 1", n.name, n.value))
		}
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
