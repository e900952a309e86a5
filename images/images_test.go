package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// fakeEngine is an engine's images in memory.
type fakeEngine struct {
	tags     map[string]bool
	built    []engine.BuildSpec
	buildErr error
	index    int                                                     // status of the package index during the build
	open     int                                                     // networks that are not closed
	during   func(ctx context.Context, args map[string]string) error // called during the build; nil: nothing
}

func (f *fakeEngine) HasImage(_ context.Context, ref string) (bool, error) { return f.tags[ref], nil }

func (f *fakeEngine) Tag(_ context.Context, _, tag string) error {
	f.tags[tag] = true
	return nil
}

// Network serves exit on a port of its own.
func (f *fakeEngine) Network(_ context.Context, _ string, exit http.Handler) (images.Network, error) {
	s := httptest.NewServer(exit)
	f.open++
	return images.Network{Mode: "container:x", Addr: s.Listener.Addr().String(), Close: func() error {
		s.Close()
		f.open--
		return nil
	}}, nil
}

func (f *fakeEngine) Build(ctx context.Context, spec engine.BuildSpec, _ func(farm.Progress)) error {
	f.built = append(f.built, spec)
	if f.during != nil {
		if err := f.during(ctx, spec.Args); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, spec.Args["PIP_INDEX_URL"]+"not..a..name!/", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	f.index = resp.StatusCode
	for _, tag := range spec.Tags {
		f.tags[tag] = f.buildErr == nil
	}
	return errors.Join(f.buildErr, resp.Body.Close())
}

func TestList(t *testing.T) {
	t.Parallel()
	list, err := images.List()
	testbed.Must(t, err)
	at := slices.IndexFunc(list, func(d images.Definition) bool { return d.Name == "python" })
	if at < 0 {
		t.Fatalf("no python in %v", list)
	}
	d := list[at]
	if diff := cmp.Diff([]string{"python", "bash"}, d.Languages); diff != "" || !strings.HasPrefix(d.Description, "Python 3.13") || len(d.Hash) != 12 {
		t.Errorf("definition %+v", d)
	}
	for _, name := range []string{"Dockerfile", "README.md", "smoke.py", "requirements.txt"} {
		if _, err := fs.Stat(d.Files, name); err != nil {
			t.Error(err)
		}
	}
	if _, err := images.Find("no-such"); farm.CodeOf(err) != farm.CodeNotFound || !strings.Contains(err.Error(), "python") {
		t.Errorf("find of an unknown image: %v", err)
	}
}

// Node and npm are pinned by version and hash, and come from the package registry.
func TestNodeIsPinned(t *testing.T) {
	t.Parallel()
	d, err := images.Find("node")
	testbed.Must(t, err)
	text, err := fs.ReadFile(d.Files, "Dockerfile")
	testbed.Must(t, err)
	for _, want := range []string{`(?m)^ARG NODE_VERSION=22\.\d+\.\d+$`, `(?m)^ARG NPM_VERSION=11\.\d+\.\d+$`, `(?m)^ARG NODE_X64=[0-9a-f]{128}$`, `(?m)^ARG NODE_ARM64=[0-9a-f]{128}$`, `(?m)^ARG NPM_SHA512=[0-9a-f]{128}$`, `(?m)^ARG NPM_REGISTRY=`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %s in the Dockerfile", want)
		}
	}
}

// Every version is pinned, so that builds are reproducible.
func TestRequirementsArePinned(t *testing.T) {
	t.Parallel()
	d, err := images.Find("python")
	testbed.Must(t, err)
	text, err := fs.ReadFile(d.Files, "requirements.txt")
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && strings.Count(line, "==") != 1 {
			t.Errorf("%q is not pinned", line)
		}
	}
}

// Files are pinned by hash, too, so that a build takes from an index only what the index had when the versions were chosen.
func TestRequirementsHaveHashes(t *testing.T) {
	t.Parallel()
	for _, image := range []string{"python", "python-cuda"} {
		d, err := images.Find(image)
		testbed.Must(t, err)
		text := func(name string) string {
			data, err := fs.ReadFile(d.Files, name)
			testbed.Must(t, err)
			return string(data)
		}
		var want []string
		for line := range strings.Lines(text("requirements.txt")) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				want = append(want, normal(line))
			}
		}
		slices.Sort(want)
		testbed.Diff(t, fmt.Sprintf("%s: the lock has other versions (deploy/lock.sh writes it)", image), want, locked(t, text("requirements.lock")))
		testbed.Diff(t, fmt.Sprintf("%s: the installer", image), []string{"uv==" + images.InstallerVersion}, locked(t, text("installer.lock")))
		if n := strings.Count(text("Dockerfile"), "--require-hashes"); n != 2 {
			t.Errorf("%s: --require-hashes is there %d times, want 2", image, n)
		}
	}
}

