package server

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

func TestTheUserHasAName(t *testing.T) {
	t.Parallel()
	run, work := t.TempDir(), t.TempDir()
	for range 2 { // a restarted agent finds the existing files
		s, err := New(Config{Workspace: work, RunDir: run, HomeDir: work, TmpDir: work, Env: []string{"PATH=/usr/bin:/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"passwd": fmt.Sprintf("user:x:%d:%d:user:%s:%s\n", os.Getuid(), os.Getgid(), work, process.LookPath(s.cfg.Env, "bash")),
			"group":  fmt.Sprintf("user:x:%d:\n", os.Getgid()),
		} {
			if got, err := os.ReadFile(filepath.Join(run, "accounts", name)); err != nil || string(got) != want {
				t.Errorf("%s is %q, %v; want %q", name, got, err, want)
			}
		}
	}
}
