package index_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/index"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := (index.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	for name, c := range map[string]struct {
		cfg  index.Config
		want string
	}{
		"NoScheme":     {index.Config{PyPIURL: "/simple"}, "index.pypi_url"},
		"OtherScheme":  {index.Config{NpmURL: "ftp://x/"}, "index.npm_url"},
		"NoHost":       {index.Config{PyPIURL: "http://"}, "index.pypi_url"},
		"NoURL":        {index.Config{FilesURL: "http://\x00"}, "index.files_url"},
		"SecondIsBad":  {index.Config{FilesURL: "http://x, y"}, "index.files_url"},
		"Query":        {index.Config{PyPIURL: "http://x/?a=b"}, "index.pypi_url"},
		"CacheMB":      {index.Config{CacheMB: -1}, "index.cache_mb"},
		"MaxFileMB":    {index.Config{MaxFileMB: -1}, "index.max_file_mb"},
		"PageAge":      {index.Config{PageAge: -time.Second}, "index.page_age"},
		"Timeout":      {index.Config{Timeout: -time.Second}, "index.timeout"},
		"HidesSecrets": {index.Config{PyPIURL: "ftp://me:hidden@x/"}, "index.pypi_url"},
	} {
		err := c.cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := index.New(c.cfg); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
	}
	err := index.Config{PyPIURL: "x", NpmURL: "y"}.Validate()
	if err == nil || !strings.Contains(err.Error(), "pypi_url") || !strings.Contains(err.Error(), "npm_url") {
		t.Errorf("not all problems are reported: %v", err)
	}
}
