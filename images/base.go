package images

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// baseRef is the name of the base image in the engine.
	baseRef = "sandfarm/base:latest"
	// baseSource is the image of a registry that is tried first.
	baseSource = "python:3.13-slim"
	// baseSuite is the Debian release that debootstrap installs: the one with Python 3.13.
	baseSuite = "trixie"

	// answerTimeout is how long a registry may take until its first response: connections to an unreachable one often just hang.
	// After the first response the pull has no time limit.
	answerTimeout = 15 * time.Second
)

// BaseEngine is the part of an engine that making the base image needs.
type BaseEngine interface {
	HasImage(ctx context.Context, ref string) (bool, error)
	Pull(ctx context.Context, ref string, progress func(farm.Progress)) error
	Tag(ctx context.Context, ref, tag string) error
	Importer
}

// BaseOptions set where the base comes from. The zero value is the default.
type BaseOptions struct {
	Ref         string       // name in the engine; empty: sandfarm/base:latest
	Source      string       // image of a registry; empty: python:3.13-slim; "none": do not try one
	Suite       string       // Debian release; empty: trixie
	Mirror      string       // Debian mirror; empty: debootstrap's default
	Debootstrap string       // program; empty: "debootstrap" in PATH
	WorkDir     string       // directory for the tree, about 300 MiB, on a file system that allows devices; empty: the system's temporary directory
	Logger      *slog.Logger // nil: nothing is logged
}

