package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/config"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type tenant string

func (t *tenant) UnmarshalText(b []byte) error {
	if !strings.HasPrefix(string(b), "t-") {
		return errors.New(`want a name that begins with "t-"`)
	}
	*t = tenant(b)
	return nil
}

type key struct {
	Tenant tenant `toml:"tenant"`
	SHA256 string `secret:"true" toml:"sha256"`
	Weight int    `default:"7" max:"9" toml:"weight"`
}

type target struct {
	Common
	API    apiSection `doc:"The server." toml:"api"`
	Worker workerSection
}

// Common is embedded: its settings have no section.
type Common struct {
	Level string `default:"info" doc:"What is logged." oneof:"debug info warn" toml:"log_level"`
}

type apiSection struct {
	Listen  string            `default:"127.0.0.1:8000" doc:"Where to listen." toml:"listen"`
	Timeout time.Duration     `default:"30s" doc:"How long." max:"1h" min:"1s" toml:"timeout"`
	Hosts   []string          `default:"localhost, 127.0.0.1" doc:"Names." toml:"hosts"`
	Keys    []key             `doc:"Keys." toml:"keys"`
	Owners  []tenant          `doc:"Owners." toml:"owners"`
	Labels  map[string]string `default:"a=b" doc:"Labels." toml:"labels"`
	Secret  string            `doc:"Not shown." secret:"true" toml:"secret"`
	Pin     int               `default:"1" max:"9999" secret:"true" toml:"pin"`
}

type workerSection struct {
	Slots    int     `default:"4" doc:"Jobs at once." max:"64" min:"1" toml:"slots"`
	Small    int8    `toml:"small"`
	Size     uint32  `toml:"size"`
	CPUs     float64 `default:"0.5" toml:"cpus"`
	Pull     bool    `default:"true" toml:"pull"`
	IndexURL string  `default:"https://pypi.org/simple" env:"SANDFARM_PYPI_INDEX_URL"`
	Hidden   string  `toml:"-"`
	FileOnly string  `env:"-" toml:"file_only"`
}

func defaultTarget() target {
	var want target
	want.Level = "info"
	want.API = apiSection{
		Listen: "127.0.0.1:8000", Timeout: 30 * time.Second, Hosts: []string{"localhost", "127.0.0.1"},
		Labels: map[string]string{"a": "b"}, Pin: 1,
	}
	want.Worker = workerSection{Slots: 4, CPUs: 0.5, Pull: true, IndexURL: "https://pypi.org/simple"}
	return want
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "sandfarm.toml")
	testbed.Must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestLoadSetsDefaults(t *testing.T) {
	t.Parallel()
	got := target{Worker: workerSection{Hidden: "kept", FileOnly: "kept"}}
	testbed.Must(t, config.Load(&got, config.Options{Environ: []string{}}))
	want := defaultTarget()
	want.Worker.Hidden, want.Worker.FileOnly = "kept", "kept"
	testbed.Diff(t, "settings", want, got)
}

func TestLoadOrder(t *testing.T) {
	t.Parallel()
	file := write(t, `
log_level = "warn"
[api]
listen = "0.0.0.0:1"
timeout = "5m"
hosts = []
owners = ["t-a", "t-b"]
labels = { team = "x y", site = "z" }
secret = "s"
[[api.keys]]
tenant = "t-acme"
sha256 = "00"
[[api.keys]]
tenant = "t-other"
weight = 9
[worker]
slots = 1
small = -128
size = 4294967295
cpus = 2
pull = false
index_url = "http://one/simple"
file_only = "yes"
`)
	got := target{}
	err := config.Load(&got, config.Options{File: file, Environ: []string{
		"SANDFARM_API_LISTEN=[::1]:9", "SANDFARM_PYPI_INDEX_URL=http://two/simple", "SANDFARM_WORKER_INDEX_URL=http://three",
		"SANDFARM_WORKER_SLOTS=64", "SANDFARM_WORKER_FILE_ONLY=no", "SANDFARM_WORKER_PULL=1", "SANDFARM_API_TIMEOUT=",
		"SANDFARM_API_LABELS=k=v=w, l = m ,", "SANDFARM_API_OWNERS= t-c ,,t-d", "OTHER=1", "SANDFARM_WORKER_CPUS=1.5",
	}})
	testbed.Must(t, err)
	var want target
	want.Level = "warn"
	want.API = apiSection{
		Listen: "[::1]:9", Timeout: 5 * time.Minute, Hosts: []string{}, Owners: []tenant{"t-c", "t-d"},
		Keys:   []key{{Tenant: "t-acme", SHA256: "00", Weight: 7}, {Tenant: "t-other", Weight: 9}},
		Labels: map[string]string{"k": "v=w", "l": "m"}, Secret: "s", Pin: 1,
	}
	want.Worker = workerSection{
		Slots: 64, Small: -128, Size: 4294967295, CPUs: 1.5, Pull: true, IndexURL: "http://two/simple", FileOnly: "yes",
	}
	testbed.Diff(t, "settings", want, got)
}

