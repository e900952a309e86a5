package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/config"
)

// FuzzLoad checks that no file and no environment value crashes the loader or returns an error other than Problems, and
// that every accepted value is within its bounds.
func FuzzLoad(f *testing.F) {
	f.Add("[api]\nlisten = \"x\"\n[[api.keys]]\ntenant = \"t-a\"\n", "5", "a=b")
	f.Add("log_level = 3\n[worker]\ncpus = inf\nslots = 9223372036854775807\n", "-1", ",=,")
	f.Add("api.labels.x = \"y\"\nworker = { slots = 1 }\n", "1e3", "=x")
	f.Add("a = 1979-05-27T07:32:00Z\n\"\" = [[1], {}]\n", "", "\x00")
	f.Fuzz(func(t *testing.T, file, number, pairs string) {
		name := filepath.Join(t.TempDir(), "f.toml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		var got target
		err := config.Load(&got, config.Options{File: name, Environ: []string{
			"SANDFARM_WORKER_SLOTS=" + number, "SANDFARM_WORKER_CPUS=" + number, "SANDFARM_API_LABELS=" + pairs, "SANDFARM_API_HOSTS=" + pairs,
		}})
		if err == nil && (got.Worker.Slots < 1 || got.Worker.Slots > 64 || got.API.Timeout <= 0) {
			t.Errorf("let through: %+v", got)
		}
		if _, ok := errors.AsType[config.Problems](err); err != nil && !ok {
			t.Errorf("error is %T: %v", err, err)
		}
	})
}