// EnsureBase makes sure that the engine has the base image of all images, a Debian with Python 3.13, and returns its name: it pulls the image
// from a registry, or builds it from Debian's packages with debootstrap if no registry answers. An existing image is kept. Progress may be nil.
func EnsureBase(ctx context.Context, e BaseEngine, opts BaseOptions, progress func(farm.Progress)) (string, error) {
	if progress == nil {
		progress = func(farm.Progress) {}
	}
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ref := cmp.Or(opts.Ref, baseRef)
	there, err := e.HasImage(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("look for base image: %w", err)
	}
	if there {
		return ref, nil
	}
	var pullErr error
	if source := cmp.Or(opts.Source, baseSource); source != "none" {
		if pullErr = pull(ctx, e, source, ref, progress); pullErr == nil {
			return ref, nil
		}
		if farm.CodeOf(pullErr) == farm.CodeUnavailable && ctx.Err() == nil && pingless(ctx, e, ref) {
			return "", pullErr
		}
		log.WarnContext(ctx, "registry has no base image for us; making it with debootstrap", "source", source, "error", pullErr)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	if err := debootstrap(ctx, e, ref, opts, progress); err != nil {
		return "", errors.Join(fmt.Errorf("make base image: %w", err), pullErr)
	}
	return ref, nil
}

// pingless reports whether the engine itself does not respond: then the failure is not one of the registry.
func pingless(ctx context.Context, e BaseEngine, ref string) bool {
	_, err := e.HasImage(ctx, ref)
	return err != nil
}

// errSilent means that a registry did not answer in time.
var errSilent = errors.New("the registry did not answer in time")

// pull pulls the registry's image and tags it.
func pull(ctx context.Context, e BaseEngine, source, ref string, progress func(farm.Progress)) error {
	progress(farm.Progress{Message: "Asking the registry for " + source})
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(answerTimeout, func() { cancel(errSilent) })
	defer silent.Stop()
	err := e.Pull(inner, source, func(p farm.Progress) {
		silent.Stop()
		progress(p)
	})
	if err != nil && errors.Is(context.Cause(inner), errSilent) {
		err = errSilent
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", source, err)
	}
	return e.Tag(ctx, source, ref)
}

// detach is MNT_DETACH of umount2: the mount vanishes from the tree even if something still uses it.
const detach = 2

// removeTree removes a tree that debootstrap made. If debootstrap was killed, /proc and /sys can still be mounted in it. They are
// unmounted first; if that fails, the tree is kept, so that no file of the host is ever deleted through it.
func removeTree(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, point := range slices.Backward(mounts) { // the last mounted first
		if err := syscall.Unmount(point, detach); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
		return errors.Join(append(errs, err, fmt.Errorf("remove tree: %s still holds mounts and is left there", dir))...)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	return nil
}

// mountsBelow lists the mount points in a directory, in the order in which they were mounted.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	return found, lines.Err()
}

const (
	basePackages = "ca-certificates,python3,python3-pip,python3-venv"
	tailLines    = 10

	// makeTimeout is far above the 30 to 60 s that debootstrap takes with a fast mirror.
	makeTimeout = 30 * time.Minute
	// killDelay is how long the pipes of a killed debootstrap may stay open.
	killDelay = 5 * time.Second
)

// Importer creates an image from the tar of a file system.
type Importer interface {
	Import(ctx context.Context, ref string, tar io.Reader) error
}

// debootstrap installs Debian into a directory, imports it as an image and removes the directory.
func debootstrap(ctx context.Context, e Importer, ref string, opts BaseOptions, progress func(farm.Progress)) (err error) {
	program, err := exec.LookPath(cmp.Or(opts.Debootstrap, "debootstrap"))
	if err != nil {
		return farm.Wrap(err, farm.CodeUnavailable, "no registry gave a base image, and debootstrap is not installed: "+
			"install it (apt-get install debootstrap), or load an image with Python 3.13 and tag it %s", ref)
	}
	if os.Geteuid() != 0 {
		return farm.Errorf(farm.CodeUnavailable, "no registry gave a base image, and debootstrap needs root: "+
			"run this once as root, or load an image with Python 3.13 and tag it %s", ref)
	}
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(opts.WorkDir, "sandfarm-base-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, removeTree(dir)) }()
	root := filepath.Join(dir, "root")
	args := []string{"--variant=minbase", "--include=" + basePackages, cmp.Or(opts.Suite, baseSuite), root}
	if opts.Mirror != "" {
		args = append(args, opts.Mirror)
	}
	if err := runDebootstrap(ctx, program, args, progress); err != nil {
		return err
	}
	progress(farm.Progress{Message: "Importing the base image"})
	return importTree(ctx, e, ref, root)
}

// command returns a command that is killed with its children when ctx ends.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the program is the operator's setting
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	return cmd
}

// runDebootstrap runs debootstrap and reports each line of its output as progress.
func runDebootstrap(ctx context.Context, program string, args []string, progress func(farm.Progress)) error {
	r, w := io.Pipe()
	cmd := command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start debootstrap: %w", err)
	}
	tail := make(chan []string, 1)
	go func() {
		var last []string
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "I: "))
			if line == "" {
				continue
			}
			last = append(last[max(0, len(last)-tailLines+1):], line)
			progress(farm.Progress{Message: line})
		}
		_, _ = io.Copy(io.Discard, r) // a line that is too long for the scanner must not stop the process
		tail <- last
	}()
	err := cmd.Wait()
	_ = w.Close() // a pipe's writer never fails to close
	last := <-tail
	if err != nil {
		return fmt.Errorf("run debootstrap: %w; its last lines were:\n%s", err, strings.Join(last, "\n"))
	}
	return nil
}

// importTree streams a tree to the engine, without files that an image does not need.
func importTree(ctx context.Context, e Importer, ref, root string) error {
	cmd := command(ctx, "tar", "--numeric-owner", "--one-file-system", "-C", root,
		"--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./var/cache/apt/*.bin",
		"--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*_*",
		"--exclude=./usr/share/locale/*", "--exclude=./usr/share/man/*", "-c", ".")
	r, w := io.Pipe()
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = w, &stderr
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := cmd.Run()
		if err != nil {
			err = fmt.Errorf("pack base image: %w: %s", err, stderr.String())
		}
		_ = w.CloseWithError(err) // a tar that is cut short must fail the import; the call itself never fails
	}()
	err := e.Import(ctx, ref, r)
	_ = r.Close() // ends tar if the import stopped early
	<-done
	return err
}
