//go:build kubernetes

package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A worker has exactly the rights that it uses: the conformance suite runs with them, and here each is used. A sandbox costs at most six requests, and
// lists cost none.
func TestRole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made := record(b.Engine)
	if _, err := b.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context()); err != nil { // the watch begins
		t.Fatal(err)
	}
	used := made.take()
	testbed.Until(t, "the watch has begun", func() bool {
		for call, n := range made.take() {
			used[call] += n
		}
		return used["watch pods"] == 1
	})
	s := b.spec(t, "listen")
	id, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Start(t.Context(), id), b.Note(t.Context(), s.SandboxID, "tenant-b", nil)); err != nil {
		t.Fatal(err)
	}
	link, err := b.DialSocket(t.Context(), id, "", []string{"/sandfarm/agent", "echo"}, "65533:65533")
	if err != nil {
		t.Fatal(err)
	}
	_ = link.Close()
	for range 3 {
		if list, err := b.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("list %+v, %v", list, err)
		}
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	cost := made.take()
	total := 0
	for call, n := range cost {
		used[call] += n
		if total += n; strings.HasPrefix(call, "list") || strings.HasPrefix(call, "watch") {
			t.Errorf("%d × %s", n, call)
		}
	}
	if total > 6 {
		t.Errorf("a sandbox cost %d requests: %v", total, cost)
	}
	t.Logf("requests of a sandbox: %v", cost)
	id, err = b.Create(t.Context(), b.spec(t, "wait"))
	if err == nil {
		err = b.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, inspected := b.Inspect(t.Context(), id)
	if err := errors.Join(inspected, b.Update(t.Context(), id, "", farm.Resources{MemoryMB: 300, CPUs: 0.3, PIDs: 64})); err != nil {
		t.Error(err)
	}
	for call, n := range made.take() {
		used[call] += n
	}
	var granted []string
	for _, object := range manifests(t) {
		if object["kind"] != "Role" {
			continue
		}
		for _, rule := range object["rules"].([]any) {
			for _, verb := range rule.(map[string]any)["verbs"].([]any) {
				for _, resource := range rule.(map[string]any)["resources"].([]any) {
					granted = append(granted, verb.(string)+" "+resource.(string))
				}
			}
		}
	}
	slices.Sort(granted)
	if diff := cmp.Diff(granted, slices.Sorted(maps.Keys(used))); diff != "" {
		t.Errorf("the rights of the role, and those that are used (-granted +used):\n%s", diff)
	}
}

// A cluster that cannot run sandboxes as they are meant says what is wrong, and what to do.
func TestBadClusters(t *testing.T) {
	t.Parallel()
	namespaced := func(kind, version, name string, spec map[string]any) map[string]any {
		return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
	}
	limit := func(item map[string]any) map[string]any {
		item["type"] = "Container"
		return namespaced("LimitRange", "v1", "x", map[string]any{"limits": []any{item}})
	}
	identify := func(b *bundle) error {
		_, err := b.Identify(t.Context())
		return err
	}
	create := func(b *bundle) error {
		_, err := b.Create(t.Context(), b.spec(t, "wait"))
		return err
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, *bundle)
		try   func(*bundle) error
		code  farm.Code
		says  string
	}{
		"NoNetworkPolicy": {func(t *testing.T, b *bundle) {
			if err := b.admin.Delete().AbsPath("/apis/networking.k8s.io/v1/namespaces", b.cfg.Namespace, "networkpolicies", PolicyName).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}, identify, farm.CodeConflict, "has no NetworkPolicy sandfarm-sandboxes"},
		"OpenNetworkPolicy": {func(t *testing.T, b *bundle) {
			body := []byte(`{"spec":{"egress":[{}]}}`)
			if err := b.admin.Patch("application/merge-patch+json").AbsPath("/apis/networking.k8s.io/v1/namespaces", b.cfg.Namespace, "networkpolicies", PolicyName).Body(body).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}, identify, farm.CodeConflict, "does not deny all traffic"},
		"LimitRangeTooSmall": {func(t *testing.T, b *bundle) {
			object := limit(map[string]any{"max": map[string]any{"memory": "32Mi"}})
			b.apply(t, collection(t, object, b.cfg.Namespace), object)
		}, identify, farm.CodeConflict, "maximum memory usage per Container"},
		"LimitRangeAtCreate": {func(t *testing.T, b *bundle) {
			object := limit(map[string]any{"max": map[string]any{"memory": "100Mi"}})
			b.apply(t, collection(t, object, b.cfg.Namespace), object)
		}, create, farm.CodeConflict, "maximum memory usage per Container"},
		"FullQuota": {func(t *testing.T, b *bundle) {
			object := namespaced("ResourceQuota", "v1", "x", map[string]any{"hard": map[string]any{"pods": "0"}})
			b.apply(t, collection(t, object, b.cfg.Namespace), object)
			testbed.Until(t, "the quota is in force", func() bool {
				raw, err := b.admin.Get().AbsPath("/api/v1/namespaces", b.cfg.Namespace, "resourcequotas/x").SetHeader("Accept", "application/json").Do(t.Context()).Raw()
				return err == nil && bytes.Contains(raw, []byte(`"used"`))
			})
		}, create, farm.CodeExhausted, "exceeded quota"},
		"FullQuotaIsNoReasonNotToStart": {func(t *testing.T, b *bundle) {
			object := namespaced("ResourceQuota", "v1", "x", map[string]any{"hard": map[string]any{"pods": "0"}})
			b.apply(t, collection(t, object, b.cfg.Namespace), object)
		}, identify, "", ""},
		"NamespaceEnds": {func(t *testing.T, b *bundle) {
			object := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "holds", "finalizers": []any{"sandfarm.test/holds"}}}
			b.apply(t, collection(t, object, b.cfg.Namespace), object)
			t.Cleanup(func() {
				_ = b.admin.Patch("application/merge-patch+json").AbsPath("/api/v1/namespaces", b.cfg.Namespace, "configmaps/holds").Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(t.Context()).Error()
			})
			if err := b.admin.Delete().AbsPath("/api/v1/namespaces", b.cfg.Namespace).Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}, create, farm.CodeUnavailable, "is being deleted"},
		"NoRuntimeClass": {func(*testing.T, *bundle) {}, func(b *bundle) error {
			_, err := b.Identify(t.Context(), "kata")
			return err
		}, farm.CodeConflict, `no RuntimeClass "kata"`},
		"NoRights": {func(t *testing.T, b *bundle) {
			if err := b.admin.Delete().AbsPath("/apis/rbac.authorization.k8s.io/v1/namespaces", b.cfg.Namespace, "rolebindings/sandfarm-worker").Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}, identify, farm.CodeConflict, "cannot get resource"},
		"NoImage": {func(*testing.T, *bundle) {}, func(b *bundle) error {
			s := b.spec(t, "wait")
			s.Image = "registry.invalid/none@sha256:" + strings.Repeat("0", 64)
			id, err := b.Create(t.Context(), s)
			if err != nil {
				return err
			}
			return b.Start(t.Context(), id)
		}, farm.CodeNotFound, "cannot be pulled"},
		"NoProgram": {func(*testing.T, *bundle) {}, func(b *bundle) error {
			s := b.spec(t, "wait")
			s.Command = []string{"/no/such/program"}
			id, err := b.Create(t.Context(), s)
			if err == nil {
				err = b.Start(t.Context(), id)
			}
			return err
		}, farm.CodeConflict, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			c.spoil(t, b)
			err := c.try(b)
			if farm.CodeOf(err) != c.code || err != nil && !strings.Contains(farm.MessageOf(err), c.says) {
				t.Errorf("code %q (%v), want %q and %q", farm.CodeOf(err), err, c.code, c.says)
			}
		})
	}
}

