package engine

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Images lists the sandbox images of the engine: those with LabelImage and a tag. Of several images with one name it lists the one tagged
// ":latest", or else the newest. Ref is a tag other than ":latest" where there is one, since ":latest" may move.
func (e *Engine) Images(ctx context.Context) ([]farm.Image, error) {
	var found []image.Summary
	err := e.call(ctx, readTimeout, "list images", func(ctx context.Context) error {
		var err error
		found, err = e.cli.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", LabelImage))})
		return err
	})
	if err != nil {
		return nil, err
	}
	best := map[string]image.Summary{}
	for _, f := range found {
		name := f.Labels[LabelImage]
		if tagged := stableTag(f); name == "" || tagged == "" {
			continue
		}
		if old, ok := best[name]; !ok || rank(f) > rank(old) || rank(f) == rank(old) && f.Created > old.Created {
			best[name] = f
		}
	}
	list, volumes := make([]farm.Image, 0, len(best)), make(map[string][]string, len(best))
	for name, f := range best {
		found, err := e.imageVolumes(ctx, f.ID)
		if cerrdefs.IsNotFound(err) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		volumes[f.ID] = found
		list = append(list, farm.Image{
			Name: name, Ref: stableTag(f), Description: f.Labels[LabelDescription], Languages: fields(f.Labels[LabelLanguages]),
			Size: f.Size, CreatedAt: time.Unix(f.Created, 0).UTC(), ID: f.ID,
			Digests: digests(f.RepoDigests), Volumes: volumes[f.ID],
		})
	}
	e.mu.Lock()
	e.volumes = volumes
	e.mu.Unlock()
	slices.SortFunc(list, func(a, b farm.Image) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// imageVolumes are the directories of an image for which the engine makes volumes in each of its containers. It asks once for an image that is listed.
func (e *Engine) imageVolumes(ctx context.Context, id string) ([]string, error) {
	e.mu.Lock()
	known, ok := e.volumes[id]
	e.mu.Unlock()
	if ok {
		return known, nil
	}
	var found image.InspectResponse
	err := e.call(ctx, readTimeout, "inspect image", func(ctx context.Context) error {
		var err error
		found, err = e.cli.ImageInspect(ctx, id)
		return err
	})
	if err != nil || found.Config == nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(found.Config.Volumes)), nil
}

// preloadTimeout bounds Preload, on a disk that is slow.
const preloadTimeout = 10 * time.Minute

// preloadName is the name of the container of a Preload. Only one container can have it, so one worker of a node reads images at a time.
func (e *Engine) preloadName() string { return e.namespace + "-preload" }

// Preload implements node.Preloader. The engine reads the files, for an export that nobody keeps. It does nothing if the engine is on another host, or while
// another worker reads an image.
func (e *Engine) Preload(ctx context.Context, image string) (err error) {
	if !strings.HasPrefix(e.cli.DaemonHost(), "unix://") {
		return nil
	}
	id, err := e.createHelper(ctx, e.preloadName(), e.preloadHelper(image))
	if cerrdefs.IsConflict(err) {
		return e.endDeadPreload(ctx, time.Now())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), id)) }()
	return e.call(ctx, preloadTimeout, "read the files of an image", func(ctx context.Context) error {
		files, err := e.cli.ContainerExport(ctx, id)
		if err != nil {
			return err
		}
		defer func() { _ = files.Close() }()
		_, err = io.Copy(io.Discard, files)
		return err
	})
}

// endDeadPreload removes the container of a Preload that has lasted too long: its worker was killed.
func (e *Engine) endDeadPreload(ctx context.Context, now time.Time) error {
	helpers, err := e.containers(ctx, filters.Arg("label", LabelRole+"="+RoleHelper))
	if err != nil {
		return err
	}
	for _, helper := range helpers {
		if slices.Contains(helper.Names, "/"+e.preloadName()) && now.Sub(time.Unix(helper.Created, 0)) > preloadTimeout+createTimeout {
			return e.Remove(ctx, helper.ID)
		}
	}
	return nil
}

// rank puts the image that is tagged latest before others of its name.
func rank(f image.Summary) int {
	if slices.ContainsFunc(f.RepoTags, latest) {
		return 1
	}
	return 0
}

func latest(tag string) bool { return strings.HasSuffix(tag, ":latest") }

// stableTag returns the tag to use for an image; empty if it has none. The name that a registry knows it by comes last: an image that was pushed keeps its own.
func stableTag(f image.Summary) string {
	tags := slices.DeleteFunc(slices.Clone(f.RepoTags), func(tag string) bool { return strings.HasPrefix(tag, "<none>") })
	if len(tags) == 0 {
		return ""
	}
	weight := func(tag string) (n int) {
		if latest(tag) {
			n += 2
		}
		if host, _, ok := strings.Cut(tag, "/"); ok && strings.ContainsAny(host, ".:") {
			n++
		}
		return n
	}
	return slices.MinFunc(tags, func(a, b string) int { return cmp.Or(cmp.Compare(weight(a), weight(b)), strings.Compare(a, b)) })
}

// digests removes the names of repositories.
func digests(names []string) (list []string) {
	for _, name := range names {
		if _, digest, ok := strings.Cut(name, "@"); ok && !slices.Contains(list, digest) {
			list = append(list, digest)
		}
	}
	return list
}

// fields splits a label at its commas.
func fields(label string) []string {
	list := []string{}
	for part := range strings.SplitSeq(label, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// HasImage reports whether the engine has an image of this name or id.
func (e *Engine) HasImage(ctx context.Context, ref string) (bool, error) {
	err := e.call(ctx, readTimeout, "inspect image", func(ctx context.Context) error {
		_, err := e.cli.ImageInspect(ctx, ref)
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Tag adds a name to an image.
func (e *Engine) Tag(ctx context.Context, ref, tag string) error {
	return e.call(ctx, readTimeout, "tag image", func(ctx context.Context) error { return e.cli.ImageTag(ctx, ref, tag) })
}

// RemoveImage removes a name of an image, and the image with its last name. A missing image is not an error. CodeConflict when a
// container uses it.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	return e.call(ctx, removeTimeout, "remove image", func(ctx context.Context) error {
		_, err := e.cli.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// Import creates an image with one layer from the uncompressed tar of a file system.
func (e *Engine) Import(ctx context.Context, ref string, tar io.Reader) error {
	return e.call(ctx, buildTimeout, "import image", func(ctx context.Context) error {
		body, err := e.cli.ImageImport(ctx, image.ImportSource{Source: tar, SourceName: "-"}, ref, image.ImportOptions{})
		return follow(body, err, func(farm.Progress) {})
	})
}

// Pull fetches an image from its registry. The caller's context bounds it; progress may be nil.
func (e *Engine) Pull(ctx context.Context, ref string, progress func(farm.Progress)) error {
	return e.call(ctx, buildTimeout, "pull image", func(ctx context.Context) error {
		body, err := e.cli.ImagePull(ctx, ref, image.PullOptions{})
		return follow(body, err, progress)
	})
}

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
