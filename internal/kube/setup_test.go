//go:build kubernetes

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
)

// manifest is what an operator applies to the namespace.
const manifest = "../../deploy/kubernetes/sandboxes.yaml"

// probeImage has the probe of Docker's tests in place of this program and of the agent.
const probeImage = "sandfarm-test/probe:1"

// bundle is a farm in a namespace of its own, which it reaches with the rights of a worker.
type bundle struct {
	*Engine
	cfg   Config
	admin *rest.RESTClient
}

// kubeconfig is that of the cluster's administrator.
func kubeconfig(t testing.TB) string {
	t.Helper()
	file := os.Getenv("SANDFARM_TEST_KUBECONFIG")
	if file == "" {
		t.Fatal("SANDFARM_TEST_KUBECONFIG is not set: run make test-kubernetes")
	}
	return file
}

// loadProbe builds the probe's image and copies it into the cluster, once for all tests.
var loadProbe = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "sandfarm-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY probe /probe\nENTRYPOINT [\"/probe\"]\n"), 0o600); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "probe"), "../engine/testdata/probe"},
		{"docker", "build", "-q", "-t", probeImage, dir},
		{"../../deploy/kubernetes/cluster.sh", "load", probeImage},
	} {
		command := exec.Command(argv[0], argv[1:]...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, out)
		}
	}
	return nil
})

// administrator connects with all rights.
func administrator(t testing.TB) *Engine {
	t.Helper()
	e, err := New(Config{Kubeconfig: kubeconfig(t), Namespace: "default", AgentImage: probeImage})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// setup makes a namespace with what an operator applies, under the restricted Pod Security standard, and connects as its worker.
func setup(t testing.TB) *bundle {
	t.Helper()
	if err := loadProbe(); err != nil {
		t.Fatal(err)
	}
	admin := administrator(t)
	b := &bundle{admin: admin.rest, cfg: Config{
		Namespace: "sft-" + strings.ToLower(farm.NewID("")), AgentImage: probeImage, Images: []farm.Image{{Name: "probe", Ref: probeImage, ID: probeImage}},
		MemoryOvercommit: 16, CPUOvercommit: 100, // the node is small, and the tests run at once
	}}
	b.apply(t, "/api/v1/namespaces", map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": b.cfg.Namespace, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.admin.Delete().AbsPath("/api/v1/namespaces", b.cfg.Namespace).Do(ctx).Error(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	for _, object := range manifests(t) {
		b.apply(t, collection(t, object, b.cfg.Namespace), object)
	}
	testbed.Until(t, "the namespace has its default service account, without which it takes no Pods", func() bool {
		return b.admin.Get().AbsPath("/api/v1/namespaces", b.cfg.Namespace, "serviceaccounts", "default").Do(t.Context()).Error() == nil
	})
	b.cfg.Kubeconfig = b.asWorker(t)
	b.Engine = b.connect(t, b.cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		_ = b.RemoveAll(ctx, true) // the namespace ends sooner
	})
	return b
}

// manifests reads the objects of the manifest.
func manifests(t testing.TB) (list []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var object map[string]any
		if decoder.Decode(&object) != nil {
			return list
		}
		if object != nil {
			list = append(list, object)
		}
	}
}

// collection is where objects of a kind are created.
func collection(t testing.TB, object map[string]any, namespace string) string {
	t.Helper()
	group := "/apis/" + object["apiVersion"].(string)
	if object["apiVersion"] == "v1" {
		group = "/api/v1"
	}
	resource := map[string]string{
		"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings", "NetworkPolicy": "networkpolicies",
		"LimitRange": "limitranges", "ResourceQuota": "resourcequotas", "ConfigMap": "configmaps",
	}[object["kind"].(string)]
	if resource == "" {
		t.Fatalf("kind %v", object["kind"])
	}
	return group + "/namespaces/" + namespace + "/" + resource
}

// apply creates an object as the administrator, and fails on fields that the API does not know.
func (b *bundle) apply(t testing.TB, path string, object map[string]any) {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	err = b.admin.Post().AbsPath(path).Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	if err != nil {
		t.Fatalf("create %v: %v", object["kind"], err)
	}
}

