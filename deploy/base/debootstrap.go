package base

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	packages  = "ca-certificates,python3,python3-pip,python3-venv"
	tailLines = 10

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
func debootstrap(ctx context.Context, e Importer, ref string, opts Options, progress func(farm.Progress)) (err error) {
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
	args := []string{"--variant=minbase", "--include=" + packages, cmp.Or(opts.Suite, DefaultSuite), root}
	if opts.Mirror != "" {
		args = append(args, opts.Mirror)
	}
	if err := install(ctx, program, args, progress); err != nil {
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

// install runs debootstrap and reports each line of its output as progress.
func install(ctx context.Context, program string, args []string, progress func(farm.Progress)) error {
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
