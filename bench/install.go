package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

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
