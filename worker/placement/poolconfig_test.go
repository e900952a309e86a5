package placement

import (
	"maps"
	"strings"
	"testing"
)

func TestPoolTargets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[poolKey]int{
		"": {}, "none": {}, "auto": {}, "python=0": {{image: "python"}: 0}, "python=2,node=1": {{image: "python"}: 2, {image: "node"}: 1}, "python=1000": {{image: "python"}: 1000},
		"python=2,python@runsc=1": {{image: "python"}: 2, {"python", "runsc"}: 1},
	} {
		got, err := Config{Pool: split(text)}.poolTargets()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q gives %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"python", "python=", "python=-1", "python=1001", "=2", "Python=1", "python=1,python=2", "auto,python=1", "none,auto", "python=two", "python@=1", "@runsc=1", "python@runsc=1,python@runsc=2", "python@run sc=1"} {
		if err := (Config{Pool: split(text), PoolFill: 2, MemoryOvercommit: 1, CPUOvercommit: 1}).Validate(); err == nil {
			t.Errorf("%q is allowed", text)
		}
	}
	for fill, ok := range map[int]bool{-1: false, 1: true, 64: true, 65: false} {
		if err := (Config{PoolFill: fill, MemoryOvercommit: 1, CPUOvercommit: 1}).Validate(); (err == nil) != ok {
			t.Errorf("pool_fill %d: %v", fill, err)
		}
	}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