func TestLoadReportsEveryProblem(t *testing.T) {
	t.Parallel()
	file := write(t, `
log_level = "loud"
colour = true
[api]
listn = "x"
listen = 8000
timeout = 30
hosts = "one"
labels = { a = 1 }
pin = 10000
keys = [ { tenant = "acme", sha256 = "abc", weight = 10, extra = 1 } ]
[worker]
slots = 65
small = 200
size = -1
cpus = nan
pull = "yes"
`)
	got := target{}
	err := config.Load(&got, config.Options{File: file, Environ: []string{
		"SANDFARM_API_TIMEOUT=soon", "SANDFARM_WORKER_SLOTS=0", "SANDFARM_API_PIN=hunter2",
		"SANDFARM_API_OWNERS=t-a,b", "SANDFARM_API_LABELS=novalue", "SANDFARM_WORKER_SIZE=1.5",
	}})
	problems, ok := errors.AsType[config.Problems](err)
	if !ok {
		t.Fatalf("error is %T (%v), want Problems", err, err)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, strings.ReplaceAll(p.String(), file, "FILE"))
	}
	want := []string{
		`api.hosts = "one" (FILE): is not a list; allowed: ["one", "two"]`,
		`api.keys[0].extra (FILE): is not a setting; allowed here: tenant, sha256, weight`,
		`api.keys[0].tenant = "acme" (FILE): is not allowed: want a name that begins with "t-"`,
		`api.keys[0].weight = 10 (FILE): is out of range; allowed: at most 9`,
		`api.labels = map[a:1] (FILE): has a a that is not text`,
		`api.listen = 8000 (FILE): is not text; write it in quotes`,
		`api.listn (FILE): is not a setting; did you mean listen?`,
		`api.pin (FILE): is out of range; allowed: at most 9999`,
		`api.timeout = 30 (FILE): is not a duration; allowed: a number with its unit in quotes, as "30s"`,
		`colour (FILE): is not a setting; allowed here: log_level, api, worker`,
		`log_level = "loud" (FILE): is not allowed; allowed: debug, info, warn`,
		`worker.cpus = NaN (FILE): is not a number; allowed: as 4 or 0.5, without quotes`,
		`worker.pull = "yes" (FILE): is not a switch; allowed: true or false, without quotes`,
		`worker.size = -1 (FILE): is not a whole number; allowed: 0 to 4294967295, without quotes`,
		`worker.slots = 65 (FILE): is out of range; allowed: 1 to 64`,
		`worker.small = 200 (FILE): is not a whole number; allowed: -128 to 127, without quotes`,
		`api.timeout = "soon" (SANDFARM_API_TIMEOUT): is not a duration; allowed: a number with its unit, as "500ms", "30s", "5m" or "24h"`,
		`api.owners = "t-a,b" (SANDFARM_API_OWNERS): has "b" in it, which is not allowed: want a name that begins with "t-"`,
		`api.labels = "novalue" (SANDFARM_API_LABELS): has "novalue" in it, which is not a pair; allowed: "name=value,name=value"`,
		`api.pin (SANDFARM_API_PIN): does not hold what is allowed (at most 9999)`,
		`worker.slots = "0" (SANDFARM_WORKER_SLOTS): is out of range; allowed: 1 to 64`,
		`worker.size = "1.5" (SANDFARM_WORKER_SIZE): is not a whole number; allowed: 0 to 4294967295`,
	}
	testbed.Diff(t, "problems", want, lines)
	if text := err.Error(); !strings.HasPrefix(text, "22 problems in the configuration:\n  api.hosts") || strings.Contains(text, "hunter2") {
		t.Errorf("error text = %q", text)
	}
}

func TestLoadFileFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, want string }{
		"Absent":    {filepath.Join(t.TempDir(), "none.toml"), "no such file"},
		"Directory": {t.TempDir(), "not a configuration file"},
		"Syntax":    {write(t, "a = 1\nb = \n"), "line 2"},
		"TwiceAKey": {write(t, "[api]\n[api]\n"), "api"},
		"NotATable": {write(t, "api = 3\n"), "write [api] on a line of its own"},
		"NoTables":  {write(t, "[api]\nkeys = 3\n"), "write [[api.keys]] above each"},
		"MixedList": {write(t, "[api]\nkeys = [1]\n"), "api.keys[0]"},
		"TooLarge":  {write(t, "#"+strings.Repeat("x", 4<<20)), "at most 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := target{}
			err := config.Load(&got, config.Options{File: c.file, Environ: []string{"SANDFARM_WORKER_SLOTS=x"}})
			problems, ok := errors.AsType[config.Problems](err)
			if !ok || len(problems) != 2 || !strings.Contains(problems[0].String(), c.want) || problems[1].Key != "worker.slots" {
				t.Errorf("Load = %v, want a problem with %q and one of worker.slots", err, c.want)
			}
		})
	}
}

func TestLoadBounds(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"0": false, "1": true, "2": true, "63": true, "64": true, "65": false} {
		var got target
		err := config.Load(&got, config.Options{Environ: []string{"SANDFARM_WORKER_SLOTS=" + text}})
		testbed.Diff(t, fmt.Sprintf("slots %s: %v: accepted", text, err), ok, err == nil)
	}
}

func TestLoadRefusesStructsItCannotFill(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]any{
		"Nil":       nil,
		"NotAPtr":   target{},
		"NilPtr":    (*target)(nil),
		"PtrToInt":  new(int),
		"FuncField": &struct{ F func() }{},
		"PtrField":  &struct{ In struct{ P *int } }{},
	} {
		err := config.Load(v, config.Options{Environ: []string{}})
		if _, isProblems := errors.AsType[config.Problems](err); err == nil || isProblems {
			t.Errorf("%s: Load = %v, want a plain error", name, err)
		}
	}
}

func TestLoadNamesABadDefault(t *testing.T) {
	t.Parallel()
	var v struct {
		N int `default:"many"`
	}
	if err := config.Load(&v, config.Options{Environ: []string{}}); err == nil || !strings.Contains(err.Error(), `n = "many" (default)`) {
		t.Errorf("Load = %v", err)
	}
}

func TestLoadUsesThePrefix(t *testing.T) {
	t.Parallel()
	var got target
	err := config.Load(&got, config.Options{EnvPrefix: "X", Environ: []string{"X_API_LISTEN=a:1", "SANDFARM_API_LISTEN=b:2"}})
	if err != nil || got.API.Listen != "a:1" {
		t.Errorf("listen = %q, %v", got.API.Listen, err)
	}
}

func TestUnknownEnv(t *testing.T) {
	t.Parallel()
	got := config.UnknownEnv(&target{}, config.Options{Environ: []string{
		"SANDFARM_API_LISTN=1", "SANDFARM_API_LISTEN=1", "SANDFARM_URL=1", "SANDFARMER=1", "SANDFARM_PYPI_INDEX_URL=1", "SANDFARM_API_KEYS=1",
	}}, "SANDFARM_URL")
	testbed.Diff(t, "unknown", []string{"SANDFARM_API_KEYS", "SANDFARM_API_LISTN"}, got)
}

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
			testbed.Diff(t, "keys", c.want, got.Keys)
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
	testbed.Diff(t, "defaults", want, got)
	text := setting.ReplaceAllString(config.Example(&held), "$1")
	var back limits
	testbed.Must(t, config.Load(&back, config.Options{File: write(t, text), Environ: []string{}}))
	held.Secret = ""
	testbed.Diff(t, "the example, read back", held, back)
}

// FuzzLoad checks that no file and no environment value crashes the loader or returns an error other than Problems, and
// that every accepted value is within its bounds.
func FuzzLoad(f *testing.F) {
	f.Add("[api]\nlisten = \"x\"\n[[api.keys]]\ntenant = \"t-a\"\n", "5", "a=b")
	f.Add("log_level = 3\n[worker]\ncpus = inf\nslots = 9223372036854775807\n", "-1", ",=,")
	f.Add("api.labels.x = \"y\"\nworker = { slots = 1 }\n", "1e3", "=x")
	f.Add("a = 1979-05-27T07:32:00Z\n\"\" = [[1], {}]\n", "", "\x00")
	f.Fuzz(func(t *testing.T, file, number, pairs string) {
		name := filepath.Join(t.TempDir(), "f.toml")
		testbed.Must(t, os.WriteFile(name, []byte(file), 0o600))
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
