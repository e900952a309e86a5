// Package kube is the farm's access to a namespace of a Kubernetes cluster, and the only importer of client-go. A sandbox is a Pod there: the package
// creates, starts, lists and removes Pods with a fixed hardened profile (pod.go), and opens streams into them. It knows nothing of jobs, Redis or HTTP,
// and is an engine of workers (worker/node.Engine), beside internal/engine, which is Docker's.
//
// A namespace is a node: all workers of the namespace share its id, and each serves all its sandboxes (ADR 28). The cluster places the Pods.
package kube

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Timeouts of the calls. Each is several times the duration of the call on a busy cluster.
const (
	pingTimeout   = 5 * time.Second  // an API server that needs longer counts as down
	readTimeout   = 15 * time.Second // one object
	writeTimeout  = 30 * time.Second // admission webhooks may take ten seconds each
	createTimeout = 2 * time.Minute  // waits for the Pod of an earlier generation to end
	startTimeout  = 10 * time.Minute // the image is pulled, or the cluster adds a machine; the worker's limit is usually shorter
	updateTimeout = time.Minute      // the kubelet changes cgroups within a second or two, and tries again after an error
	removeTimeout = 60 * time.Second // the kubelet kills after a second, and then removes volumes
)

// Config selects the namespace. AgentImage is required.
type Config struct {
	Kubeconfig string // file; empty: the service account of this Pod
	Namespace  string // empty: that of the service account, or of the kubeconfig's context. A farm has it for itself
	Runtime    string // RuntimeClass of sandboxes, such as "gvisor"; empty: the cluster's default
	AgentImage string // image with this program: it brings the agent into each Pod
	Seccomp    string // file of a seccomp profile, below the kubelet's folder; empty: the runtime's default
	Images     []farm.Image
	GPUModels  []string // values of the label labelGPU, of the machines whose GPUs sandboxes may have; empty: none

	// A Pod requests its limits divided by these; 0: by 1.
	MemoryOvercommit, CPUOvercommit float64

	Logger *slog.Logger // nil: nothing is logged
	// Observe is called after every call with a fixed name, such as "start container"; a stream counts until it is open. May be nil.
	Observe func(call string, took time.Duration, err error)
}

// Engine is a connection to one namespace. It is safe for concurrent use. Close ends its watch.
type Engine struct {
	cfg    Config
	rest   *rest.RESTClient
	exec   *http.Client // without HTTP/2, which has no WebSocket here
	host   string       // of the API server, for the log
	log    *slog.Logger
	pods   *pods
	base   context.Context //nolint:containedctx // the life of the watch
	cancel context.CancelFunc
	wait   sync.WaitGroup
}

// New makes an Engine. It does not connect: the first call, or Ping, finds out whether the API server answers.
func New(cfg Config) (*Engine, error) {
	where, namespace, err := connection(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	if cfg.Namespace = cmp.Or(cfg.Namespace, namespace); cfg.Namespace == "" {
		return nil, errors.New("engine.namespace is not set, and the kubeconfig names no namespace: set it to the namespace of the sandboxes")
	}
	if cfg.AgentImage == "" {
		return nil, errors.New("kubernetes.agent_image is not set: it is the image of this program, by digest, that brings the agent into sandboxes")
	}
	for _, model := range cfg.GPUModels {
		if wrong := validation.IsValidLabelValue(model); len(wrong) > 0 {
			return nil, fmt.Errorf("worker.gpus names the model %q, which is no value of a label: with engine.kind kubernetes it is that of the label %s of the machines", model, labelGPU)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	where.QPS = -1 // the API server has priorities of its own
	where.UserAgent = "sandfarm"
	execConfig := rest.CopyConfig(where)
	execConfig.NextProtos = []string{"http/1.1"}
	where.APIPath, where.GroupVersion = "/api", &corev1.SchemeGroupVersion
	where.ContentType, where.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	where.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(where)
	if err != nil {
		return nil, fmt.Errorf("make client of the cluster: %w", err)
	}
	exec, err := rest.HTTPClientFor(execConfig)
	if err != nil {
		return nil, fmt.Errorf("make client of streams: %w", err)
	}
	e := &Engine{cfg: cfg, rest: client, exec: exec, host: where.Host, log: cfg.Logger}
	e.base, e.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // Close ends it
	e.pods = newPods(e)
	return e, nil
}

// connection reads how the API server is reached, and the namespace that goes with it.
func connection(file string) (*rest.Config, string, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, &clientcmd.ConfigOverrides{})
	if file == "" {
		if _, err := rest.InClusterConfig(); err != nil {
			return nil, "", errors.New("KUBECONFIG is not set, and this process has no service account of a cluster: set it to a kubeconfig file")
		}
	}
	where, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read the KUBECONFIG %s: %w", file, err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read the namespace of %s: %w", file, err)
	}
	return where, namespace, nil
}

