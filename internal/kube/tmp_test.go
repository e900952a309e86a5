//go:build kubernetes

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("API_ONLY") != "" {
		loadProbe = func() error { return nil }
		e, err := New(Config{Kubeconfig: os.Getenv("SANDFARM_TEST_KUBECONFIG"), Namespace: "default", AgentImage: probeImage})
		if err != nil {
			panic(err)
		}
		go func() {
			for {
				time.Sleep(50 * time.Millisecond)
				raw, err := e.rest.Get().AbsPath("/api/v1/namespaces").SetHeader("Accept", "application/json").Do(context.Background()).Raw()
				var l struct {
					Items []struct{ Metadata struct{ Name string } }
				}
				if err == nil {
					err = json.Unmarshal(raw, &l)
				}
				if err != nil {
					fmt.Println(err)
				}
				for _, n := range l.Items {
					_ = e.rest.Post().AbsPath("/api/v1/namespaces", n.Metadata.Name, "serviceaccounts").SetHeader("Content-Type", "application/json").Body([]byte(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`)).Do(context.Background()).Error()
				}
			}
		}()
	}
	os.Exit(m.Run())
}

func TestTmpGated(t *testing.T) {
	b := setup(t)
	id, err := b.Identify(t.Context())
	t.Logf("%+v %v", id, err)
	s := b.spec(t, "wait")
	c, err := b.Create(t.Context(), s)
	t.Log(c, err)
	again, err := b.Create(t.Context(), s)
	t.Log(again, err)
	i, err := b.Inspect(t.Context(), c)
	t.Logf("%+v %v", i, err)
	for range 2 {
		t.Log(b.Note(t.Context(), s.SandboxID, "tenant-x", map[string]string{"a": "b"}))
	}
	t.Log(b.Note(t.Context(), "sbx_none", "tenant-x", nil))
	n, err := b.Noted(t.Context(), i)
	t.Logf("%+v %v", n, err)
	t.Log(b.Notes(t.Context()))
	t.Log(b.List(t.Context()))
	s.Generation = 2
	c2, err := b.Create(t.Context(), s)
	t.Log(c2, err)
	_, err = b.Inspect(t.Context(), c)
	t.Log(err)
	s.Generation = 1
	_, err = b.Create(t.Context(), s)
	t.Log(err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	t.Log(b.Start(ctx, c))
	t.Log(b.Start(ctx, c2))
	t.Log(b.List(t.Context()))
	t.Log(b.Remove(t.Context(), c2))
	t.Log(b.Remove(t.Context(), b.Name(s.SandboxID)))
	t.Log(b.List(t.Context()))
	_, err = b.DialSocket(t.Context(), c2, "", []string{"x"}, "")
	t.Log(err)
	t.Log(b.Update(t.Context(), c2, "", s.Resources))
}