// A webhook that adds a sidecar to the Pods of the namespace keeps the worker from starting, and the Pod of a sandbox does not stay.
func TestSidecar(t *testing.T) {
	t.Parallel()
	b := setup(t)
	patch := base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/spec/containers/-","value":{"name":"proxy","image":"proxy"}}]`))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		_ = json.NewDecoder(r.Body).Decode(&review)
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`, review.Request.UID, patch)
	}))
	host := bridge(t)
	made := certificate(t, time.Now().Add(time.Hour), host)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{made}}
	l, err := net.Listen("tcp", net.JoinHostPort(host.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = l
	server.StartTLS()
	t.Cleanup(server.Close)
	b.apply(t, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": b.cfg.Namespace},
		"webhooks": []any{map[string]any{
			"name": "sidecar.sandfarm.test", "admissionReviewVersions": []any{"v1"}, "sideEffects": "None",
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": b.cfg.Namespace}},
			"rules":             []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"pods"}}},
			"clientConfig": map[string]any{
				"url": "https://" + l.Addr().String(), "caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}),
			},
		}},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = b.admin.Delete().AbsPath("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", b.cfg.Namespace).Do(ctx).Error()
	})
	testbed.Until(t, "the API server asks the webhook", func() bool {
		_, err := b.Identify(t.Context())
		return err != nil
	})
	// The restricted standard refuses the sidecar as it is; without the standard the farm does.
	if err := b.admin.Patch(types.MergePatchType).AbsPath("/api/v1/namespaces", b.cfg.Namespace).Body([]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, "the standard is gone", func() bool {
		_, err := b.Identify(t.Context())
		return err != nil && strings.Contains(err.Error(), "spec.containers")
	})
	if _, err := b.Create(t.Context(), b.spec(t, "wait")); farm.CodeOf(err) != farm.CodeConflict || !strings.Contains(err.Error(), "spec.containers") {
		t.Errorf("create: %v", err)
	}
	if list, err := b.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// bridge is the address at which the cluster reaches this machine.
func bridge(t *testing.T) net.IP {
	t.Helper()
	card, err := net.InterfaceByName("docker0")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := card.Addrs()
	if err != nil || len(addresses) == 0 {
		t.Fatalf("addresses of docker0: %v, %v", addresses, err)
	}
	return addresses[0].(*net.IPNet).IP
}

// A Pod for which there is no room waits, and its create says why.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.spec(t, "wait")
	s.Resources.CPUs = 1_000_000
	id, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextUntil(t, func() bool {
		p := b.pods.get(b.Name(s.SandboxID))
		return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == "Unschedulable"
	})
	defer cancel()
	if err := b.Start(ctx, id); farm.CodeOf(err) != farm.CodeExhausted || !strings.Contains(err.Error(), "Insufficient cpu") {
		t.Errorf("start: %v", err)
	}
	if c, err := b.Inspect(t.Context(), id); err != nil || c.Running {
		t.Errorf("%+v, %v", c, err)
	}
}
