package images_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// baseEngine keeps images in memory. PullFunc replaces the registry.
type baseEngine struct {
	PullFunc func(ctx context.Context, progress func(farm.Progress)) error
	images   map[string][]string // name: files in it
}

func (f *baseEngine) HasImage(_ context.Context, ref string) (bool, error) {
	_, ok := f.images[ref]
	return ok, nil
}

func (f *baseEngine) Pull(ctx context.Context, ref string, progress func(farm.Progress)) error {
	if err := f.PullFunc(ctx, progress); err != nil {
		return err
	}
	f.images[ref] = []string{"pulled"}
	return nil
}

func (f *baseEngine) Tag(_ context.Context, ref, tag string) error {
	f.images[tag] = f.images[ref]
	return nil
}

func (f *baseEngine) Import(_ context.Context, ref string, stream io.Reader) error {
	names := []string{}
	r := tar.NewReader(stream)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // the rest of the stream, and its error
		return err
	}
	slices.Sort(names)
	f.images[ref] = names
	return nil
}

func unreachable(context.Context, func(farm.Progress)) error { return errors.New("no such host") }

// script makes a program that replaces debootstrap; $4 is the directory that it fills.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "debootstrap")
	testbed.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700))
	return path
}

const good = `echo "I: Retrieving python3"; echo "I: Unpacking python3..."
test "$1 $2 $3" = "--variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv trixie" || exit 9
mkdir -p "$4/usr/bin" "$4/var/cache/apt/archives" "$4/usr/share/man/man1" "$4/etc/apt"
echo x > "$4/usr/bin/python3"; echo x > "$4/etc/apt/sources.list"
echo x > "$4/var/cache/apt/archives/a.deb"; echo x > "$4/usr/share/man/man1/a"
`

func TestEnsureBase(t *testing.T) {
	t.Parallel()
	asRoot := os.Geteuid() == 0
	hangs := func(ctx context.Context, _ func(farm.Progress)) error {
		<-ctx.Done()
		return ctx.Err()
	}
	slow := func(ctx context.Context, progress func(farm.Progress)) error {
		progress(farm.Progress{Message: "Pulling"})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Hour): // longer than the registry may take for its first word
			return nil
		}
	}
	made := []string{"./etc/apt/sources.list", "./usr/bin/python3"}
	for name, c := range map[string]struct {
		there    bool
		pull     func(context.Context, func(farm.Progress)) error
		source   string
		program  string
		want     []string
		err      string
		rootOnly bool
	}{
		"IsThere":               {there: true, pull: unreachable, want: []string{"old"}},
		"FromRegistry":          {pull: func(context.Context, func(farm.Progress)) error { return nil }, want: []string{"pulled"}},
		"SlowRegistryIsWaited":  {pull: slow, want: []string{"pulled"}},
		"NoRegistry":            {pull: unreachable, program: good, want: made, rootOnly: true},
		"SilentRegistry":        {pull: hangs, program: good, want: made, rootOnly: true},
		"RegistryNotWanted":     {source: "none", program: good, want: made, rootOnly: true},
		"NoDebootstrap":         {pull: unreachable, err: "debootstrap is not installed"},
		"DebootstrapFails":      {pull: unreachable, program: good + "echo 'E: no mirror' >&2; exit 1", err: "no mirror", rootOnly: true},
		"DebootstrapMakesNoDir": {pull: unreachable, program: "exit 0", err: "pack base image", rootOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &baseEngine{PullFunc: c.pull, images: map[string][]string{}}
				if c.there {
					e.images["test/base:1"] = []string{"old"}
				}
				work := t.TempDir()
				opts := images.BaseOptions{Ref: "test/base:1", Source: c.source, WorkDir: work, Debootstrap: "/no/debootstrap"}
				if c.program != "" {
					opts.Debootstrap = script(t, c.program)
				}
				want := c.err
				if c.rootOnly && !asRoot {
					c.want, want = nil, "debootstrap needs root"
				}
				var messages []string
				ref, err := images.EnsureBase(t.Context(), e, opts, func(p farm.Progress) { messages = append(messages, p.Message) })
				if want == "" && (err != nil || ref != "test/base:1") {
					t.Fatalf("ref %q, error %v", ref, err)
				}
				if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Fatalf("error %v, want %q", err, want)
				}
				testbed.Diff(t, "image", c.want, e.images["test/base:1"])
				if c.rootOnly && asRoot && want == "" && !slices.Contains(messages, "Unpacking python3...") {
					t.Errorf("progress %v", messages)
				}
				if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
					t.Errorf("left over: %v, error %v", left, err)
				}
			})
		})
	}
}

func TestEnsureBaseIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	e := &baseEngine{images: map[string][]string{}, PullFunc: func(context.Context, func(farm.Progress)) error {
		cancel()
		return ctx.Err()
	}}
	_, err := images.EnsureBase(ctx, e, images.BaseOptions{Debootstrap: "/no/debootstrap"}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cancellation", err)
	}
}
