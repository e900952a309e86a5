package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/config"
)

// pair can be written as text or as a table.
type pair struct {
	Name string
	Sum  string `secret:"true"`
}

func (p *pair) UnmarshalText(b []byte) error {
	name, sum, ok := strings.Cut(string(b), ":")
	if !ok {
		return errors.New(`want "name:sum"`)
	}
	p.Name, p.Sum = name, sum
	return nil
}

func TestStructsCanBeTextOrTables(t *testing.T) {
	t.Parallel()
	type target struct{ Keys []pair }
	for name, c := range map[string]struct {
		file, env string
		want      []pair
		problem   string
	}{
		"Env":       {"", "a:1, b:2", []pair{{"a", "1"}, {"b", "2"}}, ""},
		"FileText":  {`keys = ["a:1"]`, "", []pair{{"a", "1"}}, ""},
		"Tables":    {"[[keys]]\nname = \"a\"\nsum = \"1\"", "", []pair{{"a", "1"}}, ""},
		"Mixed":     {`keys = ["a:1", { name = "b", sum = "2" }]`, "", []pair{{"a", "1"}, {"b", "2"}}, ""},
		"BadText":   {`keys = ["hunter2"]`, "", nil, `want "name:sum"`},
		"BadEnv":    {"", "a:1,hunter2", nil, `keys (SANDFARM_KEYS): has entry 2, which is not allowed: want "name:sum"`},
		"BadTable":  {"[[keys]]\nnam = \"a\"", "", []pair{{}}, "keys[0].nam"},
		"BadEither": {`keys = [{ name = "b" }, 3]`, "", []pair{{Name: "b"}, {}}, "keys[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got target
			err := config.Load(&got, config.Options{File: write(t, c.file), Environ: []string{"SANDFARM_KEYS=" + c.env}})
			if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("Load = %v, want %q", err, c.problem)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") { // it may be a key, given in place of its name and sum
				t.Errorf("a secret is shown: %v", err)
			}
			if diff := cmp.Diff(c.want, got.Keys); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultsOfTheTarget(t *testing.T) {
	t.Parallel()
	type limits struct {
		Bytes   int64             `json:"max_bytes"`
		Share   float64           `json:"share,omitempty"`
		Every   time.Duration     `json:"-"`
		Names   []string          `toml:"names"`
		Labels  map[string]string `toml:"labels"`
		On      bool              `toml:"on"`
		Secret  string            `secret:"true" toml:"secret"`
		Nothing int               `toml:"nothing"`
	}
	held := limits{
		Bytes: 16 << 20, Share: 0.05, Every: 24 * time.Hour, Names: []string{"a", "b"},
		Labels: map[string]string{"k": "v", "a": "b"}, On: true, Secret: "hunter2",
	}
	want := map[string]string{
		"max_bytes": "16777216", "share": "0.05", "every": "24h", "names": "a,b", "labels": "a=b,k=v", "on": "true",
		"secret": "", "nothing": "",
	}
	got := map[string]string{}
	for _, s := range config.Names(&held) {
		got[s.Key] = s.Default
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	text := setting.ReplaceAllString(config.Example(&held), "$1")
	var back limits
	if err := config.Load(&back, config.Options{File: write(t, text), Environ: []string{}}); err != nil {
		t.Fatal(err)
	}
	held.Secret = ""
	if diff := cmp.Diff(held, back); diff != "" {
		t.Errorf("the example, read back (-want +got):\n%s", diff)
	}
}
