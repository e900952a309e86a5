// Command dist writes the release archives: for each system and architecture the stripped program with README, LICENSE and
// completion scripts, a bill of materials in CycloneDX's form, and SHA256SUMS over all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

func main() {
	var r release
	var commitTime int64
	only := flag.String("only", "", "targets such as linux/amd64,darwin/arm64; empty: all")
	flag.StringVar(&r.version, "version", "unknown", "version that the programs report")
	flag.StringVar(&r.out, "out", "dist", "directory of the archives")
	flag.StringVar(&r.bom, "cyclonedx", "cyclonedx-gomod", "the program cyclonedx-gomod")
	flag.Int64Var(&commitTime, "time", 0, "modification time of all files, in seconds since 1970, so that the same commit gives the same archives")
	flag.Parse()
	r.modified, r.log = time.Unix(commitTime, 0).UTC(), os.Stderr
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	chosen, err := choose(*only)
	if err == nil {
		err = r.write(ctx, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		stop()
		os.Exit(1)
	}
}

// release is a set of archives. It is made in the root of the repository.
type release struct {
	version, out, bom string
	modified          time.Time
	log               io.Writer
}

// write makes the archives of the targets.
func (r *release) write(ctx context.Context, targets []target) error {
	work, err := os.MkdirTemp("", "sandfarm-dist-")
	if err != nil {
		return fmt.Errorf("create a working directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // archives are for everybody
		return fmt.Errorf("create %s: %w", r.out, err)
	}
	completions, err := r.completions(ctx, work)
	if err != nil {
		return err
	}
	var files []string
	for _, t := range targets {
		began := time.Now()
		program := filepath.Join(work, t.os+"-"+t.arch, t.program())
		if err := r.build(ctx, t, program); err != nil {
			return err
		}
		name := fmt.Sprintf("sandfarm_%s_%s_%s", r.version, t.os, t.arch)
		content := append([]entry{
			{name: t.program(), from: program, mode: 0o755}, {name: "README.md", from: "README.md", mode: 0o644}, {name: "LICENSE", from: "LICENSE", mode: 0o644},
		}, completions...)
		archive := name + t.extension()
		size, err := writeArchive(filepath.Join(r.out, archive), name, content, r.modified)
		if err != nil {
			return err
		}
		bom := name + ".cdx.json"
		if err := r.run(ctx, nil, r.bom, "bin", "-json", "-noserial", "-version", r.version, "-output", filepath.Join(r.out, bom), program); err != nil {
			return fmt.Errorf("write the bill of materials of %s: %w", t, err)
		}
		files = append(files, archive, bom)
		info, err := os.Stat(program)
		if err != nil {
			return fmt.Errorf("build %s: %w", t, err)
		}
		if err := small(t, info.Size()); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(r.log, "%-50s %6.1f MB, program %6.1f MB, %4.0f s\n", archive, megabytes(size), megabytes(info.Size()), time.Since(began).Seconds())
	}
	return writeSums(r.out, files)
}

// maxProgram is how large the stripped program may be, in bytes: people fetch it to try it.
const maxProgram = 50_000_000

// small refuses a program that is too large, so that a dependency which brings much is noticed before a release.
func small(t target, size int64) error {
	if size > maxProgram {
		return fmt.Errorf("the program for %s has %.1f MB, more than the %.0f that are allowed: deploy/dependencies.sh measure says what brings them", t, megabytes(size), megabytes(maxProgram))
	}
	return nil
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }

// completions writes the scripts for each shell with a program of this machine: they are the same on all systems.
func (r *release) completions(ctx context.Context, work string) ([]entry, error) {
	program := filepath.Join(work, "host", "sandfarm")
	if err := r.build(ctx, target{runtime.GOOS, runtime.GOARCH}, program); err != nil {
		return nil, err
	}
	var entries []entry
	for shell, name := range map[string]string{"bash": "sandfarm.bash", "zsh": "_sandfarm", "fish": "sandfarm.fish", "powershell": "sandfarm.ps1"} {
		script, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return nil, fmt.Errorf("write the completion script for %s: %w", shell, err)
		}
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, script, 0o600); err != nil {
			return nil, fmt.Errorf("write the completion script for %s: %w", shell, err)
		}
		entries = append(entries, entry{name: "completions/" + name, from: path, mode: 0o644})
	}
	return entries, nil
}

// run runs a command with more environment, and gives its output only with its error.
func (r *release) run(ctx context.Context, env []string, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}
