package farm_test

import (
	"math"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestQuotasByName(t *testing.T) {
	t.Parallel()
	defaults := farm.DefaultQuotas()
	for i, name := range farm.QuotaNames() {
		if got := defaults.Get(name); got != farm.NoQuota && name != farm.QuotaQueued {
			t.Errorf("%s is %v by default: a farm of one tenant needs no quotas", name, got)
		}
		q := farm.DefaultQuotas()
		q.Set(name, float64(i+5))
		for _, other := range farm.QuotaNames() {
			if want := map[bool]float64{true: float64(i + 5), false: defaults.Get(other)}[other == name]; q.Get(other) != want {
				t.Errorf("after %s was set, %s is %v, want %v", name, other, q.Get(other), want)
			}
		}
	}
	if err := defaults.Validate(); err != nil {
		t.Errorf("default quotas: %v", err)
	}
}

func TestCheckQuota(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  farm.QuotaName
		value float64
		ok    bool
	}{
		{farm.QuotaSandboxes, -1, true},
		{farm.QuotaSandboxes, 0, true},
		{farm.QuotaSandboxes, farm.MaxQuota, true},
		{farm.QuotaSandboxes, farm.MaxQuota + 1, false},
		{farm.QuotaSandboxes, -2, false},
		{farm.QuotaSandboxes, 1.5, false},
		{farm.QuotaCPUs, 1.5, true},
		{farm.QuotaCPUs, -0.5, false},
		{farm.QuotaCPUs, math.NaN(), false},
		{farm.QuotaCPUs, math.Inf(1), false},
		{"max_cats", 1, false},
	} {
		err := farm.CheckQuota(c.name, c.value)
		if (err == nil) != c.ok || err != nil && farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("CheckQuota(%s, %v) = %v", c.name, c.value, err)
		}
	}
}

func TestQuotaErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, name := range farm.QuotaNames() {
		err := farm.QuotaError(farm.QuotaUse{Name: name, Limit: 2.5, Used: 2}, 1)
		if err.Code != farm.CodeExhausted || err.Quota == nil || !strings.Contains(err.Message, string(name)) || !strings.Contains(err.Message, "2.5") ||
			name != farm.QuotaRunning && strings.Contains(err.Message, ". ,") { // max_running refuses nothing
			t.Errorf("%+v", err)
		}
	}
}
