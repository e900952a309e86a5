package queue_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A package that imports this one and the store must not compile the Redis client again, see tasks in asynq.go: it takes the compiler more
// than a second, for each of twenty packages, at every change of a package that all import.
func TestImportersDoNotCompileTheRedisClient(t *testing.T) {
	t.Parallel()
	for name, compiles := range map[string]bool{"queue": true, "dispatch": false} {
		path, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-f", "{{.Export}}", "github.com/sandfarm/sandfarm/internal/"+name).Output()
		if err != nil {
			t.Fatalf("compile %s: %v", name, err)
		}
		object, err := os.ReadFile(strings.TrimSpace(string(path)))
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(object, []byte("redis/go-redis/v9.baseClient;")); got != compiles {
			t.Errorf("the object of %s has code of the Redis client: %v, want %v", name, got, compiles)
		}
	}
}