// locked gives the requirements of a lock file, each of which has hashes.
func locked(t *testing.T, text string) []string {
	t.Helper()
	var found []string
	for entry := range strings.SplitSeq(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		fields := strings.Fields(entry)
		if len(fields) == 0 || strings.HasPrefix(entry, "#") {
			continue
		}
		if !regexp.MustCompile(`( --hash=sha256:[0-9a-f]{64})+$`).MatchString(strings.Join(fields, " ")) {
			t.Errorf("%q has no hash", fields[0])
		}
		found = append(found, normal(fields[0]))
	}
	slices.Sort(found)
	return found
}

// normal is the form of a requirement in which names that mean the same are equal.
func normal(requirement string) string {
	return strings.NewReplacer("_", "-").Replace(strings.ToLower(requirement))
}

func TestBuildOnceForEachHash(t *testing.T) {
	t.Parallel()
	f := &fakeEngine{tags: map[string]bool{}}
	ref, err := images.Build(t.Context(), "python", f, images.Options{Base: "mine:1"}, nil)
	testbed.Must(t, err)
	d, _ := images.Find("python")
	if ref != "sandfarm/python:"+d.Hash || !f.tags[ref] || !f.tags["sandfarm/python:latest"] {
		t.Errorf("ref %q, tags %v", ref, f.tags)
	}
	spec := f.built[0]
	if spec.Args["BASE"] != "mine:1" || spec.Network != "container:x" || spec.Labels[engine.LabelHash] != d.Hash {
		t.Errorf("build %+v", spec)
	}
	testbed.Diff(t, "answer of the package index to a bad name", http.StatusNotFound, f.index)
	delete(f.tags, "sandfarm/python:latest")
	again, err := images.Build(t.Context(), "python", f, images.Options{}, nil)
	if err != nil || again != ref || len(f.built) != 1 || !f.tags["sandfarm/python:latest"] {
		t.Errorf("second build: ref %q, error %v, %d builds, tags %v", again, err, len(f.built), f.tags)
	}
}

func TestBuildThatFails(t *testing.T) {
	t.Parallel()
	f := &fakeEngine{tags: map[string]bool{}, buildErr: errors.New("step 3 failed")}
	if _, err := images.Build(t.Context(), "python", f, images.Options{}, nil); !errors.Is(err, f.buildErr) {
		t.Errorf("error %v", err)
	}
	if _, err := images.Build(t.Context(), "no-such", f, images.Options{}, nil); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("error %v", err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProgramIsRefused(t *testing.T) {
	t.Parallel()
	down := errors.New("the index is down")
	for name, c := range map[string]struct {
		arch string
		err  error
		data string
		want string
	}{
		"UnknownArchitecture": {"s390x", nil, "", "no build for linux/s390x"},
		"IndexDown":           {"amd64", down, "", "the index is down"},
		"WrongHash":           {"x86_64", nil, "not a wheel", "SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := images.Installer(t.Context(), func(context.Context, string, string, string) (io.ReadCloser, int64, error) {
				return io.NopCloser(bytes.NewReader([]byte(c.data))), int64(len(c.data)), c.err
			}, c.arch)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}

// A build reaches the hosts of the options only, by default Debian's, and none that lead to this machine.
func TestHostsOfABuild(t *testing.T) {
	t.Parallel()
	rule := func(text string) farm.HostRule {
		r, err := farm.ParseHostRule(text)
		testbed.Must(t, err)
		return r
	}
	for name, c := range map[string]struct {
		hosts []farm.HostRule
		url   string
		want  int
	}{
		"NotDebian": {nil, "http://example.org/", http.StatusForbidden},
		"OtherPort": {nil, "http://deb.debian.org:8080/", http.StatusForbidden},
		"Address":   {nil, "http://127.0.0.1/", http.StatusForbidden},
		"NotTheirs": {[]farm.HostRule{rule("mirror.example.org")}, "http://deb.debian.org/", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEngine{tags: map[string]bool{}, during: func(ctx context.Context, args map[string]string) error {
				proxy, err := url.Parse(args["http_proxy"])
				if err != nil {
					return err
				}
				transport := &http.Transport{Proxy: http.ProxyURL(proxy)}
				defer transport.CloseIdleConnections()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
				if err != nil {
					return err
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				testbed.Diff(t, fmt.Sprintf("%s: %s", c.url, resp.Status), c.want, resp.StatusCode)
				return nil
			}}
			_, err := images.Build(t.Context(), "python", f, images.Options{Hosts: c.hosts}, nil)
			testbed.Must(t, err)
			testbed.Diff(t, "networks are left", 0, f.open)
		})
	}
}