// asWorker writes a kubeconfig with a token of the worker's service account.
func (b *bundle) asWorker(t testing.TB) string {
	t.Helper()
	var made struct{ Status struct{ Token string } }
	answer, err := b.admin.Post().AbsPath("/api/v1/namespaces", b.cfg.Namespace, "serviceaccounts", "sandfarm-worker", "token").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").
		Body([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)).Do(t.Context()).Raw()
	if err == nil {
		err = json.Unmarshal(answer, &made)
	}
	if err != nil {
		t.Fatalf("token of the worker: %v", err)
	}
	return b.kubeconfig(t, func(c *clientcmdapi.Config) {
		c.AuthInfos = map[string]*clientcmdapi.AuthInfo{"worker": {Token: made.Status.Token}}
		for _, one := range c.Contexts {
			one.AuthInfo = "worker"
		}
	})
}

// kubeconfig writes a changed copy of the administrator's.
func (b *bundle) kubeconfig(t testing.TB, change func(*clientcmdapi.Config)) string {
	t.Helper()
	c, err := clientcmd.LoadFromFile(kubeconfig(t))
	if err == nil {
		change(c)
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err = clientcmd.WriteToFile(*c, file); err == nil {
			return file
		}
	}
	t.Fatal(err)
	return ""
}

func (b *bundle) connect(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// spec is a sandbox with the probe as PID 1.
func (b *bundle) spec(t testing.TB, command ...string) farm.ContainerSpec {
	t.Helper()
	image, err := b.EnsureAgent(t.Context(), "v1", "", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return farm.ContainerSpec{
		SandboxID: farm.NewID(farm.SandboxPrefix), Tenant: "tenant-a", Node: "node_x", Deadline: time.Unix(2_000_000_000, 0),
		Image: probeImage, Command: append([]string{"/sandfarm/agent"}, command...), Env: map[string]string{"COLOUR": "blue $(HOME)"}, Agent: image,
		Labels:    map[string]string{"sandfarm.record": "kept"},
		Resources: farm.Resources{MemoryMB: 256, CPUs: 0.25, PIDs: 64, DiskMB: 64},
	}
}

// subject is a farm for the suite of all engines.
func subject(t testing.TB) *enginetest.Subject {
	t.Helper()
	b := setup(t)
	return &enginetest.Subject{
		Engine: b.Engine, Spec: b.spec, Late: true, NoProcessLimit: true,
		Again: func(t testing.TB) node.Engine {
			t.Helper()
			return b.connect(t, b.cfg)
		},
		Silent: func(t testing.TB) (down, hangs node.Engine) {
			t.Helper()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			closed, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_ = closed.Close()
			t.Cleanup(func() { _ = l.Close() })
			at := func(l net.Listener) node.Engine {
				cfg := b.cfg
				cfg.Kubeconfig = b.kubeconfig(t, func(c *clientcmdapi.Config) {
					for _, cluster := range c.Clusters {
						cluster.Server = "https://" + l.Addr().String()
					}
				})
				return b.connect(t, cfg)
			}
			return at(closed), at(l)
		},
	}
}

// TestConformance checks that the package is an engine of workers, with the rights of a worker.
func TestConformance(t *testing.T) {
	t.Parallel()
	enginetest.Conformance(t, subject)
}

// calls notes which verbs of which resources are used.
type calls struct {
	mu   sync.Mutex
	seen map[string]int
}

// record notes the calls of an engine.
func record(e *Engine) *calls {
	c := &calls{seen: map[string]int{}}
	e.rest.Client = &http.Client{Transport: c.wrap(e.rest.Client.Transport)}
	e.exec = &http.Client{Transport: c.wrap(e.exec.Transport)}
	return c
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *calls) wrap(inner http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/apis/networking.k8s.io/v1/"), "/")
		if len(parts) > 2 && parts[0] == "namespaces" {
			parts = parts[2:]
		}
		verb := map[string]string{http.MethodPost: "create", http.MethodPatch: "patch", http.MethodDelete: "delete", http.MethodGet: "get"}[r.Method]
		switch {
		case r.URL.Query().Get("watch") != "":
			verb = "watch"
		case r.Method == http.MethodGet && len(parts) == 1:
			verb = "list"
		}
		resource := parts[0]
		if len(parts) > 2 {
			resource += "/" + parts[2]
		}
		c.mu.Lock()
		c.seen[verb+" "+resource]++
		c.mu.Unlock()
		return inner.RoundTrip(r)
	})
}

// take returns the calls since the last take, without those that all users may make.
func (c *calls) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = map[string]int{}
	delete(seen, "get ")
	return seen
}

// contextUntil is a context that ends when something holds.
func contextUntil(t *testing.T, holds func() bool) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		testbed.Until(t, "it holds", holds)
	}()
	return ctx, cancel
}
