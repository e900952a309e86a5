package placement

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestListedGPUs(t *testing.T) {
	t.Parallel()
	a100 := func(id string) farm.GPUDevice { return farm.GPUDevice{ID: id, Model: "a100", MemoryMB: 81920} }
	for name, c := range map[string]struct {
		items  []string
		want   []farm.GPUDevice
		listed bool
	}{
		"LookForThem": {},
		"None":        {items: []string{"none"}, listed: true},
		"One":         {items: []string{"model=A100,memory_mb=81920"}, want: []farm.GPUDevice{a100("0")}, listed: true},
		"Counted":     {items: []string{"model=NVIDIA A100,memory_mb=81920,count=2"}, want: []farm.GPUDevice{a100("0"), a100("1")}, listed: true},
		"EachForItself": {
			items: []string{"model=A100,memory_mb=81920", "model=T4,id=GPU-1", "model=T4"},
			want:  []farm.GPUDevice{a100("0"), {ID: "GPU-1", Model: "t4"}, {ID: "2", Model: "t4"}}, listed: true,
		},
		"CutByTheEnvironment": {
			items: []string{"model=A100", "memory_mb=81920", "model=T4", "id=7", "model=A100", "id=MIG-1", "memory_mb=81920"},
			want:  []farm.GPUDevice{a100("0"), {ID: "7", Model: "t4"}, a100("MIG-1")}, listed: true,
		},
		"Most": {items: []string{"model=A100,memory_mb=81920,count=63,model=T4,id=last"}, listed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, listed, err := listedGPUs(c.items)
			if name == "Most" {
				if err != nil || len(got) != farm.MaxGPUs {
					t.Errorf("%d devices, %v", len(got), err)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || listed != c.listed || diff != "" {
				t.Errorf("listed %v, %v\n%s", listed, err, diff)
			}
		})
	}
	for text, want := range map[string]string{
		"model=A100,count=64,model=T4": "65 devices; at most 64",
		"model=A100,count=65":          "1 to 64",
		"model=A100,count=0":           "1 to 64",
		"model=A100,memory_mb=0":       "1 to 104857600",
		"model=A100,memory_mb=80GB":    "1 to 104857600",
		"model=A100,id=a b":            "not an id",
		"model=A100,id=":               "not an id",
		"model=A100,id=1,count=2":      "1 twice",
		"model=A100,id=1,model=T4":     "1 twice",
		"id=3":                         `begins with "id"`,
		"model=--":                     "not a model",
		"A100":                         `begins with "A100"`,
		"none,model=A100":              `begins with "none"`,
		"model=A100,none":              `holds "none"`,
	} {
		if _, _, err := listedGPUs([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that holds %q", text, err, want)
		}
	}
}
