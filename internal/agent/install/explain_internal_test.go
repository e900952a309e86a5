package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// Real output of uv 0.13.8.
func TestUVIsExplained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\necho '{\"version\": \"3.13\", \"path\": []}'\n"), 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	python := kernel.NewProber(kernel.ProberConfig{Reaper: reaper, Image: []string{"PATH=" + dir}, HomeDir: dir})
	in := &installation{s: New(t.Context(), Config{HomeDir: dir, Python: python})}
	for name, c := range map[string]struct {
		asked, said, want string
		fatal             bool
	}{
		"not found": {
			"x1", "error: No solution found when resolving dependencies\n  cause: Because x1 was not found in the package registry and you require x1, we can conclude that your requirements are unsatisfiable.\n",
			"x1 was not found in the package index: check its name.", false,
		},
		"dependency not found": {
			"x1", "error: No solution found when resolving dependencies\n  cause: Because y_2 was not found in the package registry and x1 depends on y_2, we can conclude that x1 cannot be used.\n",
			"x1 needs y-2, which was not found in the package index.", false,
		},
		"version": {
			"humanize==99.1", "error: No solution found when resolving dependencies\n  cause: Because there is no version of humanize==99.1 and you require humanize==99.1, we can conclude that your requirements are unsatisfiable.\n",
			`No version of humanize fits "humanize==99.1": there is no version of humanize==99.1.`, false,
		},
		"python": {
			"ipython>=9.12", "error: No solution found when resolving dependencies\n  cause: Because the current Python version (3.8.1) does not satisfy Python>=3.11 and ipython>=9.13.0 depends on Python>=3.11, we can conclude that ipython>=9.13.0 cannot be used.\n",
			"ipython needs Python>=3.11; this image has Python 3.13.", false,
		},
		"wheel": {
			"pywin32", "error: No solution found when resolving dependencies\n  cause: Because pywin32<=302 has no wheels with a matching Python ABI tag (e.g., `cp311`) and only the following versions of pywin32 are available:\n             pywin32<=302\n             pywin32>=303\n",
			"pywin32 has no wheel for Python 3.13 on this platform, and no source to build it from.", false,
		},
		"conflict": {
			"numpy<1.20", "error: No solution found when resolving dependencies\n  cause: Because pandas==2.2.0 depends on numpy>=1.23.2,<2 and you require pandas==2.2.0, we can conclude that you require numpy>=1.23.2,<2.\n         And because you require numpy<1.20, we can conclude that your requirements are unsatisfiable.\n",
			"numpy conflicts with other required packages: Because pandas==2.2.0 depends on numpy>=1.23.2,<2", false,
		},
		"build with errors of its own": {
			"mysqlclient", "error: Failed to build `mysqlclient==2.3.1`\n  cause: The build backend returned an error\n\n         [stderr]\n         a\n         b\n         x.c:1: fatal error: Python.h: No such file\n         error: command failed\n         c\n         d\n\nhint: Build failures usually indicate a problem\n",
			"mysqlclient could not be built: b\nx.c:1: fatal error: Python.h: No such file\nerror: command failed\nc\nd", false,
		},
		"hash": {
			"humanize", "error: Failed to download `humanize==4.0.0`\n  cause: Hash mismatch for `humanize==4.0.0`\n\n         Expected:\n           sha256:0d\n",
			"The file from the index for humanize does not match its published hash, so it was not installed.", false,
		},
		"no worker": {
			"humanize", "error: Request failed after 1 retry in 1.2s\n  cause: Failed to fetch: http://127.0.0.1:3141/pypi/simple/humanize/\n  cause: HTTP status server error (503 Service Unavailable) for url (http://127.0.0.1:3141/pypi/simple/humanize/)\n",
			"The package index could not deliver the files for humanize: it answered with status 503.", true,
		},
		"no connection": {
			"humanize", "error: Request failed after 1 retry in 1.8s\n  cause: Failed to fetch: http://127.0.0.1:1/simple/humanize/\n  cause: client error (Connect)\n  cause: Connection refused (os error 111)\n",
			"The package index is not reachable: the files for humanize could not be downloaded. Try again later.", false,
		},
		"disk": {
			"pyarrow", "error: Failed to download `pyarrow==26.0.1`\n  cause: failed to write to file `/x`: No space left on device (os error 28)\n",
			"pyarrow does not fit: the sandbox's disk for packages, ", false,
		},
		"anything": {"x1", "error: " + strings.Repeat("never seen ", 1000), "x1 could not be installed: never seen never seen", false},
	} {
		trouble := &trouble{output: "Using CPython 3.13.5\n" + c.said}
		got := uvTool{}.explain(in, trouble, parseRequirement("pip", c.asked))
		if !strings.HasPrefix(got, c.want) || trouble.fatal != c.fatal || len(got) > maxMessageBytes+100 {
			t.Errorf("%s: %q, fatal %v\nwant %q", name, got, trouble.fatal, c.want)
		}
	}
}
