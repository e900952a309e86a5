package farm_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestCleanFSPath(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", farm.MaxNameBytes)
	long := strings.Repeat("/abcdefg", farm.MaxPathBytes/8) // 4000 bytes
	for given, want := range map[string]string{
		"": "/workspace", "a/b": "/workspace/a/b", "./a": "/workspace/a", "/": "/", "//etc//hosts/": "/etc/hosts", "/a/./b": "/a/b",
		"/" + name: "/" + name, long: long, "..a": "/workspace/..a",
	} {
		if got, err := farm.CleanFSPath(given); err != nil || got != want {
			t.Errorf("%.40q is %.40q, %v", given, got, err)
		}
	}
	for _, given := range []string{"..", "/a/../b", "a/..", "/a\x00b", "/\xff", "/" + name + "n", long + "x"} {
		if got, err := farm.CleanFSPath(given); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%.40q is %.40q, %v", given, got, err)
		}
	}
}

func TestLimitsOfMetadata(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[strconv.Itoa(i)] = ""
		}
		return out
	}
	for name, c := range map[string]struct {
		metadata map[string]string
		ok       bool
	}{
		"none": {nil, true}, "some": {map[string]string{"a-b_C.9": "a value"}, true},
		"pairs": {many(farm.MaxMetadata), true}, "pairs+1": {many(farm.MaxMetadata + 1), false},
		"key": {map[string]string{strings.Repeat("k", farm.MaxMetadataKey): ""}, true}, "key+1": {map[string]string{strings.Repeat("k", farm.MaxMetadataKey+1): ""}, false},
		"value": {map[string]string{"k": strings.Repeat("v", farm.MaxMetadataValue)}, true}, "value+1": {map[string]string{"k": strings.Repeat("v", farm.MaxMetadataValue+1)}, false},
		"empty key": {map[string]string{"": ""}, false}, "space in a key": {map[string]string{"a b": ""}, false},
		"newline": {map[string]string{"k": "a\nb"}, false}, "not ASCII": {map[string]string{"k": "ü"}, false}, "not UTF-8": {map[string]string{"k": "\xff"}, false},
	} {
		if err := farm.CheckMetadata(c.metadata); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
