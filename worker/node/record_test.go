package node

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestRecordLabelComesBackWithoutSecrets(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	s := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", CreatedAt: now, ExpiresAt: now.Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Env: map[string]string{"TOKEN": "secret value"}, TTLSeconds: 3600},
	}
	labels := Labels(s)
	if strings.Contains(labels[LabelRecord], "secret value") || s.Spec.Env["TOKEN"] != "secret value" {
		t.Fatalf("label %q, record %v", labels[LabelRecord], s.Spec.Env)
	}
	c := engine.Container{ID: "c1", SandboxID: s.ID, Tenant: "acme", Node: "n1", Labels: labels}
	got := RecordOf(c)
	if got == nil || got.Container != "c1" || got.Node != "n1" || !got.ExpiresAt.Equal(s.ExpiresAt) || got.Spec.Image != "python" {
		t.Fatalf("record is %+v", got)
	}
	if _, named := got.Spec.Env["TOKEN"]; !named {
		t.Error("the names of variables are kept")
	}
	for what, other := range map[string]engine.Container{
		"another sandbox": {SandboxID: "sbx_other", Tenant: "acme", Labels: labels},
		"another tenant":  {SandboxID: s.ID, Tenant: "other", Labels: labels},
		"no label":        {SandboxID: s.ID, Tenant: "acme"},
	} {
		if RecordOf(other) != nil {
			t.Errorf("%s: a record was read", what)
		}
	}
}
