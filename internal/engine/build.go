package engine

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// BuildSpec describes a build.
type BuildSpec struct {
	Context    fs.FS             // sent as a whole
	Dockerfile string            // path in it; empty: "Dockerfile"
	Tags       []string          // names of the image
	Args       map[string]string // build arguments; not kept in the image unless the Dockerfile does so
	Labels     map[string]string
	Network    string // of the build's steps, such as "host"; empty: the engine's default
	NoCache    bool
}

// Build builds an image with the classic builder, which every engine has. progress gets each line and the number of started steps; it may
// be nil. The error of a failed step has the end of its output.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, progress func(farm.Progress)) error {
	args := make(map[string]*string, len(spec.Args))
	for name, value := range spec.Args {
		args[name] = &value
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packFS(w, spec.Context)
		packed <- err
		_ = w.CloseWithError(err) // a pipe's writer never fails to close
	}()
	err := e.call(ctx, buildTimeout, "build image", func(ctx context.Context) error {
		resp, err := e.cli.ImageBuild(ctx, r, build.ImageBuildOptions{
			Version: build.BuilderV1, Dockerfile: spec.Dockerfile, Tags: spec.Tags, BuildArgs: args, Labels: spec.Labels,
			NetworkMode: spec.Network, NoCache: spec.NoCache, Remove: true, ForceRemove: true,
		})
		return follow(resp.Body, err, progress)
	})
	_ = r.Close() // ends the packer if the engine stopped reading
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return errors.Join(err, packErr)
	}
	return err
}

// packFS writes a tree as a tar, with fixed owners and times, so that the builder's cache hits.
func packFS(to io.Writer, tree fs.FS) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Name: path + "/", Typeflag: tar.TypeDir, Mode: 0o755})
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		data, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("pack build context: %w", err)
	}
	return nil
}

// BuildRuntime is the OCI runtime of a build's network: gVisor has a network of its own, which a build cannot share.
const BuildRuntime = "runc"

// buildLimits are the limits of a build's network. Its program only copies.
var buildLimits = farm.Resources{MemoryMB: 512, CPUs: 2, PIDs: 128, DiskMB: 16}

// CreateBuildNetwork creates, without starting it, a container whose network the steps of a build can share: BuildNetwork of its id. The
// network has loopback alone. command is a program of the agent's volume, and decides what can be reached there. The container is no
// sandbox, has the profile of one, and the engine removes it when command ends. CodeNotFound: no such image or volume.
func (e *Engine) CreateBuildNetwork(ctx context.Context, image, agentVolume string, command []string) (id string, err error) {
	cpus, err := e.cores(ctx)
	if err != nil {
		return "", err
	}
	s := buildSpec(agentVolume)
	return e.createHelper(ctx, "", e.buildNetwork(image, s, e.facts(s, cpus), command))
}

// BuildNetwork is the network of a container for BuildSpec.
func BuildNetwork(id string) string { return "container:" + id }

// buildSpec is what a build's network has of a sandbox.
func buildSpec(agentVolume string) sandboxSpec {
	return sandboxSpec{ContainerSpec: farm.ContainerSpec{Runtime: BuildRuntime, Resources: buildLimits, Agent: agentVolume}, UID: helperUID}
}

func (e *Engine) buildNetwork(image string, s sandboxSpec, facts hostFacts, command []string) container.CreateRequest {
	host := hostConfig(s, facts)
	host.AutoRemove = true
	made := e.helper(image, "", *host)
	made.Entrypoint, made.Cmd = command[:1], command[1:]
	made.Labels[LabelRole] = RoleBuild
	return made
}

const (
	tailLines   = 20      // of a build's output go into its error
	lineMax     = 4 << 10 // of one line are kept
	progressMax = 300     // of one line are reported as progress
)

// colour matches terminal control sequences.
var colour = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// step matches the classic builder's announcement of a step.
var step = regexp.MustCompile(`^Step (\d+)/(\d+) :`)

// follow reads the engine's messages about a build, pull or import to their end, and closes the body. It returns the error that a message
// carries, with the last lines of output before it.
func follow(body io.ReadCloser, err error, progress func(farm.Progress)) error {
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // it was read to its end, or its error is returned
	if progress == nil {
		progress = func(farm.Progress) {}
	}
	var f follower
	decoder := json.NewDecoder(body)
	for {
		var m jsonmessage.JSONMessage
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read engine's messages: %w", err)
		}
		if m.Error != nil {
			return f.failed(m.Error)
		}
		f.take(m, progress)
	}
}

// follower keeps the progress of a build.
type follower struct {
	done, total float64
	tail        []string
}

// take handles one message.
func (f *follower) take(m jsonmessage.JSONMessage, progress func(farm.Progress)) {
	text := m.Stream
	if text == "" {
		text = m.Status
		if m.ID != "" {
			text = m.ID + ": " + text
		}
	}
	for line := range strings.SplitSeq(colour.ReplaceAllString(text, ""), "\n") {
		line = strings.ToValidUTF8(strings.TrimSpace(line[strings.LastIndex(strings.TrimRight(line, "\r"), "\r")+1:]), "�")
		if line == "" {
			continue
		}
		line = line[:min(len(line), lineMax)]
		f.tail = append(f.tail[max(0, len(f.tail)-tailLines+1):], line)
		if match := step.FindStringSubmatch(line); match != nil {
			done, _ := strconv.Atoi(match[1]) // cannot fail: the expression matches digits
			total, _ := strconv.Atoi(match[2])
			f.done, f.total = float64(done-1), float64(total)
		}
		progress(farm.Progress{Message: strings.ToValidUTF8(line[:min(len(line), progressMax)], ""), Done: f.done, Total: f.total})
	}
}

// failed returns the error of a message with the last lines of output.
func (f *follower) failed(e *jsonmessage.JSONError) error {
	if len(f.tail) == 0 {
		return errors.New(e.Message)
	}
	return fmt.Errorf("%s; its last lines were:\n%s", e.Message, strings.Join(f.tail, "\n"))
}
