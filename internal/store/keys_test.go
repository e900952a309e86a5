package store_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// db/keys.go owns the names of keys: no script and no other Go code joins a name to the prefix of the farm or of a slot.
func TestKeysHaveOneOwner(t *testing.T) {
	t.Parallel()
	joins := map[string]*regexp.Regexp{
		".lua": regexp.MustCompile(`\b[PG] *\.\.|\.\. *[PG]\b|KEYS\[\d\] *\.\.`),
		".go":  regexp.MustCompile(`refix *\+ *"|"[^"\n]*\}:[a-z"]`),
	}
	seen := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == "storetest" {
			return errSkip(err)
		}
		join := joins[filepath.Ext(file)]
		if join == nil || file == "db/keys.go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, map[string]string{".lua": "--", ".go": "// "}[filepath.Ext(file)])
			if join.MatchString(code) {
				t.Errorf("%s:%d makes a key of its own: %s", file, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil || seen < 50 {
		t.Errorf("looked at %d files: %v", seen, err)
	}
}

// errSkip skips a folder unless it could not be read.
func errSkip(err error) error {
	if err == nil {
		return fs.SkipDir
	}
	return err
}

// A tenant with the name of a slot of the farm would have its keys among those of the farm.
func TestNoTenantHasASlotOfTheFarm(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("db/keys.go")
	if err != nil {
		t.Fatal(err)
	}
	slots := regexp.MustCompile(`(?m)^\tSlot\w+ += "([^"]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(slots) < 9 {
		t.Fatalf("only %d slots were found: the pattern is wrong", len(slots))
	}
	for _, slot := range slots {
		if farm.ValidTenant(slot[1]) {
			t.Errorf("%s can be the name of a tenant", slot[1])
		}
	}
}
