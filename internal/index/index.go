package index

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Index serves packages. It may be used at the same time.
type Index struct {
	cfg   Config
	count counters
}

var _ http.Handler = (*Index)(nil)

// New makes an Index. It calls neither upstream nor the cache.
func New(cfg Config) (*Index, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	return &Index{cfg: cfg}, nil
}

// ServeHTTP serves pages and files below /pypi/ and /npm/.
func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	http.NotFound(w, r)
}

// Fetch opens a file that the Python index lists, through the cache. sha256 pins it, in hexadecimal; "" takes what the
// index lists. The caller closes the reader; one that ends with io.EOF gave the file whole and right. CodeNotFound when
// the index does not list it, CodeConflict when it lists another hash, CodeUnavailable when upstream does not answer.
func (x *Index) Fetch(ctx context.Context, project, filename, sha256 string) (io.ReadCloser, int64, error) {
	return nil, 0, farm.NotFoundf("There is no file %s of project %s.", filename, project)
}

// Trim brings the cache under CacheMB: what was put first goes first.
func (x *Index) Trim(ctx context.Context) error { return nil }

// Close ends what is being fetched and waits for it. Requests that come later are refused.
func (x *Index) Close() error { return nil }
