package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// release is a set of archives: for each system and architecture the stripped program with README, LICENSE and completion scripts, a bill of
// materials in CycloneDX's form, and SHA256SUMS over all of them.
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
const maxProgram = 80_000_000

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

// target is a system and an architecture, by Go's names.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// targets are the systems that archives are made for. Only Linux has the verbs that run a farm.
var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}}

// choose reads a list of targets; an empty one means all.
func choose(list string) ([]target, error) {
	if list == "" {
		return targets, nil
	}
	var chosen []target
	for name := range strings.SplitSeq(list, ",") {
		at := slices.IndexFunc(targets, func(t target) bool { return t.String() == name })
		if at < 0 {
			return nil, fmt.Errorf("no archive is made for %q: the targets are %v", name, targets)
		}
		chosen = append(chosen, targets[at])
	}
	return chosen, nil
}

// program is the name of the program.
func (t target) program() string {
	if t.os == "windows" {
		return "sandfarm.exe"
	}
	return "sandfarm"
}

// extension is that of the archive: Windows can open a zip without other programs.
func (t target) extension() string {
	if t.os == "windows" {
		return ".zip"
	}
	return ".tar.gz"
}

// agents is where package binary looks for the agents that it embeds.
const agents = "internal/agent/binary/bin"

// build builds the stripped program for a target. On Linux it embeds the agent of that architecture, and no other that was
// built in this tree.
func (r *release) build(ctx context.Context, t target, program string) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=" + r.version, "-o", program}
	env := []string{"GOOS=" + t.os, "GOARCH=" + t.arch, "CGO_ENABLED=0"}
	if t.os == "linux" {
		agent := program + ".agent"
		if err := r.run(ctx, env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", agent, "./cmd/agent"); err != nil {
			return fmt.Errorf("build the agent for %s: %w", t, err)
		}
		overlay, err := writeOverlay(program+".overlay.json", t.arch, agent)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	if err := r.run(ctx, env, "go", append(args, "./cmd/sandfarm")...); err != nil {
		return fmt.Errorf("build the program for %s: %w", t, err)
	}
	return nil
}

// writeOverlay writes a file that makes the go command see the given agent alone, whatever other ones are in the tree.
func writeOverlay(path, arch, agent string) (string, error) {
	replace := map[string]string{}
	present, err := filepath.Glob(agents + "/agent-*")
	if err != nil {
		return "", fmt.Errorf("look for agents: %w", err)
	}
	for _, other := range present {
		replace[other] = "" // hides the file
	}
	replace[agents+"/agent-linux-"+arch] = agent
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}

// entry is a file of an archive.
type entry struct {
	name string // below the archive's folder
	from string // where its content is
	mode fs.FileMode
}

// writeArchive writes a zip or a tar.gz, by the extension of the path, with all entries below one folder, and returns its size.
// The same entries and time give the same bytes.
func writeArchive(path, folder string, entries []entry, modified time.Time) (size int64, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	entries = slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
	pack := packTar
	if filepath.Ext(path) == ".zip" {
		pack = packZip
	}
	if err := pack(file, folder, entries, modified); err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	return info.Size(), nil
}

func packTar(out io.Writer, folder string, entries []entry, modified time.Time) error {
	z, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: folder + "/" + e.name, Mode: int64(e.mode), Size: int64(len(content)), ModTime: modified, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func packZip(out io.Writer, folder string, entries []entry, modified time.Time) error {
	z := zip.NewWriter(out)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: folder + "/" + e.name, Method: zip.Deflate, Modified: modified}
		header.SetMode(e.mode)
		w, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	return z.Close()
}

// writeSums writes SHA256SUMS over the named files of a directory, in the form that sha256sum -c reads.
func writeSums(dir string, names []string) error {
	slices.Sort(names)
	var sums strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("write SHA256SUMS: %w", err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644); err != nil { //nolint:gosec // readable by all, as archives are
		return fmt.Errorf("write SHA256SUMS: %w", err)
	}
	return nil
}