// Close ends the watch and idle connections. Open streams stay open.
func (e *Engine) Close() error {
	e.cancel()
	e.wait.Wait()
	e.exec.CloseIdleConnections()
	return nil
}

// Ping asks whether the API server answers; CodeUnavailable when it does not.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, pingTimeout, "ping engine", func(ctx context.Context) error {
		return e.rest.Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// Capacity is more than any cluster has: the cluster places the Pods, and says itself when it has no room (Start).
func (*Engine) Capacity(context.Context) (farm.Capacity, error) {
	const without = 1 << 30 // MiB, a PiB; the sums of many stay exact
	return farm.Capacity{MemoryMB: without, CPUs: without >> 10}, nil
}

// Images are those of the settings: a cluster pulls what it is told to.
func (e *Engine) Images(context.Context) ([]farm.Image, error) {
	return slices.Clone(e.cfg.Images), nil
}

// EnsureAgent returns the image that brings the agent. Each Pod copies it from there, so programs is not called.
func (e *Engine) EnsureAgent(context.Context, string, string, func(context.Context) ([]farm.AgentProgram, error), string) (string, error) {
	return e.cfg.AgentImage, nil
}

// call runs one request with its own timeout and gives its error a code.
func (e *Engine) call(ctx context.Context, limit time.Duration, what string, request func(context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	err := request(inner)
	if starting := e.starting(inner, err); starting != nil {
		err = starting
	}
	err = e.coded(ctx, what, err)
	if e.cfg.Observe != nil {
		e.cfg.Observe(what, time.Since(start), err)
	}
	return err
}

// starting is the error of an API server that forbids what it allows a moment later: after its start it does not know the rights of anybody, and says that
// it is not ready. Nil for all other errors.
func (e *Engine) starting(ctx context.Context, err error) error {
	if !apierrors.IsForbidden(err) || isQuota(err) || e.rest.Get().AbsPath("/readyz").Do(ctx).Error() == nil {
		return nil
	}
	return farm.Wrap(err, farm.CodeUnavailable, "The cluster's API server is starting. Try again in a moment.")
}

// coded wraps an error of the client. A cancellation by the caller stays what it is.
func (e *Engine) coded(ctx context.Context, what string, err error) error {
	var (
		own      *farm.Error
		netError net.Error
		expired  x509.CertificateInvalidError
	)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, err)
	case errors.As(err, &own):
		return err
	case errors.As(err, &expired):
		return farm.Wrap(fmt.Errorf("%s: %s: %w", what, e.host, err), farm.CodeUnavailable, "The certificate of the cluster's API server is not valid (%s). Renew it, or correct the kubeconfig.", expired.Error())
	case apierrors.IsUnauthorized(err):
		return farm.Wrap(fmt.Errorf("%s: %w", what, err), farm.CodeUnavailable, "The cluster does not accept the worker's credentials: its token or certificate has expired or was revoked.")
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return farm.Wrap(fmt.Errorf("%s: %w", what, err), farm.CodeUnavailable, "The namespace %s of the sandboxes is being deleted.", e.cfg.Namespace)
	case apierrors.IsNotFound(err):
		return farm.Wrap(err, farm.CodeNotFound, "%s: the cluster does not have it", what)
	case isQuota(err):
		return farm.Wrap(fmt.Errorf("%s: %w", what, err), farm.CodeExhausted, "The quota of the namespace %s is used up: %s", e.cfg.Namespace, statusText(err))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return farm.Wrap(err, farm.CodeConflict, "%s: the cluster's state does not allow it", what)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return farm.Wrap(fmt.Errorf("%s: %w", what, err), farm.CodeConflict, "The cluster refuses to %s: %s", what, statusText(err))
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "dialing backend"):
		return farm.Wrap(fmt.Errorf("%s: %w", what, err), farm.CodeUnavailable, "The machine of the sandbox does not answer: its kubelet may be down.")
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsInternalError(err),
		errors.As(err, &netError), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return farm.Wrap(fmt.Errorf("%s: %s: %w", what, e.host, err), farm.CodeUnavailable, "The cluster's API server does not answer. Try again in a moment.")
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}
