package farmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/binary"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/kube"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// The kinds of engines.
const (
	kindDocker     = "docker"
	kindKubernetes = "kubernetes"
)

// apiServerTimeout is worker.engine_timeout in a cluster, unless it is set. An update of a control plane of one machine takes minutes, and no Pod ends for
// it: the kubelets run on.
const apiServerTimeout = 10 * time.Minute

// KubernetesSettings are those of engine.kind = "kubernetes". The cluster is that of the file in KUBECONFIG, as for kubectl, or of the worker's Pod. The namespace is engine.namespace, RuntimeClasses are the runtimes of engine.
type KubernetesSettings struct {
	AgentImage string   `toml:"agent_image" doc:"Image of this program, by digest, such as registry.example.com/sandfarm/farm@sha256:…: it brings the agent into the Pods of sandboxes. Required."`
	Images     []string `toml:"images" doc:"Images of sandboxes as pairs of their name and where the cluster gets them, by digest, such as python=registry.example.com/sandfarm/python@sha256:…. Required."`
	Seccomp    string   `toml:"seccomp" doc:"Seccomp profile of sandboxes: a file below the kubelet's folder for profiles, which must be on every machine. Empty: the default of the container runtime."`
}

// anEngine is an engine of either kind.
type anEngine interface {
	node.Engine
	// RemoveAll removes everything that this farm has in the engine, and with volumes what names the node.
	RemoveAll(ctx context.Context, volumes bool) error
	Close() error
}

var (
	_ anEngine = (*kube.Engine)(nil)
	// digestOf is the digest at the end of an image's reference.
	digestOf = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)
)

// workerEngine connects to the engine of the settings, and reports every call to observe. build builds images in it; nil: it cannot.
func (s *Settings) workerEngine(namespace string, log *slog.Logger, observe func(string, time.Duration, error)) (e anEngine, build imageBuilder, err error) {
	if s.Engine.Kind == kindKubernetes {
		e, err := s.kubernetes(log, observe)
		return e, nil, err
	}
	docker, err := s.observedEngine(namespace, log, observe)
	if err != nil {
		return nil, nil, err
	}
	return docker, s.builder(docker, log), nil
}

func (s *Settings) kubernetes(log *slog.Logger, observe func(string, time.Duration, error)) (*kube.Engine, error) {
	offered, err := s.Kubernetes.images()
	if err != nil {
		return nil, err
	}
	models, err := placement.GPUModels(s.Worker.GPUs)
	if err != nil {
		return nil, err
	}
	return kube.New(kube.Config{
		Kubeconfig: os.Getenv("KUBECONFIG"), Namespace: s.Engine.Namespace, Runtime: s.Engine.Runtime, AgentImage: s.Kubernetes.AgentImage, Seccomp: s.Kubernetes.Seccomp,
		Images: offered, GPUModels: models, MemoryOvercommit: s.Worker.MemoryOvercommit, CPUOvercommit: s.Worker.CPUOvercommit, Logger: log, Observe: observe,
	})
}

// images reads kubernetes.images. Those that come with the farm have its descriptions and languages.
func (k KubernetesSettings) images() ([]farm.Image, error) {
	var list []farm.Image
	var errs []error
	seen := map[string]bool{}
	for _, entry := range k.Images {
		name, ref, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "" || ref == "":
			errs = append(errs, fmt.Errorf("kubernetes.images contains %q; write the name of an image and its reference, as python=registry.example.com/sandfarm/python@sha256:…", entry))
			continue
		case seen[name]:
			errs = append(errs, fmt.Errorf("kubernetes.images names the image %s twice", name))
		}
		seen[name] = true
		image := farm.Image{Name: name, Ref: ref, ID: ref, Languages: []string{}}
		if found := digestOf.FindStringSubmatch(ref); found != nil {
			image.Digests = found[1:]
		}
		if d, err := images.Find(name); err == nil {
			image.Description, image.Languages = d.Description, d.Languages
		}
		list = append(list, image)
	}
	return list, errors.Join(errs...)
}

// validate reports what is missing for a cluster.
func (k KubernetesSettings) validate(kind string) error {
	_, err := k.images()
	if kind != kindKubernetes {
		return err
	}
	if k.AgentImage == "" {
		err = errors.Join(err, errors.New("engine.kind is kubernetes, but kubernetes.agent_image is not set: name the image of this program"))
	}
	if len(k.Images) == 0 {
		err = errors.Join(err, errors.New("engine.kind is kubernetes, but kubernetes.images is empty: name the images of sandboxes"))
	}
	return err
}

// doctorCluster checks that the cluster takes the Pods of sandboxes, as a worker does at its start.
func doctorCluster(ctx context.Context, s *Settings) Finding {
	f := Finding{What: "cluster", Status: StatusProblem, Advice: "See docs/kubernetes.md."}
	e, _, err := s.workerEngine("", Logger(s), nil)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer func() { _ = e.Close() }()
	id, err := e.Identify(ctx, s.Engine.runtimes("")[1:]...)
	if err != nil {
		f.Found = farm.MessageOf(err)
		return f
	}
	return Finding{What: "cluster", Status: StatusOK, Found: fmt.Sprintf("it takes the Pods of sandboxes (runtimes %s), as node %s", strings.Join(id.Runtimes, ", "), id.Node)}
}

// errDockerOnly refuses what only Docker can do.
var errDockerOnly = errors.New("engine.kind is kubernetes: this command works on a Docker engine only (docs/kubernetes.md says what to do in a cluster)")

// installAgentCommand is what the first container of a sandbox's Pod runs.
func installAgentCommand() *cobra.Command {
	var readable bool
	c := &cobra.Command{
		Use: "install-agent DIR", Short: "Copy the agent into a directory: the first step of a sandbox in a cluster", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return installAgent(args[0], readable) },
	}
	c.Flags().BoolVar(&readable, "readable", false, "let users read it, which gVisor needs to execute it")
	return c
}

// installAgent writes the agent to a directory, and the installer uv if there is one in PATH. Users can only execute them, unless readable is set.
func installAgent(dir string, readable bool) error {
	program, _, err := binary.Agent(runtime.GOARCH)
	if err != nil {
		return err
	}
	mode := os.FileMode(0o111)
	if readable {
		mode = 0o555
	}
	if err := install(filepath.Join(dir, filepath.Base(agent.BinaryPath)), bytes.NewReader(program), mode); err != nil {
		return err
	}
	path, err := exec.LookPath("uv")
	if err != nil {
		return nil // sandboxes install with pip then
	}
	uv, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the installer: %w", err)
	}
	defer func() { _ = uv.Close() }()
	return install(filepath.Join(dir, filepath.Base(agent.UVPath)), uv, mode)
}

// install writes a program. It copies: its container has less memory than two programs need.
func install(path string, program io.Reader, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = io.Copy(file, program)
	if err = cmp.Or(err, file.Chmod(mode), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
