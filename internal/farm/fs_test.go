package farm_test

import (
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
